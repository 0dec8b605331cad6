"""A frame stage at one of its queues, and the settlement of its items in Spark's tasks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
from bson import ObjectId

from mongoq.errors import ArgumentInvalid, MongoqError, OutcomeInvalid, ReservationLost
from mongoq.model.arguments import REASON_BYTES
from mongoq.model.encoding.codec import Wrapped
from mongoq.model.envelope import shorten
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Dead, Drop, Failed, Fork, Move, ResolvedOutcome, Retry, name_ending
from mongoq.model.settings import KEEP
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.on_spark.frame_rows import make_batch
from mongoq.pipeline.on_spark.serialization import absent
from mongoq.pipeline.run.consumers import make_consumer
from mongoq.pipeline.run.outcome_resolver import make_resolver, make_stage_handle
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow
from mongoq.protocol.settle.apply_outcomes import ItemOutcome, apply_outcomes
from mongoq.protocol.settle.by_token import read_held_documents
from mongoq.protocol.settle.exchange import PutOff
from mongoq.protocol.state.context import QueueContext, context_of
from mongoq.spark.clients import broker_at, flush_observer
from mongoq.spark.raw_options import Location
from mongoq.spark.types.envelope_columns import id_shown
from mongoq.worker.consumer import LogErrors
from mongoq.worker.failure_log import hide_text, log_failure
from mongoq.worker.outcome_resolver import HandlerResult, retry_delay

logger = logging.getLogger("mongoq.spark")

NAME_BYTES = 120
"""Bytes of a consumer's name, at most."""
HASH_DIGITS = 16
COUNTS = "ending string, number long, item string, text string"
"""Counts that tasks return: number of items by ending. ``left``: items for later; ``lost``: items of other holders;
``halted``: an item and its error, when it has failed for good and there is no error queue.
"""
COUNT_SCHEMA = pa.schema(
    [("ending", pa.string()), ("number", pa.int64()), ("item", pa.string()), ("text", pa.string())]
)
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


