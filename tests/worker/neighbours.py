"""A worker in a process of its own whose handler kills it for the payload ``"poison"``.

python neighbours.py URI DATABASE MAX_RETRIES [BATCH]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import mongoq


def main(uri: str, database: str, max_retries: int, batch: int | None = None) -> None:
    def handle(payload: Any) -> None:
        if payload == "poison" or (isinstance(payload, list) and "poison" in payload):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)

    with mongoq.connect(uri, database=database) as broker:
        worker = mongoq.Worker(broker)
        worker.consumer("orders", concurrency=8, lease=0.8, max_retries=max_retries, batch=batch)(handle)
        worker.run()


if __name__ == "__main__":
    uri, database, *numbers = sys.argv[1:]
    main(uri, database, *map(int, numbers))
