"""Inserts of one envelope, and what became of one whose reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bson import ObjectId

from mongoq.protocol.request import Command, Duplicate, Flow, ReplyLost, insisted, matched

__all__ = ["confirmed", "insert_alone", "inserted", "inserted_alone"]


def insert_alone(envelope: Mapping[str, Any]) -> Flow[Any]:
    """Insert an envelope by a command of its own."""
    yield from Command("insert_one", {"document": envelope})


def inserted(insert: Flow[Any], id: Callable[[], ObjectId], *, given: bool) -> Flow[bool]:
    """Insert an item, and say whether it is new; one whose id was ``given`` may be there already, or be done.

    ``id`` tells its id once it was sent.
    """
    try:
        yield from insert
    except Duplicate:
        if not given:
            raise
        return False
    except ReplyLost:
        if not (yield from confirmed(id())):
            raise
    return True


def inserted_alone(envelope: Mapping[str, Any], *, given: bool) -> Flow[bool]:
    """Do the same by a command of its own."""
    return inserted(insert_alone(envelope), lambda: envelope["_id"], given=given)


def confirmed(id: ObjectId) -> Flow[bool]:
    """Look whether the item is there, by an update that changes nothing and waits for the majority as any does.

    Sent again, the push could double an item that has come and gone in the meantime.
    """
    command = Command("update_one", {"filter": {"_id": id}, "update": {"$set": {"_id": id}}}, matched)
    return (yield from insisted(command))
