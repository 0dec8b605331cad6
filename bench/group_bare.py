"""Group commit by hand: callers share the commands that mongoq sends, in the least code that does it.

It does not handle lost replies, refused documents, cancelled callers or ended leases. One batch of each kind is under
way at a time. So it shows what the server and the driver allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bson import ObjectId
from pymongo import DeleteMany

from bench import bare_many
from bench.bare import Bare

__all__ = ["GroupBare"]

Send = Callable[[list[Any]], Awaitable[Sequence[Any]]]


class GroupBare:
    """Single operations on a collection of the asyncio driver, whose callers share commands."""

    def __init__(self, bare: Bare) -> None:
        self._bare = bare
        self._pushes, self._claims, self._commits = _Lane(self._push), _Lane(self._claim), _Lane(self._commit)

    async def push(self, payload: Any) -> None:
        await self._pushes.call(payload)

    async def reserve(self) -> Any:
        return await self._claims.call(None)

    async def commit(self, document: Any) -> None:
        await self._commits.call(document)

    async def _push(self, payloads: list[Any]) -> Sequence[Any]:
        await bare_many.push_many(self._bare, payloads)
        return payloads

    async def _claim(self, callers: list[None]) -> Sequence[Any]:
        documents = await bare_many.reserve_many(self._bare, len(callers))
        return [*documents, *callers[len(documents) :]]

    async def _commit(self, documents: list[Any]) -> Sequence[Any]:
        ids_by_token: dict[ObjectId, list[ObjectId]] = {}
        for document in documents:
            ids_by_token.setdefault(document["token"], []).append(document["_id"])
        deletes = [DeleteMany({"_id": {"$in": ids}, "token": token}) for token, ids in ids_by_token.items()]
        await self._bare.collection.bulk_write(deletes, ordered=False)
        return documents


class _Lane:
    """Callers of one operation: a caller that arrives while a batch is under way joins the next batch."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._flight: asyncio.Task[None] | None = None

    def call(self, entry: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, answer))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly())
        return answer

    async def _fly(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._deliver(batch)
        finally:
            self._flight = None

    async def _deliver(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            replies = await self._send([entry for entry, _ in batch])
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
        else:
            for (_, answer), reply in zip(batch, replies, strict=True):
                answer.set_result(reply)
