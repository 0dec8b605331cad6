"""Insert one envelope, and find out the result when the reply was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bson import ObjectId

from mongoq.errors import DuplicateItem
from mongoq.model.envelope import Document, is_same_push
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.flow import Command, Duplicate, Flow, ReplyLost, has_matched
from mongoq.protocol.state.context import BrokerContext

__all__ = ["confirm_insert", "find_pushed", "id_taken_error", "insert_command", "insert_item", "is_new", "is_pushed"]

PUSH_FIELDS = {"q": 1, "into": 1, "once": 1, "origin.queue": 1}
"""Fields that identify the push of an envelope."""


def insert_command(envelope: Mapping[str, Any]) -> Command[Any]:
    """Return the command that inserts one envelope."""
    return Command("insert_one", {"document": envelope})


def insert_item(broker: BrokerContext, envelope: Mapping[str, Any], *, given: bool) -> Flow[bool]:
    """Insert an item, and return whether it is new; an item with a ``given`` id may exist already, or be done.

    Raises:
        DuplicateItem: another push has used the given id.
    """
    try:
        yield insert_command(envelope)
    except (Duplicate, ReplyLost) as error:
        return (yield from is_new(broker, error, envelope, given=given))
    return True


def is_new(
    broker: BrokerContext, error: Duplicate | ReplyLost, envelope: Mapping[str, Any], *, given: bool
) -> Flow[bool]:
    """Return whether the item of a failed insert is new; raise the error again unless the item exists."""
    if isinstance(error, ReplyLost):
        if not (yield from confirm_insert(broker, envelope, given=given)):
            raise error
        return True
    if not given:
        raise error
    if (yield from is_pushed(broker, envelope)):
        return False
    return (yield from insert_item(broker, envelope, given=True))  # the document with this id was removed since


def is_pushed(broker: BrokerContext, envelope: Mapping[str, Any]) -> Flow[bool]:
    """Return whether an item was pushed before under a given id (``find``).

    Raises:
        DuplicateItem: another push has used the id.
    """
    found = yield from find_pushed(broker, [envelope["_id"]])
    for document in found:
        if not is_same_push(document, envelope.get("into", envelope["q"])):
            raise id_taken_error(document, envelope)
    return bool(found)


def find_pushed(broker: BrokerContext, ids: Sequence[ObjectId]) -> Flow[list[Document]]:
    """Find the documents with these ids, with the fields that identify their pushes."""
    return (yield from find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=PUSH_FIELDS))


def id_taken_error(found: Document, envelope: Mapping[str, Any]) -> DuplicateItem:
    """Return the error of an id that another push has used; a copy for a bound queue names the push's own id."""
    origin = envelope.get("origin")
    id = origin["id"] if isinstance(origin, Mapping) else envelope["_id"]
    return DuplicateItem(found.get("q", ""), None, found["_id"], id=id, to=envelope.get("into", envelope["q"]))


def confirm_insert(broker: BrokerContext, envelope: Mapping[str, Any], *, given: bool) -> Flow[bool]:
    """Return whether the item is stored, by an update that changes nothing and waits for the majority like any update.

    The push itself is not sent again: it could double an item that was inserted and settled in the meantime. A given id
    may be stored from an earlier version of mongoq, or from another push: ``DuplicateItem``.
    """
    id = envelope["_id"]
    filter = {"_id": id, "into": envelope["into"]} if given else {"_id": id}
    command = Command("update_one", {"filter": filter, "update": {"$set": {"_id": id}}}, has_matched)
    return (yield from retry_once(command)) or (given and (yield from is_pushed(broker, envelope)))
