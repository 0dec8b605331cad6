"""The stages of a graph as consumers, for an engine that runs consumers: threads, asyncio, or a virtual broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.model.settings import checked_options
from mongoq.model.trail import StageMark
from mongoq.pipeline.graph import Graph
from mongoq.pipeline.judging import StageJudge
from mongoq.pipeline.stage import Stage
from mongoq.protocol.context import context_of
from mongoq.protocol.screening import Screen, screen
from mongoq.worker.consumer import Consumer, consumer

__all__ = ["consumers", "model_behind"]

DEFAULTS: dict[str, Any] = {
    "concurrency": 1,
    "prefetch": None,
    "lease": None,
    "retry": None,
    "success_on": (),
    "max_time": None,
    "batch": None,
    "probe": False,
}
"""What a consumer goes by where its stage says nothing."""


def consumers(graph: Graph, broker: Any, *, coroutines: bool) -> list[Consumer]:
    """Return the consumers of a graph that was checked, one for each stage and queue; ``broker`` is of either kind.

    Raises:
        GraphInvalid: handlers that this engine cannot call, or what else only the broker can tell.
    """
    found, faults = [], []
    for stage in graph.stages:
        try:
            found += [_consumer(graph, stage, source, broker, coroutines=coroutines) for source in stage.sources]
        except ArgumentInvalid as error:
            faults.append(f"stage {stage.name!r}: {error}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    return found


def _consumer(graph: Graph, stage: Stage, source: str, broker: Any, *, coroutines: bool) -> Consumer:
    options = {name: value for name, value in stage.options.items() if name in DEFAULTS}
    handle = broker.queue(source, model=stage.model)
    told = consumer(_marked(graph, stage, handle), stage.handler, **{**DEFAULTS, **options}, coroutines=coroutines)
    return replace(
        told,
        stage=stage.name,
        judge=_judge(graph, stage, handle, broker),
        screen=_screen(graph, stage, handle, broker),
        pops=stage.delivery == "at-most-once",
    )


def _marked(graph: Graph, stage: Stage, handle: Any) -> Any:
    """Return a handle that goes by the stage's own settings, and whose settlements tell of the stage."""
    overriding = {"dead": graph.errors_of(stage)}
    if "max_retries" in stage.options and overriding["dead"] is not None:
        overriding |= checked_options(handle.name, max_retries=stage.options["max_retries"])
    mark = StageMark(stage.name, trail=bool(graph.trail), payloads=graph.trail == "payloads")
    return type(handle)(handle._driver, replace(handle._context, overriding=overriding, stage=mark))


def _judge(graph: Graph, stage: Stage, handle: Any, broker: Any) -> StageJudge:
    models = {target: model for target in stage.targets if (model := model_behind(graph, target)) is not None}
    targets = {
        target: broker.queue(target, model=models[target]) if target in models else target for target in stage.targets
    }
    untyped = broker._context.untyped
    if graph.errors_of(stage) is not None:
        return StageJudge(stage, targets, models, untyped, most=None)

    def most() -> int | None:
        given = stage.options.get("max_retries", handle.settings.max_retries)
        return None if given is None else given + 1

    return StageJudge(stage, targets, models, untyped, most=most)


def model_behind(graph: Graph, queue: str) -> Any:
    """Return the model of a queue's payloads, where all who read it agree on one."""
    models = [stage.model for stage in graph.readers(queue)]
    return models[0] if models and all(model is models[0] for model in models) else None


def _screen(graph: Graph, stage: Stage, handle: Any, broker: Any) -> Screen | None:
    if stage.where is None or stage.otherwise is None:
        return None
    return screen(handle._context, stage.where, stage.otherwise, context_of)
