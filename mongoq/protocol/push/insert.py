"""Inserts of one envelope, and what became of one whose reply was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bson import ObjectId

from mongoq.errors import DuplicateItem
from mongoq.model.envelope import Document, is_same_push
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, ReplyLost, insisted, matched
from mongoq.protocol.state.context import BrokerContext

__all__ = ["confirm_insert", "find_pushed", "id_taken_error", "insert_command", "insert_item", "is_new", "is_pushed"]

PUSH_FIELDS = {"q": 1, "into": 1, "once": 1, "origin.queue": 1}
"""The fields that tell which push an envelope comes of."""


def insert_command(envelope: Mapping[str, Any], *, here: bool = False) -> Command[Any]:
    """Return the command that inserts an envelope by itself."""
    return Command("insert_one", {"document": envelope}, here=here)


def insert_item(broker: BrokerContext, envelope: Mapping[str, Any], *, given: bool, here: bool = False) -> Flow[bool]:
    """Insert an item, and say whether it is new; one whose id was ``given`` may be there already, or be done.

    Raises:
        DuplicateItem: another push has used the given id.
    """
    try:
        yield insert_command(envelope, here=here)
    except (Duplicate, ReplyLost) as error:
        return (yield from is_new(broker, error, envelope, given=given))
    return True


def is_new(
    broker: BrokerContext, error: Duplicate | ReplyLost, envelope: Mapping[str, Any], *, given: bool
) -> Flow[bool]:
    """Say of an insert that came to an error whether the item is new; raises the error unless the item is there."""
    if isinstance(error, ReplyLost):
        if not (yield from confirm_insert(broker, envelope, given=given)):
            raise error
        return True
    if not given:
        raise error
    if (yield from is_pushed(broker, envelope)):
        return False
    return (yield from insert_item(broker, envelope, given=True))  # what had the id has gone since


def is_pushed(broker: BrokerContext, envelope: Mapping[str, Any]) -> Flow[bool]:
    """Say whether an item was pushed before under a given id (``find``); raises ``DuplicateItem`` for another push."""
    found = yield from find_pushed(broker, [envelope["_id"]])
    for document in found:
        if not is_same_push(document, envelope.get("into", envelope["q"])):
            raise id_taken_error(document, envelope)
    return bool(found)


def find_pushed(broker: BrokerContext, ids: Sequence[ObjectId]) -> Flow[list[Document]]:
    """Find what tells which pushes have used some ids."""
    return (yield from find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=PUSH_FIELDS))


def id_taken_error(found: Document, envelope: Mapping[str, Any]) -> DuplicateItem:
    """Return the error of a push whose id another push has used; a copy for a bound queue tells the push's own id."""
    origin = envelope.get("origin")
    id = origin["id"] if isinstance(origin, Mapping) else envelope["_id"]
    return DuplicateItem(found.get("q", ""), None, found["_id"], id=id, to=envelope.get("into", envelope["q"]))


def confirm_insert(broker: BrokerContext, envelope: Mapping[str, Any], *, given: bool) -> Flow[bool]:
    """Look whether the item is there, by an update that changes nothing and waits for the majority as any does.

    Sent again, the push could double an item that has come and gone in the meantime. A given id may be there from an
    earlier version of mongoq, or from another push: ``DuplicateItem``.
    """
    id = envelope["_id"]
    filter = {"_id": id, "into": envelope["into"]} if given else {"_id": id}
    command = Command("update_one", {"filter": filter, "update": {"$set": {"_id": id}}}, matched)
    return (yield from insisted(command)) or (given and (yield from is_pushed(broker, envelope)))
