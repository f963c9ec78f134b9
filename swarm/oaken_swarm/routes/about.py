"""What this server is, knows and has seen: agents, kinds, the caller, itself."""

from __future__ import annotations

from oaken_jobs import __version__, auth, views
from oaken_jobs.model import ROLES
from oaken_jobs.requests import (
    MAX_LEASE_SECONDS,
    MAX_LEASES,
    MAX_PAGE,
    MAX_SECONDS,
    MAX_WAIT_SECONDS,
    AgentName,
    DrainRequest,
    EmptyRequest,
    Key,
    Request,
    read,
)
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.routes.jobs import shown_read

FEATURES = (
    "adopt",
    "ask",
    "batch",
    "bulk_enqueue",
    "bulk_manage",
    "drain",
    "idempotency",
    "intake",
    "join",
    "labels",
    "long_poll",
    "resume",
    "retriage",
    "serial_keys",
    "snapshot",
    "wait",
    "workspaces",
)


class SnapshotQuery(Request):
    """Of what one actor enqueued, or of everything."""

    actor: Key | None = None


async def snapshot(call: Call, asked: SnapshotQuery) -> Answer:
    found = await call.core.jobs.snapshot(call.who, asked.actor)
    return answer(
        {
            "now": views.iso(found.now),
            "counts": found.counts,
            "active": await shown_read(call, found.active),
            "recent": await shown_read(call, found.recent),
            "questions": [views.question(row) for row in found.questions],
        }
    )


async def drain(call: Call, asked: DrainRequest) -> Answer:
    agent = read(_Agent, {"agent": call.params["name"]}).agent
    changed = await call.core.jobs.drain(call.who, agent, asked.drain)
    # An instance may still be drained with all of its name.
    rows = await call.core.jobs.agents(call.who)
    draining = asked.drain or any(row.draining for row in rows if row.agent == agent)
    return answer({"agent": agent, "draining": draining, "changed": changed})


class _Agent(Request):
    agent: AgentName


async def agents(call: Call, asked: EmptyRequest) -> Answer:
    return answer({"agents": [views.agent(row) for row in await call.core.jobs.agents(call.who)]})


async def kinds(call: Call, asked: EmptyRequest) -> Answer:
    rules = call.core.jobs.rules
    return answer({"kinds": [views.kind(row, rules) for row in call.core.jobs.kinds(call.who)]})


async def me(call: Call, asked: EmptyRequest) -> Answer:
    who = call.who
    return answer(
        {
            "name": who.name,
            "actor": who.actor._asdict(),
            "workspace": who.workspace,
            "roles": [role for role in ROLES if role in who.roles],
            "limits": who.limits._asdict(),
            "may": [action for action in auth.MAY if auth.may(who, action)],
        }
    )


async def meta(call: Call, asked: EmptyRequest) -> Answer:
    rules = call.core.jobs.rules
    return answer(
        {
            "version": __version__,
            "features": FEATURES,
            "limits": {
                "max_payload_bytes": rules.max_payload_bytes,
                "max_result_bytes": rules.max_result_bytes,
                "max_batch": rules.max_batch,
                "max_leases": MAX_LEASES,
                "max_lease_seconds": MAX_LEASE_SECONDS,
                "max_wait_seconds": MAX_WAIT_SECONDS,
                "max_delay_seconds": MAX_SECONDS,
                "max_page": MAX_PAGE,
            },
            "plugins": [{"name": row.plugin, "healthy": row.healthy} for row in await call.core.store.plugin_health()],
        }
    )


ROUTES = (
    Route("GET", "/v1/snapshot", snapshot, SnapshotQuery, says="See how things stand", gives="Snapshot"),
    Route("GET", "/v1/agents", agents, says="List agents", gives="Agents"),
    Route(
        "POST",
        "/v1/agents/{name}/drain",
        drain,
        DrainRequest,
        needs="manage",
        repeats="itself",
        says="Give an agent nothing new, or again",
        gives="Drained",
    ),
    Route("GET", "/v1/kinds", kinds, says="List the kinds that are known", gives="Kinds"),
    Route("GET", "/v1/me", me, says="See who you are here", gives="Me"),
    Route("GET", "/v1/meta", meta, says="See what this server can do", gives="Meta"),
)
