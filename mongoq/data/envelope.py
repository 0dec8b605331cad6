"""The envelope: the document that carries one item. ``docs/envelope.md`` shows its fields."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, lru_cache
from struct import Struct
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.data.arguments import REASON_BYTES
from mongoq.data.encoding.codec import Encoding
from mongoq.data.encoding.error_text import (
    name_of,
    plain,
    shorten_trace,
    text_of,
    type_name,
    user_trace_of,
)
from mongoq.data.encoding.extended_json import time_text
from mongoq.data.item import Item, bytes_of, delivery_hash
from mongoq.errors import ArgumentInvalid

Document = Mapping[str, Any]

EXHAUSTED_REASON = "retries exhausted"
ONLY_RUN_REASON = "failed, no retries allowed"
"""Reasons of letters that failures have made."""

ERROR_BYTES = 4096
"""Bytes of an error's message, and of its traceback, at most."""
TYPE_BYTES = 256
"""Bytes of an error's type, at most."""
ID_PREFIX = b"\x07_id\0"
"""Bytes before the 12 bytes of an ``_id`` that is an ObjectId, in BSON."""
WHEN, PRIORITY = b"\x09when\0", b"\x10priority\0"
"""Bytes before the date, and before the priority."""
UNRESERVED_END = b"\x10attempts\0\0\0\0\0\x08reserved\0\0\0"
"""Bytes after the priority of an item that was never reserved, with the end of the document."""
_rest = Struct(f"<{len(WHEN)}sq{len(PRIORITY)}si{len(UNRESERVED_END)}s").pack
_FIXED = 4 + len(ID_PREFIX) + 12 - 5 + len(_rest(WHEN, 0, PRIORITY, 0, UNRESERVED_END))
"""Bytes of an envelope without the queue and the wrapped payload."""


