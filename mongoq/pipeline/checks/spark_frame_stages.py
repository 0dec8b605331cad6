"""Checks of stages on Spark DataFrames, in addition to the checks of any stage."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import count, duration
from mongoq.model.stream_claim import MOST
from mongoq.pipeline.graph.names import in_a_line
from mongoq.pipeline.graph.stage import Frame, Stage
from mongoq.worker.lazy_results import is_function

__all__ = ["frame_faults"]

SHORTEST_LEASE = 1
"""Shortest lease in seconds: a stream extends a lease several times within its length."""
OPTIONS = ("lease", "retry", "max_retries")


def frame_faults(stage: Stage, frame: Frame) -> Iterator[str]:
    """Return the faults of a frame stage, without its name. Spark checks the types when the stage starts."""
    yield from _of_the_handler(stage.handler)
    yield from _of_the_schema(frame.schema)
    yield from _of_numbers(frame)
    yield from _of_the_lease(stage.options.get("lease"))
    yield from _of_the_rest(stage)


def _of_the_handler(handler: Any) -> Iterator[str]:
    if not callable(handler):
        yield f"handler: a function, not {type(handler).__name__}"
        return
    if is_function(inspect.iscoroutinefunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        yield "handler: it is a coroutine function, and Spark awaits nothing; make it a plain one"
    elif is_function(inspect.isgeneratorfunction, handler):
        yield "handler: it is a generator, which would run nothing; return a DataFrame"
    elif not _takes_one(handler):
        yield "handler: it is called with one DataFrame, and cannot be; let it take one argument"


def _takes_one(handler: Any) -> bool:
    try:
        # bind, because optional arguments, *args and bound methods are allowed as well.
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function written in C without a signature
        return True
    return True


def _of_the_schema(schema: Any) -> Iterator[str]:
    text = isinstance(schema, str)
    if (text and not schema.strip()) or not (schema is None or text or hasattr(schema, "fieldNames")):
        given = "nothing" if text else f"a value of type {type(schema).__name__}"
        yield f"schema: columns such as 'carrier string, dep_delay int', a StructType, or None, not {given}"


def _of_numbers(frame: Frame) -> Iterator[str]:
    try:
        if count(frame.items, "items") > MOST:
            yield f"items: {MOST:,} at most, not {frame.items:,}"
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)
    if frame.partitions is not None:
        try:
            count(frame.partitions, "partitions")
        except ArgumentInvalid as invalid:
            yield in_a_line(invalid)


def _of_the_lease(lease: Any) -> Iterator[str]:
    if lease is None:
        return
    try:
        length = duration(lease, "lease", zero=False)
    except ArgumentInvalid:
        return  # reported with the other options
    if length.total_seconds() < SHORTEST_LEASE:
        yield f"lease: of a stage on frames {SHORTEST_LEASE} second at least, since a stream extends it"


def _of_the_rest(stage: Stage) -> Iterator[str]:
    """Yield the faults of options that a recipe may have and the decorator does not accept."""
    told = {
        "model": stage.model is not None,
        "where": stage.where is not None,
        "delivery": stage.delivery != "exactly-once",
        "none": stage.none != "error",
        **{option: True for option in stage.options if option not in OPTIONS},
    }
    for name, given in told.items():
        if given:
            yield f"{name}: a stage on frames has no such option; leave it out, or do it in the function"
