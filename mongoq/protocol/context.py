"""What flows know: the broker's side, and the queue's."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from bson import ObjectId

from mongoq.model.clock import Clock
from mongoq.model.codec import Codec, Encoding
from mongoq.model.identity import Identity
from mongoq.model.item import Document, Item
from mongoq.model.settings import QueueSettings

__all__ = ["BrokerContext", "PauseMark", "QueueContext"]

M = TypeVar("M")


@dataclass(slots=True)
class PauseMark:
    """What this process last read of a queue's pause."""

    paused: bool = False
    read_at: float = float("-inf")

    def stale(self, age: float) -> bool:
        """Say whether it was read more than ``age`` seconds ago."""
        return time.monotonic() - self.read_at >= age

    def put(self, paused: bool) -> None:
        """Remember what was just read or written."""
        self.paused, self.read_at = paused, time.monotonic()


@dataclass(slots=True)
class BrokerContext:
    """What all queues of a broker share.

    Attributes:
        namespace: ``database.collection``.
        clock: the server's clock.
        encoding: how values become BSON.
        serverless: a collection without a server behind it (mongomock): no ``hello``, no partial indexes.
        checked: the schema and the collection were found suitable.
        indexed: the indexes and the schema document were written.
        pauses: pause marks by queue.
        unsettled: tokens of ``reserved()`` blocks that are still to be settled at their end.
    """

    namespace: str
    clock: Clock
    encoding: Encoding
    serverless: bool = False
    identity: Identity = field(default_factory=Identity)
    checked: bool = False
    indexed: bool = False
    pauses: dict[str, PauseMark] = field(default_factory=dict)
    unsettled: set[ObjectId | None] = field(default_factory=set)

    def pause_mark(self, queue: str) -> PauseMark:
        """Return the queue's mark, made at first use."""
        return self.pauses.setdefault(queue, PauseMark())


@dataclass(frozen=True, slots=True)
class QueueContext(Generic[M]):
    """One queue handle: its settings and its codec, and the broker it belongs to."""

    broker: BrokerContext
    settings: QueueSettings
    codec: Codec[M]

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.settings.name

    def raw_item(self, document: Document, now: datetime, *, due: datetime | None = None) -> Item[Any]:
        """Return the item in an envelope, with its payload as it is stored."""
        return Item(document, document.get("payload"), now, self.broker.namespace, due)

    def decoded(self, item: Item[Any]) -> Item[M]:
        """Return the item with its payload as the model has it; raises ``PayloadInvalid``."""
        payload = self.codec.load(item.payload)
        return item if payload is item.payload else item.with_payload(payload)
