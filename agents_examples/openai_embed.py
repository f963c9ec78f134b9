"""Embeds text by any address that speaks as OpenAI's `/v1/embeddings` does: leases `embed` jobs, up to 64 to one call.

umask 077
oaken token create embedder --role agent > embedder.token
export OPENAI_API_KEY=…
OAKEN_TOKEN=$(cat embedder.token) python -m agents_examples.openai_embed http://127.0.0.1:8787 --price-in 0.02
"""

from __future__ import annotations

from agents_examples.openai_api import Api, options, shares
from oaken_swarm import Done, JobContext, PermanentJobError, Worker


async def embed(api: Api, jobs: list[JobContext]) -> list[Done | Exception]:
    """A vector for each job. What the call took is shared by the lengths of the texts."""
    texts = [job.payload["text"] for job in jobs]
    try:
        answer = await api.call("/embeddings", {"input": texts}, "embeddings", jobs)
    except PermanentJobError as refusal:
        if len(jobs) == 1:
            return [refusal]
        # One text is at fault; the others must not suffer for it.
        half = len(jobs) // 2
        return [*await embed(api, jobs[:half]), *await embed(api, jobs[half:])]
    rows = sorted(answer.body["data"], key=lambda row: row["index"])
    if len(rows) != len(jobs):
        raise ValueError(f"{len(rows)} vectors came back for {len(jobs)} texts")
    lengths = [len(text) or 1 for text in texts]
    tokens = shares(answer.usage.get("prompt_tokens", 0), lengths)
    costs = [None] * len(jobs) if answer.cost_usd is None else shares(answer.cost_usd, lengths)
    return [
        Done(
            {"model": answer.model, "vector": row["embedding"]},
            usage={"prompt_tokens": count},
            cost_usd=cost,
            produced_by=answer.model,
        )
        for row, count, cost in zip(rows, tokens, costs, strict=True)
    ]


def main() -> None:
    chosen = options(__doc__, "embedder", "text-embedding-3-small").parse_args()
    api = Api(chosen.model, chosen.price_in, chosen.price_out)
    worker = Worker(chosen.url, chosen.agent)

    @worker.batch_handler("embed", max=64, linger=0.05)
    async def embed_many(jobs: list[JobContext]) -> list[Done | Exception]:  # pyright: ignore[reportUnusedFunction]
        return await embed(api, jobs)

    worker.run()


if __name__ == "__main__":
    main()
