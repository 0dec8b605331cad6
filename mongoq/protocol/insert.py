"""Inserts of one envelope, and what became of one whose reply was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import ObjectId

from mongoq.protocol.request import Command, Duplicate, Flow, ReplyLost, insisted, matched

__all__ = ["confirmed", "insert_command", "inserted", "is_new"]


def insert_command(envelope: Mapping[str, Any], *, here: bool = False) -> Command[Any]:
    """Return the command that inserts an envelope by itself."""
    return Command("insert_one", {"document": envelope}, here=here)


def inserted(envelope: Mapping[str, Any], *, given: bool, here: bool = False) -> Flow[bool]:
    """Insert an item, and say whether it is new; one whose id was ``given`` may be there already, or be done."""
    try:
        yield insert_command(envelope, here=here)
    except (Duplicate, ReplyLost) as error:
        return (yield from is_new(error, envelope["_id"], given=given))
    return True


def is_new(error: Duplicate | ReplyLost, id: ObjectId, *, given: bool) -> Flow[bool]:
    """Say of an insert that came to an error whether the item is new; raises the error unless the item is there."""
    if not (given if isinstance(error, Duplicate) else (yield from confirmed(id))):
        raise error
    return isinstance(error, ReplyLost)


def confirmed(id: ObjectId) -> Flow[bool]:
    """Look whether the item is there, by an update that changes nothing and waits for the majority as any does.

    Sent again, the push could double an item that has come and gone in the meantime.
    """
    command = Command("update_one", {"filter": {"_id": id}, "update": {"$set": {"_id": id}}}, matched)
    return (yield from insisted(command))
