"""Sequences: items of a queue that are handed out in the order of their pushes, and where their state is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from mongoq.data.arguments import text
from mongoq.data.indexes import BEGINNING
from mongoq.errors import ArgumentInvalid

MAX_SEQUENCE_BYTES = 1024
"""Bytes of a sequence in UTF-8, at most."""
SEQUENCE_PREFIX = "sequence:"
"""Prefix of the ``_id`` of the control document of a sequence."""
HAS_PLACE = {"$gte": 0}
"""Condition of an item that has a place in a sequence, in a form that the server answers from the index."""
IS_BLOCKED = {"$gte": BEGINNING}
"""Condition on ``ready_from`` of an item that waits for the one before it."""


def check_sequence(sequence: Any, argument: str = "sequence") -> str:
    """Return a sequence: a non-empty string of at most 1 KiB."""
    if not text(sequence, argument, MAX_SEQUENCE_BYTES, whole=True):
        raise ArgumentInvalid(argument, "cannot be empty; None is no sequence, and 'customer-17' is one")
    return str(sequence)


def topic_problem(name: str) -> str:
    """Return the problem of a sequence at a topic."""
    return f"{name!r} is a topic: its copies go to several queues, and have no common order"


def control_prefix(queue: str) -> str:
    """Return what the ``_id`` of the control documents of a queue's sequences begins with."""
    return f"{SEQUENCE_PREFIX}{queue}:"


def control_id(queue: str, sequence: str) -> str:
    """Return the ``_id`` of the control document of a sequence; bounded, whatever its text."""
    return control_prefix(queue) + hashlib.sha256(sequence.encode()).hexdigest()


Target = tuple[str, str]
"""A queue, and one of its sequences."""


def held_entries(control: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of a control document for the dead letters that hold its sequence."""
    return list(control.get("held", ()))


def held_target(document: Mapping[str, Any]) -> Target | None:
    """Return the sequence that a dead letter holds by its ``origin``, with the queue; ``None`` if it holds none.

    Whether it still does so, the control document says.
    """
    origin, sequence = document.get("origin"), document.get("sequence")
    if not isinstance(origin, Mapping) or "place" not in origin:
        return None
    queue = origin.get("queue")
    return (queue, sequence) if isinstance(queue, str) and isinstance(sequence, str) else None


def blocked_filter(queue: str) -> dict[str, Any]:
    """Return the filter of a queue's items that wait for the ones before them in their sequences."""
    return {"q": queue, "place": HAS_PLACE, "ready_from": IS_BLOCKED}


def heads_filter(queue: str) -> dict[str, Any]:
    """Return the filter of a queue's items that are first in their sequences, and so block the others."""
    return {"q": queue, "place": HAS_PLACE, "when": {"$gte": BEGINNING}}
