"""``python -m examples.structured_logs``: the logs of a worker as JSON lines, by structlog (extra ``demo``).

Each record of mongoq that is about an item, a queue or a worker has fields for it, so that a log store can be asked for
all lines of one item. ``log_errors="type"`` keeps the messages of exceptions out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog

import mongoq
from examples.servers import server

__all__ = ["FIELDS", "configure", "main"]

FIELDS = ["mongoq_queue", "mongoq_item", "mongoq_attempt", "mongoq_worker", "mongoq_duration"]


def configure() -> None:
    """Let structlog format all records of ``logging``, with the fields of mongoq."""
    steps: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=FIELDS),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=steps, processors=last))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker with a job that fails, on a private MongoDB or on the one of the argument; return the exit code."""
    uris = list(sys.argv[1:] if arguments is None else arguments)
    configure()
    try:
        with server(uris[0] if uris else None) as uri, mongoq.connect(uri) as broker:
            mails = broker.queue("mails", max_retries=0)
            mails.push_many(["Ada", "Grace"])
            worker = mongoq.Worker(broker, log_errors="type")

            @worker.consumer(mails)
            def send(name: str) -> None:
                if name == "Grace":
                    raise ValueError(f"{name} has no address")

            worker.run(drain=True)
    except mongoq.MongoqError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
