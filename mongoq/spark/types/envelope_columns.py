"""Columns of the envelope: names, types, the stored fields they need, and how values are read from documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import bson
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidDocument
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mongoq.data.encoding.codec import codec_options
from mongoq.data.item import delivery_parts, hops_counted, trail_of
from mongoq.data.stream_claim import entry_time
from mongoq.spark.documents import Garbled
from mongoq.spark.types.json_text import json_shown

PAYLOAD = "payload"
CORRUPT = "_corrupt"
"""Column with the payload of an item that did not fit, in the permissive mode."""
RAW = "_payload"
"""Column with the payload as BSON, for lossless copies; only if the schema has it."""
TRAIL = "_trail"
"""Column with the hops of an item through pipelines; only if the schema has it."""
DELIVERY = "_delivery"
"""Column with the parts of delivery hashes, without the stage's name; only if the schema has it."""
SEQUENCE = "_sequence"
"""Column with the sequence of an item; only if the schema has it: the writer uses the column, where it is there."""
OPTIONAL_COLUMNS = (RAW, TRAIL, DELIVERY, SEQUENCE)
OPTIONS = codec_options()
Document = Mapping[str, Any]
Take = Callable[[Sequence[Document], datetime], list[Any]]

STRING, INTEGER, MOMENT = StringType(), IntegerType(), TimestampType()


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, type) for name, type in fields.items()])


ERROR = _struct(type=STRING, message=STRING, at=MOMENT)
ORIGIN = _struct(
    queue=STRING, id=STRING, reason=STRING, attempts=INTEGER, key=STRING, at=MOMENT, stage=STRING, delivery=STRING
)
HOP = _struct(
    queue=STRING, stage=STRING, by=STRING, taken=MOMENT, settled=MOMENT, attempts=INTEGER, ended=STRING, to=STRING
)
"""Hops without their payloads, which may have any type and be large: the server does not send them."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the envelope.

    Attributes:
        type: its fixed type.
        stored_fields: stored fields that it needs.
        take: reads its values from documents, at a given time.
    """

    type: DataType
    stored_fields: tuple[str, ...]
    take: Take


def _field(name: str, type: DataType) -> Field:
    return Field(type, (name,), lambda documents, _now: [document.get(name) for document in documents])


def _computed(type: DataType, fields: tuple[str, ...], value: Callable[[Document], Any]) -> Field:
    """Return a column of values that are each computed from one document."""
    return Field(type, fields, lambda documents, _now: list(map(value, documents)))


def id_shown(id: Any) -> str:
    """Return an id as text: an ObjectId or string as it is, an id of another type as JSON."""
    return str(id) if isinstance(id, str | ObjectId) else json_shown(id)


def _states(documents: Sequence[Document], now: datetime) -> list[str]:
    """Return the states as ``mongoq.data.item.state_of`` does, also for dates that Python cannot hold."""
    # Dates of a read are naive for speed, those of other callers aware: compare each with its kind.
    naive = now.astimezone(UTC).replace(tzinfo=None)
    return [_state(document, now, naive) for document in documents]


def _state(document: Document, now: datetime, naive: datetime) -> str:
    if document.get("processed") is not None:
        return "processed"
    when = document.get("when")
    if isinstance(when, datetime):
        due = when <= (naive if when.tzinfo is None else now)
    else:
        # Dates outside Python's years: the sign tells the far past from the far future.
        due = isinstance(when, DatetimeMS) and int(when) < 0
    if document.get("reserved"):
        return "expired" if due else "reserved"
    return "ready" if due else "scheduled"


def _entry(document: Document) -> Any:
    """Return when an item came to its queue, or ``None`` if unknown: known before a claim, or if a stream noted it."""
    if document.get("when") is None or document.get("reserved") or document.get("attempts"):
        return document.get("pushed")
    return entry_time(document)


def _raw(document: Document) -> bytes | Garbled | None:
    """Return the payload as ``{"payload": payload}`` in BSON; text that is not UTF-8 has no such form."""
    if PAYLOAD not in document:
        return None
    try:
        return bson.encode({PAYLOAD: document[PAYLOAD]}, codec_options=OPTIONS)
    except InvalidDocument:
        return Garbled(json_shown(document[PAYLOAD]))


def _hops(document: Document) -> list[dict[str, Any]] | None:
    """Return the hops of an item's trail; ``None`` for an item without a trail."""
    trail = document.get("trail")
    if not isinstance(trail, list):
        return None
    return [{name: getattr(hop, name) for name in HOP.names} for hop in trail_of(trail)]


def _delivery(document: Document) -> str:
    parts = delivery_parts(document["_id"], hops_counted(document.get("hops")), document.get("joined"))
    return "\0".join(sorted(parts))


ENVELOPE: dict[str, Field] = {
    "_id": _computed(STRING, ("_id",), lambda document: id_shown(document["_id"])),
    "_q": _field("q", STRING),
    "_state": Field(STRING, ("when", "reserved", "processed"), _states),
    "_when": _field("when", MOMENT),
    "_pushed": _computed(MOMENT, ("pushed", "when", "reserved", "attempts"), _entry),
    "_priority": _field("priority", INTEGER),
    "_attempts": _field("attempts", INTEGER),
    "_reserved": _field("reserved", BooleanType()),
    "_token": _field("token", STRING),
    "_by": _field("by", STRING),
    "_key": _field("key", STRING),
    "_headers": _field("headers", STRING),
    "_error": _field("error", ERROR),
    "_origin": _field("origin", ORIGIN),
    "_once": _field("once", MOMENT),
    "_settled": _field("settled", STRING),
    "_processed": _field("processed", MOMENT),
    "_expires": _field("expires", MOMENT),
    RAW: _computed(BinaryType(), (PAYLOAD,), _raw),
    TRAIL: _computed(ArrayType(HOP), tuple(f"trail.{name}" for name in HOP.names), _hops),
    SEQUENCE: _field("sequence", STRING),
    DELIVERY: _computed(STRING, ("_id", "hops", "joined"), _delivery),
}


def envelope_schema() -> StructType:
    """Return the envelope's columns, without any form of the payload and without the columns for explicit schemas."""
    return StructType(
        [StructField(name, field.type) for name, field in ENVELOPE.items() if name not in OPTIONAL_COLUMNS]
    )


def default_schema() -> StructType:
    """Return the columns of a table without a schema: the envelope, and the payload as JSON."""
    return envelope_schema().add(PAYLOAD, STRING)
