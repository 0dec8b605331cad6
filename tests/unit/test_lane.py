"""Lanes decide who goes together; what they decide, without a driver."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mongoq.protocol.flow.commands import Flow, Shared
from mongoq.protocol.state import batcher as lanes
from mongoq.protocol.state.batcher import Batcher, Batchers


def send(entries: list[Any]) -> Flow[list[Any]]:
    yield from ()
    return entries


def lane(*waiting: str) -> Batcher:
    """A lane in which these wait: the first letter tells the kind, and a small one that the caller has gone."""
    made: Batcher = Batcher(send)
    made.waiting.extend(Shared(made, None, kind=name[0].upper(), waiter=name) for name in waiting)
    return made


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
    made = lane(*waiting)
    assert names(made.board(is_gone)) == goes
    assert names(made.waiting) == stays


def test_a_batch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 2)
    made = lane("A1", "B1", "A2", "A3", "B2")
    assert names(made.board(is_gone)) == ["A1", "A2"]
    assert names(made.board(is_gone)) == ["B1", "B2"]
    assert names(made.board(is_gone)) == ["A3"]
    assert made.board(is_gone) == []


def test_what_somebody_left_goes_to_the_first_of_the_kind_who_is_still_there() -> None:
    made = lane("B1", "a1", "A2", "A3")
    heir = made.take_over("A", is_gone)
    assert heir is not None
    assert heir.waiter == "A2"
    assert names(made.waiting) == ["B1", "a1", "A3"]
    assert lane("B1", "a1").take_over("A", is_gone) is None


def test_a_lane_is_made_once_and_anew_after_a_fork() -> None:
    made = Batchers()
    first = made.lane("push", send)
    assert made.lane("push", send) is first
    assert made.lane("settle", send) is not first
    made.clear()
    assert made.lane("push", send) is not first


def test_a_lane_is_free_until_a_batch_is_under_way() -> None:
    made = lane("A1")
    assert made.is_free
    made.flying = 1
    assert not made.is_free


def crowd(abreast: int, callers: int, *, shares: int | None = None) -> Batcher:
    made: Batcher = Batcher(send, abreast, shares or abreast)
    made.waiting.extend(Shared(made, None, "A", waiter=f"A{place}") for place in range(callers))
    return made


def test_a_crowd_goes_in_as_many_batches_as_may_be_abreast() -> None:
    made = crowd(2, lanes.CROWD + 1)
    made.flying = 1
    first = made.board(is_gone)
    assert len(first) == lanes.CROWD // 2 + 1
    assert made.is_free, "the other half need not wait for the first"
    made.flying = 2
    second = made.board(is_gone)
    assert names([*first, *second]) == [f"A{place}" for place in range(lanes.CROWD + 1)]
    assert not made.is_free


def test_who_came_back_while_the_others_are_under_way_goes_with_all_who_did() -> None:
    made = crowd(2, lanes.CROWD)
    first, second = made.board(is_gone), made.board(is_gone)
    made.landed(first)
    made.waiting.extend(first)
    assert made.board(is_gone) == first
    made.landed(second)
    made.landed(first)
    assert made.aboard == 0


@pytest.mark.parametrize(("abreast", "callers"), [(1, 500), (2, lanes.CROWD - 1)])
def test_others_go_in_one_batch(abreast: int, callers: int) -> None:
    made = crowd(abreast, callers)
    made.flying = 1
    assert len(made.board(is_gone)) == callers
    assert not made.is_free


def caller(name: str) -> Any:
    return lambda: name


def round_trip(made: Batcher, callers: int, *, comes: int | None = None) -> None:
    """Let so many callers go and come back, one after the other; the first of them last but for those who ``come``."""
    for place in range(callers):
        made.enter(Shared(made, None, "A", waiter=f"A{place}"), caller(f"A{place}"))
    while made.waiting:
        made.landed(made.board(is_gone))
    for place in range(callers if comes is None else comes):
        made.enter(Shared(made, None, "A", waiter=f"A{place}"), caller(f"A{place}"))


def test_a_divided_crowd_stays_divided_while_parts_of_it_are_elsewhere() -> None:
    made: Batcher = Batcher(send, 1, 2)
    round_trip(made, lanes.CROWD)
    assert made.crowd == lanes.CROWD
    for _ in range(4):
        made.flying = 1
        first = made.board(is_gone)
        assert len(first) == lanes.CROWD // 2
        assert not made.is_free, "the other half goes after it"
        made.landed(first)
        second = made.board(is_gone)
        assert len(second) == lanes.CROWD // 2, "and not with those who come back meanwhile"
        made.landed(second)
        made.waiting.extend([*first, *second])


def test_a_crowd_is_known_by_how_many_come_before_one_of_them_does_again() -> None:
    made: Batcher = Batcher(send, 2, 3)
    round_trip(made, lanes.CROWD)
    assert made.crowd == lanes.CROWD
    round_trip(made, 10, comes=0)
    assert made.crowd == lanes.CROWD, "the one who was marked since has not come"
    for place in range(3 * lanes.MOST):  # and does not any more
        made.enter(Shared(made, None, "A", waiter=f"B{place}"), caller(f"B{place}"))
        made.landed(made.board(is_gone))
    assert made.crowd == 0


def test_who_comes_is_asked_now_and_then_and_a_crowd_that_has_shrunk_is_noticed() -> None:
    made: Batcher = Batcher(send, 2, 3)
    asked: list[int] = []

    def come(place: int) -> int:
        asked.append(place)
        return place

    def go_round(callers: int, times: int) -> None:
        for place in [*range(callers)] * times:
            made.enter(Shared(made, None, "A", waiter=f"A{place}"), partial(come, place))
            made.landed(made.board(is_gone))

    go_round(100, 2)
    asked.clear()
    go_round(100, 20)
    assert made.crowd == 100
    assert 0 < len(asked) < 100 * 20 / 3
    go_round(10, 100)
    assert made.crowd == 10


def test_those_who_may_have_come_once_are_not_divided_into_batches_that_wait_for_each_other() -> None:
    made = crowd(1, 2 * lanes.LARGE, shares=3)
    assert len(made.board(is_gone)) == 2 * lanes.LARGE


def test_who_is_alone_need_not_be_told_from_others() -> None:
    made: Batcher = Batcher(send)
    made.enter(Shared(made, None, "A", waiter="A1"), pytest.fail)
    assert len(made.waiting) == 1


@pytest.mark.parametrize(
    ("callers", "batches"),
    [
        (lanes.CROWD - 1, [lanes.CROWD - 1]),
        (lanes.CROWD, [lanes.CROWD // 2] * 2),
        (lanes.LARGE - 1, [lanes.LARGE // 2, lanes.LARGE // 2 - 1]),
        (3 * lanes.LARGE, [lanes.LARGE] * 3),
    ],
)
def test_the_larger_a_crowd_the_more_parts_it_has(callers: int, batches: list[int]) -> None:
    made = crowd(1, callers, shares=3)
    made.crowd = callers
    found = []
    while batch := made.board(is_gone):
        found.append(len(batch))
    assert found == batches


@pytest.mark.parametrize(("waiting", "free"), [(17, False), (18, True)])
def test_beside_a_batch_under_way_only_a_large_one_is_sent(waiting: int, free: bool) -> None:
    made = crowd(2, waiting)
    made.crowd, made.flying = 48, 1
    assert made.is_free is free
    made.flying = 2
    assert not made.is_free


def test_only_lanes_that_ask_for_it_divide_a_crowd() -> None:
    made = Batchers()
    made.divides = True
    asked, other = made.lane("push", send, abreast=2, shares=3), made.lane("settle", send)
    assert [(lane.abreast, lane.shares) for lane in (asked, other)] == [(2, 3), (1, 1)]


def test_drivers_that_do_not_divide_have_one_batch_under_way() -> None:
    lane = Batchers().lane("push", send, abreast=2, shares=3)
    assert (lane.abreast, lane.shares) == (1, 1)
