"""Notices that the server may be another one now, so that its clock is read again."""

from __future__ import annotations

from typing import Any

from mongoq.drive.backends import Backend, interruption, primary
from mongoq.model.clock import Clock, ServerClock
from mongoq.protocol.request import ReplyLost

__all__ = ["Disturbance"]


class Disturbance:
    """Watches the client's own view of the topology; costs a comparison per command."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._client = backend.client
        self._clock = clock if isinstance(clock, ServerClock) and backend.client is not None else None
        self._seen: Any = None
        self._primary: Any = None

    def look(self) -> None:
        """Disturb the clock when the primary has changed since the last look."""
        if self._clock is None:
            return
        topology = self._client.topology_description
        if topology is self._seen:
            return
        self._seen = topology
        now = primary(self._client)
        if self._primary not in (None, now):
            self._clock.disturb()
        self._primary = now or self._primary

    def told(self, error: Exception) -> Exception:
        """Return a driver's error as flows know it; one of the network disturbs the clock."""
        known = interruption(error)
        if isinstance(known, ReplyLost) and self._clock is not None:
            self._clock.disturb()
        return known or error
