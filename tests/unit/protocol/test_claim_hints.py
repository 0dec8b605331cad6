"""Where claims begin: what is learnt from claims, looks and own pushes, by tables."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.protocol.state.claim_hints import (
    BOUND_MARGIN,
    CLAIM_SECONDS_BEFORE_MEASURING,
    FAST_SCANS_BEFORE_END,
    MAX_BOUNDS,
    ClaimHints,
    LowerBound,
    claimable,
    eligible,
)
from tests.unit.scripted import ID, NOW

OLD = NOW - timedelta(hours=1)
OLDER = OLD - timedelta(hours=1)
RECENT = NOW - BOUND_MARGIN


def fast(**floors: LowerBound) -> ClaimHints:
    """Heads of claims that go by these floors; ``p0`` is that of priority 0."""
    return ClaimHints(fast=True, floors={int(name.lstrip("p")): floor for name, floor in floors.items()})


def document(priority: Any, when: datetime, id: Any = ID) -> dict[str, Any]:
    return {"_id": id, "priority": priority, "when": when}


def test_claims_begin_at_the_beginning_until_that_is_slow() -> None:
    heads = ClaimHints()
    assert heads.start("orders", NOW).filter == eligible("orders", NOW) == {"q": "orders", "when": {"$lte": NOW}}
    heads.raise_bounds(heads.start("orders", NOW), document(0, OLD))
    heads.note(-5, OLD)
    assert heads.start("orders", NOW).filter == eligible("orders", NOW)


@pytest.mark.parametrize(
    ("floors", "filter"),
    [
        ({0: LowerBound(OLD)}, {"q": "orders", "priority": 0, "when": {"$gte": OLD, "$lte": NOW}}),
        (
            {5: LowerBound(RECENT), 0: LowerBound(OLD)},
            {
                "$or": [
                    {"q": "orders", "priority": 0, "when": {"$gte": OLD, "$lte": NOW}},
                    {"q": "orders", "priority": 5, "when": {"$gte": RECENT, "$lte": NOW}},
                ]
            },
        ),
        (
            {0: LowerBound(OLD, ID)},
            {
                "$or": [
                    {"q": "orders", "priority": 0, "when": OLD, "_id": {"$gte": ID}},
                    {"q": "orders", "priority": 0, "when": {"$gt": OLD, "$lte": NOW}},
                ]
            },
        ),
    ],
)
def test_each_priority_has_a_branch_and_one_of_them_needs_no_or(floors: Any, filter: Any) -> None:
    assert claimable("orders", NOW, floors) == filter


FOUND = [
    # what was claimed, and the floors of 0 and 5 after it
    pytest.param(document(0, OLD), LowerBound(OLD, ID), LowerBound(OLDER), id="an old item: at it"),
    pytest.param(document(0, OLD, "no id of ours"), LowerBound(OLD), LowerBound(OLDER), id="an old item of an odd id"),
    pytest.param(
        document(0, NOW), LowerBound(RECENT), LowerBound(OLDER), id="a recent one: pushes may be under way before it"
    ),
    pytest.param(
        document(5, OLD), LowerBound(RECENT), LowerBound(OLD, ID), id="a later priority: nothing is left in the first"
    ),
    pytest.param(None, LowerBound(RECENT), LowerBound(RECENT), id="nothing: in none"),
    pytest.param(document(0, [OLD]), LowerBound(OLDER), LowerBound(OLDER), id="a date that is none"),
    pytest.param(document(3, OLD), LowerBound(RECENT), LowerBound(OLDER), id="a priority without a floor"),
]


@pytest.mark.parametrize(("result", "zero", "five"), FOUND)
def test_what_a_claim_finds_raises_the_floors(result: Any, zero: LowerBound, five: LowerBound) -> None:
    heads = fast(p0=LowerBound(OLDER), p5=LowerBound(OLDER))
    heads.raise_bounds(heads.start("orders", NOW), result)
    assert heads.floors == {0: zero, 5: five}


def test_a_claim_never_lowers_a_floor() -> None:
    heads = fast(p0=LowerBound(RECENT))
    heads.raise_bounds(heads.start("orders", NOW), document(0, OLD))
    assert heads.floors == {0: LowerBound(RECENT)}


NOTED = [
    pytest.param(0, OLDER, {0: LowerBound(OLDER)}, id="before the floor"),
    pytest.param(0, OLD, {0: LowerBound(OLD)}, id="on its date, where its id may come first"),
    pytest.param(0, NOW, {0: LowerBound(OLD, ID)}, id="behind it"),
    pytest.param(-7, NOW, {0: LowerBound(OLD, ID), -7: LowerBound(NOW)}, id="of a new priority"),
    pytest.param(None, OLDER, {0: LowerBound(OLD, ID)}, id="of no priority"),
]


@pytest.mark.parametrize(("priority", "when", "floors"), NOTED)
def test_what_this_process_puts_there_lowers_the_floor(priority: Any, when: datetime, floors: Any) -> None:
    heads = fast(p0=LowerBound(OLD, ID))
    heads.note(priority, when)
    assert heads.floors == floors


def test_a_claim_that_was_sent_before_a_push_says_nothing_about_it() -> None:
    heads = fast(p0=LowerBound(RECENT))
    start = heads.start("orders", NOW)
    heads.note(0, OLD)
    heads.raise_bounds(start, None)
    assert heads.floors == {0: LowerBound(OLD)}


def test_a_look_that_was_sent_before_a_push_does_not_raise_the_floor_over_it() -> None:
    heads = fast(p0=LowerBound(RECENT))
    heads.begin(0.0)
    heads.note(0, OLD)
    heads.note(2, OLDER)
    heads.record_refresh({0: LowerBound(RECENT)}, slow=True, at=0.1)
    assert heads.floors == {0: LowerBound(OLD), 2: LowerBound(OLDER)}


SEEN = [
    pytest.param({}, {0: LowerBound(RECENT), 9: LowerBound(RECENT)}, id="an empty queue: what is known stays, and 0"),
    pytest.param({0: [OLD, NOW]}, None, id="a date that is none"),
    pytest.param(
        {0: OLD, 9: NOW}, {0: LowerBound(OLD), 9: LowerBound(RECENT)}, id="heads, but for what may be under way"
    ),
    pytest.param(
        {1: NOW + timedelta(hours=1)},
        {0: LowerBound(RECENT), 1: LowerBound(RECENT), 9: LowerBound(RECENT)},
        id="scheduled",
    ),
    pytest.param({None: OLD, 0: OLD}, None, id="a priority that is none"),
    pytest.param({True: OLD}, None, id="a boolean"),
    pytest.param(dict.fromkeys(range(MAX_BOUNDS + 1), OLD), None, id="too many"),
    pytest.param(
        dict.fromkeys(range(1, MAX_BOUNDS + 1), OLD),
        dict.fromkeys(range(1, MAX_BOUNDS + 1), LowerBound(OLD)),
        id="so many",
    ),
]


@pytest.mark.parametrize(("heads", "floors"), SEEN)
def test_what_a_look_sees_becomes_floors(heads: Any, floors: Any) -> None:
    assert fast(p9=LowerBound(OLDER)).bounds_of(list(heads.items()), NOW) == floors


def test_a_slow_look_makes_claims_fast_and_many_cheap_ones_end_it() -> None:
    heads = ClaimHints()
    heads.record_refresh({0: LowerBound(OLD)}, slow=False, at=1.0)
    assert (heads.fast, heads.floors) == (False, {})
    heads.record_refresh({0: LowerBound(OLD)}, slow=True, at=2.0)
    assert (heads.fast, heads.floors) == (True, {0: LowerBound(OLD)})
    for _ in range(FAST_SCANS_BEFORE_END - 1):
        heads.record_refresh({0: LowerBound(OLD)}, slow=False, at=3.0)
        assert heads.fast
    heads.record_refresh({0: LowerBound(OLD)}, slow=False, at=4.0)
    assert (heads.fast, heads.floors) == (False, {})


def test_a_look_that_can_make_no_floors_ends_it_too() -> None:
    heads = fast(p0=LowerBound(OLD))
    heads.record_refresh(None, slow=True, at=1.0)
    assert not heads.fast


def test_more_priorities_than_a_fast_claim_takes_end_it_too() -> None:
    heads = fast(**{f"p{n}": LowerBound(OLD) for n in range(MAX_BOUNDS)})
    heads.note(50, OLD)
    assert not heads.fast


DUE = [
    # fast, seconds that claims took, seconds that the last look took, seconds since, after an empty claim, due
    (False, 0.0, 0.0, 99.0, False, False),
    (False, CLAIM_SECONDS_BEFORE_MEASURING, 0.0, 0.9, False, False),
    (False, CLAIM_SECONDS_BEFORE_MEASURING, 0.0, 1.0, False, True),
    (False, CLAIM_SECONDS_BEFORE_MEASURING, 0.1, 1.9, False, False),
    (False, CLAIM_SECONDS_BEFORE_MEASURING, 0.1, 2.1, False, True),
    (True, 0.0, 0.0, 0.9, False, False),
    (True, 0.0, 0.0, 1.0, False, True),
    (True, 0.0, 0.1, 1.9, False, False),
    (True, 0.0, 0.0, 0.09, True, False),
    (True, 0.0, 0.0, 0.11, True, True),
    (True, 0.0, 0.05, 0.9, True, False),
    (True, 0.0, 0.05, 1.1, True, True),
]


@pytest.mark.parametrize("case", DUE)
def test_looks_come_each_second_and_take_a_twentieth_of_the_time_at_most(
    case: tuple[bool, float, float, float, bool, bool],
) -> None:
    quick, spent, cost, since, empty, due = case
    heads = ClaimHints(fast=quick, spent=spent, cost=cost, looked_at=100.0)
    assert heads.needs_refresh(100.0 + since, empty=empty) is due


def test_who_looks_takes_the_turn() -> None:
    heads = ClaimHints(fast=True, looked_at=0.0)
    assert heads.needs_refresh(10.0)
    heads.begin(10.0)
    assert not heads.needs_refresh(10.0)
    heads.record_refresh({0: LowerBound(OLD)}, slow=True, at=10.25)
    assert heads.cost == 0.25


@pytest.mark.parametrize(
    ("full", "quick", "slow"),
    [(0.0004, 0.0003, False), (0.0012, 0.0003, True), (0.0100, 0.0095, False), (0.0018, 0.0010, False)],
)
def test_a_walk_is_slow_by_what_it_costs_and_beside_a_fast_claim(full: float, quick: float, slow: bool) -> None:
    assert ClaimHints().is_slow(full, quick) is slow


def test_time_that_claims_take_adds_up_whatever_they_find() -> None:
    heads = ClaimHints()
    heads.raise_bounds(heads.start("orders", NOW), None)
    once = heads.spent
    assert once > 0
    heads.raise_bounds(heads.start("orders", NOW), {"_id": ObjectId(), "when": NOW})
    assert heads.spent > once
