"""Who waits for partners in a join."""

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
        stage: the name of the join.
        queue: the queue that it came by.
        value: the value by which they are looked for; ``None`` where the first of each belong together.
        since: when it came.
        until: when it is given up; ``None`` for never.
        item: the item, its payload as it is stored.
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
    """Return the name of the queue of items that were joined."""
    return f"{qualified(graph.name, stage.name, '.')}.joined"


def queues_of(graph: Graph) -> Iterator[tuple[Stage, str]]:
    """Return the joins, and the queues where their items wait."""
    return ((stage, parked_queue(graph, stage)) for stage in graph.stages if stage.join is not None)


def waiting(stage: Stage, item: Item[Any]) -> Waiting:
    """Return what is known of an item that waits."""
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
