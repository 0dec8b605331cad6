"""How a graph comes to the executors: by cloudpickle, whole, so that what its handlers share stays shared.

A large one goes to each of them once, as a broadcast. Spark would make a broadcast of each task that is that large, and
keep them all on disk for as long as the session lives.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, Self

from mongoq.errors import GraphInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.on_spark.pickling import dumps

__all__ = ["SerializedGraph", "absent", "packed", "unpacked"]

logger = logging.getLogger("mongoq.spark")

LARGE = 500_000
"""Bytes from which a graph is broadcast: well below Spark's own ``spark.broadcast.UDFCompressionThreshold`` of 1 MB."""
KEPT = 8
"""Graphs that a process remembers: one for each pipeline that it works for."""


@dataclass(frozen=True, slots=True)
class SerializedGraph:
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
    return dumps(replace(graph, stages=stages, sources=sources))


def absent(*_: Any) -> None:
    """Stand for a function that is called elsewhere, and may not be able to travel."""


def _fault(title: str, part: Any) -> str | None:
    error = _refusal(part)
    if error is None:
        return None
    culprits = ", ".join(map(repr, sorted(_unfit(part.handler, set()))))
    where = f" (of {culprits})" if culprits else ""
    hint = "make what it needs inside of it, or in a module that the executors can import"
    return f"{title}: it cannot be sent to the executors: {_shown(error)}{where}; {hint}"


def _shown(error: BaseException) -> str:
    try:
        return f"{error!r:.200}"
    except Exception:  # it may be anybody's
        return type(error).__name__


def _refusal(value: Any) -> BaseException | None:
    """Return what keeps a value from being sent; its own code may raise anything."""
    try:
        dumps(value)
    except (Exception, SystemExit) as error:
        return error
    return None


def _unfit(value: Any, seen: set[int]) -> set[str]:
    """Return the names of what a function or an object has that cannot be sent, or what those have."""
    seen.add(id(value))
    names: set[str] = set()
    for name, part in _parts(value):
        if id(part) not in seen and _refusal(part) is not None:
            names |= _unfit(part, seen) or {name}
    return names


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses of its surroundings, or what an object has, by its names."""
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                yield name, cell.cell_contents
        yield from ((name, value.__globals__[name]) for name in value.__code__.co_names if name in value.__globals__)
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield from [("func", value.func), *((f"args[{n}]", each) for n, each in enumerate(value.args))]
        yield from value.keywords.items()
    else:
        yield from getattr(value, "__dict__", {}).items()


@lru_cache(KEPT)
def unpacked(data: bytes) -> Graph:
    """Return the graph, the same one whenever this process is asked: what its handlers remember lasts as it does."""
    graph = pickle.loads(data)  # noqa: S301  # from the driver of this very application
    assert isinstance(graph, Graph)
    return graph
