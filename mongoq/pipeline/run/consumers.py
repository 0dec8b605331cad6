"""Stages of a graph as consumers, for an engine that runs consumers: threads, asyncio, or a virtual broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.frames.handler import framed
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.run.handles import marked, stage_judge
from mongoq.pipeline.run.join_consumers import joining
from mongoq.protocol.claim.filtering import ItemFilter, make_filter
from mongoq.protocol.state.context import context_of
from mongoq.worker.consumer import PREFETCH_BYTES, Consumer, consumer

__all__ = ["consumers"]

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
                found += joining(graph, stage, broker, DEFAULTS, coroutines=coroutines)
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
    told = consumer(marked(graph, stage, handle), stage.handler, **{**DEFAULTS, **options}, coroutines=coroutines)
    return replace(
        framed(told, stage),
        stage=stage.name,
        resolver=stage_judge(graph, stage, handle, broker),
        screen=_screen(graph, stage, handle, broker),
        pops=stage.delivery == "at-most-once",
    )


def _screen(graph: Graph, stage: Stage, handle: Any, broker: Any) -> ItemFilter | None:
    if stage.where is None or stage.otherwise is None:
        return None
    return make_filter(handle._context, stage.where, stage.otherwise, context_of)
