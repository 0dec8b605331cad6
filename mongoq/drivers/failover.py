"""Failover notice: detects that another server may be primary now, so that its clock is read again."""

from __future__ import annotations

import math
import time
from typing import Any

from mongoq.drivers.backend import Backend, interruption, primary, readable
from mongoq.drivers.errors import advise
from mongoq.model.process.clock import Clock, ServerClock
from mongoq.protocol.flow.commands import ReplyLost

__all__ = ["FailoverNotice"]

CHECK_INTERVAL_SECONDS = 0.05
"""Seconds between two checks of the topology: a failover takes longer."""


class FailoverNotice:
    """Watches the client's own view of the topology; costs next to nothing per command."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._client = backend.client
        self._clock = clock if isinstance(clock, ServerClock) and backend.client is not None else None
        self._topology: Any = None
        self._next_check = 0.0 if self._clock is not None else math.inf
        self._primary: Any = None

    def check_topology(self) -> None:
        """Disturb the clock if the primary has changed since the last check."""
        now = time.monotonic()
        if now < self._next_check or self._clock is None:
            return
        self._next_check = now + CHECK_INTERVAL_SECONDS
        topology = self._client.topology_description
        if topology is self._topology:
            return
        self._topology = topology
        leader = primary(self._client)
        if self._primary not in (None, leader):
            self._clock.disturb()
        self._primary = leader or self._primary

    def convert_error(self, error: Exception) -> Exception:
        """Convert a driver error for flows; a network error disturbs the clock.

        The refusal for a missing right, or of a server that is not the primary, gets a note with advice.
        """
        error = readable(error)
        known = interruption(error)
        advise(error, self._client)
        if isinstance(known, ReplyLost) and self._clock is not None:
            self._clock.disturb()
        return known or error
