"""Writes the rows of one task: some are pushed, some settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import broker_at
from mongoq.spark.errors import RowRefused
from mongoq.spark.gc_pause import resting
from mongoq.spark.write.column_roles import ID, TOKEN, ColumnRoles
from mongoq.spark.write.payloads import Refusal, converted
from mongoq.spark.write.push_rows import RowPusher, Rows
from mongoq.spark.write.row_ids import ContentIds, ValueIds
from mongoq.spark.write.settle_rows import HeldRow, RowSettler
from mongoq.spark.write.task import Task
from mongoq.spark.write.write_options import WriteOptions
from mongoq.sync import Broker

__all__ = ["WrittenRows", "write"]

BYTES = 16 * 1024 * 1024
"""Bytes of a record batch that are encoded as BSON at a time, about."""


@dataclass
class WrittenRows(WriterCommitMessage):
    """Result of a task.

    Attributes:
        pushed: rows that were pushed, now or before.
        settled: rows whose items were moved or committed.
        lost: rows whose reservations were over.
    """

    pushed: int = 0
    settled: int = 0
    lost: int = 0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        """Return the sum of both results."""
        return WrittenRows(self.pushed + other.pushed, self.settled + other.settled, self.lost + other.lost)


def write(
    batches: Iterable[pa.RecordBatch],
    layout: ColumnRoles,
    options: WriteOptions,
    task: Task,
    job: tuple[str, ...] | None,
) -> WrittenRows:
    """Write the rows of a task; ``job`` distinguishes this write from others, ``None``: it has no name.

    A task that fails leaves the rows that it wrote, and may run again. For a task without rows no command is sent.

    Raises:
        RowRefused: a row cannot be written. Rows before it may have been written.
        BatchIncomplete, RowsLost: as ``RowSettler.settle``.
    """
    place, writing = 0, None
    for batch in _slices(batches, options.batch_size):
        # Only at the first row: an empty task needs no connection.
        if writing is None:
            writing = _Writing(broker_at(options.place), layout, options, task, job)
        try:
            with resting():
                writing.write(batch)
        except Refusal as refusal:
            row = place + refusal.row
            raise RowRefused(task.partition, row, refusal.column, refusal.problem) from None
        place += batch.num_rows
    return WrittenRows() if writing is None else writing.written


def _slices(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Cut record batches into slices with at most ``most`` rows and, if rows have similar sizes, ``BYTES`` bytes."""
    for batch in batches:
        rows = min(most, max(BYTES * batch.num_rows // max(batch.nbytes, 1), 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _Writing:
    def __init__(
        self, broker: Broker, layout: ColumnRoles, options: WriteOptions, task: Task, job: tuple[str, ...] | None
    ) -> None:
        self._layout = layout
        self._options = options
        self._broker = broker
        self._partition = task.partition
        self._job = job
        self._pushing: RowPusher | None = None
        self._settling = RowSettler(broker, options)
        self.written = WrittenRows()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a slice: pushes come first, because a pushed row may be all that is left of an item that is settled."""
        rows = self._rows(batch)
        held = self._held(batch, rows) if self._layout.fenced else {}
        new = [place for place in range(batch.num_rows) if place not in held]
        if new:
            self._pushes().push(rows, new)
        told = self._settling.settle(held.values())
        self.written += WrittenRows(len(new), told.done, len(told.lost))

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        layout = self._layout
        return Rows(
            layout.orders.of(batch),
            None if layout.payloads is None else layout.payloads.wrapped(batch),
            None if layout.id_values is None else converted(str(self._options.id_column), layout.id_values, batch),
        )

    def _pushes(self) -> RowPusher:
        if self._pushing is None:
            self._pushing = RowPusher(self._broker, self._options, self._ids())
        return self._pushing

    def _ids(self) -> ContentIds | ValueIds:
        if self._layout.id_values is not None:
            return ValueIds(self._options.label)
        if self._job is None:
            problem = "in foreachBatch a batch may be written twice: name this write, or give idColumn"
            raise ArgumentInvalid("label", problem)
        return ContentIds(self._job, self._partition)

    def _held(self, batch: pa.RecordBatch, rows: Rows) -> dict[int, HeldRow]:
        """Return the rows that settle an item, by their positions."""
        held = {}
        ids, tokens = batch.column(ID).to_pylist(), batch.column(TOKEN).to_pylist()
        for place, (id, token) in enumerate(zip(ids, tokens, strict=True)):
            if token is None:
                continue
            if id is None:
                raise Refusal(place, ID, "it is null beside a _token; which item is meant?")
            if self._options.settle is None:
                problem = "somebody holds this item: with settle=true it is moved or committed under that fence, with "
                raise Refusal(place, TOKEN, f"{problem}settle=false it is pushed anew")
            wrapped = None if rows.wrapped is None else rows.wrapped[place]
            held[place] = HeldRow(place, id, token, rows.orders[place], wrapped)
        return held
