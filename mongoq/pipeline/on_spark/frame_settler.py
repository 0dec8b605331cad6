"""A frame stage at one of its queues: rows that its function returned, and the settlement of items by them.

Rows and settlements are worked on in Spark's tasks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Self

import pyarrow as pa
from bson import ObjectId
from pyspark.sql.types import NullType, StringType, StructType

from mongoq.data.arguments import REASON_BYTES
from mongoq.data.encoding.codec import Wrapped
from mongoq.data.envelope import shorten
from mongoq.data.item import Item, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.outcomes import Dead, Drop, Failed, Fork, Move, ResolvedOutcome, Retry, name_ending
from mongoq.data.sequence import check_sequence
from mongoq.data.settings import KEEP
from mongoq.errors import ArgumentInvalid, MongoqError, OutcomeInvalid, ReservationLost
from mongoq.pipeline.frames.rows import DEAD, DELIVERY_HASH, ID, RETRY, TO
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.on_spark.serialization import absent
from mongoq.pipeline.run.consumers import StageOutcomeResolver, make_consumer, make_stage_handle
from mongoq.spark.clients import broker_at, flush_observer
from mongoq.spark.raw_options import Location
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, RAW, SEQUENCE, id_shown
from mongoq.spark.write.column_roles import DURATION_TYPES
from mongoq.spark.write.payloads import Payloads, Refusal, wrap_documents, wrap_json, wrap_raw, wrap_values
from mongoq.sync.operations import ItemOutcome, PutOff, apply_outcomes, context_of, ensure_ready, read_held_documents
from mongoq.worker.failure_log import hide_text, log_failure
from mongoq.worker.outcome_resolver import HandlerResult, retry_delay

DELAY = "_delay"
CONTROL = (ID, TO, DELAY, SEQUENCE, RETRY, DEAD)
KNOWN_COLUMNS = frozenset({*CONTROL, DELIVERY_HASH, CORRUPT, *ENVELOPE})
TEXTS = (ID, TO, SEQUENCE, RETRY, DEAD)

OUTPUT = "to string, delay double, payload binary, sequence string"
ROWS = f"id string, kind string, text string, {OUTPUT}"
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

COUNTS = "ending string, number long, item string, text string"
"""Counts that tasks return: number of items by ending. ``left``: items for later; ``lost``: items of other holders;
``halted``: an item and its error, when it has failed for good and there is no error queue.
"""
ARROW_TYPES = {"string": pa.string(), "double": pa.float64(), "long": pa.int64(), "binary": pa.binary()}


def _arrow_schema(columns: str) -> pa.Schema:
    """Return Arrow's schema of plain columns, from their text for Spark."""
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in (each.split() for each in columns.split(", "))])


