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
Claim = Callable[[Evidence], Iterator[Violation]]


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
THE_MOVE, THE_COMMIT = Turn(ITEM, "moved", MOVER), Turn(ITEM, "committed", SETTLER)


def changed(**fields: Any) -> Evidence:
    """Return the evidence with another end of the first item."""
    return replace(GOOD, items=[{**MOVED, **fields}, BURIED])


def buried(origin: Any) -> Evidence:
    """Return the evidence with another origin of the dead letter."""
    return replace(GOOD, items=[MOVED, {**BURIED, "origin": origin}])


def instead(old: Turn, *new: Turn) -> Evidence:
    """Return the evidence with other turns in the place of one."""
    place = TURNS.index(old)
    return replace(GOOD, turns=[*TURNS[:place], *new, *TURNS[place + 1 :]])


def later(*more: Turn) -> Evidence:
    """Return the evidence with further turns."""
    return replace(GOOD, turns=[*TURNS, *more])


def without_a_good_run(token: ObjectId) -> Evidence:
    """Return the evidence in which the run under this token did not end."""
    marks = [mark for mark in RUNS if mark["_id"]["token"] != token]
    return replace(GOOD, runs=[*marks, run(ITEM, token, "in", 2, None)])


def test_a_run_that_was_killed_and_a_deserved_dead_letter_break_no_claim() -> None:
    assert broken(GOOD) == []
    assert broken(replace(GOOD, acknowledged=[DEAD])) == [], "a push that was not acknowledged may be there or not"
    assert broken(buried({"queue": "in", "reason": "retries exhausted", "attempts": MAX_RETRIES + 1})) == []
    rightful = Turn(ITEM, "reserved", SETTLER)  # what a worker gives back unused names nobody
    assert broken(instead(rightful, Turn(ITEM, "reserved", KILLED), Turn(ITEM, "handed back"), rightful)) == []


LIVE = {name: value for name, value in MOVED.items() if name not in ("processed", "settled")}
COPY = {**item(ObjectId(), "in"), "payload": {**MOVED["payload"], "hops": 0, "mover": None}}
BROKEN: dict[str, tuple[Claim, Evidence, str]] = {
    "a push that is gone": (lost, replace(GOOD, items=[BURIED]), f"{ITEM} was acknowledged, and is gone"),
    "stuck in the middle": (lost, replace(GOOD, items=[LIVE, BURIED]), "is stuck in 'out'"),
    "ended too early": (lost, changed(q="in"), "should have moved on"),
    "removed": (lost, later(Turn(ITEM, "removed")), "was removed"),
    "moved without a run": (lost, without_a_good_run(MOVER), f"was moved under {MOVER}"),
    "committed without a run": (lost, without_a_good_run(SETTLER), f"was committed under {SETTLER}"),
    "buried too early": (
        lost,
        buried({"queue": "in", "reason": "retries exhausted", "attempts": MAX_RETRIES}),
        f"{DEAD} is a dead letter for no good reason",
    ),
    "buried without a verdict": (
        lost,
        buried({"queue": "in", "reason": f"hopeless in run {MOVER}", "attempts": 1}),
        f"{DEAD} is a dead letter for no good reason",
    ),
    "a stale commit, as it is stored": (
        unfenced,
        replace(GOOD, runs=[*RUNS, run(ITEM, ObjectId(), "out", 2, None)]),
        f"{ITEM} left 'out' by its run 1, and there were 2",
    ),
    "a stale move, as it is stored": (
        unfenced,
        replace(GOOD, runs=[*RUNS, run(ITEM, ObjectId(), "in", 3, "done")]),
        f"{ITEM} left 'in' by its run 2, and there were 3",
    ),
    "a stale commit, on the trail": (
        unfenced,
        instead(THE_COMMIT, Turn(ITEM, "committed", KILLED)),
        f"{ITEM} was committed under {KILLED}, and {SETTLER} held it",
    ),
    "a stale commit before the rightful one": (
        unfenced,
        instead(THE_COMMIT, Turn(ITEM, "committed", KILLED), THE_COMMIT),
        f"{ITEM} was committed under {SETTLER} when nobody held it",
    ),
    "a failure of nobody": (
        unfenced,
        later(Turn(ITEM, "handed back", KILLED)),
        f"{ITEM} was handed back under {KILLED} when nobody held it",
    ),
    "in both queues": (doubled, replace(GOOD, items=[MOVED, BURIED, COPY]), f"{ITEM} is one of 2 items"),
    "moved twice": (doubled, instead(THE_MOVE, THE_MOVE, THE_MOVE), "is in 'out' after 2 moves, and counts 1"),
    "back after its move": (doubled, changed(q="in"), f"{ITEM} is in 'in' after 1 moves, and counts 1"),
    "pushed twice": (doubled, later(Turn(ITEM, "pushed")), f"{ITEM} was pushed 2 times"),
    "two runs under one reservation": (
        doubled,
        later(Turn(ITEM, "handed back", MOVER, "pymongo.errors.DuplicateKeyError")),
        "handled twice under one reservation",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_campaign_notices(what: str) -> None:
    claim, evidence, text = BROKEN[what]
    violations = list(claim(evidence))
    assert text in "\n".join(map(str, violations))
    assert {str(each) for each in violations} <= {str(each) for each in broken(evidence)}
