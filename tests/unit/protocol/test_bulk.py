"""Batches on scripted replies: what is sent, lost replies, short counts, and errors between two commands."""

from __future__ import annotations

import inspect
import math
import pickle
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import bson
import mongomock
import pymongo.asynchronous.collection
import pymongo.collection
import pytest
from bson import Code, DatetimeMS, Decimal128, ObjectId
from pymongo.errors import BulkWriteError, ServerSelectionTimeoutError

import mongoq
from mongoq.drivers.backend import classify_error, open_backend
from mongoq.model.encoding.codec import codec_options
from mongoq.model.item import id_key, reservation_key
from mongoq.model.outcomes import Done, Fork, Move
from mongoq.protocol.claim import reserve_many
from mongoq.protocol.claim.batch_claim import BatchClaim
from mongoq.protocol.claim.candidates import Candidates
from mongoq.protocol.flow import MAX_SENDS, Command, Duplicate, PartlyRefused, Refused, ReplyLost
from mongoq.protocol.push import push, push_many
from mongoq.protocol.settle import bulk, move, settle
from mongoq.protocol.settle.apply_outcomes import apply_outcomes, apply_outcomes_of_queues
from mongoq.protocol.state.claim_hints import ClaimHints, LowerBound
from tests.unit.scripted import LOST, NOW, TOKEN, context, found, found_raw, play, reserved_item

OTHER = ObjectId()
LEASE = NOW + timedelta(seconds=30)
IDS = [ObjectId() for _ in range(4)]
PUSH: dict[str, Any] = {"delay": None, "when": None, "priority": 0, "headers": None, "once": None}
DOWN = ServerSelectionTimeoutError("no server")


def items(n: int = 3, **changes: Any) -> list[Any]:
    return [reserved_item(_id=id, **changes) for id in IDS[:n]]


def total(n: int) -> Any:
    return SimpleNamespace(matched_count=0, deleted_count=n)


def updated(n: int) -> Any:
    return SimpleNamespace(matched_count=n, deleted_count=0)


def stored(place: int, **fields: Any) -> dict[str, Any]:
    return {"_id": IDS[place], "q": "orders", **fields}


def foreign(place: int) -> dict[str, Any]:
    return stored(place, token=OTHER, reserved=True, when=LEASE, by="somebody")


def requests(command: Command[Any]) -> Any:
    assert command.method == "bulk_write"
    assert command.arguments["ordered"] is False
    return command.arguments["requests"]


def verdicts(outcome: Any) -> list[str]:
    """Return what became of the items, in the order of their ids."""
    if outcome is None:
        return ["done"] * 3
    assert isinstance(outcome, mongoq.BatchIncomplete), outcome
    by_id = dict.fromkeys(outcome.done, "done")
    by_id |= {id: "lost" if error.certain else "uncertain" for id, error in outcome.failed.items()}
    return [by_id[id] for id in IDS if id in by_id]


def rolled_back(queue: Any, leased: list[Any]) -> Any:
    return settle.rollback_many(queue, leased, delay=0, error=None)


# --- what follows it -----------------------------------------------------------------------


@pytest.mark.parametrize("settle_many_items", [settle.release_many, rolled_back], ids=["release", "rollback"])
def test_what_a_batch_hands_back_lowers_the_bounds_of_claims_and_no_refresh_is_due(settle_many_items: Any) -> None:
    queue = context()
    queue.state.claim_hints = ClaimHints(fast=True, floors={0: LowerBound(NOW)}, looked_at=time.monotonic())
    leased = [reserved_item(_id=id, priority=priority) for id, priority in zip(IDS, (0, -5, -5), strict=False)]
    _, outcome = play(settle_many_items(queue, leased), [updated(3)])
    assert outcome is None
    assert queue.state.claim_hints.floors.keys() == {0, -5}
    assert not queue.state.claim_hints.outdated


# --- what is sent --------------------------------------------------------------------------


def test_a_commit_is_one_statement_for_each_token() -> None:
    other = reserved_item(_id=IDS[3], token=OTHER)
    (command,), outcome = play(settle.commit_many(context(), [*items(), other]), [total(4)])
    assert outcome is None
    assert requests(command) == [
        ("DeleteMany", {"filter": {"_id": {"$in": IDS[:3]}, "token": TOKEN}}),
        ("DeleteOne", {"filter": {"_id": IDS[3], "token": OTHER}}),
    ]


def test_a_commit_with_history_is_one_update_of_many() -> None:
    (command,), _ = play(settle.commit_many(context(history=60), items()), [updated(3)])
    ((kind, arguments),) = requests(command)
    assert (kind, arguments["filter"]) == ("UpdateMany", {"_id": {"$in": IDS[:3]}, "token": TOKEN})
    assert arguments["update"]["$set"]["settled"] == TOKEN
    assert arguments["update"]["$unset"] == {"when": "", "token": ""}


