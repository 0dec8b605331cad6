"""Services that all calls share: the client of the broker, and the limits of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import Response

from mongoq.errors import ArgumentInvalid
from mongoq.model.envelope import item_document
from mongoq.model.item import Item, id_key
from mongoq.pipeline.pipeline import Pipeline
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.history.mistaken import explain_no_history, refuse_unknown
from mongoq.protocol.history.query import Query, read_slice
from mongoq.protocol.insight import find_blockers
from mongoq.protocol.sequence.hold import find_held_letters
from mongoq.web.client import BrokerClient
from mongoq.web.values import make_cursor, read_cursor, respond, to_time

MAX_LARGE = 4
"""Answers with payloads that are made at the same time: each takes several times its length, up to 16 MiB."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the calls work with.

    Attributes:
        client: client of the broker.
        max_bulk: items that one change may concern, at most.
        pipelines: pipelines that the app shows, by name.
    """

    client: BrokerClient
    max_bulk: int
    pipelines: Mapping[str, Pipeline]
    _large: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, MAX_LARGE), init=False)

    async def open_queue(self, name: str) -> Any:
        """Return a handle of a queue.

        Raises:
            QueueUnknown: no caller has used the queue.
        """
        broker = await self.client.open()
        await self.client.read(refuse_unknown, name)
        return broker.queue(name)

    async def read_times(self, *times: Any) -> list[Any]:
        """Return times as they are, and times ago as times on the server's clock."""
        broker = await self.client.open()
        await self.client.read(ensure_broker_ready, write=False)
        now = broker._context.clock.now()
        return [to_time(time, now) for time in times]

    async def respond_with_payloads(self, reading: Awaitable[Any]) -> Response:
        """Return the response with a document that may be large, such as a list; few are read at the same time.

        A thread makes it: 16 MiB in JSON take seconds.
        """
        async with self._large:
            return await to_thread.run_sync(respond, await reading)

    async def list_items(self, handle: Any, wanted: Query, cursor: str | None) -> dict[str, Any]:
        """Return the items of the next slice of a range, a page of them at most, and the cursor of what is behind."""
        found, rest, _ = await self.client.read(read_slice, read_cursor(cursor, wanted), handle=handle)
        items = handle._context.items(found, handle._context.broker.clock.now())
        documents = await self._add_blockers(handle, items, [to_document(item) for item in items])
        page: dict[str, Any] = {"items": documents, "next": make_cursor(rest)}
        if wanted.state == "processed" and not (documents or page["next"] or cursor):
            page |= await self.explain_no_history(handle)
        return page

    async def explain_no_history(self, handle: Any) -> dict[str, str]:
        """Return a note on how to have a queue keep its processed items; nothing for one that does."""
        text = await self.client.read(explain_no_history, handle=handle)
        return {} if text is None else {"note": text}

    async def describe_item(self, item: Item[Any]) -> dict[str, Any]:
        """Return all of an item as a document; a blocked one names the items that it waits for."""
        document = to_document(item, whole=True)
        broker = await self.client.open()
        [document] = await self._add_blockers(broker.queue(item.queue), [item], [document])
        return document

    async def _add_blockers(
        self, handle: Any, items: Sequence[Item[Any]], documents: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the documents of items: blocked ones with what they wait for, letters with the sequences they hold."""
        blockers = await self.client.read(find_blockers, items, handle=handle)
        holding = await self.client.read(find_held_letters, items, handle=handle)
        added: list[dict[str, Any]] = []
        for item, document in zip(items, documents, strict=True):
            waits = {"blocked_by": blockers.get(item.sequence, [])} if document["state"] == "blocked" else {}
            holds = {"holds": item.sequence} if id_key(item.id) in holding else {}
            added.append({**document, **waits, **holds})
        return added

    def check_limit(self, limit: int | None) -> int:
        """Return the limit of a change.

        Raises:
            ArgumentInvalid: it is above the limit of the app.
        """
        if limit is not None and limit > self.max_bulk:
            raise ArgumentInvalid("limit", f"{self.max_bulk:,} items at most in one change, not {limit:,}")
        return self.max_bulk if limit is None else limit


def to_document(item: Item[Any], *, whole: bool = False) -> dict[str, Any]:
    """Return an item as a document; the readable part of one that cannot be decoded says what is wrong with it."""
    document = item_document(item, whole=whole)
    problem = getattr(item._document, "problem", None)
    return document if problem is None else {**document, "problem": problem}
