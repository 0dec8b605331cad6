"""Writes the rows of one task: some are pushed, some settled."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa
from bson import ObjectId
from bson.errors import InvalidId
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from mongoq.data.outcomes import Move
from mongoq.data.push_options import Keyed
from mongoq.data.settings import KEEP
from mongoq.errors import ArgumentInvalid, BatchIncomplete
from mongoq.spark.clients import broker_at, flush_observer, pause_gc
from mongoq.spark.errors import RowRefused, RowsLost
from mongoq.spark.write.column_roles import ID, TOKEN, ColumnRoles, RowOrder
from mongoq.spark.write.payloads import Refusal, convert_column
from mongoq.spark.write.row_ids import ContentIds, ValueIds
from mongoq.spark.write.write_options import WriteOptions
from mongoq.sync import Broker
from mongoq.sync.operations import (
    CheckedMove,
    Destination,
    Draft,
    FencedItem,
    Push,
    SettledByToken,
    check_move,
    find_originals,
    push_each,
    settle_held,
)

logger = logging.getLogger("mongoq.spark")

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
ROW_ID = PLACE = itemgetter(0)
ENCODED_BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of a record batch that are encoded as BSON at a time, about."""


@dataclass(frozen=True, slots=True)
class Task:
    """A Spark task.

    Attributes:
        partition: number of its partition.
        batch: of a streaming query: its id, which the checkpoint keeps, and the number of its batch; else ``None``.
    """

    partition: int
    batch: tuple[str, str] | None = None

    @classmethod
    def current(cls) -> Task:
        """Return the current task of this process; outside of Spark's workers, a task of a single partition."""
        context = TaskContext.get()
        if context is None:
            return cls(0)
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        return cls(context.partitionId(), None if query is None or batch is None else (query, batch))


@dataclass(frozen=True, slots=True)
class Rows:
    """Contents of rows, by their positions.

    Attributes:
        orders: options of each row besides its payload.
        wrapped: payloads as ``{"payload": payload}`` in BSON; ``None`` where no column belongs to payloads.
        values: bytes that ids are made of, with ``idColumn``.
        originals: ids of the items that the rows are copies of, ``None`` where a row is none; empty without such rows.
    """

    orders: Sequence[RowOrder]
    wrapped: Sequence[bytes] | None
    values: Sequence[bytes | None] | None
    originals: Sequence[ObjectId | None] = ()


class RowPusher:
    """Pushes the rows of one task, under ids that ``ids`` makes."""

    def __init__(self, broker: Broker, options: WriteOptions, ids: ContentIds | ValueIds) -> None:
        self._broker = broker
        self._options = options
        self._ids = ids

    def push(self, rows: Rows, places: Sequence[int]) -> None:
        """Push the rows of some positions, grouped by queue; raises ``Refusal`` before any command is sent.

        Rows with the same id are one item. Rows with a sequence are pushed in the order of their positions.
        """
        groups: dict[RowOrder, list[int]] = {}
        for place in places:
            groups.setdefault(rows.orders[place], []).append(place)
        pushes: dict[str, tuple[list[Draft], list[Push], list[tuple[int, Push]]]] = {}
        copies: dict[bytes, ObjectId] = {}
        for order, positions in groups.items():
            queue, wrapped = _check_payloads(rows, order, positions)
            options, pushed, in_order = pushes.setdefault(queue, ([], [], []))
            ids = self._make_ids(queue, rows, order, positions, wrapped)
            if rows.originals:
                made = zip(ids, positions, strict=True)
                copies |= {id: original for id, place in made if (original := rows.originals[place]) is not None}
            new = zip(ids, wrapped, repeat(len(options)))
            if order.sequence is None:
                pushed.extend(new)
            else:
                in_order.extend(zip(positions, new, strict=True))
            keyed = None if order.key is None else Keyed(order.key, "keep")
            common = order.delay, order.when, order.priority or 0, order.headers, keyed
            options.append(Draft(*common, sequence=order.sequence, expires=order.expires))
        originals = self._broker._run(find_originals, copies, self._options.label) if copies else {}
        for queue, (options, pushed, in_order) in pushes.items():
            self._send(queue, options, pushed, [push for _, push in sorted(in_order, key=PLACE)], originals)

    def _send(
        self,
        queue: str,
        options: Sequence[Draft],
        pushes: list[Push],
        in_order: list[Push],
        originals: Mapping[bytes, Mapping[str, Any]],
    ) -> None:
        pushes.sort(key=ROW_ID)  # ordered ids save the server a quarter of its work
        pushes += in_order
        if isinstance(self._ids, ValueIds):
            # Rows with equal ids are one item, so only one of them is sent.
            pushes = list({push[0]: push for push in pushes}.values())
        handle, remember = self._broker.queue(queue), self._options.once
        handle._run(push_each, options, pushes, remember=remember, originals=originals)

    def _make_ids(
        self, queue: str, rows: Rows, order: RowOrder, places: Sequence[int], wrapped: Sequence[bytes]
    ) -> list[bytes]:
        if isinstance(self._ids, ContentIds):
            return self._ids.ids(queue, order.row_values, wrapped)
        assert rows.values is not None
        values = []
        for place in places:
            value = rows.values[place]
            if value is None:
                raise Refusal(place, str(self._options.id_column), "it is null, and idColumn makes ids of it")
            values.append(value)
        return self._ids.ids(queue, values)