def new_envelope(
    queue: str,
    payload: Any,
    *,
    id: ObjectId,
    when: datetime,
    priority: int,
    headers: Document | None,
    once: datetime | None,
    start_by: datetime | None = None,
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
        document["into"] = queue
    if start_by is not None:
        document["start_by"] = start_by
    return document


def is_same_push(document: Document, into: str) -> bool:
    """Return whether a stored envelope comes from a push to this queue or topic, under the id that is pushed again.

    Earlier versions did not write ``into``: then the id is known to be pushed, but not its destination.
    """
    if isinstance(document.get("into"), str):
        return bool(document["into"] == into)
    origin = document.get("origin")
    return "once" in document or into in (
        document.get("q"),
        origin.get("queue") if isinstance(origin, Mapping) else None,
    )


def fresh_envelope(queue: str, wrapped: bytes, *, id: ObjectId, at: int, priority: int) -> RawBSONDocument:
    """Return a new envelope without headers as bytes to send.

    It takes 2.7 µs, and a document that is encoded 9.6, of the 30 µs that a push takes with 256 callers.

    Args:
        queue: name of the queue.
        wrapped: ``{"payload": payload}`` as BSON.
        id: id of the item.
        at: time when it is due, in milliseconds since 1970.
        priority: its priority.
    """
    head = queue_field(queue)
    size = _FIXED + len(head) + len(wrapped)
    parts = (
        size.to_bytes(4, "little"),
        ID_PREFIX,
        bytes_of(id),
        head,
        wrapped[4:-1],
        _rest(WHEN, at, PRIORITY, priority, UNRESERVED_END),
    )
    return RawBSONDocument(b"".join(parts))


@lru_cache(maxsize=4096)
def queue_field(queue: str) -> bytes:
    """Return the bytes of the queue's field, which is between the id and the payload."""
    name = queue.encode()
    return b"".join((b"\x02q\0", (len(name) + 1).to_bytes(4, "little"), name, b"\0"))


class Stencil:
    """Makes the envelopes of many items that differ only in id and payload; all other parts are encoded once.

    A ``push_many`` of 1,000 items takes 3.6 ms of the client's processor, and 7.6 ms with documents that are encoded.
    """

    def __init__(self, encoding: Encoding, envelope: Document) -> None:
        names = list(envelope)
        place = names.index("payload")
        parts = names[1:place], names[place + 1 :]
        before, after = (encoding.raw({name: envelope[name] for name in part}).raw[4:-1] for part in parts)
        self._before, self._after = bytes(before), bytes(after) + b"\0"
        self._rest = 4 + len(ID_PREFIX) + 12 + len(before) + len(self._after) - 5

    def size(self, wrapped: bytes) -> int:
        """Return the bytes of the envelope of an item, given ``{"payload": payload}`` in BSON."""
        return self._rest + len(wrapped)

    def envelope(self, id: bytes, wrapped: bytes) -> RawBSONDocument:
        """Return the envelope of an item, given the 12 bytes of its id, and ``{"payload": payload}`` in BSON."""
        size = self.size(wrapped).to_bytes(4, "little")
        raw = b"".join((size, ID_PREFIX, id, self._before, wrapped[4:-1], self._after))
        # The document is only sent, so default codec options are enough: it is never decoded here.
        return RawBSONDocument(raw)


def splice(document: bytes, wrapped: bytes) -> bytes:
    """Return a document in BSON with the fields of another one after its own."""
    size = len(document) + len(wrapped) - 5
    return b"".join((size.to_bytes(4, "little"), document[4:-1], wrapped[4:]))


def error_document(error: Any, at: datetime) -> dict[str, Any] | None:
    """Return the ``error`` field for an exception or a text, bounded in bytes; ``None`` for ``None``.

    An exception without a readable text is stored with its type.
    """
    if error is None:
        return None
    if isinstance(error, BaseException):
        message = shorten(text_of(error, ERROR_BYTES + 1), ERROR_BYTES)
        failure = {"type": shorten(type_name(error), TYPE_BYTES), "message": message, "at": at}
        with suppress(BaseException):
            # Python reads a module's source lines by its loader, which may be the user's and raise anything.
            if trace := shorten_trace(user_trace_of(error), ERROR_BYTES):
                failure["traceback"] = trace
        return failure
    if isinstance(error, str):
        return {"type": "", "message": shorten(plain(error, ERROR_BYTES + 1), ERROR_BYTES), "at": at}
    raise ArgumentInvalid("error", f"an exception or a string, not {name_of(error)}")


def shorten(text: str, limit: int) -> str:
    """Return text that UTF-8 can hold, in at most ``limit`` bytes."""
    if text.isascii() and len(text) <= limit:
        return text
    # Lone surrogates, which UTF-8 cannot hold, become escapes.
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode(errors="ignore") + "…"


def origin_document(
    item: Item[Any], *, reason: str, attempts: int, at: datetime, stage: str | None = None
) -> dict[str, Any]:
    """Return the ``origin`` field of an item that is buried, perhaps by a stage, or replayed."""
    marks = {} if stage is None else {"stage": stage, "delivery": delivery_hash(stage, [item])}
    return {
        "queue": item.queue,
        "id": item.id,
        "reason": shorten(reason, REASON_BYTES),
        "attempts": attempts,
        "key": item.key,
        "at": at,
        **marks,
    }


def attempts_of(document: Document) -> int:
    """Return the number of reservations so far; 0 where another program wrote a value that is no number."""
    attempts = document.get("attempts")
    return attempts if isinstance(attempts, int) else 0


def expiry(now: datetime, history: timedelta | None, once: Any) -> datetime | None:
    """Return the time until which a settled item is kept, for its history or its id; ``None`` to delete it."""
    remembered = once if isinstance(once, datetime) and once > now else None
    end_of_history = None if history is None else now + history
    if end_of_history is None or remembered is None:
        return end_of_history or remembered
    return max(end_of_history, remembered)


# --- ids ------------------------------------------------------------------------------------------
# Made and read faster than by the driver: a ``push_many`` of 1,000 items takes 3.6 ms of the client's processor, and
# 5.3 ms with ids of ``ObjectId()``. Both kinds have one order.

COUNTER_VALUES = 2**24
"""Values of the counter in the last three bytes of an ObjectId."""
SECONDS_MASK = 0xFFFFFFFF
"""Mask of the seconds in the first four bytes."""


@cache
def _process() -> bytes:
    """Return the five random bytes of this process, cached; the driver checks on each call whether it has forked."""
    return ObjectId._random()


os.register_at_fork(after_in_child=_process.cache_clear)
os.register_at_fork(after_in_child=_process)  # while it has one thread: later ones could get the parent's bytes


def new_id() -> ObjectId:
    """Return a new ObjectId, as ``new_ids`` makes them."""
    return ObjectId(new_ids(1)[0])


def new_ids(number: int) -> list[bytes]:
    """Return ``number`` new ObjectIds as their 12 bytes, in ascending order.

    They have the form that ``ObjectId()`` makes, and sort after earlier ids of this process, except once in 16 million,
    when the driver's counter begins again. So of items that are due at the same moment, the one pushed first is claimed
    first.
    """
    try:
        with ObjectId._inc_lock:
            # Begin again at 0 if need be; the earlier ids with these numbers are seconds older.
            first = ObjectId._inc if ObjectId._inc + number <= COUNTER_VALUES else 0
            ObjectId._inc = (first + number) % COUNTER_VALUES
    except AttributeError:
        # Another version of the driver may count in another way.
        return sorted(ObjectId().binary for _ in range(number))
    head = (int(time.time()) & SECONDS_MASK).to_bytes(4) + _process()
    return [head + place.to_bytes(3) for place in range(first, first + number)]


# --- trace headers -------------------------------------------------------------------------------

TRACEPARENT = "traceparent"
"""Header with the span that pushed the item: 55 characters in version 0 of the standard."""
LINKS = "mongoq-links"
"""Header of a joined item: a list of the ``traceparent`` headers of its other inputs."""
TRACE_CONTEXT = (TRACEPARENT, "tracestate", "baggage")
"""Headers of one trace context by the standards of W3C."""
CONTEXT_PREFIX = "mongoq-context-"
"""Prefix of the headers with context variables; the name of the variable follows."""

MAX_TRACEPARENT = 128
"""Characters of a ``traceparent``, at most: a longer one is no trace context."""
MAX_LINKS = 32
"""Links of a joined item, at most: joins of joins would collect ever more."""


def join_headers(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the headers of an item made of several, which links to their traces.

    Headers of an earlier part win over the same headers of a later one.
    """
    headers: dict[str, Any] = {}
    for part in reversed(parts):
        headers |= part
    own = headers.get(TRACEPARENT)
    found = [link for part in parts for link in (part.get(TRACEPARENT), *trace_links(part)) if _is_traceparent(link)]
    links = [link for link in dict.fromkeys(found) if link != own]
    if links:
        headers[LINKS] = links[:MAX_LINKS]
    return headers


def trace_to_keep(headers: Mapping[str, Any], new_headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace headers of an item that stay when its headers are replaced by new ones.

    New headers with a trace context of their own, or a part of one, end the trace: two halves would be no context.
    """
    kept: dict[str, Any] = {}
    if all(name not in new_headers for name in (*TRACE_CONTEXT, LINKS)):
        kept = {name: value for name in TRACE_CONTEXT if isinstance(value := headers.get(name), str)}
        if links := trace_links(headers):
            kept[LINKS] = links
    variables = (name for name in headers if name.startswith(CONTEXT_PREFIX) and name not in new_headers)
    return kept | {name: headers[name] for name in variables if isinstance(headers[name], str)}


def trace_links(headers: Mapping[str, Any]) -> list[str]:
    """Return the links of an item; other programs may have written anything into this header."""
    links = headers.get(LINKS)
    return [link for link in links[:MAX_LINKS] if _is_traceparent(link)] if isinstance(links, list) else []


def _is_traceparent(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TRACEPARENT


# --- facts about many items at once --------------------------------------------------------------


def is_fresh(document: Document) -> bool:
    """Return whether an envelope is that of an item that was never reserved, as mongoq writes it."""
    return (
        "by" not in document
        and "key" not in document
        and "once" not in document
        and type(document["_id"]) is ObjectId
        and type(document.get("attempts")) is int
        and document["attempts"] == 0
        and isinstance(document["when"], datetime)
        and type(document.get("priority")) is int
    )


# --- items as documents for JSON: what the command line prints, and what the HTTP API answers ------------------------

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
    document: dict[str, Any] = {"id": to_plain(item.id), "queue": item.queue, "state": show_state(item)}
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


def show_state(item: Item[Any]) -> str:
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
