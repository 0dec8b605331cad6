"""The settings of a join, and the stored rendezvous of its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from mongoq.model.item import Document
from mongoq.model.join_state import rendezvous_id
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Flow
from mongoq.protocol.state.context import QueueContext

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""End of the wait in a join without a timeout."""
MAX_ARRIVALS = 500
"""Items in one claim, and in one transaction that settles expired items."""


@dataclass(frozen=True, eq=False)
class JoinSpec:
    """The settings of a join, and its state in this process.

    Attributes:
        name: pipeline and stage; the rendezvous are stored under this name.
        sides: queues that items arrive by, each with the settings of the stage.
        parked: queue of waiting items.
        pairs: name of the queue of joined items.
        timeout: time that an item waits; ``None`` for ever.
        missing: what happens to an item without partners at the end of that time.
        late: what happens to a partner that arrives later.
        coming: returns whether this process is about to receive more items of a queue.
        fates: what happened to items that were neither joined nor parked, by ``id_key``; kept until it is read.
        turns: times that items of each queue have arrived in this process; it only grows.
    """

    name: str
    sides: tuple[QueueContext[Any], ...]
    parked: QueueContext[Any]
    pairs: str
    timeout: timedelta | None
    missing: Missing
    late: Late
    coming: Callable[[str], bool] = lambda _: False

    fates: dict[Any, str] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)

    @cached_property
    def by_name(self) -> dict[str, QueueContext[Any]]:
        """The queues that items arrive by, by their names."""
        return {side.name: side for side in self.sides}

    @cached_property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that items arrive by."""
        return tuple(self.by_name)

    def others(self, queue: str) -> tuple[str, ...]:
        """Return the names of the other queues."""
        return tuple(other for other in self.queues if other != queue)

    def others_as_text(self, queue: str) -> str:
        """Return the names of the other queues, as text for a sentence."""
        return ", ".join(map(repr, self.others(queue)))


def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> Flow[dict[str, Document]]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    documents = yield from find_few(spec.parked.broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}
