"""Checks of a whole graph: names, queue names, routes, and the faults that the other modules find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args
from unicodedata import category

from mongoq.errors import QueueNameInvalid
from mongoq.model.arguments import queue_name
from mongoq.model.outcomes import Move
from mongoq.pipeline.checks.stages import join_queue_faults, source_faults, stage_faults
from mongoq.pipeline.checks.types import type_faults
from mongoq.pipeline.graph.graph import Graph, Source, Stage
from mongoq.worker.consumer import LogErrors

NAME_BYTES = 120
UNFIT_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that a name must not have: they break lines, control a terminal, or have no UTF-8 encoding."""


def faults(graph: Graph) -> list[str]:
    """Return the faults of a graph, each once; an empty list if the graph is valid."""
    all_faults = [*_of_names(graph), *_of_queue_names(graph)]
    trail: Any = graph.trail
    if not (isinstance(trail, bool) or trail == "payloads"):
        all_faults.append(f"pipeline: trail: True, False or 'payloads', not {trail!r:.60}")
    if graph.log_errors not in get_args(LogErrors):
        all_faults.append(f"pipeline: log_errors: 'message' or 'type', not {graph.log_errors!r:.60}")
    for source in graph.sources:
        all_faults += [f"{_title(source)}: {fault}" for fault in source_faults(source)]
    for stage in graph.stages:
        all_faults += [
            f"{_title(stage)}: {fault}" for fault in (*stage_faults(graph, stage), *type_faults(graph, stage))
        ]
    all_faults += join_queue_faults(graph)
    all_faults += route_faults(graph)
    # Two checks may find the same fault; dict.fromkeys keeps the first one and the order.
    return list(dict.fromkeys(all_faults))


def _of_names(graph: Graph) -> Iterator[str]:
    yield from (f"pipeline {graph.name!r:.150}: {fault}" for fault in _unfit(graph.name))
    parts: list[Stage | Source] = [*graph.stages, *graph.sources]
    for part in parts:
        yield from (f"{_title(part)}: {fault}" for fault in _unfit(part.name))
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
    elif any(category(character) in UNFIT_CATEGORIES for character in name):
        yield "name: it holds a control character or a line break; leave that out"
    # A lone surrogate is a fault of its own; without surrogatepass, encode would raise for it.
    size = len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES:
        yield f"name: {size} bytes in UTF-8, and {NAME_BYTES} is the limit"


def _of_queue_names(graph: Graph) -> Iterator[str]:
    names: list[tuple[str, str, Any]] = [("pipeline", "inputs", queue) for queue in graph.inputs or ()]
    names += [("pipeline", "outputs", queue) for queue in graph.outputs]
    names += [("pipeline", "errors", graph.errors)] if graph.errors is not None else []
    names += [(_title(source), "to", source.target) for source in graph.sources]
    for stage in graph.stages:
        subject = _title(stage)
        names += [(subject, "source", queue) for queue in stage.sources]
        names += [(subject, "to", queue) for queue in stage.targets]
        names += [(subject, "errors", stage.errors)] if isinstance(stage.errors, str) else []
    for subject, argument, queue in names:
        if isinstance(queue, list | tuple) and not subject.startswith("source"):
            yield f"{subject}: {argument}: it names no queue; name one, or declare a sink"
            continue
        try:
            queue_name(queue, argument)
        except QueueNameInvalid as invalid:
            yield f"{subject}: {invalid}"


def _title(part: Stage | Source) -> str:
    return f"{'stage' if isinstance(part, Stage) else 'source'} {part.name!r:.150}"


def route_faults(graph: Graph) -> list[str]:
    """Return the faults of the routes of items; queue names that are not strings are ignored."""
    if not (graph.stages or graph.sources):
        return ["pipeline: it has no stages; declare one with @pipeline.stage(…) or @pipeline.sink(…)"]
    plan = _Plan.of(graph.of_strings())
    all_faults = [*_of_lists(graph), *_of_targets(plan), *_of_otherwise(plan), *_of_readers(plan), *_of_ends(plan)]
    # With an invalid name among the inputs, stages behind it would be reported as unreachable too.
    if graph.inputs == plan.graph.inputs:
        all_faults += _of_unreached(plan)
    return all_faults


