"""How far apart the processes keep that claim batches of one queue.

Processes that all read the first ids of a queue claim the same items, and all but one of them lose. A process that
loses many items therefore begins its next batch some batches behind the head, at places that it visits in turn, the
head included. The distance grows until the process loses little, and shrinks again after that: a single consumer is
always at the head, and keeps the exact order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mongoq.model.process import dice

__all__ = ["MOST", "Contention"]

MOST = 64
"""The largest ``width``: places, one batch apart, among which a process chooses."""
LOSS = 0.16
"""The smoothed share of lost items above which the width doubles."""
LITTLE = 0.04
"""The smoothed share of lost items below which the width shrinks."""
MEMORY = 0.85
"""The weight of earlier batches in the smoothed share."""
FORGET = 1.0
"""Seconds without a batch after which the width is 1 again: the other processes may be gone."""


@dataclass(slots=True)
class Contention:
    """The places at the head of a queue where this process claims its batches.

    Attributes:
        width: the number of places; 1 is the head alone.
        lost: the smoothed share of items that other processes had claimed first.
        turns: the places that are left of this round; each is visited once a round, in random order.
        at: when the last batch was claimed, on the monotonic clock.
    """

    width: int = 1
    lost: float = 0.0
    turns: list[int] = field(default_factory=list)
    at: float = float("-inf")

    def skip(self, n: int, at: float | None = None) -> int:
        """Return how many items to skip before a batch of ``n``."""
        if self.width == 1:
            return 0
        if (time.monotonic() if at is None else at) - self.at > FORGET:
            self._choose(1)
            return 0
        turns = self.turns or dice.sample(range(self.width), self.width)
        self.turns = turns[1:]
        return n * turns[0]

    def record_batch(self, n: int, lost: int, at: float | None = None) -> None:
        """Record a batch: of ``n`` items, ``lost`` had been claimed by others."""
        if not lost and self.width == 1:
            return
        self.at = time.monotonic() if at is None else at
        self.lost = MEMORY * self.lost + (1 - MEMORY) * lost / n
        if self.lost > LOSS:
            self._choose(min(MOST, 2 * self.width))
        elif self.lost < LITTLE:
            self._choose(self.width - max(1, self.width // 8))

    def beyond(self) -> None:
        """Record that the queue ends before the chosen place: halve the width, and go to the head next."""
        self._choose(max(1, self.width // 2))
        self.turns = [0]

    def _choose(self, width: int) -> None:
        self.width, self.turns = max(1, width), []
        self.lost = (LOSS + LITTLE) / 2 if self.width > 1 else 0.0
