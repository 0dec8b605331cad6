"""Sources of a graph as plans for an engine, and the check that the server supports them."""

from __future__ import annotations

from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid, TransactionsUnavailable
from mongoq.model.outcomes import Fork
from mongoq.pipeline.graph.annotations import classes, elements, returned
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.source import Source
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.run.consumers import consumers
from mongoq.pipeline.run.handles import model_behind
from mongoq.protocol.base.transaction import ensure_transactional
from mongoq.protocol.coordination.sources import source_id
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.state.context import BrokerContext
from mongoq.worker.consumer import Consumer
from mongoq.worker.sources.plan import SourcePlan, source_plan

__all__ = ["machinery", "suited", "transactional_parts"]


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
        broker.queue(source.target, model=model_behind(graph, source.target)),
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
    annotation = returned(stage.handler)
    told = elements(annotation) if stage.options.get("batch") is not None else annotation
    return any(issubclass(kind, Fork) for kind in classes(told) or [])


def suited(broker: BrokerContext, graph: Graph) -> Flow[None]:
    """Refuse a server without transactions, before anything is written, when a part of the graph needs them."""
    parts = transactional_parts(graph)
    if not parts:
        return
    try:
        yield from ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=parts) from None
