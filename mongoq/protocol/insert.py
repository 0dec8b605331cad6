"""Inserts of one envelope, and what became of one whose reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bson import ObjectId

from mongoq.protocol.request import Command, Duplicate, Flow, ReplyLost, insisted, matched

__all__ = ["Insert", "confirmed", "insert_alone", "inserted"]

Insert = Callable[[Mapping[str, Any]], Flow[Any]]
"""Inserts an envelope."""


def insert_alone(envelope: Mapping[str, Any]) -> Flow[Any]:
    """Insert an envelope by a command of its own."""
    yield from Command("insert_one", {"document": envelope})


def inserted(envelope: Mapping[str, Any], insert: Insert = insert_alone, *, given: bool) -> Flow[bool]:
    """Insert an envelope, and say whether it is new; one whose id was ``given`` may be there already, or be done."""
    try:
        yield from insert(envelope)
    except Duplicate:
        if not given:
            raise
        return False
    except ReplyLost:
        if not (yield from confirmed(envelope["_id"])):
            raise
    return True


def confirmed(id: ObjectId) -> Flow[bool]:
    """Look whether the item is there, by an update that changes nothing and waits for the majority as any does.

    Sent again, the push could double an item that has come and gone in the meantime.
    """
    command = Command("update_one", {"filter": {"_id": id}, "update": {"$set": {"_id": id}}}, matched)
    return (yield from insisted(command))
