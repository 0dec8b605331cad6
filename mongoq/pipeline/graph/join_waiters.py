"""Items that wait for partners in a join, and the queues in which they wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mongoq.model.item import Item
from mongoq.model.qualified_name import qualified
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage
from mongoq.protocol.join.spec import FOREVER

__all__ = ["Waiting", "pairs_queue", "parked_queue", "queues_of", "waiting"]


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


def parked_queue(graph: Graph, stage: Stage) -> str:
    """Return the name of the queue where items wait for their partners."""
    return f"{qualified(graph.name, stage.name, '.')}.waiting"


def pairs_queue(graph: Graph, stage: Stage) -> str:
    """Return the name of the queue of joined items."""
    return f"{qualified(graph.name, stage.name, '.')}.joined"


def queues_of(graph: Graph) -> Iterator[tuple[Stage, str]]:
    """Return the joins, each with the queue where its items wait."""
    return ((stage, parked_queue(graph, stage)) for stage in graph.stages if stage.join is not None)


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
