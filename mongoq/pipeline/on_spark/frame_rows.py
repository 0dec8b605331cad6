"""Rows that the function of a frame stage returned, and the outcome of each item by its rows. Runs in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import NullType, StringType, StructField, StructType

from mongoq.errors import ArgumentInvalid, OutcomeInvalid
from mongoq.model.sequence import check_sequence
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, RAW, SEQUENCE
from mongoq.spark.write.column_roles import DURATION_TYPES
from mongoq.spark.write.payloads import AsDocument, AsJson, AsRaw, AsValue, Payloads, Refusal

ID, TO, DELAY, RETRY, DEAD = "_id", "_to", "_delay", "_retry", "_dead"
HASH = "_delivery_hash"
CONTROL = (ID, TO, DELAY, SEQUENCE, RETRY, DEAD)
KNOWN_COLUMNS = frozenset({*CONTROL, HASH, CORRUPT, *ENVELOPE})
TEXTS = (ID, TO, SEQUENCE, RETRY, DEAD)

ROWS = "id string, kind string, text string, to string, delay double, payload binary, sequence string"
"""Rows grouped by item. Kinds of rows that the function returned: ``row``, ``retry``, ``dead``, ``refused``. Each item
has one more row with its own kind: ``item``, or ``misfit`` or ``spent``, which the function does not get.
"""
FATES = (
    "id string, kind string, text string, delay double, "
    "outputs array<struct<to:string,delay:double,payload:binary,sequence:string>>"
)
"""Outcomes of items, one row each: ``moved`` to outputs, ``left`` (without a row), ``retry``, ``dead``, ``refused``,
``misfit``, ``spent``; and ``fault`` or ``unblamed`` for items whose run has failed.
"""

ROW_SCHEMA = pa.schema(
    [
        *[(name, pa.string()) for name in ("id", "kind", "text", "to")],
        *[("delay", pa.float64()), ("payload", pa.binary()), ("sequence", pa.string())],
    ]
)
OUTPUT = pa.struct([("to", pa.string()), ("delay", pa.float64()), ("payload", pa.binary()), ("sequence", pa.string())])
FATE_SCHEMA = pa.schema(
    [*[(name, pa.string()) for name in ("id", "kind", "text")], ("delay", pa.float64()), ("outputs", pa.list_(OUTPUT))]
)
RETURNED = ("row", "retry", "dead", "refused")
MAX_BATCH_ITEMS = 1_000
"""Items in one record batch of outcomes."""


class Row(NamedTuple):
    """A row of ``ROWS`` without its id."""

    kind: str
    text: str | None = None
    to: str | None = None
    delay: float | None = None
    payload: bytes | None = None
    sequence: str | None = None


class Encoder:
    """Converts the rows that the function returned to ``ROWS``, with payloads as BSON.

    Args:
        schema: columns of the returned frame.
        stage: name of the stage.
        several: True if the stage has several targets, of which ``_to`` chooses one.

    Raises:
        OutcomeInvalid: a column is missing, unknown, or has a wrong type.
    """

    def __init__(self, schema: StructType, stage: str, *, several: bool) -> None:
        self._stage = stage
        self._several = several
        self._names = schema.fieldNames()
        self._check(schema)
        self._payloads = self._make_payloads([field for field in schema.fields if _is_payload(field.name)])

    def _check(self, schema: StructType) -> None:
        names = [name.lower() for name in self._names]
        for name in self._names:
            if names.count(name.lower()) > 1:
                raise self._wrong(f"several columns {name!r}; rename or drop some")
            if name.startswith("_") and name not in KNOWN_COLUMNS:
                control_names = ", ".join(CONTROL)
                raise self._wrong(
                    f"a column {name!r}, which is none of {control_names}; rename it: payload columns have no _"
                )
        if ID not in self._names:
            raise self._wrong(f"no column {ID!r}, which says of which item a row is made; keep it")
        if self._several and TO not in self._names:
            raise self._wrong(f"no column {TO!r}, and the stage has several targets; add it")
        for name in TEXTS:
            self._check_type(schema, name, (StringType,), "a string")
        self._check_type(schema, DELAY, DURATION_TYPES, "seconds as a number, or an interval day to second")

    def _check_type(self, schema: StructType, name: str, types: tuple[Any, ...], kind: str) -> None:
        if name in self._names and not isinstance(schema[name].dataType, (*types, NullType)):
            raise self._wrong(f"a column {name!r} of type {schema[name].dataType.simpleString()}; it is to be {kind}")

    def _make_payloads(self, fields: list[StructField]) -> Payloads | None:
        """Return the converter of payloads; ``None`` where no column belongs to payloads, and items keep their own."""
        whole = next((field for field in fields if field.name in (RAW, PAYLOAD)), None)
        try:
            if whole is None:
                return AsDocument.of(fields) if fields else None
            if len(fields) > 1:
                listed = ", ".join(repr(field.name) for field in fields)
                raise self._wrong(f"columns {listed}, which make several payloads; drop some, or put them into one")
            if whole.name == RAW:
                return AsRaw(RAW)
            return AsJson(PAYLOAD) if isinstance(whole.dataType, StringType) else AsValue.of(whole)
        except ArgumentInvalid as invalid:
            raise self._wrong(f"what no payload can hold: {invalid.problem}") from None

    def _wrong(self, what: str) -> OutcomeInvalid:
        return OutcomeInvalid(f"stage {self._stage!r} returned {what}")

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        for batch in batches:
            ids = batch.column(ID).to_pylist()
            rows = [(id, *row) for id, row in zip(ids, self._make_rows(batch), strict=True)]
            yield make_batch(rows, ROW_SCHEMA)

    def _make_rows(self, batch: pa.RecordBatch) -> list[Row]:
        texts = [self._column(batch, name) for name in (RETRY, DEAD, TO, SEQUENCE)]
        delays = [_to_seconds(value) for value in self._column(batch, DELAY)]
        controls = zip(*texts, strict=True)
        return [self._make_row(*values) for values in zip(controls, delays, self._encode(batch), strict=True)]

    def _column(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in self._names else [None] * batch.num_rows

    def _make_row(self, control: tuple[str | None, ...], delay: float | None, payload: bytes | Refusal | None) -> Row:
        retry, dead, to, sequence = control
        if retry is not None and dead is not None:
            return Row("refused", f"a row says {RETRY} and {DEAD}; say one of them")
        if retry is not None:
            return Row("retry", retry, None, delay)
        if dead is not None:
            return Row("dead", dead)
        if isinstance(payload, Refusal):
            return Row("refused", f"column {payload.column!r}: {payload.problem}")
        if self._several and to is None:
            return Row("refused", f"a row has no queue in {TO}, and the stage has several targets; name one of them")
        if sequence is not None:
            try:
                check_sequence(sequence, argument=SEQUENCE)
            except ArgumentInvalid as invalid:
                return Row("refused", f"column {invalid}")
        return Row("row", None, to, delay, payload, sequence)

    def _encode(self, batch: pa.RecordBatch) -> Sequence[bytes | Refusal | None]:
        """Return the payloads, with the error in place of each payload that cannot be stored."""
        if self._payloads is None:
            return [None] * batch.num_rows
        try:
            return self._payloads.wrap_all(batch)
        except Refusal as refusal:
            if batch.num_rows == 1:
                return [refusal]
        # Halve the batch to find the rows that cannot be stored: the other rows keep their payloads.
        half = batch.num_rows // 2
        return [*self._encode(batch.slice(0, half)), *self._encode(batch.slice(half))]


def _is_payload(name: str) -> bool:
    return name == RAW or not name.startswith("_")


def _to_seconds(value: Any) -> float | None:
    if value is None:
        return None
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


class Grouper:
    """Converts ``ROWS`` to ``FATES``. The rows are sorted by id, and all rows of an item are in one task."""

    def __init__(self, stage: str, *, sink: bool) -> None:
        self._stage = stage
        self._sink = sink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the outcomes of the items of one task."""
        fates: list[tuple[Any, ...]] = []
        for id, rows in _group_by_item(batches):
            fates.append((id, *self._make_fate(id, rows)))
            if len(fates) >= MAX_BATCH_ITEMS:
                yield make_batch(fates, FATE_SCHEMA)
                fates = []
        yield make_batch(fates, FATE_SCHEMA)

    def _make_fate(self, id: str | None, rows: list[Row]) -> tuple[Any, ...]:
        """Return kind, text, delay and outputs of an item's outcome."""
        returned = [row for row in rows if row.kind in RETURNED]
        own = next((row for row in rows if row.kind not in RETURNED), None)
        # Each item of the frame has one row of its own, so a group without one has an id that the function made up.
        if own is None:
            which = f"no {ID}" if id is None else f"the {ID} {id!r:.100}, which no item of this frame has"
            raise OutcomeInvalid(f"stage {self._stage!r} returned a row with {which}; each row is made of an item")
        if own.kind != "item":
            return own.kind, own.text, None, None
        refused = next((row for row in returned if row.kind == "refused"), None)
        if refused is not None:
            return "refused", f"stage {self._stage!r}: {refused.text}", None, None
        failure = next((row for row in returned if row.kind != "row"), None)
        if failure is not None and len(returned) > 1:
            text = f"it is said to be {failure.kind}, and has {len(returned)} rows; such an item has that row alone"
            return "refused", f"stage {self._stage!r}: {text}", None, None
        if failure is not None:
            return failure.kind, failure.text, failure.delay, None
        if self._sink or not returned:
            return "left", None, None, None
        return "moved", None, None, [{name: getattr(row, name) for name in OUTPUT.names} for row in returned]


def _group_by_item(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, list[Row]]]:
    rows: list[Row] = []
    at: str | None = None
    for batch in batches:
        ids, *columns = (column.to_pylist() for column in batch.columns)
        for id, *values in zip(ids, *columns, strict=True):
            if id != at and rows:
                yield at, rows
                rows = []
            at = id
            rows.append(Row(*values))
    if rows:
        yield at, rows


def make_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(list(values), type) for values, type in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
