"""The envelope: the document that carries one item. Its fields are drawn in ``docs/envelope.md``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.item import Failure, Item, Origin, State

__all__ = [
    "ERROR_BYTES",
    "REASON_BYTES",
    "error_document",
    "expiry",
    "new_envelope",
    "origin_document",
    "read_item",
    "state_of",
]

Document = Mapping[str, Any]

ERROR_BYTES = 4096
REASON_BYTES = 512
TYPE_BYTES = 256


def new_envelope(
    queue: str,
    payload: Any,
    *,
    id: ObjectId,
    when: datetime,
    priority: int,
    headers: Document | None,
    once: datetime | None,
) -> dict[str, Any]:
    """Return the envelope of an item that is pushed."""
    document: dict[str, Any] = {
        "_id": id,
        "q": queue,
        "payload": payload,
        "when": when,
        "priority": priority,
        "attempts": 0,
        "reserved": False,
    }
    if headers:
        document["headers"] = headers
    if once is not None:
        document["once"] = once
    return document


def state_of(document: Document, now: datetime) -> State:
    """Tell the state from the fields."""
    if "processed" in document:
        return "processed"
    due = document["when"] <= now
    if document.get("reserved"):
        return "expired" if due else "reserved"
    return "ready" if due else "scheduled"


def read_item(document: Document, *, now: datetime, namespace: str, due: datetime | None = None) -> Item[Any]:
    """Return the item that an envelope holds, with its payload as it is stored.

    ``due`` is when it became eligible, where the caller knows it from before the claim.
    """
    reserved = bool(document.get("reserved"))
    when = document.get("when")
    return Item(
        id=document["_id"],
        queue=document["q"],
        payload=document.get("payload"),
        state=state_of(document, now),
        due=due if due is not None or reserved else when,
        lease_until=when if reserved else None,
        priority=document.get("priority", 0),
        attempts=document.get("attempts", 0),
        key=document.get("key"),
        headers=document.get("headers") or {},
        token=document.get("token"),
        by=document.get("by"),
        error=_failure(document.get("error")),
        origin=_origin(document.get("origin")),
        processed=document.get("processed"),
        once=document.get("once"),
        namespace=namespace,
    )


def _failure(document: Document | None) -> Failure | None:
    if document is None:
        return None
    return Failure(document["type"], document["message"], document["at"])


def _origin(document: Document | None) -> Origin | None:
    if document is None:
        return None
    return Origin(
        queue=document["queue"],
        id=document["id"],
        reason=document["reason"],
        attempts=document["attempts"],
        key=document.get("key"),
        at=document["at"],
    )


def error_document(error: Any, at: datetime, argument: str = "error") -> dict[str, Any] | None:
    """Return the ``error`` field for an exception or a text, bounded in bytes; ``None`` for ``None``.

    An exception whose text cannot be made is kept by its type.
    """
    if error is None:
        return None
    if isinstance(error, BaseException):
        return {"type": shorten(_type_name(error), TYPE_BYTES), "message": _message(error), "at": at}
    if isinstance(error, str):
        return {"type": "", "message": shorten(error, ERROR_BYTES), "at": at}
    raise ArgumentInvalid(argument, f"an exception or a string, not {type(error).__name__}")


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return shorten(str(error), ERROR_BYTES)
    except Exception as failure:  # __str__ is the user's, and may raise anything
        return f"(its text cannot be made: {_type_name(failure)})"


def shorten(text: str, limit: int) -> str:
    """Return text that UTF-8 can hold, in at most ``limit`` bytes."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode(errors="ignore") + "…"


def origin_document(item: Item[Any], *, reason: str, attempts: int, at: datetime) -> dict[str, Any]:
    """Return the ``origin`` field of an item that is buried."""
    return {
        "queue": item.queue,
        "id": item.id,
        "reason": shorten(reason, REASON_BYTES),
        "attempts": attempts,
        "key": item.key,
        "at": at,
    }


def expiry(now: datetime, history: timedelta | None, once: datetime | None) -> datetime | None:
    """Return until when a settled item is kept: for its history, for its id, or ``None`` to delete it."""
    remembered = once if once is not None and once > now else None
    kept = None if history is None else now + history
    if kept is None or remembered is None:
        return kept or remembered
    return max(kept, remembered)
