"""Ticker of a worker: makes the ticks of all schedules that are due. Each worker has one, and none is the leader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mongoq.core.coordination.schedules import note_own_schedules
from mongoq.data.process import dice
from mongoq.data.schedule.definition import Definition

LOOK_SECONDS = 5.0
"""Longest time between two looks for due schedules, in seconds: another process may define one, or change it."""
MIN_LOOK_SECONDS = 0.005
"""Shortest time between two looks, in seconds."""
SEEN_SECONDS = 600.0
"""Seconds after which a worker notes again which schedules it has in its code."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """A schedule that a worker defines when it starts.

    Attributes:
        definition: the schedule.
        queue: handle of its queue, which the worker consumes.
    """

    definition: Definition
    queue: Any


class AsyncTicker:
    """Defines the schedules of a worker, and makes the ticks of all schedules of the collection.

    One ``find`` looks for schedules that are due within five seconds. It is sent every five seconds, and at each tick.
    """

    def __init__(self, broker: Any, plans: Sequence[SchedulePlan]) -> None:
        self._broker = broker
        self._undefined = list(plans)
        self._seen_at = float("-inf")

    async def tick(self) -> float:
        """Make the ticks that are due, and return the seconds until the next look."""
        while self._undefined:
            plan = self._undefined[0]
            await self._broker._define_schedule(plan.definition, plan.queue._context)
            del self._undefined[0]
        _, following = await self._broker._make_due_ticks(timedelta(seconds=LOOK_SECONDS))
        now = time.monotonic()
        if now >= self._seen_at + SEEN_SECONDS:
            await self._broker._run(note_own_schedules)
            self._seen_at = now
        # By chance, so that many workers do not look together. A schedule that cannot tick here is no reason to hurry.
        longest = LOOK_SECONDS * dice.uniform(0.8, 1.0)
        if following is None:
            return longest
        wait: float = (following - self._broker._context.clock.now()).total_seconds()
        return min(max(wait, MIN_LOOK_SECONDS), longest)
