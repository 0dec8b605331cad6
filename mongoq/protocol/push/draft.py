"""Drafts: checked pushes. Their envelopes are made when they are sent, alone or with other callers' pushes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, duration, moment
from mongoq.model.encoding.ids import new_id
from mongoq.model.envelope import Document, fresh_envelope, new_envelope
from mongoq.model.process.clock import Clock, milliseconds, time_of
from mongoq.protocol.state.context import QueueContext

__all__ = ["Draft", "Kind", "due"]

Kind = tuple[str, int, int]
"""Queue, priority and due time of an item, the last in milliseconds since 1970."""


@dataclass(slots=True, eq=False)
class Draft:
    """One checked push.

    Attributes:
        context: the queue.
        wrapped: the payload, as ``{"payload": payload}`` in BSON.
        priority: the item's priority.
        headers: the headers in the form to send, or ``None``.
        delay: how long the item waits; ``None`` when it does not, or has a ``when``.
        when: the time from which on it is eligible, or ``None``.
        given: the id given by the producer, or ``None``.
        remember: how long a given id is remembered.
        id: the item's id; set by ``stamp``.
        at: the time from which on it is eligible, in milliseconds since 1970; set by ``stamp``.
    """

    context: QueueContext[Any]
    wrapped: bytes
    priority: int
    headers: Any
    delay: Duration | None
    when: datetime | None
    given: ObjectId | None
    remember: timedelta
    id: ObjectId = field(init=False)
    at: int = field(init=False)

    def stamp(self) -> None:
        """Set the item's id and due time: its place in the queue, before all later pushes, in any batch."""
        clock = self.context.broker.clock
        self.id = self.given or new_id()
        undelayed = self.delay is None and self.when is None
        self.at = clock.stamped() if undelayed else milliseconds(due(clock, self.delay, self.when))

    @property
    def kind(self) -> Kind:
        """Queue, priority and due time: items of one kind are counted and announced together."""
        return self.context.name, self.priority, self.at

    @property
    def size(self) -> int:
        """Bytes that the draft adds to a batch, approximately."""
        return len(self.wrapped) if self.headers is None else len(self.wrapped) + len(self.headers.raw)

    def record_put(self) -> None:
        """Count the inserted item, and wake the waiters of its queue."""
        self.context.put(self.priority, self.at, id=self.id)

    def encode(self) -> Document:
        """Return the envelope in the form to send."""
        if self.headers is None and self.given is None:
            return fresh_envelope(self.context.name, self.wrapped, id=self.id, at=self.at, priority=self.priority)
        return self.envelope()

    def envelope(self) -> Document:
        """Return the envelope as a document with readable fields."""
        return new_envelope(
            self.context.name,
            self.context.broker.encoding.unwrapped("payload", self.wrapped),
            id=self.id,
            when=time_of(self.at),
            priority=self.priority,
            headers=self.headers,
            once=None if self.given is None else self.context.broker.clock.now() + self.remember,
        )


def due(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return the time from which on an item is eligible: now, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    try:
        return clock.now() + length if length else clock.stamp()
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("delay", f"ends beyond the year 9999: {delay!r}") from None
