"""Drafts: pushes that were checked. Their envelopes are made when they are sent, with those of others or alone.

So items that go in one command stand in the order in which their callers came, whatever each was told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.arguments import Duration, duration, moment
from mongoq.model.clock import Clock
from mongoq.model.envelope import Document, Stencil, new_envelope
from mongoq.model.ids import new_ids
from mongoq.protocol.context import QueueContext

__all__ = ["Draft", "due", "envelopes"]


@dataclass(slots=True, eq=False)
class Draft:
    """A push, checked.

    Attributes:
        wrapped: the payload, as ``{"payload": payload}`` in BSON.
        headers: in the form to send.
        given: the id that the producer gave.
        remember: for how long a given id is remembered.
        id: the item's; known when the envelope was made, and so is ``due``.
        due: from when on it is eligible.
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
    due: datetime = field(init=False)

    @property
    def is_plain(self) -> bool:
        """Whether it was told nothing but its payload and its priority."""
        return self.headers is None and self.given is None and self.delay is None and self.when is None

    def stamp(self, id: ObjectId, now: datetime) -> None:
        """Take the id and the time, unless it was told others."""
        self.id = self.given or id
        told = self.delay is not None or self.when is not None
        self.due = due(self.context.broker.clock, self.delay, self.when) if told else now

    def envelope(self) -> Document:
        """Return the envelope, with the id and the time of now."""
        self.stamp(ObjectId(), self.context.broker.clock.stamp())
        return self.stamped()

    def stamped(self) -> Document:
        """Return the envelope with the id and the time that it has."""
        return self._envelope(self.context.broker.encoding.unwrapped("payload", self.wrapped))

    def stencil(self) -> Stencil:
        """Return what makes the envelopes of others that differ in id and payload alone."""
        return Stencil(self.context.broker.encoding, self._envelope(None))

    def _envelope(self, payload: Any) -> Document:
        return new_envelope(
            self.context.name,
            payload,
            id=self.id,
            when=self.due,
            priority=self.priority,
            headers=self.headers,
            once=None if self.given is None else self.context.broker.clock.now() + self.remember,
        )


def envelopes(drafts: Sequence[Draft]) -> list[Any]:
    """Make the envelopes of drafts, which all have the time of now and ids in their order unless they were told others.

    Those that can be told from each other by id and payload alone are encoded together.
    """
    if len(drafts) == 1:
        return [drafts[0].envelope()]
    now = drafts[0].context.broker.clock.stamp()
    stencils: dict[tuple[str, int], Stencil] = {}
    made: list[Any] = []
    for draft, id in zip(drafts, new_ids(len(drafts)), strict=True):
        draft.stamp(ObjectId(id), now)
        if not draft.is_plain:
            made.append(draft.stamped())
            continue
        kind = draft.context.name, draft.priority
        if kind not in stencils:
            stencils[kind] = draft.stencil()
        made.append(stencils[kind].envelope(id, draft.wrapped))
    return made


def due(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return from when an item is eligible: at once, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    return clock.now() + length if length else clock.stamp()
