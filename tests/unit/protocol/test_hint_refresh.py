"""What a look sends, and what claims make of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from bson.max_key import MaxKey

from mongoq.protocol.base import first_due
from mongoq.protocol.base.first_due import SLOW_PAIRS, has_items_before_bound, refresh_hints
from mongoq.protocol.flow import Duplicate
from mongoq.protocol.state.claim_hints import BOUND_MARGIN, ClaimHints, LowerBound
from mongoq.protocol.state.context import QueueContext
from tests.unit.scripted import NOW, context, found, play

OLD = NOW - timedelta(hours=1)
HEADS = [{"_id": 0, "when": OLD}, {"_id": 5, "when": NOW + timedelta(hours=1)}]
FLOORS = {0: LowerBound(OLD), 5: LowerBound(NOW - BOUND_MARGIN)}
WRITTEN = object()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each walk is slow, in turn; then none is."""
    answers: list[bool] = []
    monkeypatch.setattr(ClaimHints, "is_slow", lambda *_: bool(answers and answers.pop(0)))
    monkeypatch.setattr(first_due, "SLOW_WALK_SECONDS", math.inf)
    return answers


def due(**state: Any) -> QueueContext[Any]:
    queue = context()
    queue.state.claim_hints = ClaimHints(looked_at=float("-inf"), **state)
    return queue


def commands_of(queue: QueueContext[Any], *replies: Any) -> list[Any]:
    commands, outcome = play(refresh_hints(queue), replies)
    assert not isinstance(outcome, Exception), outcome
    return commands


def test_nothing_is_sent_while_claims_take_no_time() -> None:
    assert list(refresh_hints(due(spent=0.01))) == []
    assert play(has_items_before_bound(due(spent=0.01)), []) == ([], False)


def test_nothing_is_sent_without_a_server() -> None:
    queue = context(serverless=True)
    queue.state.claim_hints = ClaimHints(fast=True, looked_at=float("-inf"))
    assert list(refresh_hints(queue)) == []


def test_a_cheap_walk_leaves_claims_as_they_are(slow: list[bool]) -> None:
    queue = due(spent=1.0)
    commands = commands_of(queue, HEADS, found(), found())
    assert [each.method for each in commands] == ["aggregate", "command", "command"]
    assert not queue.state.claim_hints.fast
    assert (queue.state.claim_hints.spent, list(refresh_hints(queue))) == (0.0, [])


def test_a_walk_must_be_slow_several_times(slow: list[bool]) -> None:
    slow += [True] * (SLOW_PAIRS - 1)
    queue = due(spent=1.0)
    commands_of(queue, HEADS, *[found()] * 2 * SLOW_PAIRS)
    assert not queue.state.claim_hints.fast


def test_a_slow_walk_makes_claims_fast_and_puts_ends_behind_the_priorities(slow: list[bool]) -> None:
    slow += [True] * SLOW_PAIRS
    queue = due(spent=1.0)
    commands = commands_of(queue, HEADS, *[found()] * 2 * SLOW_PAIRS, WRITTEN, Duplicate(ValueError("there already")))
    assert (queue.state.claim_hints.fast, queue.state.claim_hints.floors) == (True, FLOORS)
    ends = [each.arguments for each in commands[-2:]]
    assert {each["filter"]["_id"] for each in ends} == {"end:0:orders", "end:5:orders"}
    for each in ends:
        assert each["upsert"]
        assert each["update"]["$setOnInsert"]["when"] == MaxKey()


def test_a_walk_that_takes_long_need_not_be_repeated_so_often(
    slow: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_due, "SLOW_WALK_SECONDS", -1.0)
    slow += [True, True]
    queue = due(spent=1.0)
    commands = commands_of(queue, HEADS, *[found()] * 4, WRITTEN, WRITTEN)
    assert queue.state.claim_hints.fast
    assert len(commands) == 1 + 4 + 2


def test_a_look_while_claims_are_fast_is_one_walk_and_ends_are_put_once(slow: list[bool]) -> None:
    slow += [True]
    queue = due(fast=True, floors={0: LowerBound(NOW)})
    queue.state.fenced_off |= {0, 5}
    commands = commands_of(queue, HEADS, found())
    assert [each.method for each in commands] == ["aggregate", "command"]
    assert queue.state.claim_hints.floors == FLOORS


def test_priorities_that_cannot_be_named_leave_it_at_the_beginning(slow: list[bool]) -> None:
    queue = due(fast=True, floors={0: LowerBound(NOW)})
    commands = commands_of(queue, [{"_id": None, "when": OLD}, {"_id": {"not": "hashable"}, "when": [OLD]}])
    assert len(commands) == 1
    assert not queue.state.claim_hints.fast


@pytest.mark.parametrize(("heads", "again"), [(HEADS, True), (HEADS[1:], False), ([], False)])
def test_an_empty_fast_claim_is_repeated_when_something_is_eligible(
    slow: list[bool], heads: list[Any], again: bool
) -> None:
    queue = due(fast=True, floors={0: LowerBound(NOW)})
    queue.state.fenced_off |= {0, 5}
    assert play(has_items_before_bound(queue), [heads, found()])[1] is again
    assert play(has_items_before_bound(queue), []) == ([], False), "it has just looked"