ROW_SCHEMA, COUNT_SCHEMA = _arrow_schema(ROWS), _arrow_schema(COUNTS)
OUTPUTS = pa.list_(pa.struct(list(_arrow_schema(OUTPUT))))
FATE_SCHEMA = _arrow_schema("id string, kind string, text string, delay double").append(pa.field("outputs", OUTPUTS))
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
        self._payloads: Payloads | None = None
        """Converter of payloads; ``None`` where no column belongs to payloads, and items keep their own."""
        names = [name.lower() for name in self._names]
        for name in self._names:
            if names.count(name.lower()) > 1:
                raise self._wrong(f"several columns {name!r}; rename or drop some")
            if name.startswith("_") and name not in KNOWN_COLUMNS:
                hint = f"which is none of {', '.join(CONTROL)}; rename it: payload columns have no _"
                raise self._wrong(f"a column {name!r}, {hint}")
        if ID not in self._names:
            raise self._wrong(f"no column {ID!r}, which says of which item a row is made; keep it")
        if self._several and TO not in self._names:
            raise self._wrong(f"no column {TO!r}, and the stage has several targets; add it")
        texts: tuple[Any, ...] = ((StringType,), "a string")
        kinds: dict[str, tuple[Any, ...]] = dict.fromkeys(TEXTS, texts)
        kinds[DELAY] = DURATION_TYPES, "seconds as a number, or an interval day to second"
        for name, (types, kind) in kinds.items():
            if name in self._names and not isinstance(schema[name].dataType, (*types, NullType)):
                type_name = schema[name].dataType.simpleString()
                raise self._wrong(f"a column {name!r} of type {type_name}; it is to be {kind}")
        fields = [field for field in schema.fields if field.name == RAW or not field.name.startswith("_")]
        whole = next((field for field in fields if field.name in (RAW, PAYLOAD)), None)
        if whole is not None and len(fields) > 1:
            listed = ", ".join(repr(field.name) for field in fields)
            raise self._wrong(f"columns {listed}, which make several payloads; drop some, or put them into one")
        try:
            if whole is None:
                self._payloads = wrap_documents(fields) if fields else None
            elif whole.name == RAW:
                self._payloads = wrap_raw(RAW)
            else:
                self._payloads = wrap_json(PAYLOAD) if isinstance(whole.dataType, StringType) else wrap_values(whole)
        except ArgumentInvalid as invalid:
            raise self._wrong(f"what no payload can hold: {invalid.problem}") from None

    def _wrong(self, what: str) -> OutcomeInvalid:
        return OutcomeInvalid(f"stage {self._stage!r} returned {what}")

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        for batch in batches:
            columns = {
                name: batch.column(name).to_pylist() if name in self._names else [None] * batch.num_rows
                for name in (ID, RETRY, DEAD, TO, SEQUENCE, DELAY)
            }
            controls = zip(*columns.values(), strict=True)
            rows = [
                (id, *self._make_row(control, delay, payload))
                for (id, *control, delay), payload in zip(controls, self._encode(batch), strict=True)
            ]
            yield make_batch(rows, ROW_SCHEMA)

    def _make_row(self, control: list[str | None], wait: Any, payload: bytes | Refusal | None) -> Row:
        retry, dead, to, sequence = control
        delay = wait.total_seconds() if isinstance(wait, timedelta) else None if wait is None else float(wait)
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
            return self._payloads(batch)
        except Refusal as refusal:
            if batch.num_rows == 1:
                return [refusal]
        # Row by row: the rows that can be stored keep their payloads.
        return [self._encode(batch.slice(row, 1))[0] for row in range(batch.num_rows)]