def test_what_differs_has_a_statement_of_its_own() -> None:
    earlier = NOW - timedelta(seconds=9)
    leased = [*items(2, due=NOW), reserved_item(_id=IDS[2], due=earlier)]
    (command,), _ = play(settle.release_many(context(), leased), [updated(3)])
    assert [(kind, arguments["update"]["$set"]["when"]) for kind, arguments in requests(command)] == [
        ("UpdateMany", NOW),
        ("UpdateOne", earlier),
    ]
    ways = [Move("a"), Move("a"), Move("b")]
    (command,), _ = play(move.move_many(context(), zip(items(), ways, strict=True), lambda to: to), [updated(3)])
    assert [(kind, arguments["update"]["$set"]["q"]) for kind, arguments in requests(command)] == [
        ("UpdateMany", "a"),
        ("UpdateOne", "b"),
    ]


@pytest.mark.parametrize("attempts", [(1, 1, 2), (2, 1, 1)])
def test_what_had_all_its_runs_is_buried_among_others_that_go_back(attempts: tuple[int, ...]) -> None:
    leased = [reserved_item(_id=id, attempts=number) for id, number in zip(IDS, attempts, strict=False)]
    back = settle.rollback_many(context(max_retries=1), leased, delay=0, error=None)
    (command,), _ = play(back, [updated(3)])
    updates = {arguments["update"]["$set"].get("q", "orders"): arguments for _, arguments in requests(command)}
    assert updates["orders.dead"]["filter"]["_id"] == IDS[attempts.index(2)]
    assert updates["orders"]["filter"]["_id"] == {"$in": [id for id, n in zip(IDS, attempts, strict=False) if n == 1]}


def test_moves_with_equal_payloads_share_a_statement_and_1_is_not_true() -> None:
    ways = [Move("next", payload=payload) for payload in ({"n": 1}, {"n": True}, {"n": 1})]
    (command,), _ = play(move.move_many(context(), zip(items(), ways, strict=True), str), [updated(3)])
    assert [(kind, arguments["update"]["$set"]["payload"]["n"]) for kind, arguments in requests(command)] == [
        ("UpdateMany", 1),
        ("UpdateOne", True),
    ]
    ways = [Move("next", delay=1), Move("next", delay=True)]
    commands, outcome = play(move.move_many(context(), zip(items(2), ways, strict=True), str), [])
    assert isinstance(outcome, mongoq.ArgumentInvalid)
    assert (commands, outcome.argument) == ([], "moves[1].delay")


class Named(Move):
    priority = -50  # type: ignore[assignment]  # the options that a move has, or has not, count


class Computed(Move):
    priority = property(lambda self: 9)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("ways", "priorities"),
    [
        ([Named("next"), Move("next")], [None]),
        ([Move("next"), Named("next", priority=None)], [None]),
        ([Computed("next"), Move("next")], [9, None]),
        ([Move("next"), Computed("next")], [None, 9]),
    ],
)
def test_moves_of_classes_of_the_users_own_are_distinguished(ways: list[Move], priorities: list[int | None]) -> None:
    (command,), _ = play(move.move_many(context(), zip(items(2), ways, strict=True), str), [updated(2)])
    assert [arguments["update"]["$set"].get("priority") for _, arguments in requests(command)] == priorities


def test_a_move_with_a_payload_is_the_same_alone_and_in_a_batch() -> None:
    updates = []
    for lease in (LEASE, NOW):
        item, way = (
            reserved_item(when=lease),
            Move("next", payload=[1, {"n": UUID(int=1)}], priority=3, headers={"h": 1}),
        )
        (command,), _ = play(move.move_many(context(), [(item, way)], str), [updated(1)])
        arguments = command.arguments if command.method == "update_one" else requests(command)[0][1]
        updates.append({name: _decoded(part) for name, part in arguments.items()})
    assert updates[0] == updates[1]
    assert updates[0]["update"]["$set"]["payload"] == [1, {"n": UUID(int=1)}]


def _decoded(document: Any) -> Any:
    return bson.decode(bson.encode(document, codec_options=codec_options()), codec_options())


@pytest.mark.parametrize("id", [Decimal128("1"), Code("1"), {"n": 1}, "text"])
def test_an_id_of_another_program_is_reported_when_its_item_is_lost(id: Any) -> None:
    leased = [reserved_item(_id=id), reserved_item(_id=IDS[0])]
    commands, outcome = play(settle.commit_many(context(), leased), [total(1), found({**foreign(0), "_id": id})])
    assert len(commands) == 2
    assert isinstance(outcome, mongoq.BatchIncomplete)
    assert outcome.done == [IDS[0]]
    assert [type(error) for error in outcome.failed.values()] == [mongoq.ReservationLost]
    assert next(iter(outcome.failed)) in (id, repr(id))


@pytest.mark.parametrize("when", [None, "soon", DatetimeMS(-(10**15))])
def test_what_another_program_has_dated_is_settled_by_itself(when: Any) -> None:
    leased = [reserved_item(_id=IDS[0], when=when), reserved_item(_id=IDS[1])]
    commands, outcome = play(settle.commit_many(context(), leased), [total(1), total(1)])
    assert outcome is None
    assert [command.method for command in commands] == ["bulk_write", "delete_one"]
    assert commands[1].arguments["filter"]["_id"] == IDS[0]


