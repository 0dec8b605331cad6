"""What was read ahead of a queue: how much, for how long, and what makes it worthless."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.protocol.flow import Begun, Command
from mongoq.protocol.state import prefetch as shelves
from mongoq.protocol.state.claim_hints import ScanStart
from mongoq.protocol.state.prefetch import FRESH, PAUSE, PendingRead, PrefetchBuffer
from tests.unit.scripted import NOW

SMALL = 100


def items(number: int) -> list[dict[str, Any]]:
    return [{"_id": ObjectId(), "priority": 0, "when": NOW + timedelta(seconds=place)} for place in range(number)]


def keys_of(items: Any) -> list[bytes]:
    return [item["_id"].binary for item in items]


def filled(number: int = 3) -> PrefetchBuffer:
    made = PrefetchBuffer()
    made.refill(items(number), 10.0, SMALL)
    return made


def coming() -> PendingRead:
    return PendingRead(Command("command", {}), ScanStart({}, NOW, 10.0, None))


@pytest.mark.parametrize(
    ("size", "n", "most"),
    [
        (SMALL, shelves.FEW, shelves.FEW * shelves.BATCHES),
        (SMALL, shelves.FEW - 1, shelves.FEW - 1),
        (shelves.BYTES // 40, 32, 40),
        (shelves.BYTES // 10, 32, 32),
        (0, 32, 32 * shelves.BATCHES),
    ],
)
def test_a_few_batches_are_read_at_once_unless_they_are_few_or_large(size: int, n: int, most: int) -> None:
    made = PrefetchBuffer(busy=True)
    made.refill((), 0.0, size)
    assert made.most(n) == most


def test_nothing_is_read_ahead_before_it_is_known_how_large_items_are() -> None:
    assert PrefetchBuffer(busy=True).most(500) == 500


def test_nothing_is_read_ahead_that_the_next_claim_would_find_too_old() -> None:
    made = filled()
    asked = []
    for at in (1.0, 1.01, 1.01 + FRESH, 1.02 + FRESH):
        made.record_claim(at)
        asked.append(made.most(20) > 20)
    assert asked == [False, True, False, True]


def test_the_first_are_taken_as_long_as_they_are_fresh_and_enough() -> None:
    made = filled()
    first, second, third = made.items
    assert made.take(2, 10.0 + FRESH) == [first, second]
    assert made.take(2, 10.0) == ()
    assert made.take(1, 10.1 + FRESH) == ()
    assert made.take(1, 10.0) == [third]
    assert made.take(1, 10.0) == ()


PLACES = pytest.mark.parametrize(
    ("priority", "seconds", "kept"),
    [(0, 2, 3), (0, 3, 3), (1, -9, 3), (0, 1, 2), (0, 0.5, 1), (-1, 9, 0), (None, 9, 0)],
)


@PLACES
def test_what_comes_behind_an_item_of_this_process_is_read_again(
    priority: int | None, seconds: float, kept: int
) -> None:
    made = filled()
    before = made.items
    made.drop_behind(priority, NOW + timedelta(seconds=seconds))
    assert made.items == before[:kept]


@PLACES
def test_so_it_is_when_it_was_being_read_at_that_moment(priority: int | None, seconds: float, kept: int) -> None:
    made, read = PrefetchBuffer(coming=coming()), items(3)
    made.drop_behind(5, NOW)
    made.drop_behind(priority, NOW + timedelta(seconds=seconds))
    made.drop_behind(5, NOW)
    assert made.coming is not None
    assert made.coming.before(read) == read[:kept]


def test_a_read_under_way_knows_what_was_claimed_meanwhile() -> None:
    made = filled()
    keys = keys_of(made.items)
    made.begin_claim(keys)  # nothing is under way
    made.coming = coming()
    made.begin_claim(keys[:2])
    assert made.coming.drop_claimed(made.items) == made.items[2:]


def test_a_read_whose_reply_came_long_ago_is_dropped_by_the_next_claim() -> None:
    reply: Future[Any] = Future()
    made = filled()
    made.coming = pending = coming()
    pending.begun = Begun(pending.command, reply)
    keys = keys_of(made.items)
    made.begin_claim(keys[:1])  # the reply has not come: dropped by its age alone, it would be sent again and again
    assert made.coming is pending
    reply.set_result(None)
    made.remove(keys[:2])
    assert made.coming is None


def test_a_read_to_come_will_know_what_is_being_claimed_until_that_is_over() -> None:
    made = filled()
    first, second, third = keys_of(made.items)
    made.begin_claim([first, second])
    made.begin_claim([third])
    made.end_claim([first, second])
    assert made.claimed_keys == {third}


def test_claims_of_single_items_are_known_while_they_are_under_way_and_after() -> None:
    made = PrefetchBuffer()
    with made.claims_one():
        with pytest.raises(ValueError, match="broken"), made.claims_one():
            assert (len(made.singles), made.single) == (2, None)
            raise ValueError("broken")
        first = made.single
        assert first is not None
        assert len(made.singles) == 1
    assert made.single is not first
    assert not made.singles


def test_what_was_no_use_is_not_tried_again_for_a_while() -> None:
    made = filled()
    made.close(20.0)
    assert (made.items, made.closed_until) == ((), 20.0 + PAUSE)


def test_what_is_put_there_at_no_known_time_comes_first_of_its_priority() -> None:
    made = filled()
    made.drop_behind(1, None)
    assert len(made.items) == 3
    made.drop_behind(0, None)
    assert not made.items


def test_what_another_claim_has_taken_is_gone_from_it_and_from_a_read_under_way() -> None:
    made = filled()
    first, second, third = read = list(made.items)
    made.coming = coming()
    made.remove({second["_id"].binary})
    assert made.items == [first, third]
    assert made.coming.drop_claimed(read) == [first, third]


def test_a_forked_child_knows_that_what_was_under_way_is_the_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled()
    made.begin_claim(keys_of(made.items))
    made.coming = coming()
    with made.claims_one():
        made.here()
        assert (len(made.claimed_keys), len(made.singles), len(made.items)) == (3, 1, 3)
        monkeypatch.setattr(shelves.os, "getpid", lambda: -1)
        made.here()
        assert (made.claimed_keys, made.singles, made.items, made.coming) == (set(), set(), (), None)
