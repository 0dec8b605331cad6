"""Drafts: pushes that were checked. Their envelopes are made when they are sent, with those of others or alone."""

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
"""The queue and the priority of an item, and when it is due, in milliseconds since 1970."""


@dataclass(slots=True, eq=False)
class Draft:
    """A push, checked.

    Attributes:
        wrapped: the payload, as ``{"payload": payload}`` in BSON.
        headers: in the form to send.
        given: the id that the producer gave.
        remember: for how long a given id is remembered.
        id: the item's, from its ``stamp`` on, and so is ``at``.
        at: from when on it is eligible, in milliseconds since 1970.
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
        """Take its place in the queue, before whoever pushes from now on; whoever it will be sent with."""
        clock = self.context.broker.clock
        self.id = self.given or new_id()
        undelayed = self.delay is None and self.when is None
        self.at = clock.stamped() if undelayed else milliseconds(due(clock, self.delay, self.when))

    @property
    def kind(self) -> Kind:
        """What it has in common with others of its batch."""
        return self.context.name, self.priority, self.at

    @property
    def size(self) -> int:
        """How many bytes it adds to a batch, about."""
        return len(self.wrapped) if self.headers is None else len(self.wrapped) + len(self.headers.raw)

    def record_put(self) -> None:
        """Count the item, which has just been inserted, and tell who claims from its queue, or waits there."""
        self.context.put(self.priority, self.at, id=self.id)

    def encode(self) -> Document:
        """Return the envelope in the form to send."""
        if self.headers is None and self.given is None:
            return fresh_envelope(self.context.name, self.wrapped, id=self.id, at=self.at, priority=self.priority)
        return self.envelope()

    def envelope(self) -> Document:
        """Return the envelope, to be looked into."""
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
    """Return from when an item is eligible: at once, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    try:
        return clock.now() + length if length else clock.stamp()
    except OverflowError:  # a clock of the caller's may go by any year
        raise ArgumentInvalid("delay", f"ends beyond the year 9999: {delay!r}") from None
