"""How a graph comes to the executors: by cloudpickle, whole, so that what its handlers share stays shared.

A large one goes to each of them once, as a broadcast. Spark would make a broadcast of each task that is that large, and
keep them all on disk for as long as the session lives.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

from pyspark import cloudpickle

from mongoq.errors import GraphInvalid
from mongoq.pipeline.graph import Graph

__all__ = ["Cargo", "absent", "packed", "unpacked"]

logger = logging.getLogger("mongoq.spark")

LARGE = 500_000
"""Bytes from which a graph is broadcast: well below Spark's own ``spark.broadcast.UDFCompressionThreshold`` of 1 MB."""
KEPT = 8
"""Graphs that a process remembers: one for each pipeline that it works for."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """A packed graph on its way, made on the driver.

    Attributes:
        data: the bytes, or the broadcast that has them.
    """

    data: Any = field(repr=False)

    @classmethod
    def of(cls, data: bytes, spark: Any) -> Self:
        """Return the cargo of these bytes; a session of Spark Connect has no broadcasts."""
        context = getattr(spark, "_sc", None)
        return cls(data if context is None or len(data) < LARGE else context.broadcast(data))

    def unpacked(self) -> Graph:
        """Return the graph, in an executor."""
        return unpacked(self.data if isinstance(self.data, bytes) else self.data.value)

    def discard(self) -> None:
        """Free what Spark keeps of it; no task needs it any more."""
        if not isinstance(self.data, bytes):
            try:
                self.data.destroy()
            except Exception as error:  # the session was stopped, and has freed it
                logger.debug("a broadcast could not be destroyed: %r", error)


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
        culprits = ", ".join(map(repr, _unfit(part.handler)))
        where = f" (of {culprits})" if culprits else ""
        hint = "make what it needs inside of it, or in a module that the executors can import"
        return f"{title}: it cannot be sent to the executors: {error!r:.200}{where}; {hint}"
    return None


def _unfit(handler: Any) -> list[str]:
    """Return the names of what a function uses of its surroundings that cannot be sent."""
    try:
        told = inspect.getclosurevars(handler)
    except (TypeError, ValueError):  # no function of Python's, or not filled yet
        return []
    return sorted(name for name, value in {**told.globals, **told.nonlocals}.items() if not _can_go(value))


def _can_go(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


@lru_cache(KEPT)
def unpacked(data: bytes) -> Graph:
    """Return the graph, the same one whenever this process is asked: what its handlers remember lasts as it does."""
    graph = pickle.loads(data)  # noqa: S301  # from the driver of this very application
    assert isinstance(graph, Graph)
    return graph
