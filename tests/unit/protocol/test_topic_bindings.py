"""What a process knows of topics, and the ids of copies."""

from __future__ import annotations

import math
import time

from bson import ObjectId

from mongoq.model.copies import make_copy_id
from mongoq.protocol.state.context import Topics
from mongoq.protocol.state.waiter_registry import WaiterRegistry


def test_the_id_of_a_copy_is_always_the_same() -> None:
    id = ObjectId("65e06e6ec0ffee0102030405")
    assert make_copy_id(id, "billing") == ObjectId("65e06e6ec24bd7f39e030405")
    assert make_copy_id(id, "shipping") == ObjectId("65e06e6e4bb4076c57030405")


def test_copies_differ_from_what_was_pushed_and_from_each_other() -> None:
    ids = [ObjectId() for _ in range(1000)]
    copies = {make_copy_id(id, queue) for id in ids for queue in ("a", "b", "c")}
    assert len(copies | set(ids)) == 4000
    assert {make_copy_id(id, "a") for id in copies}.isdisjoint(copies)


def test_copies_sort_as_what_one_producer_pushed() -> None:
    ids = sorted(ObjectId() for _ in range(1000))
    copies = [make_copy_id(id, "billing") for id in ids]
    assert copies == sorted(copies)


def test_an_answer_that_was_asked_for_before_a_change_of_our_own_is_not_gone_by() -> None:
    topics, asked_at = Topics(), time.monotonic()
    topics.store({"orders": ("billing",)}, time.monotonic(), is_written=True)
    topics.store({}, asked_at)
    assert topics.bound == {"orders": ("billing",)}


def test_an_older_answer_does_not_take_the_place_of_a_newer_one() -> None:
    topics = Topics()
    topics.store({"orders": ("billing",)}, 2.0)
    topics.store({}, 1.0)
    assert topics.bound == {"orders": ("billing",)}
    topics.store({}, 3.0)
    assert topics.bound == {}


def test_what_the_stream_tells_while_a_change_of_our_own_is_under_way_is_read() -> None:
    """It may have come after ours."""
    topics, registry, asked_at = Topics(), WaiterRegistry(), time.monotonic()
    registry.since, registry.alive_until = 0.0, math.inf
    topics.changed_at = time.monotonic()
    topics.store({"orders": ("billing",)}, asked_at, is_written=True)
    assert topics.stale(3600.0, registry)
