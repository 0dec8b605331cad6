"""Stages, joins and sources of a graph as consumers and source plans of a worker, and the outcomes of their items."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter

from mongoq.aio import operations as operations_aio
from mongoq.data.arguments import Duration, duration
from mongoq.data.encoding.codec import Codec, Wrapped
from mongoq.data.encoding.error_text import name_of, spoken
from mongoq.data.item import Item, StageMark, id_key
from mongoq.data.join_state import Unjoinable, qualify, value_key
from mongoq.data.outcomes import (
    Dead,
    Done,
    Drop,
    Failed,
    Fork,
    HandlerOutcome,
    Later,
    Move,
    Release,
    ResolvedOutcome,
    Retry,
    SettledElsewhere,
)
from mongoq.data.sequence import check_sequence
from mongoq.data.settings import KEEP, QueueOptions, check_burst, check_options
from mongoq.errors import (
    ArgumentInvalid,
    GraphInvalid,
    OutcomeInvalid,
    PartnerMissing,
)
from mongoq.pipeline.frames.rows import wrap_frame_handler
from mongoq.pipeline.graph.graph import KEEP_SEQUENCE, Graph, Stage
from mongoq.pipeline.graph.handlers import classes, elements, return_type
from mongoq.sync import operations as operations_threads
from mongoq.sync.operations import MAX_ARRIVALS, Arrival, JoinSpec, context_of, make_filter, source_id
from mongoq.worker.consumer import CONSUMER_OPTIONS, Consumer, SettleGroup, add_hooks, consumer, takes_job
from mongoq.worker.outcome_resolver import (
    HandlerResult,
    OutcomeResolver,
    check_result,
    is_function,
    is_success,
)
from mongoq.worker.sources import SourcePlan, source_plan

SEVERAL_TYPES = (list, tuple, set, frozenset)
"""Return types that suggest several items."""


class StageOutcomeResolver(OutcomeResolver):
    """Maps results of a stage's handler to outcomes of its items.

    Attributes:
        stops: True if the stage stops at an item that has failed for good: there is no error queue.
    """

    def __init__(self, graph: Graph, stage: Stage, handle: Any, broker: Any) -> None:
        self._name = stage.name
        self._models = {name: model for name in stage.targets if (model := find_model(graph, name)) is not None}
        # Destinations of moves, by target: the queue's name, or a handle whose model checks payloads.
        self._targets: dict[str, Any] = {
            name: broker.queue(name, model=self._models[name]) if name in self._models else name
            for name in stage.targets
        }
        self._only = next(iter(self._targets.values())) if len(stage.targets) == 1 else None
        self._untyped: Codec[Any] = broker._context.untyped
        self._drops = stage.none == "drop"
        self._sequence = stage.sequence
        self._pops = stage.delivery == "at-most-once"
        self._options = stage.options
        self._handle = handle
        # With an error queue, spent items are buried by the settings of the handle.
        self.stops = graph.errors_of(stage) is None and not self._pops

    def most(self) -> int | None:
        """Return the runs of an item before the stage stops; ``None`` for no limit, or with an error queue."""
        retries = self._options.get("max_retries", self._handle.settings.max_retries) if self.stops else None
        return None if retries is None else retries + 1

    def refusal(self, consumer: Consumer, items: Sequence[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Refuse items that have used all their runs; the last run has ended with its process."""
        most = self.most()
        if most is None or all(item.attempts <= most for item in items):
            return None
        # A handler that kills its process never raises: count such runs by the attempts, before another run.
        over = Failed("it has had all its runs, and the last one ended with its process", counted=False, halts=True)
        return [Release() if item.attempts <= most else over for item in items]

    def _read(self, consumer: Consumer, item: Item[Any], returned: Any) -> HandlerOutcome | None:
        check_result(returned)
        match returned:
            case Move():
                return self._complete_move(item, returned)
            case Fork():
                return Fork([self._complete_move(item, move) for move in returned.moves])
            case Dead() | Drop() | Later() | Retry():
                return returned
        if not self._targets:
            return None
        if returned is None:
            if self._drops:
                return Drop()
            hint = "most likely for a forgotten return; return Drop(), or declare none='drop'"
            raise self._error(f"returned None, {hint}")
        if self._only is None:
            several = ", ".join(map(repr, self._targets))
            raise self._error(
                f"returned a {name_of(returned)}; it has several targets ({several}): return a Move to one, or a Fork"
            )
        if isinstance(returned, SEVERAL_TYPES):
            hint = "for several items return a Fork; if that is the payload, return Move(…, payload=…)"
            raise self._error(f"returned a {name_of(returned)} where one payload is due; {hint}")
        to = self._choose_destination(next(iter(self._targets)), returned)
        encoded = self._encode(to, returned)
        return Move(to, payload=encoded, sequence=self._choose_sequence(item, returned))

    def _encode(self, to: Any, payload: Any) -> Wrapped:
        """Encode a payload at once: a handler may change the object before the item is settled."""
        return Wrapped((self._untyped if isinstance(to, str) else to._context.codec).wrap(payload))

    def _choose_destination(self, target: str, payload: Any) -> Any:
        """Return the destination of a payload. A payload of another model goes without the target's model.

        It is dumped by its own model, and the next stage reads it anew.
        """
        # The target's model would refuse an instance of another class, although its document may fit.
        foreign = isinstance(payload, BaseModel) and type(payload) is not self._models.get(target, type(payload))
        return target if foreign else self._targets[target]

    def _choose_sequence(self, item: Item[Any], payload: Any) -> str | None:
        """Return the sequence that an output enters, by the stage's ``sequence``; raises ``OutcomeInvalid``."""
        if self._sequence is None:
            return None
        if self._sequence == KEEP_SEQUENCE:
            return item.sequence
        try:
            # Frames of Spark return payloads in BSON.
            sequence = self._sequence(self._untyped.unwrap(payload) if isinstance(payload, Wrapped) else payload)
        except Exception as error:  # a function of the user may raise anything
            raise self._error(f"has no sequence for an output: its sequence= raised {spoken(error)}") from error
        try:
            return None if sequence is None else check_sequence(sequence)
        except ArgumentInvalid as invalid:
            hint = "return a text of 1 to 1,024 bytes, such as 'customer-17', or None"
            raise self._error(f"has no sequence for an output: its {invalid}; {hint}") from invalid

    def _complete_move(self, item: Item[Any], move: Move) -> Move:
        name = getattr(move.to, "name", move.to)
        if not isinstance(name, str) or name not in self._targets:
            declared = ", ".join(map(repr, self._targets)) or "none"
            raise self._error(f"moved an item to {name!r:.150}, which is not one of its targets ({declared})")
        # At most once, the item has left its queue before the run, so no stored payload is left to patch.
        if self._pops and move.patch is not None:
            raise self._error("patched an item that it runs at most once, and that is gone; give payload= instead")
        to = self._choose_destination(name, move.payload) if isinstance(move.to, str) else move.to
        # The move itself refuses a destination that is neither a name nor a handle.
        is_target = isinstance(to, str) or hasattr(to, "_context")
        payload = self._encode(to, move.payload) if is_target and move.payload is not KEEP else move.payload
        if self._sequence is None or move.sequence is not None:
            return replace(move, to=to, payload=payload)
        if move.patch is not None and self._sequence != KEEP_SEQUENCE:
            raise self._error("patched an item, and its sequence= is a function of the payload; give Move(sequence=)")
        sequence = self._choose_sequence(item, item.payload if move.payload is KEEP else move.payload)
        return replace(move, to=to, payload=payload, sequence=sequence)

    def _error(self, what: str) -> OutcomeInvalid:
        return OutcomeInvalid(f"stage {self._name!r} {what}")

    # --- failures --------------------------------------------------------------------------------

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        """Return the outcome of a failed run; an exception that counts as success sends the item on unchanged."""
        if is_success(consumer, error):
            try:
                sequence = self._choose_sequence(item, item.payload)
                return Done() if self._only is None else Move(self._only, sequence=sequence)
            except OutcomeInvalid as invalid:
                error = invalid
        return self._retry(consumer, item, error, None)

    def _resolve(self, consumer: Consumer, item: Item[Any], result: HandlerResult) -> ResolvedOutcome:
        if isinstance(result, Dead) and self.stops:
            return Failed(result.reason or "declared dead", counted=False, halts=True)
        return super()._resolve(consumer, item, result)

    def _retry(
        self, consumer: Consumer, item: Item[Any], error: BaseException | str | None, delay: Duration | None
    ) -> Failed:
        most = self.most()
        if most is not None and item.attempts >= most:
            return Failed(error, counted=False, halts=True)
        return super()._retry(consumer, item, error, delay)