@dataclass(frozen=True)
class _Plan:
    graph: Graph
    readers: dict[str, list[Stage]]
    ends: set[str]

    @classmethod
    def of(cls, graph: Graph) -> _Plan:
        readers: dict[str, list[Stage]] = {}
        for stage in graph.stages:
            for source in dict.fromkeys(stage.sources):
                readers.setdefault(source, []).append(stage)
        named = [graph.errors, *(graph.errors_of(stage) for stage in graph.stages)]
        return cls(graph, readers, {queue for queue in (*named, *graph.outputs) if queue is not None})

    def leads_on(self, queue: str) -> bool:
        """Return whether a stage reads the queue, or a reader outside the pipeline is declared for it."""
        return queue in self.readers or queue in self.ends


def _of_lists(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        if not stage.sources:
            yield f"{_title(stage)}: it takes items from no queue; name one"
        for argument, names in (("source", stage.sources), ("to", stage.targets)):
            times = Counter(name for name in names if isinstance(name, str))
            twice = [name for name, number in times.items() if number > 1]
            yield from (f"{_title(stage)}: {argument}: {name!r:.150} is given twice; name it once" for name in twice)


def _of_targets(plan: _Plan) -> Iterator[str]:
    targets: list[tuple[Stage | Source, str]] = [(source, source.target) for source in plan.graph.sources]
    targets += [(stage, target) for stage in plan.graph.stages for target in stage.targets]
    for part, queue in targets:
        if not plan.leads_on(queue):
            yield (
                f"{_title(part)}: to: no stage takes items from {queue!r:.150}; declare one, or name the queue in "
                f"outputs= of the pipeline"
            )


def _of_otherwise(plan: _Plan) -> Iterator[str]:
    """Yield the faults of ``otherwise`` moves, which take the items that do not match a filter."""
    for stage in plan.graph.stages:
        if not isinstance(stage.otherwise, Move):
            continue
        queue = stage.otherwise.to
        if queue not in stage.targets and not plan.leads_on(queue):
            yield (
                f"{_title(stage)}: otherwise: {queue!r:.150} is not one of its targets, and no stage takes items from "
                f"it; declare a stage, or name the queue in outputs= of the pipeline"
            )
        if queue in stage.sources:
            yield (
                f"{_title(stage)}: otherwise: what does not fit would come back to {queue!r:.150} for ever; move it to "
                f"another queue, or Drop() it"
            )


def _of_readers(plan: _Plan) -> Iterator[str]:
    for queue, stages in plan.readers.items():
        if len(stages) > 1 and not all(stage.shared is True for stage in stages):
            names = ", ".join(f"{stage.name!r:.150}" for stage in stages)
            joins = any(stage.join is not None for stage in stages)
            remedy = "a join shares its queues with nobody: give each a queue of its own"
            if not joins:
                remedy = "give each shared=True if that is meant, or a queue of its own"
            problem = f"stages {names} take items from it, and each item goes to one of them"
            yield f"queue {queue!r:.150}: {problem}; {remedy}"


def _of_ends(plan: _Plan) -> Iterator[str]:
    for queue in plan.graph.inputs or ():
        if queue not in plan.readers:
            yield f"pipeline: inputs: no stage takes items from {queue!r:.150}; declare one, or leave the queue out"
    filled = {*(route.queue for route in plan.graph.routes), *plan.graph.fed}
    for queue in plan.graph.outputs:
        if queue not in filled:
            yield f"pipeline: outputs: no stage sends items to {queue!r:.150}; name it in to=, or leave the queue out"


def _of_unreached(plan: _Plan) -> Iterator[str]:
    reachable = plan.graph.find_reachable([*plan.graph.entries, *plan.graph.fed])
    for stage in plan.graph.stages:
        if stage.sources and reachable.isdisjoint(stage.sources):
            names = ", ".join(f"{source!r:.150}" for source in stage.sources)
            yield (
                f"{_title(stage)}: no item ever comes to {names}; send some there from another stage, or name the "
                f"queue that they come in by in inputs= of the pipeline"
            )
