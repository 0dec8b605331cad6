"""Who is killed when: drawn from a seed before anything runs, so that the seed brings it back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.crash.stations import LEASE

__all__ = ["PROCESS_ROLES", "Act", "schedule"]

PROCESS_ROLES = ("produce", "produce", "work", "work", "work", "work")
"""The role of the process in each place; a killed process is followed by another one in the same role."""
WORKERS = [place for place, role in enumerate(PROCESS_ROLES) if role == "work"]
PAUSE = (0.05, 0.55)
DOWN = (0.2, 2.5)
"""For how long a server is away."""
FROZEN = (1.5 * LEASE, 4 * LEASE)
"""For how long a process stands still: it comes back to leases that others have taken."""
LAST = 2.5 * LEASE
"""For how long those stand still that do so at the end, when nobody is killed any more who could take their items."""
KILLS_PER_FREEZE = 3
MOVING = 2
"""Workers that never stand still, all at once, so that there is somebody to take what the others hold."""

What = Literal["kill", "freeze", "thaw", "crash", "crash alone", "stall", "restore"]


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done to a process, or to the servers.

    Attributes:
        pause: seconds since the act before.
        what: kill, freeze or thaw a process; crash (kill) the primary of the servers, at once or after it
            was alone for a moment, or stall it; restore the servers.
        place: of the process.
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
    at, share, until = 0.0, kills // crashes, dict.fromkeys(range(len(PROCESS_ROLES)), 0.0)
    crashing = [crash * share + chance.randrange(share // 2, share) for crash in range(crashes)]
    for kill in range(kills):
        at += chance.uniform(*PAUSE)
        moving = [place for place in until if until[place] < at]  # killed, they would not come back to their leases
        if kill in crashing:
            yield from _away(chance, at, "crash" if crashing.index(kill) % 2 else "crash alone")
        else:
            yield at, "kill", chance.choice(moving)
        if kill % (2 * share) == share // 4:
            yield from _away(chance, at, "stall")
        workers = [place for place in moving if place in WORKERS]
        if kill % KILLS_PER_FREEZE == KILLS_PER_FREEZE // 2 and len(workers) > MOVING:
            place = chance.choice(workers)
            until[place] = at + chance.uniform(*FROZEN)
            yield at, "freeze", place
            yield until[place], "thaw", place
    for place in [place for place in WORKERS if until[place] < at][MOVING:]:
        yield at, "freeze", place
        yield at + LAST, "thaw", place


def _away(chance: random.Random, at: float, what: What) -> Iterator[Moment]:
    yield at, what, None
    yield at + chance.uniform(*DOWN), "restore", None
