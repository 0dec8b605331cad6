"""A consumer holds no more bytes than it may, however large the items are."""

from __future__ import annotations

from typing import Any

import mongoq
from tests.worker.conftest import Desk

LIMIT = 1024 * 1024
LARGE = "x" * 200_000
"""Five of them have less bytes than the limit, and six have more."""


def reserved_bytes(raw: Any, queue: str = "orders") -> int:
    """Return the bytes of what is reserved, as the server counts them."""
    groups = raw.aggregate(
        [
            {"$match": {"q": queue, "reserved": True}},
            {"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}},
        ]
    )
    return sum(group["bytes"] for group in groups)


def test_no_more_bytes_are_held_than_the_limit_says(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many([LARGE] * 40)
    sizes: list[int] = []

    async def handle(payload: str) -> None:
        sizes.append(reserved_bytes(raw))

    desk.consume("orders", handle, concurrency=2, prefetch_bytes=LIMIT)
    desk.run()
    assert len(sizes) == 40
    assert max(sizes) <= LIMIT
    assert max(sizes) > LIMIT // 2, "the limit is made use of"


def test_batches_are_smaller_where_items_are_large(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([LARGE] * 23)
    sizes: list[int] = []

    async def handle(payloads: list[str]) -> None:
        sizes.append(len(payloads))

    desk.consume("orders", handle, batch=20, prefetch_bytes=LIMIT)
    desk.run()
    assert sum(sizes) == 23
    assert max(sizes) <= 5


def test_one_item_runs_however_large_it_is(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many([LARGE] * 4)
    counts: list[int] = []

    async def handle(payload: str, job: Any) -> None:
        counts.append(raw.count_documents({"q": "orders", "reserved": True}))
        assert job.item.attempts == 1

    desk.consume("orders", handle, prefetch_bytes=1)
    desk.run()
    assert len(counts) == 4
    assert counts[1:] == [1, 1, 1], "of the first ones it was not known how large they are"


def test_a_stage_and_a_join_have_the_limit_as_well(broker: mongoq.Broker, raw: Any) -> None:
    for name in ("in", "a", "b"):
        broker.queue(name).push_many([LARGE] * 12)
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    sizes: list[int] = []

    @pipeline.sink("in", prefetch_bytes=LIMIT)
    def load(payload: str) -> None:
        sizes.append(reserved_bytes(raw, "in"))

    @pipeline.join(["a", "b"], on=None, prefetch_bytes=LIMIT)
    def pair(a: str, b: str, job: Any) -> None:
        sizes.append(reserved_bytes(raw, job.item.queue))

    pipeline.drain(broker)
    assert len(sizes) == 24
    assert max(sizes) <= LIMIT
    assert broker.queue("line.errors").size() == 0


def test_a_claim_takes_what_one_reply_holds_and_gives_back_the_rest(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    last = queue.push_many([[n, "x" * 1_000_000] for n in range(12)], priority=5)
    first = queue.push_many([[n, "x" * 1_000_000] for n in range(12)], priority=-5)
    ids = [item.id for item in queue.reserve_many(24)]
    assert ids == [*first, *last][: len(ids)], "in the order of claims"
    assert raw.count_documents({"q": "orders", "reserved": True}) == len(ids)
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 24 - len(ids)
