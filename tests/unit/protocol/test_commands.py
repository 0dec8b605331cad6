"""The commands that each operation sends: one table, checked to the letter, and against every backend's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import bson
import mongomock
import pymongo.asynchronous.collection
import pymongo.asynchronous.database
import pymongo.collection
import pymongo.database
import pytest
from bson import ObjectId

from mongoq.model.encoding.codec import codec_options
from mongoq.model.outcomes import Move
from mongoq.protocol.base import queue_settings
from mongoq.protocol.claim import pop, reserve
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.history import pages, read
from mongoq.protocol.push import push
from mongoq.protocol.settle import bury, move, settle, settlement
from tests.unit.scripted import ID, NOW, TOKEN, context, found, matched, play, reserved_item

ANY_TOKEN = object()
LEASE = NOW + timedelta(seconds=30)
DAY = timedelta(days=1)
SORT = [("priority", 1), ("when", 1), ("_id", 1)]
ELIGIBLE = {"q": "orders", "when": {"$lte": NOW}}
FENCE = {"_id": ID, "token": TOKEN}
PUSH = {"delay": None, "when": None, "priority": 0, "headers": None, "id": ID, "once": 60}
STORED = {
    "_id": ID,
    "q": "orders",
    "payload": 1,
    "when": NOW,
    "priority": 0,
    "attempts": 0,
    "reserved": False,
}
IDENTIFIED = {"_id": ID, "q": "orders", "payload": {"$exists": True}}
OPTIONS = codec_options()
PATCHED = {"$set": {"payload.a": 1}, "$push": {"payload.l": {"$each": [2]}}}
ORIGIN = {"queue": "orders", "id": ID, "attempts": 1, "key": None, "at": NOW}


def case(name: str, flow: Callable[[], Flow[Any]], method: str, arguments: Any, reply: Any) -> Any:
    return pytest.param(flow, method, arguments, reply, id=name)


ONCE = {"once": NOW + timedelta(seconds=60), "into": "orders"}
UNREMEMBERED = {"$divide": [1, {"$cond": [{"$gt": ["$once", NOW]}, 0, 1]}]}
CASES = [
    case(
        "push",
        lambda: push.push(context(), 1, **{**PUSH, "headers": {"h": 1}, "priority": 5}),
        "insert_one",
        {"document": {**STORED, "priority": 5, "headers": {"h": 1}, **ONCE}},
        None,
    ),
    case(
        "push with a delay",
        lambda: push.push(context(), 1, **{**PUSH, "delay": 7}),
        "insert_one",
        {"document": {**STORED, "when": NOW + timedelta(seconds=7), **ONCE}},
        None,
    ),
    case(
        "pop",
        lambda: pop.pop(context(), on_invalid="bury"),
        "find_one_and_delete",
        {"filter": {**ELIGIBLE, "$expr": UNREMEMBERED}, "sort": SORT},
        STORED,
    ),
    case(
        "pop with history",
        lambda: pop.pop(context(history=DAY), on_invalid="bury"),
        "find_one_and_update",
        {
            "filter": {**ELIGIBLE, "$expr": UNREMEMBERED},
            "update": {
                "$set": {
                    "processed": NOW,
                    "expires": NOW + DAY,
                    "settled": ANY_TOKEN,
                    "by": ANY_TOKEN,
                    "reserved": False,
                },
                "$unset": {"when": "", "token": ""},
                "$inc": {"attempts": 1},
            },
            "sort": SORT,
        },
        STORED,
    ),
    case(
        "reserve",
        lambda: reserve.reserve(context(), lease=None, wait=None, on_invalid="bury"),
        "find_one_and_update",
        {
            "filter": ELIGIBLE,
            "update": {
                "$set": {"when": LEASE, "reserved": True, "token": ANY_TOKEN, "by": ANY_TOKEN},
                "$inc": {"attempts": 1},
            },
            "sort": SORT,
        },
        STORED,
    ),
    case(
        "commit",
        lambda: settle.commit(context(), reserved_item()),
        "delete_one",
        {"filter": FENCE},
        matched(1),
    ),
    case(
        "commit with history",
        lambda: settle.commit(context(history=DAY), reserved_item(), payload="new"),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {
                    "processed": NOW,
                    "expires": NOW + DAY,
                    "settled": TOKEN,
                    "payload": "new",
                    "reserved": False,
                },
                "$unset": {"when": "", "token": ""},
            },
        },
        matched(1),
    ),
    case(
        "commit of a remembered id",
        lambda: settle.commit(context(), reserved_item(once=NOW + DAY)),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {"processed": NOW, "expires": NOW + DAY, "settled": TOKEN, "reserved": False},
                "$unset": {
                    "when": "",
                    "token": "",
                    "payload": "",
                    "headers": "",
                    "key": "",
                    "error": "",
                    "origin": "",
                    "replayed": "",
                    "hops": "",
                    "trail": "",
                    "by": "",
                    "batch": "",
                },
            },
        },
        matched(1),
    ),
    case(
        "rollback",
        lambda: settle.rollback(context(), reserved_item(), delay=3, error=ValueError("x")),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {
                    "when": NOW + timedelta(seconds=3),
                    "reserved": False,
                    "error": {"type": "ValueError", "message": "x", "at": NOW},
                },
                "$unset": {"token": ""},
            },
        },
        matched(1),
    ),
    case(
        "rollback beyond the retries",
        lambda: settle.rollback(context(max_retries=0), reserved_item(), delay=3, error=None),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {
                    "origin": {**ORIGIN, "reason": "failed, no retries allowed"},
                    "q": "orders.dead",
                    "when": NOW,
                    "reserved": False,
                    "attempts": 0,
                },
                "$unset": {"token": "", "key": "", "batch": "", "pushed": ""},
            },
        },
        matched(1),
    ),
    case(
        "release",
        lambda: settle.release(context(), reserved_item()),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {"when": NOW - timedelta(seconds=5), "reserved": False},
                "$unset": {"token": ""},
                "$inc": {"attempts": -1},
            },
        },
        matched(1),
    ),
    case(
        "extend",
        lambda: settle.extend(context(), reserved_item(), lease=90),
        "update_one",
        {"filter": FENCE, "update": {"$set": {"when": NOW + timedelta(seconds=90)}}},
        matched(1),
    ),
    case(
        "move",
        lambda: move.move(context(), reserved_item(), context("next"), Move("next")),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {"q": "next", "reserved": False, "attempts": 0, "when": NOW},
                "$unset": {"token": "", "error": "", "batch": "", "pushed": "", "key": ""},
            },
        },
        matched(1),
    ),
    case(
        "move with a patch",
        lambda: move.move(
            context(), reserved_item(), context("next"), Move("next", patch={"$set": {"a": 1}, "$push": {"l": 2}})
        ),
        "update_one",
        {
            "filter": {
                **FENCE,
                "$expr": {"$lte": [{"$bsonSize": "$$ROOT"}, settlement.MAX_PATCHED_BYTES - len(bson.encode(PATCHED))]},
            },
            "update": {
                "$set": {"q": "next", "reserved": False, "attempts": 0, "when": NOW, "payload.a": 1},
                "$unset": {"token": "", "error": "", "batch": "", "pushed": "", "key": ""},
                "$push": {"payload.l": {"$each": [2]}},
            },
        },
        matched(1),
    ),
    case(
        "bury",
        lambda: bury.bury(context(), reserved_item(key="k"), reason="bad", error=None),
        "update_one",
        {
            "filter": FENCE,
            "update": {
                "$set": {
                    "origin": {**ORIGIN, "reason": "bad", "key": "k"},
                    "q": "orders.dead",
                    "when": NOW,
                    "reserved": False,
                    "attempts": 0,
                },
                "$unset": {"token": "", "key": "", "batch": "", "pushed": ""},
            },
        },
        matched(1),
    ),
    case(
        "get",
        lambda: read.get(context(), ID),
        "command",
        {
            "command": {"find": "mongoq", "filter": IDENTIFIED, "limit": 1, "singleBatch": True},
            "codec_options": OPTIONS,
        },
        found(),
    ),
    case(
        "get from mongomock",
        lambda: read.get(context(serverless=True), ID),
        "find_one",
        {"filter": IDENTIFIED, "projection": None},
        None,
    ),
    case(
        "peek",
        lambda: read.peek(context(), 3, "ready"),
        "command",
        {
            "command": {
                "find": "mongoq",
                "filter": {**ELIGIBLE, "reserved": {"$ne": True}},
                "sort": dict(SORT),
                "limit": 3,
            },
            "codec_options": OPTIONS,
        },
        found(),
    ),
    case(
        "peek from mongomock",
        lambda: read.peek(context(serverless=True), 3, "ready"),
        "find",
        {"filter": {**ELIGIBLE, "reserved": {"$ne": True}}, "sort": SORT, "limit": 3},
        [],
    ),
    case("size", lambda: read.size(context(), "scheduled"), "count_documents", ANY_TOKEN, 0),
    case("counts", lambda: read.counts(context(), 5), "aggregate", ANY_TOKEN, []),
    case("next_when", lambda: read.find_next_due(context()), "aggregate", ANY_TOKEN, []),
    case(
        "history",
        lambda: pages.history_page(
            context(), pages.history_range(context(), since=None, until=None, where=None, state="processed", page=5)
        ),
        "command",
        ANY_TOKEN,
        found(),
    ),
    case("pause", lambda: queue_settings.set_paused(context(), True), "update_one", ANY_TOKEN, matched(1)),
    case("is_paused", lambda: queue_settings.is_paused(context()), "command", ANY_TOKEN, found()),
]


@pytest.mark.parametrize(("flow", "method", "arguments", "reply"), CASES)
def test_an_operation_is_one_command(flow: Any, method: str, arguments: Any, reply: Any) -> None:
    (command,), outcome = play(flow(), [reply])
    assert not isinstance(outcome, Exception)
    assert command.method == method
    if arguments is not ANY_TOKEN:
        assert _like(command.arguments, arguments), command.arguments


def _like(actual: Any, expected: Any) -> bool:
    if expected is ANY_TOKEN:
        return isinstance(actual, ObjectId | str)
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_like(actual[key], expected[key]) for key in expected)
    return bool(actual == expected)


@pytest.mark.parametrize(("flow", "method", "arguments", "reply"), CASES)
@pytest.mark.parametrize(
    "backend",
    [
        (pymongo.collection.Collection, pymongo.database.Database),
        (pymongo.asynchronous.collection.AsyncCollection, pymongo.asynchronous.database.AsyncDatabase),
        (mongomock.Collection, mongomock.Database),
    ],
    ids=["pymongo", "pymongo async, and motor by delegation", "mongomock"],
)
def test_every_backend_takes_the_arguments(
    flow: Any, method: str, arguments: Any, reply: Any, backend: tuple[Any, Any]
) -> None:
    (command,), _ = play(flow(), [reply])
    target = backend[command.target == "database"]
    inspect.signature(getattr(target, method)).bind(None, **command.arguments)


def test_a_claim_knows_how_to_give_back_what_it_took() -> None:
    (command,), item = play(reserve.reserve(context(), lease=None, wait=None, on_invalid="bury"), [STORED])
    assert command.undo is not None
    undo = command.undo(STORED)
    assert isinstance(undo, Command)
    assert undo.arguments["filter"] == {"_id": ID, "token": item.token}
    assert undo.arguments["update"]["$inc"] == {"attempts": -1}
    assert undo.arguments["update"]["$set"]["when"] == NOW
    assert command.undo(None) is None


def test_a_pop_knows_how_to_put_back_what_it_took() -> None:
    (command,), _ = play(pop.pop(context(), on_invalid="bury"), [STORED])
    assert command.undo is not None
    undo = command.undo(STORED)
    assert undo is not None
    assert (undo.method, undo.arguments["replacement"], undo.arguments["upsert"]) == ("replace_one", STORED, True)
    assert command.undo(None) is None


def test_a_pop_into_history_that_is_undone_leaves_the_item_as_it_was() -> None:
    """Without its expired token, an item that was in a batch once would be a suspect."""
    before = {**STORED, "reserved": True, "token": TOKEN, "batch": ID}
    (command,), _ = play(pop.pop(context(history=DAY), on_invalid="bury"), [before])
    assert command.undo is not None
    undone = command.undo(before)
    assert undone is not None
    assert undone.arguments["update"]["$set"] == {"when": before["when"], "reserved": True, "token": TOKEN}
