"""Handlers, for threads and for asyncio: they leave their mark, take a while, and return what becomes of the item."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import mongoq
from tests.crash import run
from tests.crash.stations import decide, outcome

__all__ = ["AsyncHandler", "Handler"]

WORK = (0.0, 0.15)
LONG = 1.2
"""Seconds that a run in thirty takes, more than a lease."""


class Handler:
    """Handles items of any queue, in any thread.

    Attributes:
        at_work: it was called.
    """

    def __init__(self, database: Any, chance: random.Random) -> None:
        self._runs, self._chance = run.runs(database), chance
        self.at_work = False

    def __call__(self, payload: Any, job: mongoq.Job) -> mongoq.Outcome | None:
        self.at_work, item = True, job.item
        self._runs.insert_one(run.begin(item))
        time.sleep(_length(self._chance))
        decision = decide(payload, item.queue, item.attempts, self._chance)
        self._runs.update_one(run.mark(item), run.end(decision))
        return outcome(decision, item)


class AsyncHandler:
    """Handles items of any queue, in any task.

    Attributes:
        at_work: it was called.
    """

    def __init__(self, database: Any, chance: random.Random) -> None:
        self._runs, self._chance = run.runs(database), chance
        self.at_work = False

    async def __call__(self, payload: Any, job: mongoq.AsyncJob) -> mongoq.Outcome | None:
        self.at_work, item = True, job.item
        await self._runs.insert_one(run.begin(item))
        await asyncio.sleep(_length(self._chance))
        decision = decide(payload, item.queue, item.attempts, self._chance)
        await self._runs.update_one(run.mark(item), run.end(decision))
        return outcome(decision, item)


def _length(chance: random.Random) -> float:
    return LONG if chance.random() < 0.03 else chance.uniform(*WORK)
