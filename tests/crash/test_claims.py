"""The claims that campaigns are checked against, and that each of them can be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from bson import ObjectId

from tests.crash.claims import Violation, broken, doubled, lost, unfenced
from tests.crash.evidence import Evidence
from tests.crash.stations import MAX_RETRIES, Decision
from tests.crash.trail import Kind, Turn

ITEM, DEAD = ObjectId(), ObjectId()
KILLED, MOVER, SETTLER, BURIER = (ObjectId() for _ in range(4))


def item(id: ObjectId, q: str, *, mover: ObjectId | None = None, **fields: Any) -> dict[str, Any]:
    payload = {"serial": str(id), "hops": int(mover is not None), "mover": mover}
    return {"_id": id, "q": q, "payload": payload, "attempts": 1, **fields}


def run(id: ObjectId, token: ObjectId, queue: str, attempt: int, outcome: Decision | None) -> dict[str, Any]:
    ended = {"outcome": outcome, "ended": attempt + 0.5} if outcome else {}
    return {"_id": {"item": id, "token": token}, "queue": queue, "attempt": attempt, "began": attempt, **ended}


def turns(id: ObjectId, *kinds: tuple[Kind, ObjectId | None]) -> list[Turn]:
    return [Turn(id, kind, token) for kind, token in kinds]


MOVED = item(ITEM, "out", mover=MOVER, processed="now", settled=SETTLER)
BURIED = item(DEAD, "in.dead", origin={"queue": "in", "reason": f"hopeless in run {BURIER}", "attempts": 1})
RUNS = [
    run(ITEM, KILLED, "in", 1, None),
    run(ITEM, MOVER, "in", 2, "done"),
    run(ITEM, SETTLER, "out", 1, "done"),
    run(DEAD, BURIER, "in", 1, "dead"),
]
TURNS = [
    *turns(ITEM, ("pushed", None), ("reserved", KILLED), ("reserved", MOVER), ("moved", MOVER)),
    *turns(ITEM, ("reserved", SETTLER), ("committed", SETTLER)),
    *turns(DEAD, ("pushed", None), ("reserved", BURIER), ("buried", BURIER)),
]
GOOD = Evidence([ITEM, DEAD], [MOVED, BURIED], RUNS, TURNS)


def violations_of(claim: Callable[[Evidence], Iterator[Violation]], evidence: Evidence) -> str:
    """Return what breaks a claim, and make sure that something does."""
    violations = list(claim(evidence))
    assert violations
    return "\n".join(map(str, violations))


def changed(**fields: Any) -> Evidence:
    """Return the evidence with another end of the first item."""
    return replace(GOOD, items=[{**MOVED, **fields}, BURIED])


def instead(old: Turn, *new: Turn) -> Evidence:
    """Return the evidence with other turns in the place of one."""
    place = TURNS.index(old)
    return replace(GOOD, turns=[*TURNS[:place], *new, *TURNS[place + 1 :]])


def test_a_run_that_was_killed_and_a_dead_letter_break_no_claim() -> None:
    assert broken(GOOD) == []


def test_any_violation_is_returned() -> None:
    assert [violation.item for violation in broken(replace(GOOD, items=[BURIED]))] == [ITEM]


# --- nothing is lost -------------------------------------------------------------------------


def test_an_acknowledged_push_that_is_gone_is_lost() -> None:
    assert violations_of(lost, replace(GOOD, items=[BURIED])) == f"{ITEM} was acknowledged, and is gone"


def test_a_push_that_was_not_acknowledged_may_be_there_or_not() -> None:
    assert broken(replace(GOOD, acknowledged=[DEAD])) == []
    assert broken(Evidence([], [], [], [])) == []


@pytest.mark.parametrize("queue", ["in", "out"])
def test_an_item_that_nobody_brought_to_its_end_is_lost(queue: str) -> None:
    live = {name: value for name, value in MOVED.items() if name not in ("processed", "settled")}
    assert f"is stuck in '{queue}'" in violations_of(lost, replace(GOOD, items=[{**live, "q": queue}, BURIED]))


def test_an_item_that_ended_before_it_moved_on_is_lost() -> None:
    assert "should have moved on" in violations_of(lost, changed(q="in"))


def test_an_item_that_was_removed_is_lost() -> None:
    assert "was removed" in violations_of(lost, replace(GOOD, turns=[*TURNS, Turn(ITEM, "removed")]))


@pytest.mark.parametrize(("token", "what"), [(MOVER, "moved"), (SETTLER, "committed")], ids=["the move", "the commit"])
@pytest.mark.parametrize("outcome", [None, "fail", "retry", "dead"])
def test_what_was_handed_on_without_a_run_that_ended_well_is_lost(token: Any, what: str, outcome: Any) -> None:
    runs = [mark for mark in RUNS if mark["_id"]["token"] != token]
    marked = next(mark for mark in RUNS if mark["_id"]["token"] == token)
    spoilt = run(ITEM, token, marked["queue"], marked["attempt"], outcome)
    assert f"was {what} under {token}" in violations_of(lost, replace(GOOD, runs=[*runs, spoilt]))
    assert f"was {what} under {token}" in violations_of(lost, replace(GOOD, runs=runs))


@pytest.mark.parametrize(
    "origin",
    [
        {"queue": "in", "reason": "retries exhausted", "attempts": MAX_RETRIES},
        {"queue": "in", "reason": f"hopeless in run {MOVER}", "attempts": 1},
        None,
    ],
    ids=["with a run left", "without a verdict", "without a word"],
)
def test_a_dead_letter_that_does_not_deserve_it_is_lost(origin: Any) -> None:
    undeserved = {**BURIED, "origin": origin}
    assert f"{DEAD} is a dead letter for no good reason" in violations_of(
        lost, replace(GOOD, items=[MOVED, undeserved])
    )


def test_a_dead_letter_that_had_all_its_runs_is_not_lost() -> None:
    origin = {"queue": "in", "reason": "retries exhausted", "attempts": MAX_RETRIES + 1}
    assert broken(replace(GOOD, items=[MOVED, {**BURIED, "origin": origin}])) == []


# --- nothing changes after it was lost ---------------------------------------------------------


def test_a_commit_under_a_token_that_was_lost_is_seen_in_what_is_stored() -> None:
    later = run(ITEM, ObjectId(), "out", 2, None)
    assert (
        violations_of(unfenced, replace(GOOD, runs=[*RUNS, later]))
        == f"{ITEM} left 'out' by its run 1, and there were 2"
    )


def test_a_move_under_a_token_that_was_lost_is_seen_in_what_is_stored() -> None:
    later = run(ITEM, ObjectId(), "in", 3, "done")
    assert (
        violations_of(unfenced, replace(GOOD, runs=[*RUNS, later]))
        == f"{ITEM} left 'in' by its run 2, and there were 3"
    )


def test_a_commit_under_a_token_that_was_lost_is_seen_on_the_trail() -> None:
    stale = instead(Turn(ITEM, "committed", SETTLER), Turn(ITEM, "committed", KILLED))
    assert violations_of(unfenced, stale) == f"{ITEM} was committed under {KILLED}, and {SETTLER} held it"


def test_a_stale_commit_is_seen_though_the_rightful_one_has_wiped_out_its_traces() -> None:
    rightful = Turn(ITEM, "committed", SETTLER)
    twice = instead(rightful, Turn(ITEM, "committed", KILLED), rightful)
    assert f"{ITEM} was committed under {SETTLER} when nobody held it" in violations_of(unfenced, twice)


@pytest.mark.parametrize("kind", ["moved", "committed", "buried", "handed back"])
def test_whatever_is_done_to_an_item_that_nobody_holds_is_seen(kind: Kind) -> None:
    late = replace(GOOD, turns=[*TURNS, Turn(ITEM, kind, KILLED)])
    assert f"{ITEM} was {kind} under {KILLED} when nobody held it" in violations_of(unfenced, late)


def test_a_failure_that_is_reported_under_a_token_that_was_lost_is_seen() -> None:
    rightful = Turn(ITEM, "reserved", SETTLER)
    late = instead(rightful, rightful, Turn(ITEM, "handed back", MOVER), rightful)
    assert violations_of(unfenced, late) == f"{ITEM} was handed back under {MOVER}, and {SETTLER} held it"


def test_what_a_worker_gives_back_unused_names_nobody_and_breaks_nothing() -> None:
    rightful = Turn(ITEM, "reserved", SETTLER)
    assert broken(instead(rightful, Turn(ITEM, "reserved", KILLED), Turn(ITEM, "handed back"), rightful)) == []


# --- nothing is there twice ------------------------------------------------------------------


def test_an_item_that_is_in_both_queues_is_doubled() -> None:
    copy = {**item(ObjectId(), "in"), "payload": {**MOVED["payload"], "hops": 0, "mover": None}}
    assert f"{ITEM} is one of 2 items" in violations_of(doubled, replace(GOOD, items=[MOVED, BURIED, copy]))


def test_an_item_that_is_twice_at_its_destination_is_doubled() -> None:
    assert "is one of 2 items" in violations_of(
        doubled, replace(GOOD, items=[MOVED, BURIED, {**MOVED, "_id": ObjectId()}])
    )


def test_an_item_that_moved_on_twice_is_doubled() -> None:
    moved = Turn(ITEM, "moved", MOVER)
    moved_twice = replace(
        instead(moved, moved, moved), items=[{**MOVED, "payload": {**MOVED["payload"], "hops": 2}}, BURIED]
    )
    assert violations_of(doubled, moved_twice) == f"{ITEM} is in 'out' after 2 moves, and counts 2"


def test_a_second_move_that_the_payload_does_not_count_is_doubled() -> None:
    moved = Turn(ITEM, "moved", MOVER)
    assert violations_of(doubled, instead(moved, moved, moved)) == f"{ITEM} is in 'out' after 2 moves, and counts 1"


def test_an_item_that_came_back_after_its_move_is_doubled() -> None:
    assert violations_of(doubled, changed(q="in")) == f"{ITEM} is in 'in' after 1 moves, and counts 1"


def test_an_item_that_was_inserted_twice_is_doubled() -> None:
    assert violations_of(doubled, replace(GOOD, turns=[*TURNS, Turn(ITEM, "pushed")])) == f"{ITEM} was pushed 2 times"


def test_two_runs_under_one_reservation_are_doubled() -> None:
    failed = Turn(ITEM, "handed back", MOVER, "pymongo.errors.DuplicateKeyError")
    assert "handled twice under one reservation" in violations_of(doubled, replace(GOOD, turns=[*TURNS, failed]))