def make_stage_handle(graph: Graph, stage: Stage, handle: Any) -> Any:
    """Return a handle that has the stage's own settings and marks its settlements with the stage.

    It stores the settings of the queue that the stage gives, as the consumer of a worker does.
    """
    given = check_options(handle.name, **stage.settings)
    check_burst(given, rate=handle.settings.rate)
    overriding = {"dead": graph.errors_of(stage)}
    if "max_retries" in stage.options and overriding["dead"] is not None:
        overriding |= check_options(handle.name, max_retries=stage.options["max_retries"])
    mark = StageMark(stage.name, trail=bool(graph.trail), payloads=graph.trail == "payloads")
    return handle._with(options=QueueOptions(handle.name, given), overriding=overriding, stage=mark)


def find_model(graph: Graph, queue: str) -> Any:
    """Return the model of a queue's payloads if all stages that read the queue have the same model, else ``None``."""
    models = [stage.model_of(queue) for stage in graph.readers(queue)]
    return models[0] if models and all(model is models[0] for model in models) else None


SPARK_ONLY = "it takes frames, and so runs on Spark only: run the pipeline by run_on_spark(spark, uri)"
ANY = "*"
"""Key of all items where the first items of all queues belong together."""


def machinery(
    graph: Graph, broker: Any, *, coroutines: bool, asynchronous: bool = False
) -> tuple[list[Consumer], list[SourcePlan]]:
    """Return the consumers and the source plans of a checked graph; ``broker`` is of either kind.

    ``asynchronous``: the consumers are those of an ``AsyncWorker``.

    Each stage that the run works on has one consumer for each of its queues; a join has several more.

    Raises:
        GraphInvalid: this engine cannot call a handler, or a fault that only the broker can find.
    """
    own: list[Consumer] = []
    plans: list[SourcePlan] = []
    faults: list[str] = []
    for stage in graph.own_stages:
        if stage.frame is not None:
            faults.append(f"stage {stage.name!r}: {SPARK_ONLY}")
            continue
        try:
            if stage.join is not None:
                joining = operations_aio if asynchronous else operations_threads
                own += _make_join_consumers(graph, stage, broker, joining, coroutines=coroutines)
                continue
            for queue in stage.sources:
                handle = broker.queue(queue, model=stage.model)
                staged = make_stage_handle(graph, stage, handle)
                new = make_consumer(stage, staged, stage.handler, coroutines=coroutines)
                resolver = StageOutcomeResolver(graph, stage, handle, broker)
                new = replace(new, resolver=resolver, pops=stage.delivery == "at-most-once")
                if stage.format is not None:
                    handler = wrap_frame_handler(stage, takes_job=new.takes_job, asynchronous=new.asynchronous)
                    new = replace(new, handler=handler, takes_job=True)
                if stage.where is not None and stage.otherwise is not None:
                    item_filter = make_filter(handle._context, stage.where, stage.otherwise, context_of)
                    new = replace(new, item_filter=item_filter)
                own.append(add_hooks(new, graph.hooks))
        except ArgumentInvalid as error:
            faults.append(f"stage {stage.name!r}: {error}")
    for source in graph.own_sources:
        try:
            handle = broker.queue(source.target, model=find_model(graph, source.target))
            options: dict[str, Any] = {"batch": source.batch, "every": source.every, "lease": source.lease}
            id = source_id(graph.name, source.name)
            plans.append(source_plan(source.name, id, handle, source.handler, coroutines=coroutines, **options))
        except ArgumentInvalid as error:
            faults.append(f"source {source.name!r}: {error}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    return own, plans


def make_engine(kind: Any, graph: Graph, broker: Any, **options: Any) -> Any:
    """Return an engine of a kind that works on a graph."""
    own, sources = machinery(graph, broker, coroutines=kind.asynchronous, asynchronous=kind.asynchronous)
    return kind(broker, own, sources=sources, log_errors=graph.log_errors, **options)


def make_consumer(stage: Stage, handle: Any, handler: Any, *, coroutines: bool, **options: Any) -> Consumer:
    """Return a consumer with the options of its stage; ``options`` replace them."""
    given = {name: value for name, value in stage.options.items() if name in CONSUMER_OPTIONS}
    return replace(consumer(handle, handler, coroutines=coroutines, **(given | options)), stage=stage.name)


def find_transactional(graph: Graph) -> tuple[str, ...]:
    """Return the parts of a graph that need transactions.

    A fork is such a part if the annotations of its handler say that it returns a ``Fork``.
    """
    sources = [f"source {source.name!r}" for source in graph.own_sources]
    joins = [f"join {stage.name!r}" for stage in graph.own_stages if stage.join is not None]
    forks = []
    for stage in graph.own_stages:
        annotation = return_type(stage.handler)
        outcome = elements(annotation) if stage.options.get("batch") is not None else annotation
        # At most once, outputs are pushed one by one after the item has left, without a transaction.
        has_transaction = stage.join is None and stage.delivery != "at-most-once"
        if has_transaction and any(issubclass(kind, Fork) for kind in classes(outcome) or []):
            forks.append(f"fork {stage.name!r}")
    ordered = [f"sequences of stage {stage.name!r}" for stage in graph.own_stages if stage.sequence is not None]
    return (*sources, *joins, *forks, *ordered)


def _make_join_consumers(graph: Graph, stage: Stage, broker: Any, joining: Any, *, coroutines: bool) -> list[Consumer]:
    """Return the consumers of a join: one for each of its queues, one for the timeout, one that runs the handler.

    Its items wait in a queue of their own, and so do its pairs.
    """
    join = stage.join
    assert join is not None
    # One group for all sides, so that partners that arrive at the same time are settled together.
    gathering = SettleGroup()
    sides = [make_stage_handle(graph, stage, broker.queue(source)) for source in stage.sources]
    parked = _without_limit(make_stage_handle(graph, stage, broker.queue(graph.waiting_queue(stage))))
    spec = JoinSpec(
        name=qualify(graph.name, stage.name, "/"),
        sides=tuple(side._context for side in sides),
        parked=parked._context,
        pairs=graph.pairs_queue(stage),
        timeout=None if join.timeout is None else duration(join.timeout, "timeout", zero=False),
        missing=join.missing,
        late=join.late,
        coming=gathering.is_expecting,
    )
    model: Any = None
    if stage.model is not None:
        # With missing="pass" any of the payloads may be None.
        models = [Any if each is None else each | None if join.missing == "pass" else each for each in stage.model]
        together: Any = tuple[tuple(models)]  # type: ignore[misc]  # the types are known at run time only
        model = TypeAdapter(together)
    pairs = broker.queue(spec.pairs, model=model)
    resolver = StageOutcomeResolver(graph, stage, pairs, broker)
    # Options for the calls of the handler do not hold for items that are only paired.
    options = {name: value for name, value in stage.options.items() if name in ("lease", "retry", "prefetch_bytes")}
    waits = replace(stage, options=options | {"batch": MAX_ARRIVALS, "prefetch": MAX_ARRIVALS})

    def own(handle: Any, resolver: OutcomeResolver) -> Consumer:
        # No handler runs: the outcome resolver alone decides about the items.
        new_consumer = make_consumer(waits, handle, lambda _: None, coroutines=coroutines)
        return replace(new_consumer, resolver=resolver, claims=_without_limit(handle)._context, has_hooks=False)

    joins = partial(joining.join_arrivals, spec)  # shared by all sides, so that their items are settled together
    consumers = []
    for side in sides:
        arrivals = _NotRunResolver(resolver, spec, joins, partial(_make_arrival, join.path(side.name)))
        consumers.append(replace(own(side, arrivals), settle_group=gathering))
    if spec.timeout is not None:
        expired = own(parked, _NotRunResolver(resolver, spec, partial(joining.settle_expired, spec), lambda item: item))
        consumers.append(replace(expired, drains_with_scheduled=True))
    handler = stage.handler if stage.options.get("batch") is not None else spread(stage.handler, stage)
    runs = make_consumer(stage, make_stage_handle(graph, stage, pairs), handler, coroutines=coroutines)
    # The other consumers of the join call no handler.
    return [*consumers, add_hooks(replace(runs, resolver=resolver), graph.hooks)]


def _without_limit(handle: Any) -> Any:
    """Return a handle without a limit of retries: its items come again, however often their leases expire."""
    return handle._with(overriding={**handle._context.overriding, "max_retries": None})


def join_takes_job(handler: Callable[..., Any], number: int) -> bool:
    """Return whether the handler of a join of ``number`` queues takes the job as well; raises ``ArgumentInvalid``."""
    expected = f"it is to take {number} payloads, one of each queue, and maybe the job"
    return takes_job(handler, number, expected=expected)


def spread(handler: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
    """Return a handler of one payload, the list of all payloads, that calls the given handler."""
    with_job = join_takes_job(handler, len(stage.sources))

    def call(payloads: Sequence[Any], job: Any) -> Any:
        return handler(*payloads, *([job] if with_job else []))

    async def call_async(payloads: Sequence[Any], job: Any) -> Any:
        return await call(payloads, job)

    function: Any = call_async if is_function(inspect.iscoroutinefunction, handler) else call
    # Errors name the handler by these.
    function.__qualname__ = getattr(handler, "__qualname__", None) or type(handler).__name__
    function.__module__ = getattr(handler, "__module__", None) or function.__module__
    return function  # type: ignore[no-any-return]


class _NotRunResolver(OutcomeResolver):
    """Outcome resolver of items that are not run, but settled together; their failures count as the stage's."""

    def __init__(
        self,
        resolver: StageOutcomeResolver,
        spec: JoinSpec,
        settle: Callable[..., Any],
        make_entry: Callable[[Item[Any]], Any],
    ) -> None:
        self._resolver = resolver
        self._fates = spec.fates
        self._settle = settle
        self._make_entry = make_entry

    def outcomes(self, consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[ResolvedOutcome]:
        outcomes: list[ResolvedOutcome] = []
        for item in items:
            try:
                entry = self._make_entry(item)
            # The value will not change: no retry, the item goes to the error queue.
            except Unjoinable as unfit:
                lost = PartnerMissing(item.id, item.queue, f"cannot be joined: {unfit}")
                outcomes.append(self.failure(consumer, item, lost) if self._resolver.stops else Dead(lost.reason))
            except Exception as error:  # an error of this item alone
                outcomes.append(self.failure(consumer, item, error))
            else:
                fate = partial(self._fates.pop, id_key(item.id), "apart")
                outcomes.append(SettledElsewhere(self._settle, entry, fate))
        return outcomes

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        if isinstance(error, PartnerMissing):  # there is no error queue for it, so the stage stops
            return Failed(error, counted=False, halts=True)
        return self._resolver.failure(consumer, item, error)


def _make_arrival(path: str | None, item: Item[Any]) -> Arrival:
    """Return the arrival of an item, by its value at the path; raises ``Unjoinable``."""
    if path is None:
        return Arrival(item, ANY, None)
    value = item.payload
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    try:
        return Arrival(item, value_key(value), value)
    except Unjoinable as unfit:
        raise Unjoinable(f"{path!r:.200} {unfit}") from None
