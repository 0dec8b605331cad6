"""Who is killed when: drawn from a seed before anything runs, so that the seed brings it back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.crash.stations import LEASE

__all__ = ["CREW", "Act", "schedule"]

CREW = ("produce", "produce", "work", "work", "work")
"""The role of the member in each place; who is killed is followed by another one in the same role."""
WORKERS = [place for place, role in enumerate(CREW) if role == "work"]
PAUSE = (0.1, 0.6)
DOWN = (0.2, 2.5)
"""For how long a server is away."""
FROZEN = (1.2 * LEASE, 2.5 * LEASE)
"""For how long a member stands still: it comes back to leases that others have taken."""
KILLS_PER_FREEZE = 5

What = Literal["kill", "freeze", "thaw", "crash", "crash alone", "stall", "restore"]


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done to a member of the crew, or to the servers.

    Attributes:
        pause: seconds since the act before.
        what: kill, freeze or thaw a member of the crew; crash (kill) the primary of the servers, at once or after it was
            alone for a moment, or stall it; restore the servers.
        place: of the member of the crew.
    """

    pause: float
    what: What
    place: int | None = None


def schedule(seed: int, *, kills: int, crashes: int) -> list[Act]:
    """Draw the acts of a campaign with so many kills, so many of them crashes, and half as many stalls beside them."""
    moments = sorted(_moments(random.Random(seed), kills, crashes))
    starts = [0.0, *(at for at, _, _ in moments)]
    return [Act(at - start, what, place) for start, (at, what, place) in zip(starts, moments, strict=False)]


Moment = tuple[float, What, int | None]


def _moments(chance: random.Random, kills: int, crashes: int) -> Iterator[Moment]:
    at, share = 0.0, kills // crashes
    crashing = [crash * share + chance.randrange(share // 2, share) for crash in range(crashes)]
    for kill in range(kills):
        at += chance.uniform(*PAUSE)
        if kill in crashing:
            yield from _away(chance, at, "crash" if crashing.index(kill) % 2 else "crash alone")
        else:
            yield at, "kill", chance.randrange(len(CREW))
        if kill % (2 * share) == share // 4:
            yield from _away(chance, at, "stall")
        if kill % KILLS_PER_FREEZE == KILLS_PER_FREEZE // 2:
            yield from _frozen(chance, at)


def _away(chance: random.Random, at: float, what: What) -> Iterator[Moment]:
    yield at, what, None
    yield at + chance.uniform(*DOWN), "restore", None


def _frozen(chance: random.Random, at: float) -> Iterator[Moment]:
    place, begun = chance.choice(WORKERS), at + chance.uniform(0, PAUSE[0])
    yield begun, "freeze", place
    yield begun + chance.uniform(*FROZEN), "thaw", place
