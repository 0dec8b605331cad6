"""The columns of a read: which fields they need, and how documents become record batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import bson
import pyarrow as pa
from bson import ObjectId
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mongoq.errors import ArgumentInvalid
from mongoq.model.codec import codec_options
from mongoq.model.item import state_of
from mongoq.spark.arrow import arrow_field, arrow_type, as_it_is
from mongoq.spark.convert import Convert, Misfit, converter, name_of
from mongoq.spark.errors import ColumnMismatch
from mongoq.spark.jsontext import json_text

__all__ = ["ENVELOPE", "RAW", "Columns", "default_schema"]

PAYLOAD = "payload"
RAW = "_payload"
"""The payload as BSON, for copies that lose nothing; only for those who ask for it."""
OPTIONS = codec_options()
Document = dict[str, Any]
Take = Callable[[list[Document], datetime], list[Any]]

STRING, INTEGER, MOMENT = StringType(), IntegerType(), TimestampType()
ERROR = StructType().add("type", STRING).add("message", STRING).add("at", MOMENT)
ORIGIN = (
    StructType()
    .add("queue", STRING)
    .add("id", STRING)
    .add("reason", STRING)
    .add("attempts", INTEGER)
    .add("key", STRING)
    .add("at", MOMENT)
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the values of a column come from.

    Attributes:
        fields: the stored fields they need.
        take: takes them out of documents, at a given time.
        type: the type of the column, where the user has no choice.
    """

    fields: tuple[str, ...]
    take: Take
    type: DataType | None = None


def _field(name: str, type: DataType | None = None) -> Source:
    return Source((name,), lambda documents, _now: [document.get(name) for document in documents], type)


def _ids(documents: list[Document], _now: datetime) -> list[str]:
    """Return ids as text: mongoq's are ObjectIds, and other types that somebody wrote are shown as JSON."""
    ids = [document["_id"] for document in documents]
    return [str(each) if isinstance(each, str | ObjectId) else json_text(each) for each in ids]


def _states(documents: list[Document], now: datetime) -> list[str]:
    return [state_of(document, now) for document in documents]


def _raw(documents: list[Document], _now: datetime) -> list[bytes | None]:
    """Return each payload as ``{"payload": payload}`` in BSON."""
    return [
        bson.encode({PAYLOAD: each[PAYLOAD]}, codec_options=OPTIONS) if PAYLOAD in each else None for each in documents
    ]


ENVELOPE: dict[str, Source] = {
    "_id": Source(("_id",), _ids, STRING),
    "_q": _field("q", STRING),
    "_state": Source(("when", "reserved", "processed"), _states, STRING),
    "_when": _field("when", MOMENT),
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
    RAW: Source((PAYLOAD,), _raw, BinaryType()),
}


def default_schema() -> StructType:
    """Return the columns of a table that was asked for without a schema."""
    schema = StructType()
    for name, source in ENVELOPE.items():
        if name != RAW:
            schema.add(name, source.type or STRING)
    return schema.add(PAYLOAD, STRING)


def _payload_field(name: str) -> Source:
    def take(documents: list[Document], _now: datetime) -> list[Any]:
        return [document[PAYLOAD].get(name) for document in documents]

    whole = not name or "." in name or name.startswith("$")  # no path leads to such a field alone
    return Source((PAYLOAD if whole else f"{PAYLOAD}.{name}",), take)


def _json(documents: list[Document], _now: datetime) -> list[str | None]:
    return [json_text(each[PAYLOAD]) if PAYLOAD in each else None for each in documents]


class Column:
    """One column of the table: takes its values out of documents and makes them an Arrow array.

    Raises:
        ArgumentInvalid: the column has a type that it cannot be read into.
    """

    def __init__(self, field: StructField) -> None:
        self.name = field.name
        self.field = field
        self.of_payload = field.name not in ENVELOPE and field.name != PAYLOAD
        self.source = self._source(field)
        try:
            self._convert: Convert = converter(field.dataType, nullable=field.nullable)
            self.arrow = arrow_type(field.dataType)
        except TypeError as error:
            raise ArgumentInvalid("schema", f"column {field.name!r}: {error}") from None

    @staticmethod
    def _source(field: StructField) -> Source:
        if field.name == PAYLOAD:
            is_text = isinstance(field.dataType, StringType)
            return Source((PAYLOAD,), _json) if is_text else _field(PAYLOAD)
        source = ENVELOPE.get(field.name)
        if source is None:
            return _payload_field(field.name)
        wanted, given = source.type, field.dataType.simpleString()
        if wanted is not None and wanted.simpleString() != given:
            problem = f"column {field.name!r} of the envelope is {wanted.simpleString()}, not {given}"
            raise ArgumentInvalid("schema", problem)
        return source

    def array(self, documents: list[Document], now: datetime) -> pa.Array:
        """Return the column of these documents; raises ``ColumnMismatch`` for the first that does not fit."""
        values = self.source.take(documents, now)
        array = as_it_is(values, self.field, self.arrow)
        if array is not None:
            return array
        converted = []
        for document, value in zip(documents, values, strict=True):
            try:
                converted.append(self._convert(value))
            except Misfit as misfit:
                path = self.name + misfit.path
                raise ColumnMismatch(document["_id"], path, misfit.type, misfit.problem) from None
        return pa.array(converted, self.arrow)


class Columns:
    """All columns of a read.

    Raises:
        ArgumentInvalid: a column has a type that it cannot be read into.
    """

    def __init__(self, schema: StructType) -> None:
        self._columns = [Column(field) for field in schema.fields]
        self._of_payload = [column for column in self._columns if column.of_payload]
        self._schema = pa.schema([arrow_field(column.field) for column in self._columns])

    def projection(self) -> dict[str, int]:
        """Return what the server is to send: the fields that columns need, and the id for errors."""
        fields = {"_id": 1} | {field: 1 for each in self._columns for field in each.source.fields}
        if PAYLOAD not in fields:
            return fields
        return {field: 1 for field in fields if not field.startswith(f"{PAYLOAD}.")}

    def batch(self, documents: list[Document], now: datetime) -> pa.RecordBatch:
        """Return the rows of these documents; raises ``ColumnMismatch``."""
        self._check_payloads(documents)
        arrays = [column.array(documents, now) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_payloads(self, documents: list[Document]) -> None:
        """Refuse payloads without fields: a projection on a field drops them, and they would look empty."""
        if not self._of_payload or {type(document.get(PAYLOAD)) for document in documents} <= {dict}:
            return
        column = self._of_payload[0]
        for document in documents:
            if not isinstance(payload := document.get(PAYLOAD), dict):
                what = "no document" if payload is None else name_of(payload)
                kind = column.field.dataType.simpleString()
                raise ColumnMismatch(document["_id"], column.name, kind, f"a payload that is {what}")
