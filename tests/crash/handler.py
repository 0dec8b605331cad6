"""Handlers, for threads and for asyncio: they leave their mark, take a while, and say what is to become of the item."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import mongoq
from tests.crash import run
from tests.crash.stations import Decision, decide

__all__ = ["AsyncHandler", "Handler"]

WORK = (0.0, 0.1)
LONG = 1.5
"""Seconds that a run in fifty takes, more than a lease."""


class Handler:
    """Handles items of any queue, in any thread."""

    def __init__(self, database: Any, chance: random.Random) -> None:
        self._runs, self._chance = run.runs(database), chance

    def __call__(self, item: mongoq.Item[Any]) -> Decision:
        self._runs.insert_one(run.begin(item))
        time.sleep(_length(self._chance))
        decision = decide(item.payload, item.queue, item.attempts, self._chance)
        self._runs.update_one(run.mark(item), run.end(decision))
        return decision


class AsyncHandler:
    """Handles items of any queue, in any task."""

    def __init__(self, database: Any, chance: random.Random) -> None:
        self._runs, self._chance = run.runs(database), chance

    async def __call__(self, item: mongoq.Item[Any]) -> Decision:
        await self._runs.insert_one(run.begin(item))
        await asyncio.sleep(_length(self._chance))
        decision = decide(item.payload, item.queue, item.attempts, self._chance)
        await self._runs.update_one(run.mark(item), run.end(decision))
        return decision


def _length(chance: random.Random) -> float:
    return LONG if chance.random() < 0.02 else chance.uniform(*WORK)
