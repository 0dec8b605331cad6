"""A consumer in a process of its own, whose claims go by hints: ``consumer.py URI DATABASE BATCH``.

It prints the ids of what it committed, and ends when nothing has come for a while. With a batch of 0 it pops.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import mongoq
from mongoq.protocol.state.claim_hints import ClaimHints

PATIENCE = 10.0
"""Seconds without an item after which it ends; the test pushes in rounds of milliseconds."""


def main(uri: str, database: str, batch: int) -> None:
    ClaimHints.is_slow = lambda *_: True  # type: ignore[method-assign]
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders")
        queue.peek(1)
        queue._context.state.claim_hints.fast = True
        queue._context.state.claim_hints.floors = queue._context.state.claim_hints.bounds_of(
            [], broker._context.clock.now()
        )
        last = time.monotonic()
        while time.monotonic() - last < PATIENCE:
            ids = _step(queue, batch)
            if ids:
                last = time.monotonic()
                print("\n".join(str(id) for id in ids), flush=True)


def _step(queue: Any, batch: int) -> list[Any]:
    if batch == 0:
        popped = queue.pop()
        return [] if popped is None else [popped.id]
    items = queue.reserve_many(batch)
    queue.commit_many(items)
    return [item.id for item in items]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