def test_what_was_moved_while_the_index_was_read_is_claimed_once_from_its_first_place() -> None:
    later = NOW + timedelta(seconds=1)
    read = [{"_id": IDS[0], "when": NOW}, {"_id": IDS[1], "when": NOW}, {"_id": IDS[0], "when": later}]
    for where in ({}, {"payload.n": 1}):
        batch_claim = BatchClaim(context(), Candidates(documents=read), {}, NOW, where=where)
        assert list(batch_claim.ids.values()) == IDS[:2]
        assert set(batch_claim.dues.values()) == {NOW}


def test_patches_never_share_a_statement() -> None:
    way = Move("a", patch={"$inc": {"n": 1}})
    (command,), _ = play(move.move_many(context(), [(item, way) for item in items()], str), [updated(3)])
    assert [kind for kind, _ in requests(command)] == ["UpdateOne"] * 3
    assert all("$expr" in arguments["filter"] for _, arguments in requests(command))


def test_bulks_are_bounded() -> None:
    leased = [reserved_item(_id=ObjectId(), token=ObjectId()) for _ in range(2_500)]
    commands, _ = play(settle.commit_many(context(), leased), [total(1_000), total(1_000), total(500)])
    assert [len(requests(command)) for command in commands] == [1_000, 1_000, 500]
    leased = [reserved_item(_id=ObjectId()) for _ in range(25_000)]
    commands, _ = play(settle.commit_many(context(), leased), [total(10_000), total(10_000), total(5_000)])
    assert [len(requests(command)) for command in commands] == [1, 1, 1]
    ways = [(item, Move("next", payload=bytes([n]) * 9_000_000)) for n, item in enumerate(items())]
    commands, _ = play(move.move_many(context(), ways, str), [updated(1)] * 3)
    assert len(commands) == 3


def test_items_whose_leases_end_soon_are_settled_by_themselves() -> None:
    leased = [*items(2), reserved_item(_id=IDS[2], when=NOW + bulk.LEASE_MARGIN)]
    commands, outcome = play(settle.commit_many(context(), leased), [total(2), total(1)])
    assert outcome is None
    assert [command.method for command in commands] == ["bulk_write", "delete_one"]


def test_tokens_of_blocks_are_struck_off_when_settled() -> None:
    queue = context()
    unrelated = {reservation_key(reserved_item(token=OTHER))}
    queue.broker.unsettled |= unrelated | {reservation_key(item) for item in items()}
    play(settle.extend_many(queue, items(), lease=60), [updated(3)])
    assert len(queue.broker.unsettled) == 4
    play(settle.commit_many(queue, items()), [total(3)])
    assert queue.broker.unsettled == unrelated


def test_every_backend_takes_the_statements() -> None:
    (command,), _ = play(settle.release_many(context(), items()), [updated(3)])
    backend = open_backend(pymongo.MongoClient(connect=False)["app"]["mongoq"], asynchronous=False)
    arguments = backend.arguments(command)
    assert arguments["requests"] == [pymongo.UpdateMany(**requests(command)[0][1])]
    for kind in (pymongo.collection.Collection, pymongo.asynchronous.collection.AsyncCollection):
        inspect.signature(kind.bulk_write).bind(None, **arguments)
    for kind in (pymongo.collection.Collection, mongomock.Collection):
        inspect.signature(kind.insert_many).bind(None, documents=[], ordered=False)
    backend.client.close()


# --- who was settled -----------------------------------------------------------------------

COMMIT: Any = lambda: settle.commit_many(context(), items())  # noqa: E731
KEEP: Any = lambda: settle.commit_many(context(history=60), items())  # noqa: E731
ROLLBACK: Any = lambda: settle.rollback_many(context(), items(), delay=0, error=None)  # noqa: E731
RELEASE: Any = lambda: settle.release_many(context(), items(due=NOW))  # noqa: E731
RELEASE_KEYED: Any = lambda: settle.release_many(  # noqa: E731
    context(), [*items(2, due=NOW), reserved_item(_id=IDS[2], due=NOW, key="k")]
)
EXTEND: Any = lambda: settle.extend_many(context(), items(), lease=60)  # noqa: E731
MOVE: Any = lambda: move.move_many(context(), [(item, Move("next")) for item in items()], str)  # noqa: E731
MINUTE = NOW + timedelta(seconds=60)

KEPT = [stored(n, settled=TOKEN, processed=NOW) for n in range(3)]
BACK = [stored(n, when=NOW, attempts=1) for n in range(3)]
MOVED = [stored(n, q="next", when=NOW) for n in range(3)]
FREE = [stored(n, when=NOW) for n in range(3)]
NEW = stored(2, when=NOW, key="k")
LATER = {**NEW, "when": MINUTE}
EXTENDED = [stored(n, token=TOKEN, reserved=True, when=MINUTE) for n in range(3)]

