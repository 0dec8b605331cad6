"""Stages, joins and sources of a graph as consumers and source plans of a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from mongoq.errors import ArgumentInvalid, GraphInvalid, PartnerMissing, PayloadInvalid, TransactionsUnavailable
from mongoq.model.arguments import duration
from mongoq.model.item import Item, id_key
from mongoq.model.join_state import Unjoinable, qualify, value_key
from mongoq.model.outcomes import Failed, Fork, Release, ResolvedOutcome, SettledElsewhere
from mongoq.pipeline.frames.handler import wrap_frame_handler
from mongoq.pipeline.graph.graph import Graph, Source, Stage
from mongoq.pipeline.graph.handlers import classes, elements, return_type
from mongoq.pipeline.run.outcome_resolver import StageOutcomeResolver, find_model, make_resolver, make_stage_handle
from mongoq.protocol.base.transaction import ensure_transactional
from mongoq.protocol.claim.filtering import make_filter
from mongoq.protocol.coordination.sources import source_id
from mongoq.protocol.flow import Flow
from mongoq.protocol.join.join import join_arrivals, settle_expired
from mongoq.protocol.join.match import MAX_ARRIVALS, Arrival, JoinSpec
from mongoq.protocol.state.context import BrokerContext, context_of
from mongoq.worker.consumer import PREFETCH_BYTES, Consumer, SettleGroup, consumer, takes_job
from mongoq.worker.hooks import add_hooks
from mongoq.worker.outcome_resolver import OutcomeResolver, is_function
from mongoq.worker.sources import SourcePlan, source_plan

DEFAULTS: dict[str, Any] = {
    "concurrency": 1,
    "prefetch": None,
    "prefetch_bytes": PREFETCH_BYTES,
    "lease": None,
    "retry": None,
    "success_on": (),
    "max_time": None,
    "on_timeout": "log",
    "batch": None,
    "probe": False,
    "rate_key": None,
}
"""Options of a consumer that its stage does not set."""
SPARK_ONLY = "it takes frames, and so runs on Spark only: run the pipeline by run_on_spark(spark, uri)"
ANY = "*"
"""Key of all items where the first items of all queues belong together."""


def machinery(graph: Graph, broker: Any, *, coroutines: bool) -> tuple[list[Consumer], list[SourcePlan]]:
    """Return the consumers and the source plans of a checked graph; ``broker`` is of either kind.

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
        make = _make_consumers if stage.join is None else _make_join_consumers
        try:
            own += make(graph, stage, broker, coroutines=coroutines)
        except ArgumentInvalid as error:
            faults.append(f"stage {stage.name!r}: {error}")
    for source in graph.own_sources:
        try:
            plans.append(_plan(graph, source, broker, coroutines=coroutines))
        except ArgumentInvalid as error:
            faults.append(f"source {source.name!r}: {error}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    return own, plans


def make_consumer(stage: Stage, handle: Any, handler: Any, *, coroutines: bool, **options: Any) -> Consumer:
    """Return a consumer with the options of its stage; ``options`` replace them."""
    stage_options = {name: value for name, value in stage.options.items() if name in DEFAULTS}
    new_consumer = consumer(handle, handler, **{**DEFAULTS, **stage_options, **options}, coroutines=coroutines)
    return replace(new_consumer, stage=stage.name)


def _make_consumers(graph: Graph, stage: Stage, broker: Any, *, coroutines: bool) -> list[Consumer]:
    consumers = []
    for source in stage.sources:
        handle = broker.queue(source, model=stage.model)
        own = make_consumer(stage, make_stage_handle(graph, stage, handle), stage.handler, coroutines=coroutines)
        own = replace(
            wrap_frame_handler(own, stage),
            resolver=make_resolver(graph, stage, handle, broker),
            pops=stage.delivery == "at-most-once",
        )
        if stage.where is not None and stage.otherwise is not None:
            own = replace(own, item_filter=make_filter(handle._context, stage.where, stage.otherwise, context_of))
        consumers.append(add_hooks(own, graph.hooks))
    return consumers


def _plan(graph: Graph, source: Source, broker: Any, *, coroutines: bool) -> SourcePlan:
    return source_plan(
        source.name,
        source_id(graph.name, source.name),
        broker.queue(source.target, model=find_model(graph, source.target)),
        source.handler,
        batch=source.batch,
        every=source.every,
        lease=source.lease,
        coroutines=coroutines,
    )


def check_server(broker: BrokerContext, graph: Graph) -> Flow[None]:
    """Refuse a server without transactions, before anything is written, when a part of the graph needs them.

    A fork is such a part if the annotations of its handler say that it returns a ``Fork``.
    """
    sources = [f"source {source.name!r}" for source in graph.own_sources]
    joins = [f"join {stage.name!r}" for stage in graph.own_stages if stage.join is not None]
    forks = [f"fork {stage.name!r}" for stage in graph.own_stages if stage.join is None and _forks(stage)]
    ordered = [f"sequences of stage {stage.name!r}" for stage in graph.own_stages if stage.sequence is not None]
    parts = (*sources, *joins, *forks, *ordered)
    if not parts:
        return
    try:
        yield from ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=parts) from None


