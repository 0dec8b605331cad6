"""The commands of a group commit alone: the limit of server and driver if no caller got a result.

The batches are as large, and as many at a time, as mongoq's for that number of callers. The ids to claim are known
beforehand: a claim is one update of a batch, a commit one delete, a push one insert.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from bench import bare_many
from bench.bare import LEASE, ORDER, Bare
from bench.operations import payload

__all__ = ["claims_and_commits_rate", "pushes_rate"]

PARTS = 2
"""Number of batches into which the callers are divided."""


async def pushes_rate(bare: Bare, callers: int, seconds: float) -> float:
    """Return how many items are pushed a second."""
    size = -(-callers // PARTS)

    async def push() -> int:
        await bare_many.push_many(bare, [payload()] * size)
        return size

    return await _rate(push, PARTS, seconds)


async def claims_and_commits_rate(bare: Bare, callers: int, seconds: float) -> float:
    """Return how many of the existing items are claimed and deleted a second."""
    documents = await bare.collection.find({"q": bare.queue}, {"_id": 1}, sort=ORDER).to_list()
    batches = _cut([document["_id"] for document in documents], -(-callers // PARTS))

    async def claim_and_commit() -> int:
        ids = next(batches)
        now, token = datetime.now(UTC), ObjectId()
        lease = {"when": now + LEASE, "reserved": True, "token": token, "by": bare.by, "batch": token}
        claim = {"_id": {"$in": ids}, "q": bare.queue, "when": {"$lte": now}}
        await bare.collection.update_many(claim, {"$set": lease, "$inc": {"attempts": 1}})
        await bare_many.commit_many(bare, bare_many.HeldMany(ids, token, []))
        return len(ids)

    return await _rate(claim_and_commit, PARTS, seconds)


def _cut(ids: list[Any], size: int) -> Iterator[list[Any]]:
    yield from (ids[start : start + size] for start in range(0, len(ids), size))
    raise RuntimeError("the queue ran empty; give fewer --seconds")


async def _rate(step: Callable[[], Awaitable[int]], at_a_time: int, seconds: float) -> float:
    done = 0
    began = time.perf_counter()

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            number = await step()
            done += number  # only now: the other loop has added its own meanwhile

    await asyncio.gather(*(loop() for _ in range(at_a_time)))
    return done / (time.perf_counter() - began)
