#!/bin/sh
# A worker of curl and jq: runs a command for each job, one after the other.
#
#     OAKEN_TOKEN=$(cat shouter.token) agents_examples/worker.sh shout tr a-z A-Z
#
# The command has the payload on its standard input. What it writes is the result: a JSON object, or text. Exit code 0 completes the job, 65 fails
# it for good, any other fails the attempt with what stands on its standard error. Also read from the environment: OAKEN_URL, OAKEN_AGENT
# (NAME/INSTANCE, where NAME is the token's) and OAKEN_LEASE_SECONDS.
set -u

[ $# -ge 2 ] || { echo "usage: OAKEN_TOKEN=… $0 KIND COMMAND [ARGUMENT…]" >&2; exit 2; }
kind=$1
shift
base=${OAKEN_URL:-http://127.0.0.1:8787}
base=${base%/}/v1
umask 077
work=$(mktemp -d) || exit 1
# In a file, since all users of the machine can see the arguments of a command.
printf 'Authorization: Bearer %s\n' "${OAKEN_TOKEN:?is not set}" >"$work/token"

stopping='' polling='' running='' beating=''
trap 'rm -rf "$work"' EXIT
# The first signal stops in order, the next one at once.
trap 'stopping=1; trap - INT TERM; kill $polling $running 2>/dev/null' INT TERM

# Becomes curl: call it in a subshell or in the background. The body comes from a file; the answer goes to one, the status to standard output.
# curl waits and tries again by itself where the server is away or busy, as long as Retry-After says.
post() { # PATH BODY ANSWER TRIES SECONDS
    exec curl -sS --retry "$4" --retry-connrefused --max-time "$5" -H "@$work/token" -H 'Content-Type: application/json' \
        --data-binary "@$2" -o "$3" -w '%{http_code}' "$base$1"
}

code() { # ANSWER: what a refusal is called
    jq -r '.code // "unknown"' "$1" 2>/dev/null
}

beat() { # LEASE SECONDS: beats every so many seconds, and ends the command where the lease is lost or the job cancelled
    echo '{}' >"$work/empty"
    missed=0
    while sleep "$2"; do
        status=$(post "/leases/$1/heartbeat" "$work/empty" "$work/beat" 0 "$2") || status=000
        case $status in
        200)
            missed=0
            [ "$(jq .cancelling "$work/beat")" = true ] && { echo cancelled >"$work/why"; kill "$running"; return; } ;;
        000 | 429 | 5*)
            missed=$((missed + 1))
            [ $missed -ge 3 ] && { echo lost >"$work/why"; kill "$running"; return; } ;;
        *)
            echo lost >"$work/why"; kill "$running"; return ;;
        esac
    done
}

finish() { # LEASE VERB, with the body in $work/ending; the same ending twice is harmless
    status=$(post "/leases/$1/$2" "$work/ending" "$work/answer" 8 60) || status=000
    [ "$status" = 200 ] && return
    echo "$2 was not taken: $(code "$work/answer")" >&2
    case $2,$status in complete,400 | complete,413 | complete,422)
        jq -n --arg code "$(code "$work/answer")" '{error: "the result was refused: \($code)", permanent: true}' >"$work/ending"
        finish "$1" fail ;;
    esac
}

do_job() { # of the lease in $work/lease
    lease=$(jq -r '.leases[0].lease_id' "$work/lease")
    # A third of what the lease lasts, by the server's own times.
    third=$(jq '.leases[0] | def at: sub("[.][0-9]*Z$"; "Z") | fromdate; ((.expires_at | at) - (.job.started_at | at)) / 3 | if . < 0.3 then 0.3 else . end' "$work/lease")
    jq -c '.leases[0].job.payload' "$work/lease" >"$work/payload"
    rm -f "$work/why"
    "$@" <"$work/payload" >"$work/result" 2>"$work/errors" &
    running=$!
    beat "$lease" "$third" &
    beating=$!
    [ -n "$stopping" ] && kill "$running" 2>/dev/null
    wait "$running"
    exit_code=$?
    # A signal ends the wait before the command has ended.
    while kill -0 "$running" 2>/dev/null; do wait "$running"; exit_code=$?; done
    kill "$beating" 2>/dev/null
    wait "$beating" 2>/dev/null
    running=''
    echo '{}' >"$work/ending"
    case $(cat "$work/why" 2>/dev/null || echo "${stopping:+stopping}"),$exit_code in
    lost,*) echo "the lease of $lease is lost; nothing is written" >&2 ;;
    cancelled,*) finish "$lease" cancelled ;;
    ,0 | stopping,0)
        jq -sce 'if length == 1 and (.[0] | type) == "object" then {result: .[0]} else error end' "$work/result" >"$work/ending" 2>/dev/null ||
            jq -Rsc '{result: {text: .}}' "$work/result" >"$work/ending"
        finish "$lease" complete ;;
    stopping,*) finish "$lease" release ;;
    *)
        jq -Rsc --argjson code "$exit_code" '{error: "exit code \($code): \(.[-2000:])", permanent: ($code == 65)}' \
            "$work/errors" >"$work/ending"
        finish "$lease" fail ;;
    esac
}

jq -n --arg kind "$kind" --arg agent "${OAKEN_AGENT:-}" --arg seconds "${OAKEN_LEASE_SECONDS:-}" \
    '{kinds: [$kind], wait_seconds: 20} + if $agent == "" then {} else {agent: $agent} end
     + if $seconds == "" then {} else {lease_seconds: ($seconds | tonumber)} end' >"$work/asked"
while [ -z "$stopping" ]; do
    rm -f "$work/lease"
    post /leases "$work/asked" "$work/lease" 0 50 >"$work/status" &
    polling=$!
    [ -n "$stopping" ] && kill "$polling" 2>/dev/null
    wait "$polling"
    polling=''
    case $(cat "$work/status") in
    200) ;;
    401 | 403 | 422)
        echo "the server refuses this worker: $(jq -r .detail "$work/lease")" >&2
        exit 1 ;;
    *)
        [ -z "$stopping" ] && { echo "leasing failed; trying again" >&2; sleep 2; }
        continue ;;
    esac
    [ "$(jq '.leases | length' "$work/lease")" = 0 ] || do_job "$@"
done
