"""Transport of a graph to the executors: by cloudpickle, as a whole, so that handlers keep sharing objects.

A large graph is sent to each executor once, as a broadcast. Otherwise Spark would broadcast each large task by itself,
and keep all of these on disk for the lifetime of the session.

Cloudpickle, extended by functions with a ``functools.cache`` that no module has. Cloudpickle pickles a cached
function by its name, so a function of a script would be missing in the executors. Here its plain function is sent,
and the cache begins empty there.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, update_wrapper
from types import FunctionType, MethodType
from typing import Any, Self

from pyspark import cloudpickle

from mongoq.data.encoding.error_text import spoken
from mongoq.errors import GraphInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.handlers import handler_name

Cached = type(lru_cache(abs))


def dumps(value: Any) -> bytes:
    """Return a value as bytes for ``pickle.loads``; raises the errors that pickling the value raises."""
    with io.BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Cached):
            # Functions of ``__main__`` are in the script only; others are sent by name if their module has them.
            module = str(getattr(obj, "__module__", None))
            target: Any = None if module == "__main__" else sys.modules.get(module)
            for name in getattr(obj, "__qualname__", "").split("."):
                target = getattr(target, name, None)
            if target is not obj:
                return _make_cached, (obj.cache_parameters(),), {"function": obj.__wrapped__}, None, None, _fill_cached
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


class _Behind:
    """The function behind a cache. It may refer to the cache itself, so it is set after the cache was made."""

    function: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)


def _make_cached(parameters: Mapping[str, Any]) -> Any:
    return lru_cache(**parameters)(_Behind())


def _fill_cached(cached: Any, state: Mapping[str, Any]) -> None:
    cached.__wrapped__.function = state["function"]
    update_wrapper(cached, state["function"])


logger = logging.getLogger("mongoq.spark")

MIN_BROADCAST_BYTES = 500_000
"""Bytes from which a graph is broadcast: well below Spark's own ``spark.broadcast.UDFCompressionThreshold`` of 1 MB."""
MAX_CACHED_GRAPHS = 8
"""Graphs that a process keeps: one for each pipeline that it works for."""


@dataclass(frozen=True, slots=True)
class SerializedGraph:
    """A pickled graph, made on the driver for the executors.

    Attributes:
        data: the bytes, or the broadcast with the bytes.
    """

    data: Any = field(repr=False)

    @classmethod
    def of(cls, data: bytes, spark: Any) -> Self:
        """Return the graph of these bytes; a session of Spark Connect has no broadcasts."""
        context = getattr(spark, "_sc", None)
        return cls(data if context is None or len(data) < MIN_BROADCAST_BYTES else context.broadcast(data))

    def unpack(self) -> Graph:
        """Return the graph, in an executor."""
        return unpack_graph(self.data if isinstance(self.data, bytes) else self.data.value)

    def discard(self) -> None:
        """Free the broadcast; no task needs it any more."""
        if not isinstance(self.data, bytes):
            try:
                self.data.destroy()
            except Exception as error:  # the session was stopped, and has freed it
                logger.debug("a broadcast could not be destroyed: %r", error)


def pack_graph(graph: Graph) -> bytes:
    """Return a graph as bytes; functions of stages and sources that the run does not work on are left out.

    Functions of modules are pickled by name, functions of a script or a notebook by value.

    Raises:
        GraphInvalid: a part cannot be pickled; the error names each stage, source and hook.
    """
    faults = []
    for title, part, function in [
        *((f"stage {stage.name!r}", stage, stage.handler) for stage in graph.own_stages),
        *((f"source {source.name!r}", source, source.handler) for source in graph.own_sources),
        *((f"around {handler_name(hook)!r}", hook, hook) for hook in graph.hooks),
    ]:
        error = _refusal(part)
        if error is None:
            continue
        # The error of cloudpickle names a type; users need the name of the variable.
        culprits = ", ".join(map(repr, sorted(_unfit(function, set()))))
        where = f" (of {culprits})" if culprits else ""
        text = spoken(error)[:200]
        hint = "make what it needs inside of it, or in a module that the executors can import"
        faults.append(f"{title}: it cannot be sent to the executors: {text}{where}; {hint}")
    if faults:
        raise GraphInvalid(graph.name, faults)
    stages = tuple(
        stage if stage in graph.own_stages else replace(stage, handler=absent, sequence=None) for stage in graph.stages
    )
    sources = tuple(
        source if source in graph.own_sources else replace(source, handler=absent) for source in graph.sources
    )
    return dumps(replace(graph, stages=stages, sources=sources))


def absent(*_: Any) -> None:
    """Stand-in for a function that is called elsewhere, and that may be unpicklable."""


def _refusal(value: Any) -> BaseException | None:
    """Return the error that keeps a value from being pickled; its own code may raise anything."""
    try:
        dumps(value)
    except (Exception, SystemExit) as error:
        return error
    return None


def _unfit(value: Any, seen_ids: set[int]) -> set[str]:
    """Return the names of parts of a function or an object that cannot be pickled, as deep as they can be found."""
    seen_ids.add(id(value))
    parts: list[tuple[str, Any]] = []
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                parts.append((name, cell.cell_contents))
        parts += [(name, value.__globals__[name]) for name in value.__code__.co_names if name in value.__globals__]
    elif isinstance(value, MethodType):
        parts = [("self", value.__self__)]
    elif isinstance(value, partial):
        parts = [("func", value.func), *((f"args[{n}]", each) for n, each in enumerate(value.args))]
        parts += value.keywords.items()
    else:
        parts = list(getattr(value, "__dict__", {}).items())
    names: set[str] = set()
    for name, part in parts:
        if id(part) not in seen_ids and _refusal(part) is not None:
            names |= _unfit(part, seen_ids) or {name}
    return names


@lru_cache(MAX_CACHED_GRAPHS)
def unpack_graph(data: bytes) -> Graph:
    """Return the graph, the same object in each task of this process, so that state of its handlers lasts."""
    graph = pickle.loads(data)  # noqa: S301  # the data comes from the driver of this application
    assert isinstance(graph, Graph)
    return graph
