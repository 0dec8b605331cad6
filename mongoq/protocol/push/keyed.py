"""Keys: at most one live item for each key of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, get_args

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, DuplicateItem
from mongoq.model.arguments import text
from mongoq.model.envelope import Document
from mongoq.model.indexes import BEGINNING, KEY
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.retry import retry_lost_race
from mongoq.protocol.flow import Command, Duplicate, Flow, ReplyLost
from mongoq.protocol.push.insert import confirm_insert, is_pushed
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["Keyed", "OnDuplicate", "check_key", "check_keyed", "push_keyed", "raise_duplicate", "upsert_keyed"]

OnDuplicate = Literal["keep", "replace", "raise"]
WAYS: tuple[OnDuplicate, ...] = get_args(OnDuplicate)
MAX_KEY_BYTES = 1024
"""Bytes of a key in UTF-8, at most."""
REPLACED = ("payload", "when", "priority", "attempts", "reserved", "headers", "origin")
"""Fields that a replacing push sets, and removes when it has no value for them."""
REMOVED = ("token", "error", "batch", "trail", "pushed", "replayed", "joined")
"""Fields that a replacing push always removes: they tell of the item that was in the place before.

``by`` stays: with it, an item may have changed (``candidates``). ``hops`` and ``missed`` stay: with them a stage and a
join know that this id has been there before.
"""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Key of a push, and the action when a live item has that key."""

    key: str
    on_duplicate: OnDuplicate


def check_key(key: Any) -> str:
    """Return a key: a non-empty string of at most 1 KiB."""
    if not text(key, "key", MAX_KEY_BYTES):
        raise ArgumentInvalid("key", "cannot be empty; None is no key")
    if any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ArgumentInvalid("key", "cannot hold lone surrogates")
    return str(key)


def check_keyed(key: Any, on_duplicate: Any) -> Keyed | None:
    """Check the key and the action on a duplicate; refuse an action without a key."""
    if on_duplicate not in WAYS:
        raise ArgumentInvalid("on_duplicate", f"one of {', '.join(WAYS)}, not {on_duplicate!r}")
    if key is not None:
        return Keyed(check_key(key), on_duplicate)
    if on_duplicate != "keep":
        raise ArgumentInvalid("on_duplicate", "says what to do with an item of the same key; give key= as well")
    return None


def push_keyed(context: QueueContext[Any], envelope: Document, keyed: Keyed, *, given: bool) -> Flow[ObjectId]:
    """Insert an item unless one with its key is live, and return the id of the live item."""
    id, new = yield from upsert_keyed(context.broker, envelope, keyed, given=given)
    context.broker.record_put(context.name, envelope["when"], envelope["priority"], id=id, is_new=new)
    return id


def upsert_keyed(
    broker: BrokerContext, envelope: Document, keyed: Keyed, *, given: bool
) -> Flow[tuple[ObjectId, bool]]:
    """Insert an item unless one with its key is live; return the id of the live item, and whether it is new.

    ``findAndModify`` with upsert: an error of the unique index, even when caught, would abort a caller's transaction.
    The index still decides between two callers that insert at the same moment; the slower caller meets the other's
    item. A ``given`` id is read first: when a push is sent again after its item is done, it must not replace an item
    pushed since.
    """
    return (yield from retry_lost_race(partial(_try_upsert, broker, envelope, keyed, given=given)))


def _try_upsert(broker: BrokerContext, envelope: Document, keyed: Keyed, *, given: bool) -> Flow[tuple[ObjectId, bool]]:
    """Insert an item as ``upsert_keyed`` does; raises ``Duplicate`` when another caller was faster."""
    id: ObjectId = envelope["_id"]
    pushed, holder = (yield from _read_key(broker, envelope, keyed)) if given else (False, None)
    if pushed:
        return id, False
    try:
        found = yield from _upsert_command(envelope, keyed, holder, serverless=broker.serverless)
    except ReplyLost:
        if not (yield from confirm_insert(broker, envelope, given=given)):
            raise
        return id, True
    except Duplicate:
        if not given and (yield from is_pushed(broker, envelope)):
            return id, False  # pushed before under this id, and perhaps done
        raise
    if found["_id"] != id and keyed.on_duplicate == "raise":
        raise DuplicateItem(envelope["q"], keyed.key, found["_id"])
    return found["_id"], found["_id"] == id


def _read_key(broker: BrokerContext, envelope: Document, keyed: Keyed) -> Flow[tuple[bool, ObjectId | None]]:
    """Return whether the given id was pushed before, and the id of the only item to replace (``find`` of both).

    The holder of the key is read first. While it has the key, no other push of the id can have come and gone. An item
    that gets the key later may be newer than this push, whose own item is done by then.
    """
    holder = None
    if keyed.on_duplicate == "replace":
        found = yield from find_one(broker, live_filter(envelope["q"], keyed.key), {"_id": 1})
        holder = envelope["_id"] if found is None else found["_id"]
    return (yield from is_pushed(broker, envelope)), holder


def _upsert_command(envelope: Document, keyed: Keyed, holder: Any, *, serverless: bool) -> Command[Any]:
    """Return the upsert; with a ``holder`` it matches only the item with this id, and no other item of the key."""
    fields = {name: value for name, value in envelope.items() if name != "q"}
    if keyed.on_duplicate == "replace":
        changes = {name: fields.pop(name) for name in REPLACED if name in fields}
        gone = [*REMOVED, *(name for name in REPLACED if name not in changes)]
        update = {"$set": changes, "$unset": dict.fromkeys(gone, ""), "$setOnInsert": fields}
    else:
        update = {"$setOnInsert": fields}
    filter = live_filter(envelope["q"], keyed.key)
    if holder is not None:
        filter["_id"] = {"$gte": holder, "$lte": holder}  # from an equality the server would take the new item's id
    arguments = {
        "filter": filter,
        "update": update,
        "upsert": True,
        "projection": {"_id": 1},
        "return_document": True,
    }
    if not serverless:  # the planner might choose the claim index, and scan all live items of the queue
        arguments["hint"] = KEY.name
    return Command("find_one_and_update", arguments)


def live_filter(queue: str, key: str) -> dict[str, Any]:
    """Return the filter of the live item with a key; the unique index serves it."""
    return {"q": queue, "key": key, "when": {"$gte": BEGINNING}}


def raise_duplicate(broker: BrokerContext, queue: str, key: str, error: Exception) -> Flow[NoReturn]:
    """Raise ``DuplicateItem`` with the id of the live item; it may be gone by now, and then there is no id."""
    found = yield from find_one(broker, live_filter(queue, key), {"_id": 1})
    raise DuplicateItem(queue, key, found and found["_id"]) from error
