"""An item as the user sees it: frozen, picklable data. Operations live on the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from bson import ObjectId

__all__ = ["Failure", "Item", "Origin", "State"]

M = TypeVar("M")
State = Literal["ready", "scheduled", "reserved", "expired", "processed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of an item.

    Attributes:
        type: the class of the error, or ``""`` when the caller gave only a text.
        message: the error's text, shortened.
        at: when it was reported, on the server's clock.
    """

    type: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead item comes from.

    Attributes:
        queue: the queue it died in.
        id: its id there; a burial keeps the id.
        reason: why it was buried.
        attempts: how often it had been reserved there.
        key: the key it had there; a key does not follow into the dead queue.
        at: when it was buried, on the server's clock.
    """

    queue: str
    id: ObjectId
    reason: str
    attempts: int
    key: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Generic[M]):
    """One item of a queue, as it was when it was read.

    Attributes:
        id: identity, for life; moves and burials keep it.
        queue: the queue that held it.
        payload: what was pushed, or the model built from it.
        state: ready, scheduled, reserved, expired (the lease is over, nobody took it yet) or processed.
        due: when it became, or becomes, eligible; ``None`` where the envelope no longer says.
        lease_until: end of the reservation; ``None`` when not reserved.
        priority: -100 (first) to 100 (last).
        attempts: reservations in this queue so far, this one included.
        key: the key given by the producer.
        headers: metadata given by the producer.
        token: the fence of this reservation; ``None`` when not reserved.
        by: the worker (``host:pid:random``) that holds, or last held, the item.
        error: the last failure.
        origin: where a dead item comes from.
        processed: when it was popped or committed.
        once: until when its id is remembered after it is settled.
        namespace: ``database.collection`` that holds it.
    """

    id: ObjectId
    queue: str
    payload: M
    state: State
    due: datetime | None
    lease_until: datetime | None
    priority: int
    attempts: int
    key: str | None
    headers: Mapping[str, Any]
    token: ObjectId | None
    by: str | None
    error: Failure | None
    origin: Origin | None
    processed: datetime | None
    once: datetime | None
    namespace: str

    @property
    def retries(self) -> int:
        """How often the item was reserved again after its first time."""
        return max(self.attempts - 1, 0)

    def held_until(self, lease_until: datetime) -> Item[M]:
        """Return this item with another end of its lease."""
        return replace(self, lease_until=lease_until)
