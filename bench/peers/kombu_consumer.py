"""Empties a queue of kombu: ``python kombu_consumer.py URI ITEMS``, with the interpreter that has kombu.

It imports nothing of the benchmark. It pushes the items, says that it is ready, begins when it reads a line, and prints
what it did as JSON.
"""

import json
import os
import sys
import time

from kombu import Connection, Consumer, Queue


def main() -> None:
    uri, items = sys.argv[1], int(sys.argv[2])
    payload, done = json.loads(os.environ["PAYLOAD"]), 0

    def handle(_: object, message: object) -> None:
        nonlocal done
        message.ack()  # type: ignore[attr-defined]
        done += 1

    with Connection(uri) as connection:
        queue = Queue("bench", routing_key="bench")
        with connection.Producer(serializer="json") as producer:
            declared = [queue]
            for _ in range(items):
                producer.publish(payload, routing_key="bench", declare=declared)
                declared = []
        with Consumer(connection, queues=[queue], callbacks=[handle], accept=["json"]):
            print("ready", flush=True)
            sys.stdin.readline()
            began = time.monotonic()
            while done < items:
                connection.drain_events(timeout=30)
            ended = time.monotonic()
    print(json.dumps({"items": done, "seconds": ended - began}))


if __name__ == "__main__":
    main()
