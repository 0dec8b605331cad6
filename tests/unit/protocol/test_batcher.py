"""Lanes decide who goes together; what they decide, without a driver."""

from __future__ import annotations

from typing import Any

import pytest

from mongoq.protocol.flow import Flow, Shared
from mongoq.protocol.state import batcher as batchers
from mongoq.protocol.state.batcher import Batcher, Batchers


def send(entries: list[Any]) -> Flow[list[Any]]:
    yield from ()
    return entries


def batcher_with(*waiting: str) -> Batcher:
    """A batcher in which these wait: the first letter tells the kind, and a small one that the caller has gone."""
    batcher: Batcher = Batcher(send)
    batcher.waiting.extend(Shared(batcher, None, kind=name[0].upper(), waiter=name) for name in waiting)
    return batcher


def is_gone(name: str) -> bool:
    return name[0].islower()


def names(waiting: Any) -> list[str]:
    return [shared.waiter for shared in waiting]


@pytest.mark.parametrize(
    ("waiting", "goes", "stays"),
    [
        ([], [], []),
        (["A1"], ["A1"], []),
        (["A1", "A2", "A3"], ["A1", "A2", "A3"], []),
        (["A1", "B1", "A2", "B2"], ["A1", "A2"], ["B1", "B2"]),
        (["B1", "A1", "B2"], ["B1", "B2"], ["A1"]),
        (["a1", "A2"], ["A2"], []),
        (["a1", "B1", "A2", "b2", "B3"], ["B1", "B3"], ["A2"]),
        (["a1", "b1"], [], []),
    ],
)
def test_the_first_goes_with_all_of_its_kind_in_their_order(
    waiting: list[str], goes: list[str], stays: list[str]
) -> None:
    batcher = batcher_with(*waiting)
    assert names(batcher.next_batch(is_gone)) == goes
    assert names(batcher.waiting) == stays


def test_a_batch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "MAX_BATCH", 2)
    batcher = batcher_with("A1", "B1", "A2", "A3", "B2")
    assert names(batcher.next_batch(is_gone)) == ["A1", "A2"]
    assert names(batcher.next_batch(is_gone)) == ["B1", "B2"]
    assert names(batcher.next_batch(is_gone)) == ["A3"]
    assert batcher.next_batch(is_gone) == []


def test_what_somebody_left_goes_to_the_first_of_the_kind_who_is_still_there() -> None:
    batcher = batcher_with("B1", "a1", "A2", "A3")
    heir = batcher.reassign("A", is_gone)
    assert heir is not None
    assert heir.waiter == "A2"
    assert names(batcher.waiting) == ["B1", "a1", "A3"]
    assert batcher_with("B1", "a1").reassign("A", is_gone) is None


def test_a_batcher_is_made_once_and_anew_after_a_fork() -> None:
    registry = Batchers()
    first = registry.batcher("push", send)
    assert registry.batcher("push", send) is first
    assert registry.batcher("settle", send) is not first
    registry.clear()
    assert registry.batcher("push", send) is not first


def test_a_batcher_is_free_until_a_batch_is_under_way() -> None:
    batcher = batcher_with("A1")
    assert batcher.is_free
    batcher.batches_in_flight = 1
    assert not batcher.is_free


def batcher_of(max_in_flight: int, callers: int) -> Batcher:
    batcher: Batcher = Batcher(send, max_in_flight)
    batcher.waiting.extend(Shared(batcher, None, "A", waiter=f"A{place}") for place in range(callers))
    return batcher


def test_many_callers_go_in_as_many_batches_as_may_be_in_flight() -> None:
    batcher = batcher_of(2, batchers.CONCURRENT_CALLERS + 1)
    batcher.batches_in_flight = 1
    first = batcher.next_batch(is_gone)
    assert len(first) == batchers.CONCURRENT_CALLERS // 2 + 1
    assert batcher.is_free, "the other half need not wait for the first"
    batcher.batches_in_flight = 2
    second = batcher.next_batch(is_gone)
    assert names([*first, *second]) == [f"A{place}" for place in range(batchers.CONCURRENT_CALLERS + 1)]
    assert not batcher.is_free


def test_who_came_back_while_the_others_are_under_way_goes_with_all_who_did() -> None:
    batcher = batcher_of(2, batchers.CONCURRENT_CALLERS)
    first, second = batcher.next_batch(is_gone), batcher.next_batch(is_gone)
    batcher.finish(first)
    batcher.waiting.extend(first)
    assert batcher.next_batch(is_gone) == first
    batcher.finish(second)
    batcher.finish(first)
    assert batcher.callers_in_flight == 0


@pytest.mark.parametrize(("max_in_flight", "callers"), [(1, 500), (2, batchers.CONCURRENT_CALLERS - 1)])
def test_others_go_in_one_batch(max_in_flight: int, callers: int) -> None:
    batcher = batcher_of(max_in_flight, callers)
    batcher.batches_in_flight = 1
    assert len(batcher.next_batch(is_gone)) == callers
    assert not batcher.is_free


@pytest.mark.parametrize(("waiting", "free"), [(17, False), (18, True)])
def test_beside_a_batch_under_way_only_a_large_one_is_sent(waiting: int, free: bool) -> None:
    batcher = batcher_of(2, waiting)
    batcher.callers_in_flight, batcher.batches_in_flight = 48 - waiting, 1
    assert batcher.is_free is free
    batcher.batches_in_flight = 2
    assert not batcher.is_free


def test_only_batchers_that_ask_for_it_divide_many_callers() -> None:
    registry = Batchers()
    registry.divides = True
    asked, plain = registry.batcher("push", send, max_in_flight=2), registry.batcher("settle", send)
    assert [batcher.max_in_flight for batcher in (asked, plain)] == [2, 1]


def test_drivers_that_do_not_divide_have_one_batch_under_way() -> None:
    assert Batchers().batcher("push", send, max_in_flight=2).max_in_flight == 1
