"""Publications: the copies that a push to a topic makes for the queues bound to it."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Any

from bson import ObjectId

from mongoq.model.item import Document

__all__ = ["is_publication", "published", "published_id"]

PUBLISHED = "published"
"""Reason in the ``origin`` of a copy."""
PRODUCER = slice(4, 9)
"""Position of the random part of an ObjectId, drawn by its process: after the seconds, before the counter."""


def published_id(id: ObjectId, queue: str) -> ObjectId:
    """Return the id of the copy that the push with this id makes for a bound queue; always the same.

    Seconds and counter stay, so that within a queue the copies of one producer sort in the order of its pushes.
    """
    raw = id.binary
    digest = sha256(raw[PRODUCER] + queue.encode()).digest()
    return ObjectId(raw[: PRODUCER.start] + digest[: PRODUCER.stop - PRODUCER.start] + raw[PRODUCER.stop :])


def is_publication(origin: Document) -> bool:
    """Return whether an origin is that of a push to a topic; a burial with the same reason counts an attempt."""
    return origin.get("reason") == PUBLISHED and origin.get("attempts") == 0


def published(envelope: Document, queue: str, at: datetime) -> dict[str, Any]:
    """Return the copy for a bound queue of an envelope that was pushed to a topic."""
    origin = {
        "queue": envelope["q"],
        "id": envelope["_id"],
        "reason": PUBLISHED,
        "attempts": 0,
        "key": None,
        "at": at,
    }
    return {**envelope, "_id": published_id(envelope["_id"], queue), "q": queue, "origin": origin}