SHORT = [
    ("commit: one is somebody else's", COMMIT, 2, [foreign(1)], ["done", "lost", "done"]),
    ("commit: all are gone, one of them before", COMMIT, 2, [], ["uncertain"] * 3),
    ("commit: one is back", COMMIT, 2, [BACK[0]], ["lost", "done", "done"]),
    ("commit: nothing was there", COMMIT, 0, [], ["lost"] * 3),
    ("kept: one was settled by another", KEEP, 2, [*KEPT[:2], stored(2, settled=OTHER)], ["done", "done", "lost"]),
    ("kept: one is gone", KEEP, 2, KEPT[:2], ["done", "done", "uncertain"]),
    ("kept: one was before", KEEP, 2, [*KEPT[:2], {**KEPT[2], "processed": MINUTE}], ["done", "done", "lost"]),
    ("kept: one that is gone was ours", KEEP, 2, [KEPT[0], foreign(1)], ["done", "lost", "done"]),
    ("rollback: one is somebody else's", ROLLBACK, 2, [*BACK[:2], foreign(2)], ["done", "done", "lost"]),
    (
        "rollback: one may have been taken after it",
        ROLLBACK,
        1,
        [foreign(1), foreign(2)],
        ["uncertain"] * 3,
    ),
    ("rollback: one was back before", ROLLBACK, 2, BACK, ["uncertain"] * 3),
    ("rollback: one had another run", ROLLBACK, 2, [*BACK[:2], {**BACK[2], "attempts": 2}], ["done", "done", "lost"]),
    ("release: one is somebody else's", RELEASE, 2, [*FREE[:2], foreign(2)], ["done", "done", "uncertain"]),
    ("release: one was free before", RELEASE, 2, FREE, ["uncertain"] * 3),
    ("release: one is in another queue", RELEASE, 2, [*FREE[:2], MOVED[2]], ["done", "done", "uncertain"]),
    ("release: one is under another key", RELEASE, 2, [*FREE[:2], NEW], ["done", "done", "uncertain"]),
    ("release: one was free before, or replaced", RELEASE_KEYED, 2, [*FREE[:2], NEW], ["uncertain"] * 3),
    ("release: one was replaced", RELEASE_KEYED, 2, [*FREE[:2], LATER], ["done", "done", "uncertain"]),
    ("extend: one is somebody else's", EXTEND, 2, [*EXTENDED[:2], foreign(2)], ["done", "done", "lost"]),
    ("move: one is somebody else's", MOVE, 2, [*MOVED[:2], foreign(2)], ["done", "done", "lost"]),
    ("move: one is in another queue", MOVE, 2, [*MOVED[:2], BACK[2]], ["done", "done", "lost"]),
]


@pytest.mark.parametrize(
    ("flow", "count", "documents", "expected"), [case[1:] for case in SHORT], ids=[c[0] for c in SHORT]
)
def test_a_short_count_is_resolved_by_reading(flow: Any, count: int, documents: Any, expected: list[str]) -> None:
    commands, outcome = play(flow(), [total(count), found(*documents)])
    assert len(commands) == 2
    assert verdicts(outcome) == expected


MOVE_TO_A_DATE: Any = lambda: move.move_many(  # noqa: E731
    context(), [(item, Move("next", when=MINUTE)) for item in items()], str
)
DATED = [{**document, "when": MINUTE} for document in MOVED]
LOST_REPLIES = [
    ("commit: sent again", COMMIT, 3, None, ["done"] * 3),
    ("commit: gone, though the leases run by the local clock", COMMIT, 0, [], ["uncertain"] * 3),
    ("commit: one is somebody else's", COMMIT, 0, [foreign(0)], ["lost", "uncertain", "uncertain"]),
    ("commit: one was still there", COMMIT, 1, [foreign(0)], ["lost", "uncertain", "uncertain"]),
    ("kept: ours", KEEP, 0, KEPT, ["done"] * 3),
    ("kept: one is somebody else's", KEEP, 1, [*KEPT[:2], foreign(2)], ["done", "done", "lost"]),
    ("rollback: back", ROLLBACK, 0, BACK, ["done"] * 3),
    (
        "rollback: taken, perhaps after it",
        ROLLBACK,
        0,
        [*BACK[:2], foreign(2)],
        ["done", "done", "uncertain"],
    ),
    ("release: back, one of them perhaps replaced", RELEASE_KEYED, 0, [*FREE[:2], NEW], ["done", "done", "uncertain"]),
    ("move: to the date that another may have given", MOVE_TO_A_DATE, 0, DATED, ["uncertain"] * 3),
    ("move: moved, one of them on", MOVE, 0, MOVED[:2], ["done", "done", "uncertain"]),
]


@pytest.mark.parametrize(
    ("flow", "count", "documents", "expected"), [case[1:] for case in LOST_REPLIES], ids=[c[0] for c in LOST_REPLIES]
)
def test_a_lost_reply_of_a_bulk_is_resolved(flow: Any, count: int, documents: Any, expected: list[str]) -> None:
    commands, outcome = play(flow(), [LOST, total(count), *([] if documents is None else [found(*documents)])])
    assert commands[0] == commands[1]
    assert verdicts(outcome) == expected


