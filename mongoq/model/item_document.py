"""Items as documents for JSON: what the command line prints, and what the HTTP API answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.model.encoding.extended_json import time_text
from mongoq.model.item import Item

ORDER = (
    *("priority", "attempts", "key", "sequence", "ready_from", "start_by", "by", "processed", "once", "expires"),
    *("error", "origin", "headers"),
)
"""Fields of the envelope in the order of documents, after id, queue, state and date."""
INNER = frozenset(
    ("place", "token", "batch", "settled", "into", "pushed", "hops", "trail", "joined", "parked", "missed", "throttled")
)
"""Fields that only ``show`` prints."""
AS_STORED = frozenset({"payload", "headers"})
"""Fields of users, which stay extended JSON."""


def item_document(item: Item[Any], *, whole: bool = False) -> dict[str, Any]:
    """Return an item as a document for JSON.

    Ids and dates of the envelope are strings, so that scripts can pass them on to other commands; payload and headers
    are extended JSON. The document has all fields of the envelope if it is to be ``whole``.
    """
    document: dict[str, Any] = {"id": to_plain(item.id), "queue": item.queue, "state": state_of(item)}
    when = item.stored("when")
    if when is not None:
        document["lease_until" if item.stored("reserved") is True else "due"] = to_plain(when)
    since = claim_time(item)
    if since is not None:
        document["since"] = to_plain(since)
    for field in ORDER:
        value = item.stored(field)
        if value is not None:
            document[field] = value if field in AS_STORED else to_plain(value)
    if whole:
        document |= {field: to_plain(item.stored(field)) for field in sorted(INNER) if item.stored(field) is not None}
    if has_payload(item):
        document["payload"] = item.stored("payload")
    return document


def claim_time(item: Item[Any]) -> datetime | None:
    """Return the second in which a reserved item was claimed, by the clock of that process; ``None`` for others.

    The envelope has no time of the claim, but the token is an ObjectId of that moment.
    """
    token = item.stored("token")
    return token.generation_time if item.stored("reserved") is True and isinstance(token, ObjectId) else None


def state_of(item: Item[Any]) -> str:
    """Return the state of an item; other programs may have stored dates that say none."""
    if not has_payload(item):
        return "remembered"
    try:
        return item.state
    except (KeyError, TypeError):
        return "unknown"


def has_payload(item: Item[Any]) -> bool:
    """Return whether an item has a payload: of a settled item in a queue without history, only its id may be left."""
    return item.stored("payload", ...) is not ...


def to_plain(value: Any) -> Any:
    """Return a value of the envelope with ids and dates as strings."""
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Mapping):
        return {name: part if name == "payload" else to_plain(part) for name, part in value.items()}
    return [to_plain(part) for part in value] if isinstance(value, list) else value
