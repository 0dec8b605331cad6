"""Empties a queue of mongo-taskqueue: ``python taskqueue_consumer.py URI ITEMS``, with the interpreter that has it.

It imports nothing of the benchmark. It pushes the items, says that it is ready, begins when it reads a line, and prints
what it did as JSON.
"""

import json
import os
import sys
import time
from urllib.parse import urlsplit

from mongotq import get_task_queue


def main() -> None:
    uri, items = sys.argv[1], int(sys.argv[2])
    database = urlsplit(uri).path.lstrip("/")
    queue = get_task_queue(database, "tasks", uri, -1, visibility_timeout=30)
    queue.append_many([json.loads(os.environ["PAYLOAD"]) for _ in range(items)])
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.monotonic(), 0
    while (task := queue.next()) is not None:
        queue.on_success(task)
        done += 1
    print(json.dumps({"items": done, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