def path_of(checkpoint: str | None, graph: Graph, stage: Stage, source: str) -> str:
    """Return the folder of a frame stage at one of its queues, below the folder of the run.

    Raises:
        ArgumentInvalid: the run has no folder.
    """
    if checkpoint is None:
        needed = (
            f"stage {stage.name!r} takes frames, and needs a folder that Spark can write to, the same at each start"
        )
        raise ArgumentInvalid("checkpoint", needed)
    return f"{checkpoint.rstrip('/')}/{quote(consumer_of(graph, stage, source), safe='')}"


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
        targets: queues that items may go to.
    """

    def __init__(self, part: FramePart) -> None:
        self.broker = broker_at(part.place)
        graph, stage, handle = part.graph, part.stage, self.broker.queue(part.source)
        own = make_stage_handle(graph, stage, handle)
        self.queue, self.context = own, own._context
        own._run(_prepare)
        self.consumer = make_consumer(stage, own, absent, coroutines=False, batch=MAX_ITEMS)
        self.resolver = make_resolver(graph, stage, handle, self.broker)
        self.targets = stage.targets
        self._sequence = stage.sequence
        self._title = f"stage {stage.name!r}"
        self._log_errors: LogErrors = graph.log_errors

    @property
    def most(self) -> int | None:
        """Runs of an item before the stage stops; ``None`` where there is an error queue."""
        return None if self.resolver._most is None else self.resolver._most()

    # --- outcomes ----------------------------------------------------------------------------------

    def resolve(self, item: Item[Any], fate: Mapping[str, Any]) -> ResolvedOutcome:
        """Return the outcome of an item, by its row of ``FATES``."""
        kind, text = fate["kind"], fate["text"]
        if kind == "spent":
            refused = self.resolver.refusal(self.consumer, [item])
            return self._resolve_result(item, Retry()) if refused is None else refused[0]
        if kind == "unblamed":
            return Failed(make_named_error(*json.loads(text)), retry_delay(self.consumer, item), counted=False)
        try:
            return self._resolve_result(item, self._read_result(kind, text, fate))
        except MongoqError as error:
            return self.resolver.failure(self.consumer, item, error)

    def _resolve_result(self, item: Item[Any], result: HandlerResult) -> ResolvedOutcome:
        return self.resolver.outcomes(self.consumer, [item], [result])[0]

    def _read_result(self, kind: str, text: str | None, fate: Mapping[str, Any]) -> HandlerResult:
        """Return the result that a batch handler would have returned for the item."""
        match kind:
            case "moved":
                moves = [self._make_move(output) for output in fate["outputs"]]
                return moves[0] if len(moves) == 1 else Fork(moves)
            case "left":
                return Drop() if self.targets else None
            case "retry":
                return Retry(fate["delay"], error=text)
            case "dead":
                return Dead(shorten(text or "", REASON_BYTES) or None)
            case "misfit":
                return Dead(MISFIT)
            case "refused":
                return OutcomeInvalid(text or "")
            case "fault":
                return make_named_error(*json.loads(text or ""))
            case _:
                raise OutcomeInvalid(f"no item can be settled by an outcome {kind!r}")

    def _make_move(self, output: Mapping[str, Any]) -> Move:
        raw, to = output["payload"], output["to"]
        target = self.targets[0] if to is None else to
        payload = KEEP if raw is None else Wrapped(bytes(raw))
        return Move(target, payload=payload, delay=output["delay"], sequence=output["sequence"])

    # --- settling ----------------------------------------------------------------------------------

    def settle(
        self, token: ObjectId, fates: Sequence[Mapping[str, Any]], other_ids: Mapping[str, Any]
    ) -> tuple[Counter[str], list[tuple[str, str]]]:
        """Settle items that a token holds; returns counts by ending, and items that halt the stage, with their errors.

        Raises:
            MongoqError: items cannot be settled, or the server failed; some items may be settled by then.
        """
        ids = [other_ids[id_text] if (id_text := fate["id"]) in other_ids else ObjectId(id_text) for fate in fates]
        unread = {} if self._reads_payloads(fates) else UNREAD
        # Read again, under the token: items that were settled before, or taken since, must not be settled by an old
        # row.
        items = {id_shown(item.id): item for item in self._items(token, ids, unread)}
        outcomes = [(items[fate["id"]], self.resolve(items[fate["id"]], fate)) for fate in fates if fate["id"] in items]
        endings: Counter[str] = Counter({"lost": len(fates) - len(outcomes)})
        halted = []
        for item, outcome in self._apply(outcomes, endings):
            if isinstance(outcome, Failed):
                options: dict[str, Any] = {"counted": outcome.counted, "log_errors": self._log_errors}
                log_failure(logger, self.context, item, outcome, self._title, **options)
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

    def _reads_payloads(self, fates: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether payloads are needed: a trail keeps them, or an output has the old one, and it is asked for.

        The output is one of several, or a function of its payload says in which sequence it goes.
        """
        assert self.context.stage is not None
        least = 1 if callable(self._sequence) else 2
        return self.context.stage.keeps or any(
            len(fate["outputs"] or ()) >= least and any(output["payload"] is None for output in fate["outputs"])
            for fate in fates
        )

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
                else:
                    again.append((item, self._resolve_again(item, outcome, error)))
            outcomes = again
        if outcomes:
            raise next(iter(failed.values()))

    def _resolve_again(self, item: Item[Any], outcome: ResolvedOutcome, error: Exception) -> ResolvedOutcome:
        """Return the next outcome of an item that was not settled, as a worker does."""
        if isinstance(error, PutOff):
            return outcome
        if not isinstance(error, MongoqError) or isinstance(outcome, Failed):
            raise error
        words = item.id, item.queue, hide_text(error, self._log_errors)
        logger.error("the outcome of item %s of queue %r is impossible: %s", *words, extra=log_fields(item))
        return self.resolver.failure(self.consumer, item, error)


def _prepare(context: QueueContext[Any]) -> Flow[None]:
    yield from ensure_ready(context)


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
            for fates, items_left in self._split(batches):
                counts += [("left", items_left, None, None)] if items_left else []
                if not fates:
                    continue
                settling = settling or StageSettings(self._part)
                endings, halted = settling.settle(self._token, fates, self._others)
                counts += [(ending, number, None, None) for ending, number in endings.items()]
                counts += [("halted", 1, id, text) for id, text in halted]
        finally:
            if settling is not None:
                flush_observer(settling.broker)
        yield make_batch(counts, COUNT_SCHEMA)

    def _split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield the outcomes to settle now, in parts of bounded size, and the number of outcomes for later."""
        for batch in batches:
            # As many rows as fit into MAX_BYTES on average.
            rows = max(1, min(MAX_ITEMS, MAX_BYTES * batch.num_rows // max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                fates = batch.slice(start, rows).to_pylist()
                now = [fate for fate in fates if (fate["kind"] == "left") is self._left]
                yield now, 0 if self._left else len(fates) - len(now)


def make_named_error(kind: str, message: str) -> Exception:
    """Return an exception of a type with this name, for the record of the item."""
    module, _, name = kind.rpartition(".")
    error_type: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins", "__qualname__": name})
    return error_type(message)