def _check_payloads(rows: Rows, order: RowOrder, places: Sequence[int]) -> tuple[str, list[bytes]]:
    """Return the queue of rows with the same order, and their payloads."""
    if order.to is None:
        raise Refusal(places[0], "_to", "it says no queue to push to, and neither does the option to")
    if rows.wrapped is None:
        raise Refusal(places[0], "payload", "no column makes the payload, which a row that is pushed needs")
    return order.to, [rows.wrapped[place] for place in places]


class RowSettler:
    """Settles the rows of one task."""

    def __init__(self, broker: Broker, options: WriteOptions) -> None:
        self._broker = broker
        self._options = options
        self._seen: set[bytes] = set()

    def settle(self, rows: Rows, fences: Mapping[int, tuple[str, str]]) -> SettledByToken:
        """Move or commit the items of rows, and return their results; all are tried before an error is raised.

        Args:
            rows: the rows.
            fences: ids and tokens of their items in hex, by the positions of the rows.

        Raises:
            Refusal: a row does not identify an item; nothing was sent.
            BatchIncomplete: some items could not be settled, for example because the target queue has the key already.
            RowsLost: some items have another holder by now, or were settled before, with ``lost=fail``.
        """
        moves: dict[RowOrder, CheckedMove] = {}
        fenced_items = [self._make_fenced(rows, place, *fence, moves) for place, fence in fences.items()]
        if not fenced_items:
            return SettledByToken()
        result = self._broker._run(settle_held, fenced_items)
        # Reported before failures, which raise: the log has both.
        if result.lost:
            rows_lost = RowsLost(result.lost)
            if self._options.lost == "fail":
                raise rows_lost
            logger.warning("%s", rows_lost)
        if result.failed:
            settled_ids = [item.id for item in fenced_items if item.id not in result.failed]
            first = next(iter(result.failed.values()))
            raise BatchIncomplete(", ".join(sorted(result.queues)), settled_ids, result.failed) from first
        return result

    def _make_fenced(
        self, rows: Rows, place: int, id: str, token: str, moves: dict[RowOrder, CheckedMove]
    ) -> FencedItem:
        item, fence = _object_id(place, ID, id), _object_id(place, TOKEN, token)
        # The first row would settle the item, and the second would count as lost.
        if item.binary in self._seen:
            problem = "another row of this task settles the same item; what is made of it besides has no _token"
            raise Refusal(place, TOKEN, problem)
        self._seen.add(item.binary)
        order = rows.orders[place]
        if order.to is None:
            return FencedItem(item, fence)
        if order not in moves:
            moves[order] = self._check_move(order, order.to)
        payload = None if rows.wrapped is None else rows.wrapped[place]
        return FencedItem(item, fence, moves[order]._replace(payload=payload))

    def _check_move(self, order: RowOrder, to: str) -> CheckedMove:
        """Return the move of an order: priority and headers stay unless ``carry`` names them."""
        context, carry = self._broker.queue(to)._context, self._options.carry
        has_headers = "headers" in carry and order.headers is not None
        move = Move(
            to,
            delay=order.delay,
            when=order.when,
            priority=order.priority if "priority" in carry else self._options.priority,
            headers=order.headers if has_headers else KEEP,
            sequence=order.sequence,
            expires=order.expires,
        )
        return check_move(context, Destination(to, context.codec), move, key=order.key)