class Grouper:
    """Converts ``ROWS`` to ``FATES``. The rows are sorted by id, and all rows of an item are in one task."""

    def __init__(self, stage: str, *, sink: bool) -> None:
        self._stage = stage
        self._sink = sink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the outcomes of the items of one task."""
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        fates: list[tuple[Any, ...]] = []
        for id, group in groupby(rows, itemgetter(0)):
            fates.append((id, *self._make_fate(id, [Row(*values) for _, *values in group])))
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
        refused = next((row.text for row in returned if row.kind == "refused"), None)
        failure = next((row for row in returned if row.kind != "row"), None)
        if refused is None and failure is not None and len(returned) > 1:
            refused = f"it is said to be {failure.kind}, and has {len(returned)} rows; such an item has that row alone"
        if refused is not None:
            return "refused", f"stage {self._stage!r}: {refused}", None, None
        if failure is not None:
            return failure.kind, failure.text, failure.delay, None
        if self._sink or not returned:
            return "left", None, None, None
        return "moved", None, None, [row._asdict() for row in returned]


def make_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(list(values), type) for values, type in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


logger = logging.getLogger("mongoq.spark")

NAME_BYTES = 120
"""Bytes of a consumer's name, at most."""
HASH_DIGITS = 16
MAX_ITEMS = 1_000
"""Items that are settled at a time."""
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of outcomes that are settled at a time."""
MAX_SETTLE_ATTEMPTS = 5
"""Attempts to settle items that were put off, or whose settlement failed."""
MISFIT = "the payload does not fit the columns of the stage"
UNREAD = {"payload": 0}


def consumer_of(graph: Graph, stage: Stage, source: str) -> str:
    """Return the name under which a frame stage reads one of its queues: ``PIPELINE/STAGE/QUEUE``.

    A name that is too long is cut. A cut name, and a name that another stage might have as well, gets a hash.
    """
    parts = [str(graph.name), str(stage.name), source]
    name = "/".join(parts)
    if len(name.encode()) <= NAME_BYTES and not any("/" in part for part in parts):
        return name
    # The hash is of the parts, so that a slash in one of them does not make two stages equal.
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_DIGITS]
    return f"{name.encode()[: NAME_BYTES - HASH_DIGITS - 1].decode(errors='ignore')}~{digest}"


@dataclass(frozen=True, slots=True, eq=False)
class FramePart:
    """A frame stage at one of its queues. Its function stays on the driver, because it may hold unpicklable objects.

    Attributes:
        place: location of the queues.
        graph: the pipeline with this stage alone, without its function.
        source: name of the queue.
        consumer: name under which the queue is read.
        path: folder of the outcomes of a batch's items.
    """

    place: Location
    graph: Graph
    source: str
    consumer: str
    path: str

    @classmethod
    def of(cls, place: Location, graph: Graph, stage: Stage, source: str, *, path: str) -> Self:
        """Return the part, without the objects that stay on the driver."""
        bare = replace(stage, handler=absent, frame=None)
        lone = replace(graph, stages=(bare,), sources=(), inputs=None, outputs=(), hooks=())
        return cls(place, lone, source, consumer_of(graph, stage, source), path)

    @property
    def stage(self) -> Stage:
        """The stage, without its function."""
        return self.graph.stages[0]

    @property
    def name(self) -> str:
        """Name of the stage."""
        return str(self.stage.name)


class StageSettings:
    """A stage at one of its queues, as the settlement of its items needs it.

    Attributes:
        queue: handle of the queue with the stage's settings.
        consumer: consumer with the stage's options.
        resolver: outcome resolver of the stage.
    """

    def __init__(self, part: FramePart) -> None:
        self.broker = broker_at(part.place)
        graph, stage, handle = part.graph, part.stage, self.broker.queue(part.source)
        self._part = part
        self.queue = own = make_stage_handle(graph, stage, handle)
        self.context = own._context
        own._run(ensure_ready)
        self.consumer = make_consumer(stage, own, absent, coroutines=False, batch=MAX_ITEMS)
        self.resolver = StageOutcomeResolver(graph, stage, handle, self.broker)

    # --- outcomes ----------------------------------------------------------------------------------

    def resolve(self, item: Item[Any], fate: Mapping[str, Any]) -> ResolvedOutcome:
        """Return the outcome of an item, by its row of ``FATES``."""
        kind, text = fate["kind"], fate["text"]
        if kind == "unblamed":
            return Failed(make_named_error(*json.loads(text)), retry_delay(self.consumer, item), counted=False)
        if kind == "spent" and (refused := self.resolver.refusal(self.consumer, [item])) is not None:
            return refused[0]
        try:
            # The result that a batch handler would have returned for the item.
            result: HandlerResult
            match kind:
                case "moved":
                    moves = []
                    for output in fate["outputs"]:
                        to = self._part.stage.targets[0] if output["to"] is None else output["to"]
                        payload = KEEP if output["payload"] is None else Wrapped(bytes(output["payload"]))
                        moves.append(Move(to, payload=payload, delay=output["delay"], sequence=output["sequence"]))
                    result = moves[0] if len(moves) == 1 else Fork(moves)
                case "spent":
                    result = Retry()
                case "left":
                    result = Drop() if self._part.stage.targets else None
                case "retry":
                    result = Retry(fate["delay"], error=text)
                case "dead":
                    result = Dead(shorten(text or "", REASON_BYTES) or None)
                case "misfit":
                    result = Dead(MISFIT)
                case "refused":
                    result = OutcomeInvalid(text or "")
                case _:  # a fault
                    result = make_named_error(*json.loads(text or ""))
            return self.resolver.outcomes(self.consumer, [item], [result])[0]
        except MongoqError as error:
            return self.resolver.failure(self.consumer, item, error)

    # --- settling ----------------------------------------------------------------------------------

    def settle(
        self, token: ObjectId, fates: Sequence[Mapping[str, Any]], other_ids: Mapping[str, Any]
    ) -> tuple[Counter[str], list[tuple[str, str]]]:
        """Settle items that a token holds; returns counts by ending, and items that halt the stage, with their errors.

        Raises:
            MongoqError: items cannot be settled, or the server failed; some items may be settled by then.
        """
        ids = [other_ids[id_text] if (id_text := fate["id"]) in other_ids else ObjectId(id_text) for fate in fates]
        # Payloads are read where a trail keeps them, or an output has the old one, and it is asked for: the output is
        # one of several, or a function of its payload says in which sequence it goes.
        assert self.context.stage is not None
        least = 1 if callable(self._part.stage.sequence) else 2
        outputs = [fate["outputs"] for fate in fates if len(fate["outputs"] or ()) >= least]
        needed = self.context.stage.keeps or any(output["payload"] is None for own in outputs for output in own)
        unread: Mapping[str, int] = {} if needed else UNREAD
        # Read again, under the token: items that were settled before, or taken since, must not be settled by an old
        # row.
        items = {id_shown(item.id): item for item in self._items(token, ids, unread)}
        outcomes = [(items[fate["id"]], self.resolve(items[fate["id"]], fate)) for fate in fates if fate["id"] in items]
        endings: Counter[str] = Counter({"lost": len(fates) - len(outcomes)})
        halted = []
        for item, outcome in self._apply(outcomes, endings):
            if isinstance(outcome, Failed):
                title, log_errors = f"stage {self._part.stage.name!r}", self._part.graph.log_errors
                log_failure(logger, self.context, item, outcome, title, counted=outcome.counted, log_errors=log_errors)
            endings[name_ending(outcome, spent=self.context.settings.is_spent(item.attempts))] += 1
            if isinstance(outcome, Failed) and outcome.halts:
                halted.append((str(item.id), str(outcome.error)))
        return +endings, halted

    def _items(self, token: ObjectId, ids: Sequence[Any], unread: Mapping[str, int]) -> list[Item[Any]]:
        """Read the items that the token still holds; the other items were settled before, or have another holder."""
        documents = self.broker._run(read_held_documents, token, ids, unread)
        if documents is None:  # more documents than one reply holds
            half = len(ids) // 2
            return [*self._items(token, ids[:half], unread), *self._items(token, ids[half:], unread)]
        now = self.broker._context.clock.now()
        return [self.context.raw_item(document, now) for document in documents]

    def _apply(self, outcomes: list[ItemOutcome], endings: Counter[str]) -> Iterator[ItemOutcome]:
        """Settle items, and yield the settled ones, each with the outcome that it was settled by at last."""
        failed: Mapping[Any, Exception] = {}
        for _ in range(MAX_SETTLE_ATTEMPTS):
            if not outcomes:
                return
            failed = self.queue._run(apply_outcomes, outcomes, context_of)
            again = []
            for item, outcome in outcomes:
                error = failed.get(id_key(item.id))
                if error is None:
                    yield item, outcome
                # Another holder has it by now; no retry helps.
                elif isinstance(error, ReservationLost):
                    endings["lost"] += 1
                elif isinstance(error, PutOff):
                    again.append((item, outcome))
                elif not isinstance(error, MongoqError) or isinstance(outcome, Failed):
                    raise error
                else:  # as a worker does
                    words = item.id, item.queue, hide_text(error, self._part.graph.log_errors)
                    sentence = "the outcome of item %s of queue %r is impossible: %s"
                    logger.error(sentence, *words, extra=log_fields(item))
                    again.append((item, self.resolver.failure(self.consumer, item, error)))
            outcomes = again
        if outcomes:
            raise next(iter(failed.values()))


class Settler:
    """Settles items by ``FATES``; Spark calls it with the outcomes of one task.

    Args:
        token: token that holds the items.
        other_ids: ids that are not ObjectIds, by their text.
        left: True to settle the items without a row only; False to settle the other items only.
    """

    def __init__(self, part: FramePart, token: ObjectId, other_ids: Mapping[str, Any], *, left: bool) -> None:
        self._part = part
        self._token = token
        self._others = other_ids
        self._left = left

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the counts of the task, as ``COUNTS``."""
        settling: StageSettings | None = None
        counts: list[tuple[Any, ...]] = []
        try:
            for batch in batches:
                # As many rows at a time as fit into MAX_BYTES on average.
                rows = max(1, min(MAX_ITEMS, MAX_BYTES * batch.num_rows // max(batch.nbytes, 1)))
                for start in range(0, batch.num_rows, rows):
                    fates = batch.slice(start, rows).to_pylist()
                    now = [fate for fate in fates if (fate["kind"] == "left") is self._left]
                    if len(now) < len(fates) and not self._left:
                        counts.append(("left", len(fates) - len(now), None, None))
                    if not now:
                        continue
                    settling = settling or StageSettings(self._part)
                    endings, halted = settling.settle(self._token, now, self._others)
                    counts += [(ending, number, None, None) for ending, number in endings.items()]
                    counts += [("halted", 1, id, text) for id, text in halted]
        finally:
            if settling is not None:
                flush_observer(settling.broker)
        yield make_batch(counts, COUNT_SCHEMA)


def make_named_error(kind: str, message: str) -> Exception:
    """Return an exception of a type with this name, for the record of the item."""
    module, _, name = kind.rpartition(".")
    error_type: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins", "__qualname__": name})
    return error_type(message)
