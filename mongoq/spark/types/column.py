"""One column of a table: the stored field that it needs, and the conversion of values to an Arrow array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField

from mongoq.errors import ArgumentInvalid
from mongoq.spark.types.arrow import arrow_type, as_it_is
from mongoq.spark.types.conversion_error import PERMISSIVE, ConversionError, ParseMode
from mongoq.spark.types.convert import as_json, converter, is_json, too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, Document

__all__ = ["NO_PAYLOAD", "Column", "DocumentBatch", "only", "path_in_payload"]

NO_PAYLOAD = object()
"""Stands for the payload of a document that has none; ``None`` is a payload."""


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Documents of one batch, prepared for its columns.

    Attributes:
        documents: the documents.
        payloads: their payloads.
        fields: their payloads for columns of fields: a payload that is no document is empty here.
        now: time at which states are computed.
    """

    documents: Sequence[Document]
    payloads: Sequence[Any]
    fields: Sequence[Document]
    now: datetime


def path_in_payload(name: str) -> str | None:
    """Return the path of a payload's field, or ``None`` if a path cannot name it: for dots, a leading ``$`` and NUL."""
    return None if not name or name.startswith("$") or set(name) & set(".\0") else f"{PAYLOAD}.{name}"


def only(fields: Sequence[str], payload: Any) -> Any:
    """Return some fields of a payload, in its own order; a payload that is no document is returned as it is."""
    if not isinstance(payload, dict) or payload.keys() <= set(fields):
        return payload
    return {name: value for name, value in payload.items() if name in fields}


class Column:
    """One column of the table. Its name selects the values: the envelope, the payload, or a field of the payload.

    Raises:
        ArgumentInvalid: the column has an unsupported type.
    """

    def __init__(self, field: StructField, mode: str) -> None:
        self.name = field.name
        self.field = field
        self._envelope = ENVELOPE.get(field.name)
        self.is_corrupt = field.name == CORRUPT
        self.is_payload = field.name == PAYLOAD
        self.of_payload = self._envelope is None and not self.is_corrupt and not self.is_payload
        self._check()
        self._is_text = self.is_payload and isinstance(field.dataType, StringType)
        self._plain = not self._is_text and not is_json(field)
        self._forgiven: list[ConversionError] | None = [] if mode == PERMISSIVE else None
        try:
            self._convert = self._payload_text if self._is_text else converter(field, self._forgiven)
            self.arrow = arrow_type(field.dataType)
        except TypeError as error:
            raise ArgumentInvalid("schema", f"column {field.name!r}: {error}") from None

    def _check(self) -> None:
        if problem := too_deep(self.name, self.field.dataType):
            raise ArgumentInvalid("schema", f"field {problem}; make it a string, which holds it as JSON")
        given = self.field.dataType.simpleString()
        if self._envelope is not None and self._envelope.type.simpleString() != given:
            problem = f"column {self.name!r} of the envelope is {self._envelope.type.simpleString()}, not {given}"
            raise ArgumentInvalid("schema", problem)
        if self.is_corrupt and (given != "string" or not self.field.nullable):
            null = "" if self.field.nullable else " NOT NULL"
            raise ArgumentInvalid("schema", f"column {CORRUPT!r} holds payloads as JSON: string, not {given}{null}")

    @property
    def stored(self) -> tuple[str, ...]:
        """Stored fields that the column needs."""
        if self._envelope is not None:
            return self._envelope.stored
        return (path_in_payload(self.name) or PAYLOAD if self.of_payload else PAYLOAD,)

    def array(self, taken: DocumentBatch, misfits: ParseMode) -> pa.Array:
        """Return the column of these documents; a value that does not fit becomes null and is noted, or raises."""
        values = self._values(taken)
        # Fast path; a value that Arrow refuses is converted one by one, for an error that names it.
        array = as_it_is(values, self.field, self.arrow) if self._plain else None
        return pa.array(self._convert_values(values, misfits), self.arrow) if array is None else array

    def _values(self, taken: DocumentBatch) -> list[Any]:
        if self.of_payload:
            name = self.name
            return [payload.get(name) for payload in taken.fields]
        if self._envelope is not None:
            return self._envelope.take(taken.documents, taken.now)
        if self._is_text:
            return list(taken.payloads)
        return [None if payload is NO_PAYLOAD else payload for payload in taken.payloads]

    def _convert_values(self, values: list[Any], misfits: ParseMode) -> list[Any]:
        converted = []
        for place, value in enumerate(values):
            try:
                converted.append(self._convert(value))
            except ConversionError as misfit:
                misfits.meet(place, self.name, misfit, nullable=self.field.nullable)
                converted.append(None)
            if self._forgiven:
                # The list is shared by all values of the column: empty it for the next one.
                self._forgiven.clear()
                misfits.note(place)
        return converted

    def _payload_text(self, value: Any) -> str | None:
        if value is not NO_PAYLOAD:
            return as_json(value)
        if self.field.nullable:
            return None
        raise ConversionError(self.field.dataType, "a null or missing value, being NOT NULL")
