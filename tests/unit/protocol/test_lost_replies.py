"""What flows make of a reply that was lost: sent again where that is safe, read back, or said to be uncertain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.outcomes import Move
from mongoq.model.trail import StageMark
from mongoq.protocol.claim import pop, reserve
from mongoq.protocol.flow import MAX_SENDS, Flow, ReplyLost
from mongoq.protocol.push import push
from mongoq.protocol.settle import bury, move, settle
from tests.unit.protocol.test_commands import PUSH, STORED
from tests.unit.scripted import ID, LOST, NOW, TOKEN, context, found, matched, play, reserved_item

OTHER = ObjectId()
LEASE = NOW + timedelta(seconds=30)
TAKEN = {"_id": ID, "q": "orders", "when": LEASE, "reserved": True, "token": OTHER, "by": "somebody"}
GONE = None
BACK = {"_id": ID, "q": "orders", "when": NOW, "reserved": False}
ROLLED_BACK = {**BACK, "attempts": 1}
LATER = {**BACK, "when": NOW + timedelta(hours=1)}

COMMIT = lambda: settle.commit(context(), reserved_item())  # noqa: E731
KEEP = lambda: settle.commit(context(history=60), reserved_item())  # noqa: E731
ROLLBACK = lambda: settle.rollback(context(), reserved_item(), delay=0, error=None)  # noqa: E731
ROLLBACK_TO_THE_END = lambda: settle.rollback(context(), reserved_item(), delay=30, error=None)  # noqa: E731
RELEASE = lambda: settle.release(context(), reserved_item(due=NOW))  # noqa: E731
RELEASE_KEYED = lambda: settle.release(context(), reserved_item(due=NOW, key="k"))  # noqa: E731
RELEASE_KEYED_AGAIN = lambda: settle.release(context(), reserved_item(due=NOW, key="k", attempts=2))  # noqa: E731
EXTEND = lambda: settle.extend(context(), reserved_item(), lease=60)  # noqa: E731
MOVED = lambda: move.move(context(), reserved_item(), context("next"), Move("next"))  # noqa: E731
MOVED_TO_A_DATE = lambda: move.move(  # noqa: E731
    context(), reserved_item(), context("next"), Move("next", when=LEASE)
)
MOVED_WITH_KEY = lambda: move.move(context(), reserved_item(key="k"), context("next"), Move("next"), key="k")  # noqa: E731
MOVED_HERE = lambda: move.move(context(), reserved_item(key="k"), context(), Move("orders"), key="k")  # noqa: E731
BURY = lambda: bury.bury(context(), reserved_item(), reason="bad", error=None)  # noqa: E731


def of_a_stage(**options: Any) -> Any:
    """A queue as a stage of a pipeline has it, which records all it can."""
    queue = context(**options)
    queue.stage = StageMark("load", trail=True, payloads=True)
    return queue


KEEP_BY_STAGE = lambda: settle.commit(  # noqa: E731
    of_a_stage(history=60), reserved_item()
)
MOVED_BY_STAGE = lambda: move.move(of_a_stage(), reserved_item(), context("next"), Move("next"))  # noqa: E731
BURY_BY_STAGE = lambda: bury.bury(of_a_stage(), reserved_item(), reason="bad", error=None)  # noqa: E731

DONE: Any = "done"
SENT_AGAIN: Any = "sent again"
CERTAINLY_LOST: Any = "lost"
UNCERTAIN: Any = "uncertain"

CASES = [
    ("commit: sent again", COMMIT, None, SENT_AGAIN),
    ("commit: somebody else has it", COMMIT, TAKEN, CERTAINLY_LOST),
    ("commit: gone, though its lease runs by the local clock", COMMIT, GONE, UNCERTAIN),
    ("commit: still ours, and the delete may yet come", COMMIT, {**TAKEN, "token": TOKEN}, UNCERTAIN),
    ("kept commit: ours, settled", KEEP, {"_id": ID, "processed": NOW, "settled": TOKEN}, DONE),
    ("kept commit: settled by another", KEEP, {"_id": ID, "processed": NOW, "settled": OTHER}, CERTAINLY_LOST),
    ("kept commit: sent again", KEEP, None, SENT_AGAIN),
    ("kept commit: somebody else has it", KEEP, TAKEN, CERTAINLY_LOST),
    ("kept commit: gone", KEEP, GONE, UNCERTAIN),
    ("rollback: back", ROLLBACK, ROLLED_BACK, DONE),
    ("rollback: replaced, and due just then", ROLLBACK, BACK, UNCERTAIN),
    ("rollback: sent again", ROLLBACK, None, SENT_AGAIN),
    ("rollback: taken, perhaps after it", ROLLBACK, TAKEN, UNCERTAIN),
    ("rollback: back, but not by us", ROLLBACK, LATER, UNCERTAIN),
    (
        "rollback: back, or released by another at the end of our lease",
        ROLLBACK_TO_THE_END,
        {**ROLLED_BACK, "when": LEASE},
        UNCERTAIN,
    ),
    ("release: back", RELEASE, BACK, DONE),
    ("release: back, or replaced", RELEASE_KEYED, {**BACK, "key": "k"}, UNCERTAIN),
    ("release: back, its second run not begun", RELEASE_KEYED_AGAIN, {**ROLLED_BACK, "key": "k"}, DONE),
    ("release: sent again", RELEASE, None, SENT_AGAIN),
    ("extend: sent again", EXTEND, None, SENT_AGAIN),
    ("extend: somebody else has it", EXTEND, TAKEN, CERTAINLY_LOST),
    ("move: moved", MOVED, {**BACK, "q": "next"}, DONE),
    (
        "move: moved to the date that another may have given",
        MOVED_TO_A_DATE,
        {**LATER, "q": "next", "when": LEASE},
        UNCERTAIN,
    ),
    ("move: moved with its key", MOVED_WITH_KEY, {**BACK, "q": "next", "key": "k"}, DONE),
    ("move: to where it was, or replaced", MOVED_HERE, {**BACK, "key": "k"}, UNCERTAIN),
    ("move: replaced, and due just then", MOVED, {**BACK, "q": "next", "key": "k"}, UNCERTAIN),
    ("move: sent again", MOVED, None, SENT_AGAIN),
    ("move: moved on, perhaps", MOVED, {**TAKEN, "q": "next"}, UNCERTAIN),
    ("move: gone", MOVED, GONE, UNCERTAIN),
    ("bury: buried", BURY, {**BACK, "q": "orders.dead"}, DONE),
    ("bury: sent again", BURY, None, SENT_AGAIN),
    ("kept commit by a stage: ours, settled", KEEP_BY_STAGE, {"_id": ID, "processed": NOW, "settled": TOKEN}, DONE),
    ("kept commit by a stage: sent again", KEEP_BY_STAGE, None, SENT_AGAIN),
    ("move by a stage: moved", MOVED_BY_STAGE, {**BACK, "q": "next"}, DONE),
    ("move by a stage: sent again", MOVED_BY_STAGE, None, SENT_AGAIN),
    ("move by a stage: moved on, perhaps", MOVED_BY_STAGE, {**TAKEN, "q": "next"}, UNCERTAIN),
    ("bury by a stage: buried", BURY_BY_STAGE, {**BACK, "q": "orders.dead"}, DONE),
    ("bury by a stage: sent again", BURY_BY_STAGE, None, SENT_AGAIN),
]


@pytest.mark.parametrize(
    ("flow", "document", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_lost_reply_is_resolved_or_said_to_be_uncertain(
    flow: Callable[[], Flow[Any]], document: Any, expected: Any
) -> None:
    reading = found() if document is None else found(document)
    replies = [LOST, matched(1)] if expected is SENT_AGAIN else [LOST, matched(0), reading]
    if expected is CERTAINLY_LOST:
        replies.append(reading)
    commands, outcome = play(flow(), replies)
    assert commands[0] == commands[1]
    if expected in (DONE, SENT_AGAIN):
        assert not isinstance(outcome, Exception), outcome
    else:
        assert isinstance(outcome, mongoq.ReservationLost)
        assert outcome.certain is (expected is CERTAINLY_LOST)


@pytest.mark.parametrize("flow", [COMMIT, KEEP, ROLLBACK, RELEASE, EXTEND, MOVED, BURY])
def test_a_single_settlement_is_a_retryable_write(flow: Callable[[], Flow[Any]]) -> None:
    """So the server tells what became of it, and no clock of this machine is asked."""
    (command,), _ = play(flow(), [matched(1)])
    assert not command.resolved


@pytest.mark.parametrize("flow", [COMMIT, KEEP, ROLLBACK, MOVED, BURY])
def test_a_reply_that_is_lost_each_time_is_the_drivers_error(flow: Callable[[], Flow[Any]]) -> None:
    _, outcome = play(flow(), [LOST] * MAX_SENDS)
    assert isinstance(outcome, ReplyLost)


def test_a_reservation_whose_reply_was_lost_is_found_by_its_token() -> None:
    flow = reserve.reserve(context(), lease=None, wait=None, on_invalid="bury")
    claiming = next(flow)
    looking = flow.throw(LOST)
    assert looking.method == "find_one_and_update"  # type: ignore[union-attr]
    mine = claiming.arguments["update"]["$set"]  # type: ignore[union-attr]
    assert looking.arguments["filter"] == {"q": "orders", "when": mine["when"], "token": mine["token"]}  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as stop:
        flow.send({**STORED, **mine, "attempts": 1})
    item = stop.value.value
    assert (item.id, item.token, item.attempts, item.due) == (ID, mine["token"], 1, NOW)


@pytest.mark.parametrize("history", [None, 60])
def test_a_claim_that_took_nothing_is_the_drivers_error(history: float | None) -> None:
    replies = [LOST] if history is None else [LOST, None]
    _, outcome = play(pop.pop(context(history=history), on_invalid="bury"), replies)
    assert isinstance(outcome, ReplyLost)
    _, outcome = play(reserve.reserve(context(), lease=None, wait=None, on_invalid="bury"), [LOST, None] * MAX_SENDS)
    assert isinstance(outcome, ReplyLost)


def test_a_claim_that_took_nothing_is_sent_again_under_a_token_of_its_own() -> None:
    commands, item = play(reserve.reserve(context(), lease=None, wait=None, on_invalid="bury"), [LOST, None, STORED])
    first, _, second = [command.arguments for command in commands]
    assert first["update"]["$set"]["token"] != second["update"]["$set"]["token"] == item.token


def test_a_pop_into_history_whose_reply_was_lost_is_found() -> None:
    _, item = play(pop.pop(context(history=60), on_invalid="bury"), [LOST, {**STORED, "processed": NOW, "attempts": 1}])
    assert (item.id, item.attempts, item.state) == (ID, 1, "processed")


def test_a_push_whose_reply_was_lost_is_looked_for() -> None:
    _, outcome = play(push.push(context(), 1, **PUSH), [LOST, matched(1)])
    assert outcome == ID
    _, outcome = play(push.push(context(), 1, **PUSH), [LOST, matched(0), found()])
    assert isinstance(outcome, ReplyLost)


def test_a_pop_whose_reply_was_lost_buries_what_had_all_its_runs_as_a_live_letter() -> None:
    marks = {"processed": NOW, "expires": NOW, "settled": TOKEN, "reserved": False}
    after = {
        name: value for name, value in {**STORED, **marks, "attempts": 12}.items() if name not in ("when", "token")
    }
    commands, outcome = play(pop.pop(context(history=60), on_invalid="bury"), [LOST, after, None, None])
    assert outcome is None
    letter = commands[2].arguments["replacement"]
    assert (letter["q"], letter["when"], letter["origin"]["attempts"]) == ("orders.dead", NOW, 11)
    assert letter.keys().isdisjoint({"processed", "expires", "settled", "token"})
