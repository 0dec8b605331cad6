# Generated from mongoq/core/push/insert.py by scripts/unasync.py. Do not edit.
"""Insert one envelope, and find out the result when the reply was lost.

Of the live items of a queue, at most one has a given key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bson import ObjectId

from mongoq.core.command import Command, Duplicate, ReplyLost, has_matched
from mongoq.core.push.insert import PUSH_FIELDS, REMOVED_FIELDS, REPLACED_FIELDS, id_taken_error, live_filter
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.find import find_few, find_one
from mongoq.core_threads.base.retry import retry_lost_race, retry_once
from mongoq.core_threads.perform import perform
from mongoq.data.envelope import Document, is_same_push
from mongoq.data.indexes import KEY
from mongoq.data.push_options import Keyed
from mongoq.errors import DuplicateItem


def insert_item(broker: BrokerContext, envelope: Mapping[str, Any], *, id_given: bool) -> bool:
    """Insert an item, and return whether it is new; an item with an id of the caller may exist already, or be done.

    Raises:
        DuplicateItem: another push has used the given id.
    """
    try:
        perform(Command("insert_one", {"document": envelope}))
    except (Duplicate, ReplyLost) as error:
        return is_new(broker, error, envelope, id_given=id_given)
    return True


def is_new(broker: BrokerContext, error: Duplicate | ReplyLost, envelope: Mapping[str, Any], *, id_given: bool) -> bool:
    """Return whether the item of a failed insert is new; raise the error again unless the item exists."""
    if isinstance(error, ReplyLost):
        if not (confirm_insert(broker, envelope, id_given=id_given)):
            raise error
        return True
    if not id_given:
        raise error
    if is_pushed(broker, envelope):
        return False
    return insert_item(broker, envelope, id_given=True)  # the document with this id was removed since


def is_pushed(broker: BrokerContext, envelope: Mapping[str, Any]) -> bool:
    """Return whether an item was pushed before under a given id (``find``).

    Raises:
        DuplicateItem: another push has used the id.
    """
    documents = find_pushed(broker, [envelope["_id"]])
    for document in documents:
        if not is_same_push(document, envelope.get("into", envelope["q"])):
            raise id_taken_error(document, envelope)
    return bool(documents)


def find_pushed(broker: BrokerContext, ids: Sequence[ObjectId]) -> list[Document]:
    """Find the documents with these ids, with the fields that identify their pushes."""
    return find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=PUSH_FIELDS)


def confirm_insert(broker: BrokerContext, envelope: Mapping[str, Any], *, id_given: bool) -> bool:
    """Return whether the item is stored, by an update that changes nothing and waits for the majority like any update.

    The push itself is not sent again: it could double an item that was inserted and settled in the meantime. A given id
    may be stored from an earlier version of mongoq, or from another push: ``DuplicateItem``.
    """
    id = envelope["_id"]
    filter = {"_id": id, "into": envelope["into"]} if id_given else {"_id": id}
    command = Command("update_one", {"filter": filter, "update": {"$set": {"_id": id}}}, has_matched)
    return (retry_once(command)) or (id_given and (is_pushed(broker, envelope)))


# --- keys ----------------------------------------------------------------------------------------


def upsert_keyed(broker: BrokerContext, envelope: Document, keyed: Keyed, *, id_given: bool) -> tuple[ObjectId, bool]:
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

    def upsert() -> tuple[ObjectId, bool]:
        filter = live_filter(envelope["q"], keyed.key)
        if id_given and keyed.on_duplicate == "replace":
            # Read before the id. While it has the key, no other push of the id can have come and gone. An item that
            # gets the key later may be newer than this push, whose own item is done by then.
            document = find_one(broker, filter, {"_id": 1})
            holder = id if document is None else document["_id"]
            filter["_id"] = {"$gte": holder, "$lte": holder}  # from an equality the server would take the new item's id
        if id_given and (is_pushed(broker, envelope)):
            return id, False
        try:
            document = perform(Command[Any]("find_one_and_update", {"filter": filter, "update": update, **options}))
        except ReplyLost:
            if not (confirm_insert(broker, envelope, id_given=id_given)):
                raise
            return id, True
        except Duplicate:
            if not id_given and (is_pushed(broker, envelope)):
                return id, False  # pushed before under this id, and perhaps done
            raise
        assert document is not None
        if document["_id"] != id and keyed.on_duplicate == "raise":
            raise DuplicateItem(envelope["q"], keyed.key, document["_id"])
        return document["_id"], document["_id"] == id

    return retry_lost_race(upsert)


def raise_duplicate(broker: BrokerContext, queue: str, key: str, error: Exception) -> NoReturn:
    """Raise ``DuplicateItem`` with the id of the live item; it may be gone by now, and then there is no id."""
    document = find_one(broker, live_filter(queue, key), {"_id": 1})
    raise DuplicateItem(queue, key, document and document["_id"]) from error
