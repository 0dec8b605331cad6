"""Routes of items through a graph: by a handler, past a filter, or by failing; and the queues that they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from mongoq.model.item import Item
from mongoq.model.join_state import qualify
from mongoq.model.outcomes import Move
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.protocol.join.spec import FOREVER

__all__ = [
    "Waiting",
    "comes_back_to",
    "find_reachable",
    "in_words",
    "of_strings",
    "pairs_queue",
    "queues",
    "queues_of",
    "waiting",
    "waiting_queue",
    "ways",
]


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that waits for its partners.

    Attributes:
        stage: name of the join.
        queue: queue that the item came by.
        value: value that its partners must have; ``None`` where the first items of all queues belong together.
        since: time when it came.
        until: time when its wait ends; ``None`` for no limit.
        item: the item, with its payload as it is stored.
    """

    stage: str
    queue: str
    value: Any
    since: datetime
    until: datetime | None
    item: Item[Any]


def waiting_queue(graph: Graph, stage: Stage) -> str:
    """Return the name of the queue where items wait for their partners."""
    return f"{qualify(graph.name, stage.name, '.')}.waiting"


def pairs_queue(graph: Graph, stage: Stage) -> str:
    """Return the name of the queue of joined items."""
    return f"{qualify(graph.name, stage.name, '.')}.joined"


def queues_of(graph: Graph) -> Iterator[tuple[Stage, str]]:
    """Return the joins, each with the queue where its items wait."""
    return ((stage, waiting_queue(graph, stage)) for stage in graph.stages if stage.join is not None)


def waiting(stage: Stage, item: Item[Any]) -> Waiting:
    """Return the description of a waiting item, from its stored fields."""
    stored = item.stored("parked")
    parked: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
    until = parked.get("until")
    return Waiting(
        stage=stage.name,
        queue=parked.get("queue", item.queue),
        value=parked.get("value"),
        since=parked.get("at", item.read_at),
        until=until if isinstance(until, datetime) and until < FOREVER else None,
        item=item,
    )


@dataclass(frozen=True, slots=True)
class Route:
    """One route out of a stage.

    Attributes:
        stage: stage that items come from.
        queue: queue that they go to.
        kind: ``"to"``: the handler sends them; ``"otherwise"``: they do not match the filter; ``"errors"``: they have
            failed for good.
    """

    stage: Stage
    queue: str
    kind: Literal["to", "otherwise", "errors"]


def ways(graph: Graph) -> list[Route]:
    """Return all routes of a graph whose queue names are strings."""
    found: list[Route] = []
    for stage in graph.stages:
        found += [Route(stage, queue, "to") for queue in stage.targets]
        if isinstance(stage.otherwise, Move):
            found.append(Route(stage, stage.otherwise.to, "otherwise"))
        errors = graph.errors_of(stage)
        if errors is not None:
            found.append(Route(stage, errors, "errors"))
    return found


def queues(graph: Graph) -> list[str]:
    """Return the queues of a graph, each once, in the order of their first mention."""
    found = [*(graph.inputs or ()), *graph.fed]
    for stage in graph.stages:
        found += stage.sources
        found += [way.queue for way in ways(replace(graph, stages=(stage,)))]
    return list(dict.fromkeys([*found, *graph.outputs]))


def find_reachable(graph: Graph, start: Iterable[str]) -> set[str]:
    """Return the queues that an item from the start queues can reach, the start queues included."""
    next_to: dict[str, list[str]] = {}
    for way in ways(graph):
        for source in way.stage.sources:
            next_to.setdefault(source, []).append(way.queue)
    seen: set[str] = set()
    waiting = list(start)
    # A loop over a list, not recursion: graphs may have cycles and long chains.
    while waiting:
        queue = waiting.pop()
        if queue not in seen:
            seen.add(queue)
            waiting += next_to.get(queue, ())
    return seen


def comes_back_to(graph: Graph, stage: Stage) -> list[str]:
    """Return the sources of a stage that its own items may come back to."""
    later = find_reachable(graph, [way.queue for way in ways(replace(graph, stages=(stage,)))])
    return [source for source in stage.sources if source in later]


def of_strings(graph: Graph) -> Graph:
    """Return the graph without queue names that are not strings."""
    return _convert_targets(graph, lambda names: tuple(name for name in names if isinstance(name, str)))


def in_words(graph: Graph) -> Graph:
    """Return the graph with queue names that are not strings replaced by their ``repr``."""
    return _convert_targets(graph, lambda names: tuple(n if isinstance(n, str) else f"{n!r:.150}" for n in names))


def _convert_targets(graph: Graph, convert: Callable[[tuple[Any, ...]], tuple[str, ...]]) -> Graph:
    def one(name: Any) -> str | None:
        return None if name is None else next(iter(convert((name,))), None)

    def converted(stage: Stage) -> Stage:
        otherwise = stage.otherwise
        if isinstance(otherwise, Move):
            to = one(otherwise.to)
            otherwise = None if to is None else replace(otherwise, to=to)
        return replace(
            stage,
            sources=convert(stage.sources),
            targets=convert(stage.targets),
            otherwise=otherwise,
            errors=one(graph.errors_of(stage)),
        )

    return replace(
        graph,
        sources=tuple(
            replace(source, target=target) for source in graph.sources if (target := one(source.target)) is not None
        ),
        stages=tuple(map(converted, graph.stages)),
        errors=one(graph.errors),
        inputs=None if graph.inputs is None else convert(graph.inputs),
        outputs=convert(graph.outputs),
    )