def test_the_holder_of_a_lost_item_is_reported() -> None:
    _, outcome = play(COMMIT(), [total(2), found(foreign(1))])
    assert outcome.failed[IDS[1]].held_by == "somebody"
    assert str(IDS[1]) in str(outcome)
    assert isinstance(outcome.__cause__, mongoq.ReservationLost)


def test_a_network_that_is_down_is_the_drivers_error() -> None:
    for replies in ([DOWN], [LOST] * MAX_SENDS):
        _, outcome = play(COMMIT(), replies)
        assert outcome in (DOWN, LOST.cause)


def test_a_network_that_fails_between_two_bulks_is_reported() -> None:
    leased = [reserved_item(_id=ObjectId(), token=ObjectId()) for _ in range(2_500)]
    commands, outcome = play(settle.commit_many(context(), leased), [total(1_000), *[LOST] * MAX_SENDS, DOWN])
    assert len(commands) == MAX_SENDS + 2
    assert set(outcome.done) == {item.id for item in leased[:1_000]}
    assert list(outcome.failed.values()) == [LOST.cause] * 1_000 + [DOWN] * 500
    assert len(str(outcome)) < 1_000


class Fleeting(dict[str, Any]):
    """A document whose end can be noticed."""


def test_an_object_that_outcomes_share_lives_as_long_as_its_identity_is_used() -> None:
    """Or another one, made where it lay, would be taken for it."""
    moves, patch = move.Moves(context(), str), Fleeting({"$set": {"n": 1}})
    reference = weakref.ref(patch)
    moves.check(Move("next", patch=patch))
    del patch
    assert reference() is not None


def test_an_outcome_that_cannot_be_done_fails_its_item_and_no_other() -> None:
    outcomes = [Move("next", priority=1), Move("next", priority=True), Move("next", priority=1)]
    (command,), failed = play(apply_outcomes(context(), zip(items(), outcomes, strict=True), str), [updated(2)])
    assert list(failed) == [IDS[1].binary]
    ((_, arguments),) = command.arguments["requests"]
    assert arguments["filter"]["_id"] == {"$in": [IDS[0], IDS[2]]}


def test_a_refused_statement_fails_its_item_and_no_other() -> None:
    way = Move("a", patch={"$inc": {"n": 1}})
    refused = PartlyRefused(ValueError("bulk"), {1: Refused(ValueError("no number"))}, 2)
    _, outcome = play(move.move_many(context(), [(item, way) for item in items()], str), [refused])
    assert outcome.done == [IDS[0], IDS[2]]
    assert isinstance(outcome.failed[IDS[1]], mongoq.PatchInvalid)


def test_a_refused_statement_of_many_is_settled_one_by_one() -> None:
    refused = PartlyRefused(ValueError("bulk"), {0: Refused(ValueError("too large"))}, 0)
    too_large = Refused(ValueError("too large"))
    reply = found(*({"_id": id, "token": TOKEN} for id in IDS))
    commands, outcome = play(ROLLBACK(), [refused, reply, updated(1), too_large, updated(1)])
    assert [command.method for command in commands] == ["bulk_write", "command", *["update_one"] * 3]
    assert outcome.done == [IDS[0], IDS[2]]
    assert outcome.failed == {IDS[1]: too_large.cause}


def test_what_a_refused_statement_had_done_is_done() -> None:
    refused = PartlyRefused(ValueError("bulk"), {0: Refused(ValueError("too large"))}, 0)
    back = {"_id": IDS[0], "q": "orders", "when": NOW, "attempts": 1, "reserved": False}
    reserved = [{"_id": id, "token": TOKEN} for id in IDS[1:]]
    _, outcome = play(ROLLBACK(), [refused, found(back, *reserved), found(back), updated(1), updated(1)])
    assert outcome is None


def test_the_driver_sorts_the_errors_of_a_bulk() -> None:
    def error(*codes: int, unconfirmed: Any = ()) -> BulkWriteError:
        refused = [{"index": n, "code": code, "errmsg": "no"} for n, code in enumerate(codes)]
        counts = {"nInserted": 1, "nMatched": 2, "nRemoved": 4}
        return BulkWriteError({"writeErrors": refused, "writeConcernErrors": list(unconfirmed), **counts})

    classified: Any = classify_error(error(11000, 14, 121))
    assert isinstance(classified, PartlyRefused)
    assert classified.total == 7
    assert [type(refusal) for refusal in classified.refusals.values()] == [
        Duplicate,
        Refused,
        pymongo.errors.WriteError,
    ]
    assert isinstance(classify_error(error(unconfirmed=[{"code": 64}])), ReplyLost)
    assert isinstance(classify_error(error(14, unconfirmed=[{"code": 64}])), ReplyLost)
    assert isinstance(classify_error(error(11602)), ReplyLost)
    for code in (89, 11602):  # of a router, and of a server that stops
        assert isinstance(classify_error(pymongo.errors.WriteError("no", code)), ReplyLost)


