"""Checks of joins, in addition to the checks of any stage."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.model.arguments import duration, queue_name
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.pipeline.graph.graph import Graph, Join, Stage
from mongoq.pipeline.graph.handlers import in_a_line
from mongoq.pipeline.graph.routes import pairs_queue, waiting_queue
from mongoq.pipeline.run.join_consumers import takes_job
from mongoq.worker.outcome_resolver import is_function

__all__ = ["join_faults", "join_queue_faults"]

ENCODING = Encoding(codec_options())
MISSING = ("error", "pass")
LATE = ("error", "wait", "drop")


def join_faults(graph: Graph, stage: Stage) -> Iterator[str]:
    """Return the faults of a join, without the stage's name."""
    join = stage.join
    assert join is not None
    if len(stage.sources) < 2:
        yield "source: a join takes items from two queues or more; name them in a list"
    yield from _of_the_value(stage, join)
    yield from _of_time(join)
    yield from _of_models(stage)
    if stage.options.get("batch") is None:  # with batch= the handler takes one list; the checks of any stage apply
        yield from _of_the_handler(stage)
    yield from _of_the_rest(stage)


def _of_the_value(stage: Stage, join: Join) -> Iterator[str]:
    if isinstance(join.on, Mapping):
        if set(join.on) != set(stage.sources):
            yield f"on: a path for each of its queues {stage.sources!r:.150}, not for {tuple(join.on)!r:.150}"
        # Paths of a mapping with wrong queues are checked all the same: all faults are reported at once.
        paths = list(join.on.values())
    else:
        paths = [] if join.on is None else [join.on]
    for path in paths:
        if not isinstance(path, str) or not all(path.split(".")):
            yield f"on: where the value stands in payloads, such as 'order.id', or None, not {path!r:.60}"


def _of_time(join: Join) -> Iterator[str]:
    if join.timeout is not None:
        try:
            duration(join.timeout, "timeout", zero=False)
        except ArgumentInvalid as invalid:
            yield in_a_line(invalid)
    for name, value, allowed in (("missing", join.missing, MISSING), ("late", join.late, LATE)):
        if value not in allowed:
            yield f"{name}: {' or '.join(map(repr, allowed))}, not {value!r:.60}"
        elif value != "error" and join.timeout is None:
            yield f"{name}: {value!r} says nothing without a timeout; give one, or leave it out"


def _of_models(stage: Stage) -> Iterator[str]:
    models: Any = stage.model
    if models is None:
        return
    if not isinstance(models, Sequence) or isinstance(models, str) or len(models) != len(stage.sources):
        yield f"model: a list with one for each of its {len(stage.sources)} queues, None for any"
        return
    for model in models:
        try:
            Codec(ENCODING, model)
        except ArgumentInvalid as invalid:
            yield in_a_line(invalid)


def _of_the_handler(stage: Stage) -> Iterator[str]:
    handler: Any = stage.handler
    if not callable(handler):
        yield f"handler: a function, not {type(handler).__name__}"
        return
    if is_function(inspect.isgeneratorfunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        yield "handler: it is a generator, which would run nothing; return instead"
        return
    try:
        takes_job(handler, len(stage.sources))
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)


def _of_the_rest(stage: Stage) -> Iterator[str]:
    if stage.frame is not None:
        yield "frame: a join takes payloads; join frames in the function of a stage on frames"
    if stage.where is not None:
        yield "where: a join takes all items of its queues; let a stage before it choose"
    if stage.delivery != "exactly-once":
        yield "delivery: a join is exactly once; leave it out"
    if stage.shared:
        yield "shared: an item that went elsewhere would be missed; give each stage a queue of its own"


def join_queue_faults(graph: Graph) -> Iterator[str]:
    """Return the faults of the queues in which the joins of a graph park their items."""
    told = [*graph.outputs, *(graph.errors_of(one) for one in graph.stages)]
    told += [queue for one in graph.stages for queue in (*one.sources, *one.targets)]
    named = {queue for queue in told if isinstance(queue, str)}
    for stage in graph.stages:
        if stage.join is not None:
            yield from (f"stage {stage.name!r:.150}: {fault}" for fault in _of_its_queues(graph, stage, named))


def _of_its_queues(graph: Graph, stage: Stage, named: set[str]) -> Iterator[str]:
    for queue in (waiting_queue(graph, stage), pairs_queue(graph, stage)):
        try:
            queue_name(queue)
        except QueueNameInvalid:
            yield f"name: its items wait in {queue!r:.150}, which is no name of a queue; shorten it, or the pipeline's"
        if queue in named:
            yield f"name: {queue!r:.150} is where its own items wait or are joined; name that queue otherwise"
