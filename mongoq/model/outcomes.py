"""Outcomes: what is to become of an item, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any

from mongoq.model.arguments import Duration
from mongoq.model.settings import KEEP

__all__ = ["Move"]


@dataclass(frozen=True, slots=True)
class Move:
    """An item goes on to another queue, as ``queue.move`` does it. Nothing is checked before it is used.

    Attributes:
        to: the queue, by name, or a handle, whose model then checks ``payload``.
        payload: the new payload.
        patch: or operators that change the payload, such as ``{"$set": {"plane.seats": 180}}``.
        delay: not to be handed out there before so long from now, a ``timedelta`` or seconds.
        when: not to be handed out there before this time (aware).
        priority: the new priority.
        headers: the new headers; ``None`` removes them.
    """

    to: Any
    _: KW_ONLY
    payload: Any = KEEP
    patch: Mapping[str, Mapping[str, Any]] | None = None
    delay: Duration | None = None
    when: datetime | None = None
    priority: int | None = None
    headers: Mapping[str, Any] | None = KEEP
