"""Stages and sources of a graph as consumers and source plans of a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid, TransactionsUnavailable
from mongoq.model.outcomes import Fork
from mongoq.pipeline.frames.handler import wrap_frame_handler
from mongoq.pipeline.graph.graph import Graph, Source, Stage
from mongoq.pipeline.graph.handlers import classes, elements, return_type
from mongoq.pipeline.run.join_consumers import make_join_consumers
from mongoq.pipeline.run.outcome_resolver import find_model, make_resolver, make_stage_handle
from mongoq.protocol.base.transaction import ensure_transactional
from mongoq.protocol.claim.filtering import ItemFilter, make_filter
from mongoq.protocol.coordination.sources import source_id
from mongoq.protocol.flow import Flow
from mongoq.protocol.state.context import BrokerContext, context_of
from mongoq.worker.consumer import PREFETCH_BYTES, Consumer, consumer
from mongoq.worker.sources import SourcePlan, source_plan

__all__ = ["check_server", "consumers", "machinery"]

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
}
"""Options of a consumer that its stage does not set."""
SPARK_ONLY = "it takes frames, and so runs on Spark only: run the pipeline by run_on_spark(spark, uri)"


def consumers(graph: Graph, broker: Any, *, coroutines: bool) -> list[Consumer]:
    """Return the consumers of a checked graph: one for each queue of each stage that the run works on.

    ``broker`` is of either kind.

    Raises:
        GraphInvalid: this engine cannot call a handler, or a fault that only the broker can find.
    """
    found, faults = [], []
    for stage in graph.own_stages:
        if stage.frame is not None:
            faults.append(f"stage {stage.name!r}: {SPARK_ONLY}")
            continue
        try:
            if stage.join is not None:
                # A join becomes several consumers: its items wait in a queue of their own, and so do its pairs.
                found += make_join_consumers(graph, stage, broker, DEFAULTS, coroutines=coroutines)
            else:
                found += [_consumer(graph, stage, source, broker, coroutines=coroutines) for source in stage.sources]
        except ArgumentInvalid as error:
            faults.append(f"stage {stage.name!r}: {error}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    return found


def _consumer(graph: Graph, stage: Stage, source: str, broker: Any, *, coroutines: bool) -> Consumer:
    options = {name: value for name, value in stage.options.items() if name in DEFAULTS}
    handle = broker.queue(source, model=stage.model)
    own = make_stage_handle(graph, stage, handle)
    return replace(
        wrap_frame_handler(consumer(own, stage.handler, **{**DEFAULTS, **options}, coroutines=coroutines), stage),
        stage=stage.name,
        resolver=make_resolver(graph, stage, handle, broker),
        item_filter=_screen(graph, stage, handle, broker),
        pops=stage.delivery == "at-most-once",
    )


def _screen(graph: Graph, stage: Stage, handle: Any, broker: Any) -> ItemFilter | None:
    if stage.where is None or stage.otherwise is None:
        return None
    return make_filter(handle._context, stage.where, stage.otherwise, context_of)


def machinery(graph: Graph, broker: Any, *, coroutines: bool) -> tuple[list[Consumer], list[SourcePlan]]:
    """Return the consumers and the source plans of a checked graph; ``broker`` is of either kind.

    Raises:
        GraphInvalid: this engine cannot call a handler, or a fault that only the broker can find.
    """
    own: list[Consumer] = []
    plans: list[SourcePlan] = []
    faults: list[str] = []
    try:
        own = consumers(graph, broker, coroutines=coroutines)
    except GraphInvalid as invalid:
        faults += invalid.faults
    for source in graph.own_sources:
        try:
            plans.append(_plan(graph, source, broker, coroutines=coroutines))
        except ArgumentInvalid as error:
            faults.append(f"source {source.name!r}: {error}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    return own, plans


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


def transactional_parts(graph: Graph) -> tuple[str, ...]:
    """Return the parts that a run of a graph works on and that need transactions, as messages name them.

    A fork is included if the annotations of its handler say that it returns a ``Fork``.
    """
    sources = [f"source {source.name!r}" for source in graph.own_sources]
    joins = [f"join {stage.name!r}" for stage in graph.own_stages if stage.join is not None]
    forks = [f"fork {stage.name!r}" for stage in graph.own_stages if stage.join is None and _forks(stage)]
    return (*sources, *joins, *forks)


def _forks(stage: Stage) -> bool:
    # At most once, outputs are pushed one by one after the item has left, without a transaction.
    if stage.delivery == "at-most-once":
        return False
    annotation = return_type(stage.handler)
    told = elements(annotation) if stage.options.get("batch") is not None else annotation
    return any(issubclass(kind, Fork) for kind in classes(told) or [])


def check_server(broker: BrokerContext, graph: Graph) -> Flow[None]:
    """Refuse a server without transactions, before anything is written, when a part of the graph needs them."""
    parts = transactional_parts(graph)
    if not parts:
        return
    try:
        yield from ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=parts) from None
