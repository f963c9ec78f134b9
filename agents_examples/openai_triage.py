"""Labels text by any address that speaks as OpenAI's `/v1/chat/completions` does: leases `triage` jobs and asks for one word.

umask 077
oaken token create triager --role agent > triager.token
export OPENAI_BASE_URL=http://127.0.0.1:11434/v1
OAKEN_TOKEN=$(cat triager.token) python -m agents_examples.openai_triage http://127.0.0.1:8787 --model qwen3:4b
"""

from __future__ import annotations

from agents_examples.openai_api import Api, options
from agents_examples.topics import CHARACTERS, TOPICS
from oaken_swarm import Done, JobContext, Worker

TASK = "You sort texts by topic. Answer with one of these words and nothing else.\n\n" + "\n".join(
    f"{topic}: {described}" for topic, described in TOPICS.items()
)


async def triage(api: Api, job: JobContext) -> Done:
    """The topic of a text. An answer that is none of them is a failed attempt, and asked for again."""
    text = f"{job.payload.get('title') or ''}\n\n{job.payload['text'][:CHARACTERS]}"
    # What the text says is no instruction: it stands in a message of its own, and only known words are taken for an answer.
    messages = [{"role": "system", "content": TASK}, {"role": "user", "content": text}]
    answer = await api.call("/chat/completions", {"messages": messages, "temperature": 0}, "chat", [job])
    said = str(answer.body["choices"][0]["message"]["content"]).strip().strip("\"'`.").lower()
    if said not in TOPICS:
        raise ValueError("the model answered none of the topics")
    return Done({"labels": {"topic": said}}, usage=answer.usage, cost_usd=answer.cost_usd, produced_by=answer.model)


def main() -> None:
    chosen = options(__doc__, "triager", "gpt-4.1-mini").parse_args()
    api = Api(chosen.model, chosen.price_in, chosen.price_out)
    worker = Worker(chosen.url, chosen.agent)

    @worker.handler("triage", concurrency=4)
    async def label(job: JobContext) -> Done:  # pyright: ignore[reportUnusedFunction]
        return await triage(api, job)

    worker.run()


if __name__ == "__main__":
    main()
