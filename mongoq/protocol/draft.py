"""Drafts: pushes that were checked. Their envelopes are made when they are sent, with those of others or alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.arguments import Duration, duration, moment
from mongoq.model.clock import Clock
from mongoq.model.envelope import Document, Stencil, new_envelope
from mongoq.protocol.context import QueueContext

__all__ = ["Draft", "due", "envelopes"]

SEVERAL = 4
"""Envelopes that are encoded together no slower than each by itself; sixteen take a sixth less."""


@dataclass(slots=True, eq=False)
class Draft:
    """A push, checked.

    Attributes:
        wrapped: the payload, as ``{"payload": payload}`` in BSON.
        headers: in the form to send.
        given: the id that the producer gave.
        remember: for how long a given id is remembered.
        id: the item's, from its ``stamp`` on, and so is ``due``.
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

    def stamp(self) -> None:
        """Take its place in the queue, before whoever pushes from now on; whoever it will be sent with."""
        clock = self.context.broker.clock
        self.id = self.given or ObjectId()
        self.due = clock.stamp() if self.delay is None and self.when is None else due(clock, self.delay, self.when)

    def envelope(self) -> Document:
        """Return the envelope."""
        return self.envelope_of(self.context.broker.encoding.unwrapped("payload", self.wrapped))

    def envelope_of(self, payload: Any) -> Document:
        """Return the envelope with another payload in it."""
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
    """Make the envelopes of drafts; where several differ in id and payload alone, they are encoded together."""
    kinds = list(map(_kind, drafts))
    numbers = Counter(kinds)
    stencils: dict[Any, Stencil] = {}
    made: list[Any] = []
    for draft, kind in zip(drafts, kinds, strict=True):
        if kind is None or numbers[kind] < SEVERAL:
            made.append(draft.envelope())
            continue
        if kind not in stencils:
            stencils[kind] = Stencil(draft.context.broker.encoding, draft.envelope_of(None))
        made.append(stencils[kind].envelope(draft.id.binary, draft.wrapped))
    return made


def _kind(draft: Draft) -> Any:
    """Return what drafts have in common that differ in id and payload alone, unless they were told more."""
    if draft.headers is not None or draft.given is not None:
        return None
    return draft.context.name, draft.priority, draft.due


def due(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return from when an item is eligible: at once, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    return clock.now() + length if length else clock.stamp()
