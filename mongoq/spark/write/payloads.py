"""Payload of a push, made of a row: from JSON text, one column, several columns, or BSON itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import bson
import pyarrow as pa
from bson.errors import BSONError
from pyspark.sql.types import StructField

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.encoding.codec import SIZE_LIMIT, Encoding, codec_options
from mongoq.spark.types.convert import too_deep
from mongoq.spark.types.values import Unfit, Values, check_names, has_maps, values_of

PAYLOAD = "payload"
ENCODING = Encoding(codec_options())
"""Encoding of payloads; clients of Spark's workers have no codec options of their own."""


class Refusal(Exception):
    """A row of a record batch cannot be written."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.column = column
        self.problem = problem


def _values_for(field: StructField) -> Values:
    """Return the converter of a column; raises ``ArgumentInvalid``, with the column's name."""
    if problem := too_deep(field.name, field.dataType):
        raise ArgumentInvalid("schema", f"field {problem}; write the payload as JSON text: to_json(...) AS {PAYLOAD}")
    try:
        check_names([field.name])
        return values_of(field.dataType)
    except TypeError as error:
        raise ArgumentInvalid("schema", f"column {field.name!r}: {error}") from None


def convert_column(name: str, values: Values, batch: pa.RecordBatch) -> list[Any]:
    """Return the values of a column; raises ``Refusal`` for the first value that cannot be stored."""
    column = batch.column(name)
    try:
        return values(column)
    except Unfit as unfit:
        error = unfit
    # The conversion of a whole column does not name the row: convert row by row to find it.
    for row in range(len(column)):
        try:
            values(column.slice(row, 1))
        except Unfit as unfit:
            raise Refusal(row, name, str(unfit)) from None
    raise error


@dataclass(frozen=True, slots=True)
class AsDocument:
    """A document of some columns, in their order; nulls are stored as null."""

    columns: tuple[tuple[str, Values], ...]
    checked: bool

    @classmethod
    def of(cls, fields: Sequence[StructField]) -> AsDocument:
        """Return the converter of these columns; raises ``ArgumentInvalid`` if one cannot be stored."""
        try:
            check_names([field.name for field in fields])
        except TypeError as error:
            raise ArgumentInvalid("schema", str(error)) from None
        columns = tuple((field.name, _values_for(field)) for field in fields)
        return cls(columns, any(has_maps(field.dataType) for field in fields))

    def wrap_all(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode the documents; raises ``Refusal``."""
        names = [name for name, _ in self.columns]
        columns = [convert_column(name, values, batch) for name, values in self.columns]
        documents = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        return _encode_values(documents, PAYLOAD, lambda path: path.removeprefix("payload."), checked=self.checked)


@dataclass(frozen=True, slots=True)
class AsValue:
    """The value of one column, of any type."""

    name: str
    values: Values
    checked: bool

    @classmethod
    def of(cls, field: StructField) -> AsValue:
        """Return the converter of this column; raises ``ArgumentInvalid`` if it cannot be stored."""
        return cls(field.name, _values_for(field), has_maps(field.dataType))

    def wrap_all(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode the values."""
        return _encode_values(convert_column(self.name, self.values, batch), self.name, checked=self.checked)


@dataclass(frozen=True, slots=True)
class AsJson:
    """The value of the JSON text in one column; null is the payload null."""

    name: str

    def wrap_all(self, batch: pa.RecordBatch) -> list[bytes]:
        """Parse and encode the texts."""
        return _encode_values(parse_column(self.name, batch), self.name)


@dataclass(frozen=True, slots=True)
class AsRaw:
    """The BSON of one binary column, which holds ``{"payload": payload}``: nothing is lost or changed."""

    name: str

    def wrap_all(self, batch: pa.RecordBatch) -> list[bytes]:
        """Check that each value is a document of this form."""
        payloads: list[bytes] = batch.column(self.name).to_pylist()
        for row, raw in enumerate(payloads):
            if problem := _raw_problem(raw):
                raise Refusal(row, self.name, problem)
        return payloads


Payloads = AsDocument | AsValue | AsJson | AsRaw
"""Converters of rows to payloads: ``wrap_all`` returns each as ``{"payload": payload}`` in BSON, checked."""


def _raw_problem(raw: bytes | None) -> str | None:
    try:
        if raw is None or list(bson.decode(raw, ENCODING.options)) != [PAYLOAD]:
            return "not the BSON of a document with the one field 'payload'"
    except (BSONError, ValueError):
        return "bytes that are no BSON"
    return str(PayloadTooLarge(PAYLOAD, len(raw), SIZE_LIMIT).problem) if len(raw) > SIZE_LIMIT else None


def parse_column(name: str, batch: pa.RecordBatch) -> list[Any]:
    """Return the values of the JSON texts of a column, and ``None`` for null; raises ``Refusal``."""
    values = []
    for row, text in enumerate(batch.column(name).to_pylist()):
        try:
            values.append(None if text is None else json.loads(text, parse_constant=_no_constant))
        except (ValueError, RecursionError):
            raise Refusal(row, name, "text that is no JSON") from None
    return values


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("JSON has no such number")


def _encode_values(
    values: Iterable[Any], column: str, named: Callable[[str], str] = str, *, checked: bool = True
) -> list[bytes]:
    """Encode values. Without ``checked`` the check is skipped: it takes as long as the encoding.

    The caller skips it for types whose values are always valid.
    """
    encode = ENCODING.wrap if checked else _wrap_value
    encoded = []
    for row, value in enumerate(values):
        try:
            encoded.append(encode(PAYLOAD, value, limit=SIZE_LIMIT))
        except ArgumentInvalid as error:
            raise Refusal(row, named(error.argument.replace(PAYLOAD, column, 1)), error.problem) from None
    return encoded


def _wrap_value(name: str, value: Any, *, limit: int) -> bytes:
    raw = bson.encode({name: value}, codec_options=ENCODING.options)
    if len(raw) > limit:
        raise PayloadTooLarge(name, len(raw), limit)
    return raw