def test_an_incomplete_batch_travels() -> None:
    error = mongoq.BatchIncomplete("orders", [IDS[0]], {IDS[1]: mongoq.ReservationLost(IDS[1], "orders")})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.queue, again.done) == (str(error), "orders", [IDS[0]])
    assert str(again.failed[IDS[1]]) == str(error.failed[IDS[1]])
    incomplete = mongoq.BatchIncomplete("orders", [], {ObjectId(): ValueError("x") for _ in range(50)})
    assert str(incomplete).count(",") < 14
    assert "BatchIncomplete" in (mongoq.errors.__doc__ or "")


# --- push_many -----------------------------------------------------------------------------


def pushed(n: int, **options: Any) -> Callable[[], Any]:
    return lambda: push_many.push_many(context(), range(n), **{**PUSH, "ids": None, **options})


def test_many_are_pushed_by_one_insert() -> None:
    (command,), ids = play(pushed(3)(), [None])
    assert (command.method, command.arguments["ordered"]) == ("insert_many", False)
    documents = [bson.decode(document.raw, codec_options()) for document in command.arguments["documents"]]
    assert [document["_id"] for document in documents] == ids == sorted(ids)
    assert {document["when"] for document in documents} == {NOW}


@pytest.mark.parametrize("payload", [{"a": [1, {"b": None}]}, {}, [], None, 0, 2**40, "", b"x" * 5_000, UUID(int=1)])
def test_what_is_pushed_among_many_is_what_is_pushed_alone(payload: Any) -> None:
    options = {**PUSH, "priority": 2, "headers": {"h": 1}, "once": 60}
    (single,), _ = play(push.push(context(), payload, **options, id=IDS[0]), [None])
    (batch,), _ = play(push_many.push_many(context(), [payload], **options, ids=IDS[:1]), [None])
    (document,) = batch.arguments["documents"]
    assert document.raw == bson.encode(single.arguments["document"], codec_options=codec_options())


def test_pushes_are_cut_by_number_and_by_bytes() -> None:
    commands, ids = play(pushed(25_000)(), [None] * 3)
    assert [len(command.arguments["documents"]) for command in commands] == [10_000, 10_000, 5_000]
    assert len(ids) == 25_000
    flow = push_many.push_many(context(), [{"blob": b"x" * 6_000_000}] * 5, **PUSH, ids=None)
    commands, _ = play(flow, [None] * 3)
    assert [len(command.arguments["documents"]) for command in commands] == [2, 2, 1]


def test_a_push_whose_reply_was_lost_is_there_when_all_of_it_is() -> None:
    commands, ids = play(pushed(3)(), [LOST, updated(3)])
    assert len(ids) == 3
    assert commands[1].method == "update_many"
    assert commands[1].arguments["filter"] == {"_id": {"$in": ids}}
    assert list(commands[1].arguments["update"]) == ["$unset"]


def test_a_push_whose_reply_was_lost_tells_what_is_there() -> None:
    commands, outcome = play(pushed(3)(), [LOST, updated(1), found()])
    ids = [document["_id"] for document in commands[0].arguments["documents"]]
    assert (outcome.done, list(outcome.failed)) == ([], ids)
    assert outcome.__cause__ is LOST.cause
    for replies in ([LOST, LOST, LOST], [LOST, DOWN]):
        _, outcome = play(pushed(3)(), replies)
        assert len(outcome.failed) == 3
        assert set(outcome.failed.values()) == {LOST.cause}


def test_a_push_with_ids_is_sent_again() -> None:
    refused = PartlyRefused(ValueError(), dict.fromkeys(range(4), Duplicate(ValueError())), 0)
    there = [{"_id": id, "q": "next", "once": NOW, "into": "orders"} for id in IDS]
    commands, ids = play(pushed(4, ids=IDS)(), [LOST, refused, found(*there)])
    assert ids == IDS
    assert commands[0] is commands[1]


def test_an_id_that_was_there_and_has_gone_is_pushed_after_all() -> None:
    refused = PartlyRefused(ValueError(), {1: Duplicate(ValueError()), 3: Duplicate(ValueError())}, 2)
    there = {"_id": IDS[1], "q": "next", "once": NOW, "into": "orders"}
    commands, ids = play(pushed(4, ids=IDS)(), [refused, found(there), None])
    assert ids == IDS
    assert [document["_id"] for document in commands[2].arguments["documents"]] == [IDS[3]]
    (alone, _, again), id = play(push.push(context(), 1, **PUSH, id=IDS[0]), [Duplicate(ValueError()), found(), None])
    assert (id, again.arguments) == (IDS[0], alone.arguments)


def test_a_lost_reply_says_nothing_of_an_id_that_another_push_has_used() -> None:
    other = {"_id": IDS[0], "q": "charges", "once": NOW, "into": "charges"}
    _, outcome = play(push.push(context(), 1, **PUSH, id=IDS[0]), [LOST, updated(0), found(other)])
    assert isinstance(outcome, mongoq.DuplicateItem)
    assert (outcome.queue, outcome.id) == ("charges", IDS[0])
    _, outcome = play(pushed(4, ids=IDS)(), [LOST, LOST, LOST, LOST, updated(4), found(other)])
    assert isinstance(outcome, mongoq.BatchIncomplete)
    assert {id: type(error) for id, error in outcome.failed.items()} == {IDS[0]: mongoq.DuplicateItem}


