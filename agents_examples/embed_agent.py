"""Embeds text: leases `embed` jobs, in batches, and answers with a real 256-dimension vector.

The model is the one inside the wheel of `wordllama`; nothing is downloaded.

    umask 077
    oaken token create embedder --role agent > embedder.token
    OAKEN_TOKEN=$(cat embedder.token) python -m agents_examples.embed_agent http://127.0.0.1:8787
"""

from __future__ import annotations

import argparse
import logging

from agents_examples.model import MODEL, embed
from oaken_swarm import JobContext, Worker

log = logging.getLogger("oaken.embed_agent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of the server (default: OAKEN_URL)")
    parser.add_argument("--agent", default="embedder", help="the name of the token (default: embedder)")
    parser.add_argument("--instance", help="tells agents of one name apart (default: made up)")
    parser.add_argument("--lease-seconds", type=float, help="how long a lease lasts without a heartbeat")
    parser.add_argument("--batch", type=int, default=16, help="texts embedded at once (default: 16)")
    options = parser.parse_args()
    worker = Worker(options.url, options.agent, instance=options.instance, lease_seconds=options.lease_seconds)

    @worker.batch_handler("embed", max=options.batch, linger=0.05)
    def embed_many(jobs: list[JobContext]) -> list[dict[str, object]]:  # pyright: ignore[reportUnusedFunction]
        vectors = embed([job.payload["text"] for job in jobs])
        log.info("embedded %d texts: jobs %s", len(jobs), ", ".join(str(job.id) for job in jobs))
        return [{"model": MODEL, "vector": vector} for vector in vectors]

    worker.run()


if __name__ == "__main__":
    main()