def _forks(stage: Stage) -> bool:
    # At most once, outputs are pushed one by one after the item has left, without a transaction.
    if stage.delivery == "at-most-once":
        return False
    annotation = return_type(stage.handler)
    outcome = elements(annotation) if stage.options.get("batch") is not None else annotation
    return any(issubclass(kind, Fork) for kind in classes(outcome) or [])


def _make_join_consumers(graph: Graph, stage: Stage, broker: Any, *, coroutines: bool) -> list[Consumer]:
    """Return the consumers of a join: one for each of its queues, one for the timeout, one that runs the handler.

    Its items wait in a queue of their own, and so do its pairs.
    """
    # One group for all sides, so that partners that arrive at the same time are settled together.
    gathering = SettleGroup()
    spec, sides, parked = _spec(graph, stage, broker, gathering)
    pairs = broker.queue(spec.pairs, model=_model(stage))
    resolver = make_resolver(graph, stage, pairs, broker, kind=_PairResolver)
    # Options for the calls of the handler do not hold for items that are only paired.
    stage_options = {name: stage.options.get(name, DEFAULTS[name]) for name in ("lease", "retry", "prefetch_bytes")}
    quiet = {**DEFAULTS, **stage_options, "batch": MAX_ARRIVALS, "prefetch": MAX_ARRIVALS}

    def own(handle: Any, resolver: OutcomeResolver) -> Consumer:
        new_consumer = make_consumer(stage, handle, _nothing, coroutines=coroutines, **quiet)
        return replace(new_consumer, resolver=resolver, claims=_without_limit(handle)._context, has_hooks=False)

    assert stage.join is not None
    joins = partial(join_arrivals, spec)  # shared by all sides, so that their items are settled together
    consumers = []
    for side in sides:
        arrivals = _NotRunResolver(resolver, spec, joins, partial(_make_arrival, stage.join.path(side.name)))
        consumers.append(replace(own(side, arrivals), settle_group=gathering))
    if spec.timeout is not None:
        expired = own(parked, _NotRunResolver(resolver, spec, partial(settle_expired, spec), lambda item: item))
        consumers.append(replace(expired, drains_with_scheduled=True))
    handler = stage.handler if stage.options.get("batch") is not None else spread(stage.handler, stage)
    runs = make_consumer(stage, make_stage_handle(graph, stage, pairs), handler, coroutines=coroutines)
    # The other consumers of the join call no handler.
    return [*consumers, add_hooks(replace(runs, resolver=resolver), graph.hooks)]


def _spec(graph: Graph, stage: Stage, broker: Any, gathering: SettleGroup) -> tuple[JoinSpec, list[Any], Any]:
    join = stage.join
    assert join is not None
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
    return spec, sides, parked


def _without_limit(handle: Any) -> Any:
    """Return a handle without a limit of retries: its items come again, however often their leases expire."""
    return handle._with(overriding={**handle._context.overriding, "max_retries": None})


