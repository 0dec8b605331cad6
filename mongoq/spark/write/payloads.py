"""Payload of a push, made of a row: from JSON text, one column, several columns, or BSON itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import bson
import pyarrow as pa
from bson.errors import BSONError
from pyspark.sql.types import StructField

from mongoq.data.encoding.codec import SIZE_LIMIT, Encoding, codec_options
from mongoq.errors import ArgumentInvalid, PayloadTooLarge
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


Payloads = Callable[[pa.RecordBatch], list[bytes]]
"""Converts rows to payloads: returns each as ``{"payload": payload}`` in BSON, checked; raises ``Refusal``."""


def wrap_documents(fields: Sequence[StructField]) -> Payloads:
    """Return the converter of columns to documents, in their order; nulls are stored as null.

    Raises:
        ArgumentInvalid: a column cannot be stored.
    """
    names = [field.name for field in fields]
    try:
        check_names(names)
    except TypeError as error:
        raise ArgumentInvalid("schema", str(error)) from None
    converters = [_values_for(field) for field in fields]
    checked = any(has_maps(field.dataType) for field in fields)

    def wrap(batch: pa.RecordBatch) -> list[bytes]:
        columns = [convert_column(name, values, batch) for name, values in zip(names, converters, strict=True)]
        documents = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        return _encode_values(documents, PAYLOAD, lambda path: path.removeprefix("payload."), checked=checked)

    return wrap


def wrap_values(field: StructField) -> Payloads:
    """Return the converter of one column of any type; raises ``ArgumentInvalid`` if it cannot be stored."""
    values, checked = _values_for(field), has_maps(field.dataType)
    return lambda batch: _encode_values(convert_column(field.name, values, batch), field.name, checked=checked)


def wrap_json(name: str) -> Payloads:
    """Return the converter of a column of JSON texts to their values; null is the payload null."""

    def wrap(batch: pa.RecordBatch) -> list[bytes]:
        values = []
        for row, text in enumerate(batch.column(name).to_pylist()):
            try:
                values.append(None if text is None else json.loads(text, parse_constant=_no_constant))
            except (ValueError, RecursionError):
                raise Refusal(row, name, "text that is no JSON") from None
        return _encode_values(values, name)

    return wrap


def wrap_raw(name: str) -> Payloads:
    """Return the check of a binary column, which holds ``{"payload": payload}``: nothing is lost or changed."""

    def wrap(batch: pa.RecordBatch) -> list[bytes]:
        payloads: list[Any] = batch.column(name).to_pylist()
        for row, raw in enumerate(payloads):
            try:
                if raw is None or list(bson.decode(raw, ENCODING.options)) != [PAYLOAD]:
                    raise Refusal(row, name, "not the BSON of a document with the one field 'payload'")
            except (BSONError, ValueError):
                raise Refusal(row, name, "bytes that are no BSON") from None
            if len(raw) > SIZE_LIMIT:
                raise Refusal(row, name, PayloadTooLarge(PAYLOAD, len(raw), SIZE_LIMIT).problem)
        return payloads

    return wrap


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
