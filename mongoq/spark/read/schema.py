"""Columns of a read: the fields that they need, and the conversion of documents to record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import pause_while_making
from mongoq.spark.types.column import NO_PAYLOAD, Column, DocumentBatch, ParseMode, arrow_field, only, path_in_payload
from mongoq.spark.types.convert import DROP, FAIL, PERMISSIVE, ConversionError, name_of
from mongoq.spark.types.envelope_columns import PAYLOAD
from mongoq.spark.types.json_text import json_shown

EMPTY: Mapping[str, Any] = {}


class Columns:
    """All columns of a read.

    Args:
        schema: names and types of the columns.
        mode: treatment of values that do not fit, one of ``mongoq.spark.types.convert.MODES``.
        fields: fields of the payload that the user chose; empty for all.

    Raises:
        ArgumentInvalid: a column has an unsupported type, or is not one of the fields.
    """

    def __init__(self, schema: StructType, mode: str = FAIL, fields: Sequence[str] = ()) -> None:
        self._mode = mode
        self._fields = tuple(fields)
        self._columns = [Column(field, mode) for field in schema.fields]
        self._schema = pa.schema([arrow_field(column.field) for column in self._columns])
        self._shows_corrupt = mode == PERMISSIVE and any(column.is_corrupt for column in self._columns)
        self._of_fields = [each for each in self._columns if each.of_payload or (each.is_payload and self._fields)]
        for column in self._columns:
            if self._fields and column.of_payload and column.name not in self._fields:
                raise ArgumentInvalid(
                    "fields",
                    f"it leaves out {column.name!r}, a column of the schema; leave out this option, since with a "
                    f"schema the server sends only what its columns need",
                )

    def projection(self) -> dict[str, int]:
        """Return the projection for the server: fields that columns need, and the id for errors."""
        fields = {field for column in self._columns for field in self._stored_fields(column)}
        if self._shows_corrupt:
            fields.add(PAYLOAD)
        if PAYLOAD in fields:
            # The server refuses a projection of both a document and a field inside it.
            fields = {field for field in fields if not field.startswith(f"{PAYLOAD}.")}
        return dict.fromkeys(["_id", *sorted(fields - {"_id"})], 1)

    def _stored_fields(self, column: Column) -> Iterable[str]:
        if column.is_corrupt:
            return ()
        if column.is_payload and self._fields:
            return [path_in_payload(name) or PAYLOAD for name in self._fields]
        return column.stored

    def batch(self, documents: list[dict[str, Any]], now: datetime) -> pa.RecordBatch:
        """Return the rows of these documents; their dates are aware, or naive in UTC.

        Raises:
            ColumnMismatch: a value does not fit, and the mode or a NOT NULL column requires it.
        """
        misfits = ParseMode(self._mode, documents)
        read = self._read_batch(documents, misfits, now)
        arrays = [None if column.is_corrupt else column.array(read, misfits) for column in self._columns]
        # After all other columns, because any of them may have misfits.
        corrupt = self._corrupt(documents, misfits)
        filled = [corrupt if array is None else array for array in arrays]
        batch = pa.RecordBatch.from_arrays(filled, schema=self._schema)
        if self._mode != DROP or not misfits.places:
            return batch
        return batch.filter(pa.array([place not in misfits.places for place in range(len(documents))]))

    def batches(self, documents: Iterator[list[dict[str, Any]]], now: datetime) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each list of documents, one list in memory at a time; the collector pauses meanwhile."""
        # With map: a loop would keep the documents of the last batch while it makes the next one.
        return pause_while_making(map(partial(self.batch, now=now), documents))

    def _corrupt(self, documents: list[dict[str, Any]], misfits: ParseMode) -> pa.Array:
        if not self._shows_corrupt:
            return pa.nulls(len(documents), pa.string())
        texts: list[str | None] = [None] * len(documents)
        for place in misfits.places:
            texts[place] = json_shown(documents[place].get(PAYLOAD))
        return pa.array(texts, pa.string())

    def _read_batch(self, documents: list[dict[str, Any]], misfits: ParseMode, now: datetime) -> DocumentBatch:
        payloads = [document.get(PAYLOAD, NO_PAYLOAD) for document in documents]
        if not self._of_fields:
            return DocumentBatch(documents, payloads, (), now)
        # The usual case by one set of types: a check of each payload would be slower.
        plain = {payload.__class__ for payload in payloads} <= {dict}
        fields = payloads if plain else self._documents_of(payloads, misfits)
        if self._fields:
            fields = [only(self._fields, payload) for payload in fields]
            payloads = fields if plain else [NO_PAYLOAD if payload is EMPTY else payload for payload in fields]
        return DocumentBatch(documents, payloads, fields, now)

    def _documents_of(self, payloads: list[Any], misfits: ParseMode) -> list[Any]:
        """Report payloads that are not documents: a projection on a field drops them, so they would look empty."""
        column = self._of_fields[0]
        for place, payload in enumerate(payloads):
            if not isinstance(payload, dict):
                what = "no document" if payload is NO_PAYLOAD or payload is None else name_of(payload)
                misfit = ConversionError(column.field.dataType, f"a payload that is {what}")
                misfits.meet(place, column.name, misfit, nullable=True)
        return [payload if isinstance(payload, dict) else EMPTY for payload in payloads]