def _model(stage: Stage) -> Any:
    """Return the type of all payloads of a pair together."""
    if stage.model is None:
        return None
    assert stage.join is not None
    models = [Any if model is None else model for model in stage.model]
    if stage.join.missing == "pass":
        # With missing="pass" any of the payloads may be None.
        models = [model | None if model is not Any else Any for model in models]
    together: Any = tuple[tuple(models)]  # type: ignore[misc]  # the types are known at run time only
    return TypeAdapter(together)


def _nothing(_: Any) -> None:
    """Stand-in for a handler: the outcome resolver alone decides about the items."""


def join_takes_job(handler: Callable[..., Any], number: int) -> bool:
    """Return whether the handler of a join of ``number`` queues takes the job as well; raises ``ArgumentInvalid``."""
    expected = f"it is to take {number} payloads, one of each queue, and maybe the job"
    return takes_job(handler, number, expected=expected)


def spread(handler: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
    """Return a handler of one payload, the list of all payloads, that calls the given handler."""
    number = len(stage.sources)
    with_job = join_takes_job(handler, number)
    if is_function(inspect.iscoroutinefunction, handler):

        async def called_async(payloads: Sequence[Any], job: Any) -> Any:
            return await handler(*payloads, *([job] if with_job else []))

        return _copy_name(called_async, handler)

    def called(payloads: Sequence[Any], job: Any) -> Any:
        return handler(*payloads, *([job] if with_job else []))

    return _copy_name(called, handler)


def _copy_name(function: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the names of the handler and its module, so that errors name the handler."""
    function.__qualname__ = getattr(handler, "__qualname__", None) or type(handler).__name__
    function.__module__ = getattr(handler, "__module__", None) or function.__module__
    return function


class _PairResolver(StageOutcomeResolver):
    """Outcome resolver of pairs; an item of the queue that is not a pair (put there by hand) is not run."""

    def refusal(self, consumer: Consumer, items: Sequence[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Refuse an item that is not a pair, and release the other items of its batch."""
        refused = super().refusal(consumer, items)
        if refused is not None:
            return refused
        errors = [_oddity(item.payload, self.width) for item in items]
        if not any(errors):
            return None
        return [
            Release() if error is None else self.failure(consumer, item, error)
            for item, error in zip(items, errors, strict=True)
        ]


def _oddity(payload: Any, number: int) -> PayloadInvalid | None:
    """Return the error of a payload that does not have one part for each queue; ``None`` if it has."""
    if isinstance(payload, list | tuple) and len(payload) == number:
        return None
    payload_text = f"of {len(payload):,}" if isinstance(payload, list | tuple) else type(payload).__name__
    return PayloadInvalid("payload", f"a list of {number}, one of each queue, not {payload_text}")


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
        return [self._outcome(consumer, item) for item in items]

    def _outcome(self, consumer: Consumer, item: Item[Any]) -> ResolvedOutcome:
        try:
            entry = self._make_entry(item)
        # The value will not change: no retry, the item goes to the error queue.
        except Unjoinable as unfit:
            return self._resolver.give_up(item, f"cannot be joined: {unfit}")
        except Exception as error:  # an error of this item alone
            return self.failure(consumer, item, error)
        return SettledElsewhere(self._settle, entry, partial(self._fates.pop, id_key(item.id), "apart"))

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        if isinstance(error, PartnerMissing):  # there is no error queue for it, so the stage stops
            return Failed(error, counted=False, halts=True)
        return self._resolver.failure(consumer, item, error)


def _make_arrival(path: str | None, item: Item[Any]) -> Arrival:
    """Return the arrival of an item, by its value at the path; raises ``Unjoinable``."""
    if path is None:
        return Arrival(item, ANY, None)
    value = _find_value(item.payload, path)
    try:
        return Arrival(item, value_key(value), value)
    except Unjoinable as unfit:
        raise Unjoinable(f"{path!r:.200} {unfit}") from None


def _find_value(payload: Any, path: str) -> Any:
    """Return the value at a path of keys, or ``None``."""
    for step in path.split("."):
        if not isinstance(payload, Mapping):
            return None
        payload = payload.get(step)
    return payload
