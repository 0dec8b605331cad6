"""Checks of a whole graph: names, queue names, and the faults that the other modules find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unicodedata import category

from mongoq.errors import QueueNameInvalid
from mongoq.model.arguments import queue_name
from mongoq.pipeline.checks.joins import join_queue_faults
from mongoq.pipeline.checks.routes import route_faults
from mongoq.pipeline.checks.sources import source_faults
from mongoq.pipeline.checks.stages import stage_faults
from mongoq.pipeline.checks.types import type_faults
from mongoq.pipeline.graph.graph import Graph

__all__ = ["faults"]

NAME_BYTES = 120
UNFIT = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that a name must not have: they break lines, control a terminal, or have no UTF-8 encoding."""


def faults(graph: Graph) -> list[str]:
    """Return the faults of a graph, each once; an empty list if the graph is valid."""
    found = [*_of_names(graph), *_of_queue_names(graph), *_of_the_whole(graph)]
    for source in graph.sources:
        found += [f"source {source.name!r:.150}: {fault}" for fault in source_faults(source)]
    for stage in graph.stages:
        own = (*stage_faults(graph, stage), *type_faults(graph, stage))
        found += [f"stage {stage.name!r:.150}: {fault}" for fault in own]
    found += join_queue_faults(graph)
    found += route_faults(graph)
    # Two checks may find the same fault; dict.fromkeys keeps the first one and the order.
    return list(dict.fromkeys(found))


def _of_names(graph: Graph) -> Iterator[str]:
    yield from (f"pipeline {graph.name!r:.150}: {fault}" for fault in _unfit(graph.name))
    for stage in graph.stages:
        yield from (f"stage {stage.name!r:.150}: {fault}" for fault in _unfit(stage.name))
    for source in graph.sources:
        yield from (f"source {source.name!r:.150}: {fault}" for fault in _unfit(source.name))
    yield from _of_equal_names(graph)


def _of_equal_names(graph: Graph) -> Iterator[str]:
    names = Counter(stage.name for stage in graph.stages if isinstance(stage.name, str))
    sources = Counter(source.name for source in graph.sources if isinstance(source.name, str))
    for kind, counted in (("stage", names), ("source", sources)):
        for name, times in counted.items():
            if times > 1:
                yield f"{kind} {name!r:.150}: {times} {kind}s have this name; give each a name= of its own"
    for name in names.keys() & sources.keys():
        yield f"source {name!r:.150}: a stage has this name as well; give one of them a name= of its own"


def _unfit(name: Any) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"name: a string, not {type(name).__name__}"
        return
    if not name.strip():
        yield "name: it cannot be empty; give it one"
    elif any(category(character) in UNFIT for character in name):
        yield "name: it holds a control character or a line break; leave that out"
    # A lone surrogate is a fault of its own; without surrogatepass, encode would raise for it.
    size = len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES:
        yield f"name: {size} bytes in UTF-8, and {NAME_BYTES} is the limit"


def _of_queue_names(graph: Graph) -> Iterator[str]:
    told: list[tuple[str, str, Any]] = [("pipeline", "inputs", queue) for queue in graph.inputs or ()]
    told += [("pipeline", "outputs", queue) for queue in graph.outputs]
    told += [("pipeline", "errors", graph.errors)] if graph.errors is not None else []
    told += [(f"source {source.name!r:.150}", "to", source.target) for source in graph.sources]
    for stage in graph.stages:
        subject = f"stage {stage.name!r:.150}"
        told += [(subject, "source", queue) for queue in stage.sources]
        told += [(subject, "to", queue) for queue in stage.targets]
        told += [(subject, "errors", stage.errors)] if isinstance(stage.errors, str) else []
    for subject, argument, queue in told:
        if isinstance(queue, list | tuple) and not subject.startswith("source"):
            yield f"{subject}: {argument}: it names no queue; name one, or declare a sink"
            continue
        try:
            queue_name(queue, argument)
        except QueueNameInvalid as invalid:
            yield f"{subject}: {invalid}"


def _of_the_whole(graph: Graph) -> Iterator[str]:
    trail: Any = graph.trail
    if not (isinstance(trail, bool) or trail == "payloads"):
        yield f"pipeline: trail: True, False or 'payloads', not {trail!r:.60}"
