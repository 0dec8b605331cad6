"""Handles and outcome resolvers of stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mongoq.model.settings import checked_options
from mongoq.model.trail import StageMark
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.run.outcome_resolver import StageOutcomeResolver

__all__ = ["marked", "model_behind", "stage_judge"]


def marked(graph: Graph, stage: Stage, handle: Any) -> Any:
    """Return a handle that has the stage's own settings and marks its settlements with the stage."""
    overriding = {"dead": graph.errors_of(stage)}
    if "max_retries" in stage.options and overriding["dead"] is not None:
        overriding |= checked_options(handle.name, max_retries=stage.options["max_retries"])
    mark = StageMark(stage.name, trail=bool(graph.trail), payloads=graph.trail == "payloads")
    return type(handle)(handle._driver, replace(handle._context, overriding=overriding, stage=mark))


def stage_judge(
    graph: Graph, stage: Stage, handle: Any, broker: Any, *, kind: type[StageOutcomeResolver] = StageOutcomeResolver
) -> StageOutcomeResolver:
    """Return the outcome resolver of a stage."""
    models = {target: model for target in stage.targets if (model := model_behind(graph, target)) is not None}
    targets = {
        target: broker.queue(target, model=models[target]) if target in models else target for target in stage.targets
    }
    untyped = broker._context.untyped
    # With an error queue, spent items are buried by the settings of the handle; without one the resolver stops the
    # stage.
    if graph.errors_of(stage) is not None:
        return kind(stage, targets, models, untyped, most=None)

    def most() -> int | None:
        given = stage.options.get("max_retries", handle.settings.max_retries)
        return None if given is None else given + 1

    return kind(stage, targets, models, untyped, most=most)


def model_behind(graph: Graph, queue: str) -> Any:
    """Return the model of a queue's payloads if all stages that read the queue have the same model, else ``None``."""
    models = [stage.model_of(queue) for stage in graph.readers(queue)]
    return models[0] if models and all(model is models[0] for model in models) else None