def test_a_duplicate_of_an_id_of_our_own_is_an_error() -> None:
    refused = PartlyRefused(ValueError(), {1: Duplicate(ValueError("dup"))}, 2)
    _, outcome = play(pushed(3)(), [refused])
    assert isinstance(outcome, mongoq.BatchIncomplete)
    assert (len(outcome.done), len(outcome.failed)) == (2, 1)


def test_a_push_that_fails_between_two_commands_tells_both_parts() -> None:
    commands, outcome = play(pushed(25_000)(), [None, DOWN])
    assert len(commands) == 2
    assert (len(outcome.done), len(outcome.failed)) == (10_000, 15_000)
    _, outcome = play(pushed(25_000)(), [DOWN])
    assert outcome is DOWN


# --- reserve_many --------------------------------------------------------------------------

RESERVE: dict[str, Any] = {"lease": None, "wait": None, "on_invalid": "bury"}
FIRST = [{"_id": IDS[n], "priority": 0, "when": NOW - timedelta(seconds=n)} for n in range(3)]


def reserve(n: int = 3, queue: Any = None, *, whole: bool = False, **options: Any) -> Any:
    queue = queue or context()
    queue.state.prefetch.closed_until = -math.inf if whole else math.inf
    return reserve_many.reserve_many(queue, n, **{**RESERVE, **options})


def read_item(command: Command[Any], place: int, **fields: Any) -> dict[str, Any]:
    """An item as it is read back, under the marks that the claim has set."""
    return {**stored(place), "payload": place, "attempts": 1, **command.arguments["update"]["$set"], **fields}


def claim(flow: Any, *script: Any) -> tuple[list[Command[Any]], Any]:
    """Play a claim; functions in the script make a reply of the ``update_many`` that was sent."""
    commands: list[Command[Any]] = []
    try:
        request = next(flow)
        for reply in script:
            commands.append(request)
            if callable(reply):
                update = next(command for command in commands if command.method == "update_many")
                reply = reply(update)  # noqa: PLW2901
            if isinstance(reply, Exception):
                request = flow.throw(reply)
            else:
                request = flow.send(reply if request.parse is None else request.parse(reply))
    except StopIteration as stop:
        return commands, stop.value
    except Exception as error:
        return commands, error
    raise AssertionError(f"no reply was scripted for {request}")


def read_back(*places: int) -> Callable[[Command[Any]], Any]:
    return lambda update: found(*(read_item(update, place) for place in places))


def test_a_batch_is_found_claimed_and_read_back() -> None:
    commands, got = claim(reserve(), found(*FIRST), updated(3), read_back(2, 0, 1))
    assert [item.id for item in got] == IDS[:3]
    assert [item.due for item in got] == [document["when"] for document in FIRST]
    find, update, _ = commands
    assert find.arguments["command"]["projection"] == {"priority": 1, "when": 1}
    assert update.arguments["filter"] == {
        "_id": {"$in": IDS[:3]},
        "q": "orders",
        "when": {"$lte": NOW},
        "attempts": {"$lt": 11},
    }
    marks = update.arguments["update"]["$set"]
    assert marks["batch"] == marks["token"]


def pushed_raw(*places: int) -> Any:
    fields = {"priority": 0, "attempts": 0, "reserved": False}
    return found_raw(*(stored(place, payload=place, when=NOW, **fields) for place in places))


def test_a_batch_that_was_never_reserved_is_read_once() -> None:
    (find, update), got = claim(reserve(whole=True), pushed_raw(0, 1, 2), updated(3))
    assert "projection" not in find.arguments["command"]
    assert {"by": None, "key": None, "once": None}.items() <= update.arguments["filter"].items()
    assert [(item.id, item.payload, item.due, item.attempts) for item in got] == [(IDS[n], n, NOW, 1) for n in range(3)]
    assert len({item._size for item in got}) == 1
    assert got[0]._size > 50


@pytest.mark.parametrize("replies", [[updated(2)], [LOST, updated(0)], [LOST, updated(3)]])
def test_a_batch_is_read_again_unless_all_of_it_is_certainly_what_was_read(replies: list[Any]) -> None:
    commands, got = claim(reserve(whole=True), pushed_raw(0, 1, 2), *replies, read_back(0, 2), found())
    assert [item.id for item in got] == [IDS[0], IDS[2]]
    token = got[0].token
    assert commands[-2].arguments["command"]["filter"] == {"_id": {"$in": IDS[:3]}, "token": token}


def test_a_lost_reply_of_a_batch_is_sent_again() -> None:
    commands, got = claim(reserve(), found(*FIRST), LOST, updated(0), read_back(0, 1, 2))
    assert commands[1] is commands[2]
    assert len(got) == 3


