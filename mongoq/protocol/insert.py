"""Inserts of one envelope, and what became of one whose reply was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import ObjectId

from mongoq.protocol.request import Command, Duplicate, Flow, ReplyLost, Shared, insisted, matched

__all__ = ["confirmed", "insert_command", "inserted", "inserted_alone"]


def insert_command(envelope: Mapping[str, Any]) -> Command[Any]:
    """Return the command that inserts an envelope by itself."""
    return Command("insert_one", {"document": envelope})


def inserted(insert: Command[Any] | Shared[Any], id: ObjectId, *, given: bool) -> Flow[bool]:
    """Insert an item, and say whether it is new; one whose id was ``given`` may be there already, or be done."""
    try:
        yield insert
    except Duplicate:
        if not given:
            raise
        return False
    except ReplyLost:
        if not (yield from confirmed(id)):
            raise
    return True


def inserted_alone(envelope: Mapping[str, Any], *, given: bool) -> Flow[bool]:
    """Do the same by a command of its own."""
    return inserted(insert_command(envelope), envelope["_id"], given=given)


def confirmed(id: ObjectId) -> Flow[bool]:
    """Look whether the item is there, by an update that changes nothing and waits for the majority as any does.

    Sent again, the push could double an item that has come and gone in the meantime.
    """
    command = Command("update_one", {"filter": {"_id": id}, "update": {"$set": {"_id": id}}}, matched)
    return (yield from insisted(command))
