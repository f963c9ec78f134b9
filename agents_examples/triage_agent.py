"""Labels text without training: compares it with a sentence that describes each label, by the same model as `embed_agent`.

umask 077
oaken token create triager --role agent > triager.token
OAKEN_TOKEN=$(cat triager.token) python -m agents_examples.triage_agent http://127.0.0.1:8787
"""

from __future__ import annotations

import argparse
import logging

from agents_examples.model import embed, similarity
from agents_examples.topics import CHARACTERS, TOPICS
from oaken_swarm import JobContext, Worker

log = logging.getLogger("oaken.triage_agent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of the server (default: OAKEN_URL)")
    parser.add_argument("--agent", default="triager", help="the name of the token (default: triager)")
    parser.add_argument("--instance", help="tells agents of one name apart (default: made up)")
    parser.add_argument("--lease-seconds", type=float, help="how long a lease lasts without a heartbeat")
    options = parser.parse_args()
    worker = Worker(options.url, options.agent, instance=options.instance, lease_seconds=options.lease_seconds)
    described = embed(list(TOPICS.values()))

    @worker.handler("triage", concurrency=2)
    def triage(job: JobContext) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        (vector,) = embed([f"{job.payload.get('title') or ''}\n{job.payload['text'][:CHARACTERS]}"])
        likeness = [similarity(vector, other) for other in described]
        best = max(range(len(likeness)), key=likeness.__getitem__)
        topic, confidence = list(TOPICS)[best], f"{likeness[best]:.2f}"
        log.info("job %d is about %s (%s)", job.id, topic, confidence)
        return {"labels": {"topic": topic, "confidence": confidence}}

    worker.run()


if __name__ == "__main__":
    main()
