"""A consumer holds no more bytes than it may, however large the items are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.item import Item
from mongoq.model.outcomes import Done
from mongoq.protocol.claim.reserve_many import claim_batch
from mongoq.protocol.flow import WakeEvent
from mongoq.worker.fetch_limits import ByteLimit
from tests.worker.conftest import Desk
from tests.worker.test_held import LEASE, NOW, make_backlog, payloads

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


def test_without_a_limit_only_the_number_counts(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many([LARGE] * 8)
    sizes: list[int] = []

    async def handle(payload: str) -> None:
        sizes.append(reserved_bytes(raw))

    desk.consume("orders", handle, prefetch=7, prefetch_bytes=None)
    desk.run()
    assert max(sizes) > LIMIT


def test_a_claim_takes_what_one_reply_holds_and_gives_back_the_rest(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    last = queue.push_many([[n, "x" * 1_000_000] for n in range(12)], priority=5)
    first = queue.push_many([[n, "x" * 1_000_000] for n in range(12)], priority=-5)
    claim = broker._driver.run(claim_batch(queue._context, 24, timedelta(seconds=30), over=lambda: False))
    assert claim is not None
    ids = [item.id for item in claim.items]
    assert ids == [*first, *last][: len(ids)], "in the order of claims"
    assert 1 <= len(ids) <= 16
    assert raw.count_documents({"q": "orders", "reserved": True, "token": claim.items[0].token}) == len(ids)
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 24 - len(ids)
    assert all(1_000_000 < item._size < 1_000_500 for item in claim.items)
    again = broker._driver.run(claim_batch(queue._context, 24, timedelta(seconds=30), over=lambda: False))
    assert again is not None
    assert [item.id for item in again.items] == [*first, *last][len(ids) : len(ids) + len(again.items)]


# --- decisions -----------------------------------------------------------------------------------


def of(*sizes: int) -> list[Item[int]]:
    """Return items that were reserved together, of so many bytes."""
    token, items = ObjectId(), []
    for n, size in enumerate(sizes):
        fields = {"_id": ObjectId(), "q": "orders", "when": NOW + LEASE, "reserved": True, "token": token}
        items.append(Item(fields, n, NOW, "a.b", NOW))
        items[-1]._size = size
    return items


@pytest.mark.parametrize(
    ("sizes", "wanted", "held_count", "asked"),
    [
        ((), 1_000, 0, 1_000),
        ((10,), 1_000, 0, 10),
        ((10,), 5, 0, 5),
        ((10, 30), 1_000, 40, 2),
        ((10,), 1_000, 95, 0),
        ((10,), 1_000, 100, 0),
        ((10,), 1_000, 1_000, 0),
        ((500,), 1_000, 0, 1),
    ],
)
def test_as_many_are_claimed_as_fit_by_the_largest_of_late(
    sizes: Sequence[int], wanted: int, held_count: int, asked: int
) -> None:
    limit = ByteLimit(100)
    limit.count_fitting(of(*sizes), 0)
    assert limit.claim_size(wanted, held_count) == asked


def test_a_large_item_is_remembered_for_some_claims() -> None:
    limit, numbers = ByteLimit(100), []
    limit.count_fitting(of(40), 0)
    for _ in range(5):
        numbers.append(limit.claim_size(1_000, 0))
        limit.count_fitting(of(1, 1), 0)
    assert numbers == [2, 5, 10, 20, 50]


def test_what_does_not_fit_is_given_back_at_once() -> None:
    backlog = make_backlog(prefetch=10, prefetch_bytes=100)
    items = of(40, 40, 40, 40)
    assert backlog.add(items, LEASE, asked=4) == 2
    verdicts = backlog.take_outcomes()
    assert payloads(verdicts) == [2, 3]
    assert [type(outcome).__name__ for _, outcome in verdicts] == ["Release", "Release"]
    backlog.drop(items[2:])
    assert backlog.room() == 0
    for _ in range(2):
        run = backlog.next_call(WakeEvent())
        assert run is not None
        backlog.finish(run, [Done()])
    assert backlog.room() == 0, "they are not settled yet"
    backlog.drop(item for item, _ in backlog.take_outcomes())
    assert backlog.room() == 2
    assert backlog.add(of(500), LEASE, asked=1) == 1, "one runs, however large"
