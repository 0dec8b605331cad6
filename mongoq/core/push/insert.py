"""Insert one envelope, and find out the result when the reply was lost.

Of the live items of a queue, at most one has a given key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bson import ObjectId

from mongoq.core.base.find import find_few, find_one
from mongoq.core.base.retry import retry_lost_race, retry_once
from mongoq.core.command import Command, Duplicate, ReplyLost, has_matched
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext
from mongoq.data.envelope import Document, is_same_push
from mongoq.data.indexes import BEGINNING, KEY
from mongoq.data.push_options import Keyed
from mongoq.errors import DuplicateItem

REPLACED_FIELDS = ("payload", "when", "priority", "attempts", "reserved", "headers", "origin", "start_by")
"""Fields that a replacing push sets, and removes when it has no value for them."""
REMOVED_FIELDS = ("token", "error", "batch", "trail", "pushed", "replayed", "joined", "throttled")
"""Fields that a replacing push always removes: they tell of the item that was in the place before.

``by`` stays: with it, an item may have changed (``claim.batch_claim``). ``hops`` and ``missed`` stay: with them a stage
and a join know that this id has been there before.
"""
PUSH_FIELDS = {"q": 1, "into": 1, "once": 1, "origin.queue": 1}
"""Fields that identify the push of an envelope."""


async def insert_item(broker: BrokerContext, envelope: Mapping[str, Any], *, id_given: bool) -> bool:
    """Insert an item, and return whether it is new; an item with an id of the caller may exist already, or be done.

    Raises:
        DuplicateItem: another push has used the given id.
    """
    try:
        await perform(Command("insert_one", {"document": envelope}))
    except (Duplicate, ReplyLost) as error:
        return await is_new(broker, error, envelope, id_given=id_given)
    return True


async def is_new(
    broker: BrokerContext, error: Duplicate | ReplyLost, envelope: Mapping[str, Any], *, id_given: bool
) -> bool:
    """Return whether the item of a failed insert is new; raise the error again unless the item exists."""
    if isinstance(error, ReplyLost):
        if not (await confirm_insert(broker, envelope, id_given=id_given)):
            raise error
        return True
    if not id_given:
        raise error
    if await is_pushed(broker, envelope):
        return False
    return await insert_item(broker, envelope, id_given=True)  # the document with this id was removed since


async def is_pushed(broker: BrokerContext, envelope: Mapping[str, Any]) -> bool:
    """Return whether an item was pushed before under a given id (``find``).

    Raises:
        DuplicateItem: another push has used the id.
    """
    documents = await find_pushed(broker, [envelope["_id"]])
    for document in documents:
        if not is_same_push(document, envelope.get("into", envelope["q"])):
            raise id_taken_error(document, envelope)
    return bool(documents)


async def find_pushed(broker: BrokerContext, ids: Sequence[ObjectId]) -> list[Document]:
    """Find the documents with these ids, with the fields that identify their pushes."""
    return await find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=PUSH_FIELDS)


def id_taken_error(document: Document, envelope: Mapping[str, Any]) -> DuplicateItem:
    """Return the error of an id that another push has used; a copy for a bound queue names the push's own id."""
    origin = envelope.get("origin")
    id = origin["id"] if isinstance(origin, Mapping) else envelope["_id"]
    return DuplicateItem(document.get("q", ""), None, document["_id"], id=id, to=envelope.get("into", envelope["q"]))


async def confirm_insert(broker: BrokerContext, envelope: Mapping[str, Any], *, id_given: bool) -> bool:
    """Return whether the item is stored, by an update that changes nothing and waits for the majority like any update.

    The push itself is not sent again: it could double an item that was inserted and settled in the meantime. A given id
    may be stored from an earlier version of mongoq, or from another push: ``DuplicateItem``.
    """
    id = envelope["_id"]
    filter = {"_id": id, "into": envelope["into"]} if id_given else {"_id": id}
    command = Command("update_one", {"filter": filter, "update": {"$set": {"_id": id}}}, has_matched)
    return (await retry_once(command)) or (id_given and (await is_pushed(broker, envelope)))


# --- keys ----------------------------------------------------------------------------------------


async def upsert_keyed(
    broker: BrokerContext, envelope: Document, keyed: Keyed, *, id_given: bool
) -> tuple[ObjectId, bool]:
    """Insert an item unless one with its key is live; return the id of the live item, and whether it is new.

    ``findAndModify`` with upsert: an error of the unique index, even when caught, would abort a caller's transaction.
    The index still decides between two callers that insert at the same moment; the slower caller meets the other's
    item. A caller's id is read first: when a push is sent again after its item is done, it must not replace an item
    pushed since.
    """
    id: ObjectId = envelope["_id"]
    fields = {name: value for name, value in envelope.items() if name != "q"}
    update: dict[str, Any] = {"$setOnInsert": fields}
    if keyed.on_duplicate == "replace":
        changes = {name: fields.pop(name) for name in REPLACED_FIELDS if name in fields}
        unset_fields = [*REMOVED_FIELDS, *(name for name in REPLACED_FIELDS if name not in changes)]
        update |= {"$set": changes, "$unset": dict.fromkeys(unset_fields, "")}
    options = {"upsert": True, "projection": {"_id": 1}, "return_document": True}
    if not broker.serverless:  # the planner might choose the claim index, and scan all live items of the queue
        options["hint"] = KEY.name

    async def upsert() -> tuple[ObjectId, bool]:
        filter = live_filter(envelope["q"], keyed.key)
        if id_given and keyed.on_duplicate == "replace":
            # Read before the id. While it has the key, no other push of the id can have come and gone. An item that
            # gets the key later may be newer than this push, whose own item is done by then.
            document = await find_one(broker, filter, {"_id": 1})
            holder = id if document is None else document["_id"]
            filter["_id"] = {"$gte": holder, "$lte": holder}  # from an equality the server would take the new item's id
        if id_given and (await is_pushed(broker, envelope)):
            return id, False
        try:
            document = await perform(
                Command[Any]("find_one_and_update", {"filter": filter, "update": update, **options})
            )
        except ReplyLost:
            if not (await confirm_insert(broker, envelope, id_given=id_given)):
                raise
            return id, True
        except Duplicate:
            if not id_given and (await is_pushed(broker, envelope)):
                return id, False  # pushed before under this id, and perhaps done
            raise
        assert document is not None
        if document["_id"] != id and keyed.on_duplicate == "raise":
            raise DuplicateItem(envelope["q"], keyed.key, document["_id"])
        return document["_id"], document["_id"] == id

    return await retry_lost_race(upsert)


def live_filter(queue: str, key: str) -> dict[str, Any]:
    """Return the filter of the live item with a key; the unique index serves it."""
    return {"q": queue, "key": key, "when": {"$gte": BEGINNING}}


async def raise_duplicate(broker: BrokerContext, queue: str, key: str, error: Exception) -> NoReturn:
    """Raise ``DuplicateItem`` with the id of the live item; it may be gone by now, and then there is no id."""
    document = await find_one(broker, live_filter(queue, key), {"_id": 1})
    raise DuplicateItem(queue, key, document and document["_id"]) from error