def _find_ids(batch: pa.RecordBatch) -> list[ObjectId | None]:
    """Return the ids of items in the column ``_id``; other values of it name no items."""
    texts = batch.column(ID).to_pylist()
    return [ObjectId(text) if isinstance(text, str) and ObjectId.is_valid(text) else None for text in texts]


def _object_id(place: int, column: str, text: str) -> ObjectId:
    try:
        return ObjectId(text)
    except InvalidId:
        raise Refusal(place, column, "it is no ObjectId in hex, which the ids and tokens of mongoq are") from None


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
    place, writer = 0, None
    try:
        for batch in _slices(batches, options.batch_size):
            # Only at the first row: an empty task needs no connection.
            if writer is None:
                writer = _TaskWriter(layout, options, task.partition, job)
            try:
                with pause_gc():
                    writer.write(batch)
            except Refusal as refusal:
                row = place + refusal.row
                raise RowRefused(task.partition, row, refusal.column, refusal.problem) from None
            place += batch.num_rows
    finally:
        if writer is not None:
            flush_observer(writer.broker)
    return WrittenRows() if writer is None else writer.written


def _slices(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Cut record batches into slices of at most ``most`` rows and about ``ENCODED_BATCH_BYTES`` bytes."""
    for batch in batches:
        rows = min(most, max(ENCODED_BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1), 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _TaskWriter:
    def __init__(self, layout: ColumnRoles, options: WriteOptions, partition: int, job: tuple[str, ...] | None) -> None:
        self._layout = layout
        self._options = options
        self._partition = partition
        self._job = job
        self.broker = broker_at(options.place)
        self._pusher: RowPusher | None = None
        self._settler = RowSettler(self.broker, options)
        self.written = WrittenRows()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a slice: pushes come first, because a pushed row may be all that is left of an item that is settled."""
        rows = self._rows(batch)
        fences = self._find_fences(batch) if self._layout.fenced else {}
        new = [place for place in range(batch.num_rows) if place not in fences]
        if new:
            # Only now, because ids need a label or an idColumn, and a write that only settles has neither.
            self._pusher = self._pusher or RowPusher(self.broker, self._options, self._ids())
            self._pusher.push(rows, new)
        settled = self._settler.settle(rows, fences)
        self.written += WrittenRows(len(new), settled.done, len(settled.lost))

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        layout = self._layout
        return Rows(
            layout.orders.of(batch),
            None if layout.payloads is None else layout.payloads(batch),
            None if layout.id_values is None else convert_column(str(self._options.id_column), layout.id_values, batch),
            _find_ids(batch) if layout.id_values is not None and self._options.id_column == ID else (),
        )

    def _ids(self) -> ContentIds | ValueIds:
        if self._layout.id_values is not None:
            return ValueIds(self._options.label)
        if self._job is None:
            problem = "in foreachBatch a batch may be written twice: name this write, or give idColumn"
            raise ArgumentInvalid("label", problem)
        return ContentIds(self._job, self._partition)

    def _find_fences(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
        """Return ids and tokens of the items that rows settle, by the positions of the rows."""
        fences = {}
        ids, tokens = batch.column(ID).to_pylist(), batch.column(TOKEN).to_pylist()
        for place, (id, token) in enumerate(zip(ids, tokens, strict=True)):
            if token is None:
                continue
            if id is None:
                raise Refusal(place, ID, "it is null beside a _token; which item is meant?")
            if self._options.settle is None:
                problem = "somebody holds this item: with settle=true it is moved or committed under that fence, with "
                raise Refusal(place, TOKEN, f"{problem}settle=false it is pushed anew")
            fences[place] = id, token
        return fences
