"""What was read ahead of a queue: how much, for how long, and what makes it worthless."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.protocol.flow import Begun, Command
from mongoq.protocol.state import prefetch
from mongoq.protocol.state.claim_hints import ScanStart
from mongoq.protocol.state.prefetch import PREFETCH_PAUSE_SECONDS, PREFETCHED_ITEM_SECONDS, PendingRead, PrefetchBuffer
from tests.unit.scripted import NOW

SMALL = 100


def items(number: int) -> list[dict[str, Any]]:
    return [{"_id": ObjectId(), "priority": 0, "when": NOW + timedelta(seconds=place)} for place in range(number)]


def keys_of(items: Any) -> list[bytes]:
    return [item["_id"].binary for item in items]


def filled(number: int = 3) -> PrefetchBuffer:
    buffer = PrefetchBuffer()
    buffer.refill(items(number), 10.0, SMALL)
    return buffer


def coming() -> PendingRead:
    return PendingRead(Command("command", {}), ScanStart({}, NOW, 10.0, None))


@pytest.mark.parametrize(
    ("size", "n", "most"),
    [
        (SMALL, prefetch.MIN_PREFETCH_BATCH, prefetch.MIN_PREFETCH_BATCH * prefetch.BATCHES_PER_READ),
        (SMALL, prefetch.MIN_PREFETCH_BATCH - 1, prefetch.MIN_PREFETCH_BATCH - 1),
        (prefetch.PREFETCH_READ_BYTES // 40, 32, 40),
        (prefetch.PREFETCH_READ_BYTES // 10, 32, 32),
        (0, 32, 32 * prefetch.BATCHES_PER_READ),
    ],
)
def test_a_few_batches_are_read_at_once_unless_they_are_few_or_large(size: int, n: int, most: int) -> None:
    buffer = PrefetchBuffer(busy=True)
    buffer.refill((), 0.0, size)
    assert buffer.most(n) == most


def test_nothing_is_read_ahead_before_it_is_known_how_large_items_are() -> None:
    assert PrefetchBuffer(busy=True).most(500) == 500


def test_nothing_is_read_ahead_that_the_next_claim_would_find_too_old() -> None:
    buffer = filled()
    asked = []
    for at in (1.0, 1.01, 1.01 + PREFETCHED_ITEM_SECONDS, 1.02 + PREFETCHED_ITEM_SECONDS):
        buffer.record_claim(at)
        asked.append(buffer.most(20) > 20)
    assert asked == [False, True, False, True]


def test_the_first_are_taken_as_long_as_they_are_fresh_and_enough() -> None:
    buffer = filled()
    first, second, third = buffer.items
    assert buffer.take(2, 10.0 + PREFETCHED_ITEM_SECONDS) == [first, second]
    assert buffer.take(2, 10.0) == ()
    assert buffer.take(1, 10.1 + PREFETCHED_ITEM_SECONDS) == ()
    assert buffer.take(1, 10.0) == [third]
    assert buffer.take(1, 10.0) == ()


PLACES = pytest.mark.parametrize(
    ("priority", "seconds", "remaining"),
    [(0, 2, 3), (0, 3, 3), (1, -9, 3), (0, 1, 2), (0, 0.5, 1), (-1, 9, 0), (None, 9, 0)],
)


@PLACES
def test_what_comes_behind_an_item_of_this_process_is_read_again(
    priority: int | None, seconds: float, remaining: int
) -> None:
    buffer = filled()
    before = buffer.items
    buffer.drop_behind(priority, NOW + timedelta(seconds=seconds))
    assert buffer.items == before[:remaining]


@PLACES
def test_so_it_is_when_it_was_being_read_at_that_moment(priority: int | None, seconds: float, remaining: int) -> None:
    buffer, read = PrefetchBuffer(coming=coming()), items(3)
    buffer.drop_behind(5, NOW)
    buffer.drop_behind(priority, NOW + timedelta(seconds=seconds))
    buffer.drop_behind(5, NOW)
    assert buffer.coming is not None
    assert buffer.coming.before(read) == read[:remaining]


def test_a_read_under_way_knows_what_was_claimed_meanwhile() -> None:
    buffer = filled()
    keys = keys_of(buffer.items)
    buffer.begin_claim(keys)  # nothing is under way
    buffer.coming = coming()
    buffer.begin_claim(keys[:2])
    assert buffer.coming.drop_claimed(buffer.items) == buffer.items[2:]


def test_a_read_whose_reply_came_long_ago_is_dropped_by_the_next_claim() -> None:
    reply: Future[Any] = Future()
    buffer = filled()
    buffer.coming = pending = coming()
    pending.pending = Begun(pending.command, reply)
    keys = keys_of(buffer.items)
    buffer.begin_claim(keys[:1])  # the reply has not come: dropped by its age alone, it would be sent again and again
    assert buffer.coming is pending
    reply.set_result(None)
    buffer.remove(keys[:2])
    assert buffer.coming is None


def test_a_read_to_come_will_know_what_is_being_claimed_until_that_is_over() -> None:
    buffer = filled()
    first, second, third = keys_of(buffer.items)
    buffer.begin_claim([first, second])
    buffer.begin_claim([third])
    buffer.end_claim([first, second])
    assert buffer.claimed_keys == {third}


def test_claims_of_single_items_are_known_while_they_are_under_way_and_after() -> None:
    buffer = PrefetchBuffer()
    with buffer.claims_one():
        with pytest.raises(ValueError, match="broken"), buffer.claims_one():
            assert (len(buffer.singles), buffer.single) == (2, None)
            raise ValueError("broken")
        first = buffer.single
        assert first is not None
        assert len(buffer.singles) == 1
    assert buffer.single is not first
    assert not buffer.singles


def test_what_was_no_use_is_not_tried_again_for_a_while() -> None:
    buffer = filled()
    buffer.close(20.0)
    assert (buffer.items, buffer.closed_until) == ((), 20.0 + PREFETCH_PAUSE_SECONDS)


def test_what_is_put_there_at_no_known_time_comes_first_of_its_priority() -> None:
    buffer = filled()
    buffer.drop_behind(1, None)
    assert len(buffer.items) == 3
    buffer.drop_behind(0, None)
    assert not buffer.items


def test_what_another_claim_has_taken_is_gone_from_it_and_from_a_read_under_way() -> None:
    buffer = filled()
    first, second, third = read = list(buffer.items)
    buffer.coming = coming()
    buffer.remove({second["_id"].binary})
    assert buffer.items == [first, third]
    assert buffer.coming.drop_claimed(read) == [first, third]


def test_a_forked_child_knows_that_what_was_under_way_is_the_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled()
    buffer.begin_claim(keys_of(buffer.items))
    buffer.coming = coming()
    with buffer.claims_one():
        buffer.here()
        assert (len(buffer.claimed_keys), len(buffer.singles), len(buffer.items)) == (3, 1, 3)
        monkeypatch.setattr(prefetch.os, "getpid", lambda: -1)
        buffer.here()
        assert (buffer.claimed_keys, buffer.singles, buffer.items, buffer.coming) == (set(), set(), (), None)
