"""How a graph comes to the executors: by cloudpickle, whole, so that what its handlers share stays shared."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle

from mongoq.errors import GraphInvalid
from mongoq.pipeline.graph import Graph

__all__ = ["absent", "packed", "unpacked"]

KEPT = 8
"""Graphs that a process remembers: one for each pipeline that it works for."""


def packed(graph: Graph) -> bytes:
    """Return a graph as bytes; of the stages and sources that it does not work on, without their functions.

    Functions of modules go by their names, what stands in a script or a notebook goes as it is.

    Raises:
        GraphInvalid: something of it cannot go; it names each stage and source that cannot.
    """
    parts = [
        *(("stage", one.name, one) for one in graph.own_stages),
        *(("source", s.name, s) for s in graph.own_sources),
    ]
    faults = [fault for kind, name, part in parts if (fault := _fault(f"{kind} {name!r}", part))]
    if faults:
        raise GraphInvalid(graph.name, faults)
    stages = tuple(stage if stage in graph.own_stages else replace(stage, handler=absent) for stage in graph.stages)
    sources = tuple(one if one in graph.own_sources else replace(one, handler=absent) for one in graph.sources)
    return _dumps(replace(graph, stages=stages, sources=sources))


def absent(*_: Any) -> None:
    """Stand for a function that is called elsewhere, and may not be able to travel."""


def _dumps(value: Any) -> bytes:
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps(value)


def _fault(title: str, part: Any) -> str | None:
    try:
        _dumps(part)
    except Exception as error:
        hint = "make what it needs inside of it, or in a module that the executors can import"
        return f"{title}: it cannot be sent to the executors: {error!r:.200}; {hint}"
    return None


@lru_cache(KEPT)
def unpacked(data: bytes) -> Graph:
    """Return the graph, the same one whenever this process is asked: what its handlers remember lasts as it does."""
    graph = pickle.loads(data)  # noqa: S301  # from the driver of this very application
    assert isinstance(graph, Graph)
    return graph
