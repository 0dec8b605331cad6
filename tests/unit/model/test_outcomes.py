"""Outcomes: values that nobody can change, of a closed set that each place knows as a whole."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from mongoq import Fixed, Move, OutcomeInvalid
from mongoq.model import outcomes
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.model.outcomes import (
    Dead,
    Done,
    Drop,
    Failed,
    Fork,
    HandlerOutcome,
    Later,
    Outcome,
    Release,
    ResolvedOutcome,
    Retry,
    SettledElsewhere,
    name_ending,
)
from mongoq.pipeline.graph.graph import Stage
from mongoq.pipeline.run.outcome_resolver import StageOutcomeResolver
from mongoq.protocol.claim.filtering import make_filter
from mongoq.protocol.settle.apply_outcomes import apply_outcomes, apply_outcomes_at_most_once
from mongoq.worker.outcome_resolver import OutcomeResolver
from tests.unit.scripted import context, matched, play, reserved_item


def test_a_move_has_all_options_it_was_given() -> None:
    options: dict[str, Any] = {"payload": {"n": 1}, "patch": None, "delay": 2, "when": None, "priority": 3}
    options |= {"headers": {"a": "b"}, "sequence": "c", "expires": 60}
    move = Move("b", **options)
    assert {each.name: getattr(move, each.name) for each in fields(Move)} == {"to": "b"} | options
    assert replace(move, to="c") == Move("c", **options) != move


def test_a_move_goes_as_it_is_to_another_process() -> None:
    move = Move("b", delay=2)
    assert pickle.loads(pickle.dumps(move)) == move
    assert hash(move) == hash(Move("b", delay=2))


@pytest.mark.parametrize("name", ["to", "payload", "anything"])
def test_nobody_can_change_a_move(name: str) -> None:
    move = Move("b")
    with pytest.raises(FrozenInstanceError):
        setattr(move, name, "c")
    assert move == Move("b")


def settle_nothing(entries: Any) -> Any:
    """Make the flow of a join that has settled all items."""
    yield from ()
    return {}


OUTCOMES: dict[type[Outcome], Any] = {
    Dead: Dead("not wanted"),
    Done: Done(),
    Drop: Drop(),
    Failed: Failed("broken"),
    Fork: Fork([Move("next"), Move("other")]),
    Later: Later(60),
    Move: Move("next"),
    Release: Release(),
    Retry: Retry(),
    SettledElsewhere: SettledElsewhere(settle_nothing, None, lambda: "apart"),
}
RESOLVED = [OUTCOMES[kind] for kind in get_args(ResolvedOutcome)]
RETURNED = [OUTCOMES[kind] for kind in get_args(HandlerOutcome)]


class Unknown(Outcome):
    """An outcome that the set does not list."""


ONE_FOUND = SimpleNamespace(matched_count=1, deleted_count=0)
UNKNOWN = [Unknown(), Retry(), None, "done"]


def consumer(**options: Any) -> Any:
    return SimpleNamespace(**{"batch": None, "success_on": (), "retry": Fixed(1), **options})


def stage_resolver(**options: Any) -> StageOutcomeResolver:
    stage = Stage("work", ("orders",), ("next", "other"), print, **options)
    untyped = Codec(Encoding(codec_options()), None)
    return StageOutcomeResolver(stage, {"next": "next", "other": "other"}, {}, untyped, most=None)


def name_of(value: Any) -> str:
    return type(value).__name__


def test_the_set_lists_every_outcome_of_its_module() -> None:
    defined = {kind for kind in vars(outcomes).values() if isinstance(kind, type) and issubclass(kind, Outcome)}
    assert defined - {Outcome} == {*get_args(ResolvedOutcome), *get_args(HandlerOutcome)} == set(OUTCOMES)


@pytest.mark.parametrize("outcome", RESOLVED, ids=name_of)
@pytest.mark.parametrize("spent", [False, True])
def test_each_outcome_counts_under_a_name(outcome: Any, spent: bool) -> None:
    names = {"done", "dropped", "dead", "moved", "released", "retried", "apart"}
    assert name_ending(outcome, spent=spent) in names


@pytest.mark.parametrize("outcome", RESOLVED, ids=name_of)
def test_each_outcome_has_a_settlement(outcome: Any) -> None:
    queue, replies, methods = context(), [ONE_FOUND], ["bulk_write"]
    if isinstance(outcome, Fork):  # on a server it would be a transaction
        queue, replies, methods = context(serverless=True), [matched(1), None], ["delete_one", "insert_many"]
    elif isinstance(outcome, SettledElsewhere):
        replies, methods = [], []
    commands, failed = play(apply_outcomes(queue, [(reserved_item(), outcome)], str), replies)
    assert [command.method for command in commands] == methods
    assert failed == {}


@pytest.mark.parametrize("outcome", RESOLVED, ids=name_of)
def test_each_outcome_is_applied_at_most_once(outcome: Any) -> None:
    methods = {Release: ["bulk_write"], Fork: ["insert_one"] * 2}.get(type(outcome), ["insert_one"])
    methods = [] if isinstance(outcome, Done | Drop | SettledElsewhere) else methods
    flow = apply_outcomes_at_most_once(context(), [(reserved_item(), outcome)], str)
    commands, failed = play(flow, [ONE_FOUND] * len(methods))
    assert [command.method for command in commands] == methods
    assert [type(error) for error in failed.values()] == [OutcomeInvalid] * isinstance(outcome, SettledElsewhere)


@pytest.mark.parametrize("outcome", RETURNED, ids=name_of)
@pytest.mark.parametrize("resolver", [OutcomeResolver(), stage_resolver()], ids=["worker", "stage"])
def test_each_outcome_of_a_handler_becomes_one_that_settles(resolver: OutcomeResolver, outcome: Any) -> None:
    (resolved,) = resolver.outcomes(consumer(), [reserved_item()], outcome)
    assert type(resolved) is (Failed if isinstance(outcome, Retry) else type(outcome))
    assert resolver.outcomes(consumer(batch=1), [reserved_item()], [outcome])


@pytest.mark.parametrize("outcome", UNKNOWN, ids=name_of)
@pytest.mark.parametrize("apply", [apply_outcomes, apply_outcomes_at_most_once])
def test_an_unknown_outcome_sends_nothing_for_its_item(apply: Any, outcome: Any) -> None:
    commands, failed = play(apply(context(), [(reserved_item(), outcome)], str), [])
    assert commands == []
    [error] = failed.values()
    assert isinstance(error, OutcomeInvalid)
    assert str(error) == f"no item can be settled by a {name_of(outcome)}"


@pytest.mark.parametrize("outcome", UNKNOWN, ids=name_of)
def test_an_unknown_outcome_is_refused_wherever_outcomes_are_distinguished(outcome: Any) -> None:
    with pytest.raises(OutcomeInvalid, match="no item can be settled by a"):
        name_ending(outcome, spent=False)
    with pytest.raises(OutcomeInvalid, match="no item can be settled by a"):
        make_filter(context(), {"payload.n": 1}, outcome, str)


@pytest.mark.parametrize("outcome", [Unknown(), Done(), Release(), Failed("broken")], ids=name_of)
@pytest.mark.parametrize("resolver", [OutcomeResolver(), stage_resolver()], ids=["worker", "stage"])
def test_a_handler_returns_no_outcome_that_only_workers_make(resolver: OutcomeResolver, outcome: Any) -> None:
    with pytest.raises(OutcomeInvalid, match=f"a {name_of(outcome)} was returned"):
        resolver.outcomes(consumer(), [reserved_item()], outcome)
