"""A worker under limits in a process of its own: prints the begin and the end of each run, and when it was.

    python limited.py URI DATABASE SECONDS OPTIONS

Its handler takes so many seconds; the options of its consumer are JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mongoq
from tests.worker.stoppable import say


def main(uri: str, database: str, seconds: float, options: dict[str, Any]) -> None:
    def handle(payload: Any) -> None:
        say("begin", time.time(), payload)
        time.sleep(seconds)
        say("end", time.time(), payload)

    with mongoq.connect(uri, database=database) as broker:
        worker = mongoq.Worker(broker)
        worker.consumer("orders", **options)(handle)
        say("ready")
        worker.run()
    say("stopped")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))
