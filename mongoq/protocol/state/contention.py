"""The crowd: how far apart the processes that claim batches of one queue keep.

Who all read the first ids of a queue claim the same items, and all but one of them lose. So a process that loses what
it has read begins its next batch some batches further on, in turns that lead it to the head as well. It keeps as far
away as it must to lose little. One that loses nothing goes back to the head: a single consumer keeps the exact order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mongoq.model.process.jitter import dice

__all__ = ["MOST", "Contention"]

MOST = 64
"""Batches among which a process chooses, at most."""
LOSS = 0.16
"""The share of what was tried that may be lost, smoothed, before the process keeps further away."""
LITTLE = 0.04
"""The share below which it comes nearer again."""
MEMORY = 0.85
"""How much of the smoothed share comes from before."""
FORGET = 1.0
"""Seconds after which nothing is known of the others."""


@dataclass(slots=True)
class Contention:
    """Among how many batches at the head of a queue this process chooses.

    Attributes:
        width: so many; 1 is the head alone.
        lost: the smoothed share of what was tried and had been taken by others.
        turns: the places that are still to be visited before each is visited again.
        at: when the last batch was claimed, on the monotonic clock.
    """

    width: int = 1
    lost: float = 0.0
    turns: list[int] = field(default_factory=list)
    at: float = float("-inf")

    def skip(self, n: int, at: float | None = None) -> int:
        """Return how many items to pass over before a batch of ``n``."""
        if self.width == 1:
            return 0
        if (time.monotonic() if at is None else at) - self.at > FORGET:
            self._choose(1)
            return 0
        turns = self.turns or dice.sample(range(self.width), self.width)
        self.turns = turns[1:]
        return n * turns[0]

    def tried(self, n: int, lost: int, at: float | None = None) -> None:
        """Take in how much of a batch others had taken."""
        if not lost and self.width == 1:
            return
        self.at = time.monotonic() if at is None else at
        self.lost = MEMORY * self.lost + (1 - MEMORY) * lost / n
        if self.lost > LOSS:
            self._choose(min(MOST, 2 * self.width))
        elif self.lost < LITTLE:
            self._choose(self.width - max(1, self.width // 8))

    def beyond(self) -> None:
        """Take in that there is nothing so far from the head: the queue is short."""
        self._choose(max(1, self.width // 2))
        self.turns = [0]

    def _choose(self, width: int) -> None:
        self.width, self.turns = max(1, width), []
        self.lost = (LOSS + LITTLE) / 2 if self.width > 1 else 0.0
