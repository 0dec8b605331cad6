"""Values of requests and answers: extended JSON, ids, times, filters and cursors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import bson
from bson import ObjectId
from bson.errors import BSONError
from fastapi import Query
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from mongoq.data.arguments import queue_name, read_duration
from mongoq.data.encoding.codec import PLAIN_OPTIONS
from mongoq.data.encoding.extended_json import read_json, read_time
from mongoq.errors import ArgumentInvalid

if TYPE_CHECKING:
    from mongoq.core.history.query import Query as ItemQuery

JSON_TYPE = "application/json"
MAX_LISTED = 1_000
"""Items in one answer, at most."""
TYPES: dict[str, Any] = dict.fromkeys(("since", "processed", "when"), datetime)
TYPES |= dict.fromkeys(("until", "started"), datetime | None)
TYPES |= {"priority": int | float | None, "sequence": str, "place": int, "_id": object}
"""Types of the values of a cursor."""
MAX_FILTER_CHARACTERS = 16_384
"""Characters of a filter in an address, at most."""


def _read_id(text: Any) -> Any:
    """Return the ObjectId of a text; an id in extended JSON is one already."""
    if isinstance(text, str) and ObjectId.is_valid(text.strip()):
        return ObjectId(text.strip())
    if isinstance(text, ObjectId):
        return text
    raise ValueError(f"{text!r:.60} is no id of an item: it has 24 hex digits")


def _read_moment(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    if value in (None, ""):  # a field of a form that was left empty
        return None
    if not isinstance(value, str):
        raise ValueError("a time is a text such as 2026-11-26T14:30:00Z, or 30m for 30 minutes ago")  # noqa: TRY004
    return read_time(value.strip())


def _read_seconds(value: Any) -> Any:
    """Return the seconds of a duration; the form of settings takes the same texts."""
    if isinstance(value, str):
        return read_duration(value).total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a duration is a number of seconds, or a text such as 90s, 5m, 2h or 7d")  # noqa: TRY004
    return value


def read_filter(value: Any) -> Any:
    """Return the filter of a text in JSON, or of a value of a body; ``None`` for none.

    Raises:
        ValueError: it is no JSON, or no object; a text ``null`` would otherwise stand for all items.
    """
    if value in (None, ""):
        return None
    read = read_json(value) if isinstance(value, str) else value
    if not isinstance(read, Mapping):
        raise ValueError("a filter is a JSON object")  # noqa: TRY004  # pydantic reads it
    return read


ID_SCHEMA = {"type": "string", "pattern": "^[0-9a-fA-F]{24}$", "examples": ["65f0c0ffee65f0c0ffee0001"]}
QueueName = Annotated[
    str,
    AfterValidator(lambda name: queue_name(name, "queue")),
    Field(description="Name of a queue.", examples=["orders"]),
]
ItemId = Annotated[Any, BeforeValidator(_read_id), WithJsonSchema(ID_SCHEMA), Field(description="Id of an item.")]
Moment = Annotated[
    Any,
    BeforeValidator(_read_moment),
    WithJsonSchema({"type": "string", "examples": ["2026-11-26T14:30:00Z", "2h"]}),
    Field(description="Time in ISO 8601, in UTC unless it says otherwise, or a time ago such as 30m, 2h or 3d."),
]
DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\d{1,12}(\.\d{1,9})?(ms|s|m|h|d)?$"},
    ],
    "examples": [90, "5m"],
}
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, description="Duration: a number of seconds, or a text such as 90s, 5m, 2h or 7d."),
    BeforeValidator(_read_seconds),
    WithJsonSchema(DURATION_SCHEMA),
]
FilterText = Annotated[
    Any,
    BeforeValidator(read_filter),
    WithJsonSchema({"type": "string", "maxLength": MAX_FILTER_CHARACTERS}),
    Query(description='Filter on payloads in JSON, such as {"city": "Paris"}.', max_length=None),
]
Filter = Annotated[
    Any,
    BeforeValidator(read_filter),
    WithJsonSchema({"type": "object", "examples": [{"city": "Paris"}]}),
    Field(description="Filter on payloads, with the operators of where=."),
]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="Items in this answer, at most.")]
CursorText = Annotated[str | None, Query(description="The field next of the answer before this one.")]


def to_time(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return the time that a ``Moment`` means; a time ago counts from the server's clock."""
    if not isinstance(value, timedelta):
        return value
    try:
        return now - value
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def make_cursor(rest: ItemQuery | None) -> str | None:
    """Return the text that continues a list at the range of its next page; ``None`` at the end."""
    if rest is None:
        return None
    position = None if rest.after is None else {name: rest.after.get(name) for name in _position_fields(rest)}
    document = {"state": rest.state, "since": rest.since, "until": rest.until, "at": rest.started, "after": position}
    return base64.urlsafe_b64encode(bson.encode(document, codec_options=PLAIN_OPTIONS)).decode().rstrip("=")


def read_cursor(text: str | None, wanted: ItemQuery) -> ItemQuery:
    """Return the range of the next page of a list, from the cursor that the page before it has given.

    It is checked: a caller may have written anything.

    Raises:
        ArgumentInvalid: the cursor is not one of such a list.
    """
    if text is None:
        return wanted
    try:
        document = bson.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), PLAIN_OPTIONS)
        after = document["after"]
        times = {name: document[field] for name, field in (("since", "since"), ("until", "until"), ("started", "at"))}
        values = {**times, **({} if after is None else dict(after))}
        if document["state"] != wanted.state or not (after is None or after.keys() == {*_position_fields(wanted)}):
            raise ValueError("another list")
        is_typed = all(isinstance(values[name], TYPES[name]) for name in values)
        if not is_typed or isinstance(values.get("_id"), list | bson.Regex):
            raise TypeError("no place of an item")
    except (AttributeError, binascii.Error, BSONError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ArgumentInvalid("cursor", "it is no cursor of this list; leave it out to begin again") from error
    return replace(wanted, **times, **({} if after is None else {"after": after}))


def _position_fields(wanted: ItemQuery) -> tuple[str, ...]:
    if wanted.state == "blocked":
        return ("sequence", "place")
    return ("processed", "_id") if wanted.state == "processed" else ("priority", "when", "_id")