def test_what_others_took_in_between_is_left_to_them() -> None:
    _, got = claim(reserve(), found(*FIRST), updated(2), read_back(0, 2), found())
    assert [item.id for item in got] == [IDS[0], IDS[2]]
    script = [found(*FIRST), updated(0), found(), found(), found()]
    commands, got = claim(reserve(), *script)
    assert got == []
    assert len(commands) == 5


def test_the_undo_of_a_batch_gives_all_back_to_their_places() -> None:
    commands, _ = claim(reserve(), found(*FIRST), updated(3), read_back(0, 1, 2))
    undo = commands[1].undo(None)  # type: ignore[misc]
    assert undo is not None
    token = commands[1].arguments["update"]["$set"]["token"]
    assert [
        (arguments["filter"], arguments["update"]["$set"]["when"]) for _, arguments in undo.arguments["requests"]
    ] == [({"_id": document["_id"], "token": token}, document["when"]) for document in FIRST]
    assert all(arguments["update"]["$inc"] == {"attempts": -1} for _, arguments in undo.arguments["requests"])


def test_a_claim_by_id_within_a_batch_undoes_the_whole_batch() -> None:
    spent = stored(2, when=NOW, attempts=11)
    commands, got = claim(reserve(), found(*FIRST), updated(2), read_back(0, 1), found(spent), spent, updated(1))
    assert [item.id for item in got] == IDS[:2]
    by_id, burial = commands[-2:]
    assert by_id.method == "find_one_and_update"
    assert len(by_id.undo(None).arguments["requests"]) == 3  # type: ignore[misc,union-attr]
    assert burial.arguments["update"]["$set"]["origin"]["attempts"] == 11


def test_suspects_go_behind_in_one_update_when_others_were_claimed() -> None:
    suspects = [stored(n, when=NOW, attempts=11, batch=OTHER, token=OTHER) for n in (1, 2)]
    commands, got = claim(reserve(), found(*FIRST), updated(1), read_back(0), found(*suspects), updated(2), updated(1))
    assert [item.id for item in got] == [IDS[0]]
    behind, unmarked = commands[-2:]
    assert behind.arguments["filter"]["_id"] == {"$in": IDS[1:3]}
    assert behind.arguments["update"] == {"$set": {"when": NOW}}
    assert unmarked.arguments["filter"] == {"_id": IDS[0], "token": got[0].token, "batch": got[0].token}
    assert unmarked.arguments["update"] == {"$unset": {"batch": ""}}


def test_an_update_that_fits_one_of_them_not_falls_back_to_each_alone() -> None:
    refused = Refused(ValueError("too large"))
    before = [stored(n, when=NOW, attempts=0, payload=n) for n in range(3)]
    commands, got = claim(reserve(), found(*FIRST), refused, updated(1), found(), found(*before), *before)
    assert [item.id for item in got] == IDS[:3]
    assert [command.method for command in commands[1:3]] == ["update_many", "bulk_write"]
    assert [command.arguments["update"]["$set"]["batch"] for command in commands[-3:]] == [got[0].token] * 3


@pytest.mark.parametrize(
    ("ready", "attempts", "marked"),
    [([0], [0], [True]), ([], [0, 0], [True, True]), ([], [0], [False]), ([], [0, 11], [False, False])],
)
def test_what_is_claimed_by_its_id_is_one_of_a_batch_when_others_are_handed_out(
    ready: list[int], attempts: list[int], marked: list[bool]
) -> None:
    """What is buried is never one: killed in between, it would get one more run."""
    expired = [stored(n, when=NOW, attempts=runs) for n, runs in enumerate(attempts, len(ready))]
    replies = [
        reply
        for document, runs in zip(expired, attempts, strict=True)
        for reply in ([document] if not runs else [document, updated(1)])
    ]
    commands, got = claim(reserve(), found(*FIRST), updated(len(ready)), read_back(*ready), found(*expired), *replies)
    assert len(got) == len(ready) + attempts.count(0)
    claims = [command for command in commands if command.method == "find_one_and_update"]
    assert ["batch" in command.arguments["update"]["$set"] for command in claims] == marked


def test_forks_whose_fate_cannot_be_read_hide_nothing_of_the_others() -> None:
    """Settled again, the others would look lost to their worker."""
    done, forked = items(2)
    outcomes = [(done, Done()), (forked, Fork([Move("late")]))]
    transaction = [None, None, "session", None, total(0), None]  # require, twice; start, begin, the bulk, end
    _, failed = play(apply_outcomes(context(), outcomes, lambda queue: queue), [total(1), *transaction, DOWN])
    assert failed == {id_key(forked.id): DOWN}


def test_a_queue_that_is_not_ready_fails_the_batch_before_anything_is_sent() -> None:
    ready, unknown = context(), context("late")
    unknown.saved = False
    done = items(2)
    parts = [(ready, [(done[0], Done())]), (unknown, [(done[1], Done())])]
    _, error = play(apply_outcomes_of_queues(parts, lambda queue: queue), [DOWN])
    assert error is DOWN
