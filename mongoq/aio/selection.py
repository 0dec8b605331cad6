"""A selection of the items of a queue: counted, read and exported without any change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar

from mongoq.drivers.aio.driver import AioDriver, AsyncRunner
from mongoq.model.arguments import count
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.item import Document, Item
from mongoq.protocol.history import dead_letters, query
from mongoq.protocol.history.dead_letters import FailureGroup, ReleasedSequence
from mongoq.protocol.history.query import PAGE, BoundedCount, Query, Search
from mongoq.protocol.history.transfer import exported_fields
from mongoq.protocol.state.context import QueueContext

M = TypeVar("M")
COUNT_LIMIT = 1_000_000
"""Items that a count examines, at most, by default."""
GROUPED_LETTERS = 100_000
"""Dead letters that are grouped, at most, by default."""
MAX_GROUPS = 100
"""Groups of dead letters, at most, by default."""


class AsyncItemSelection(AsyncRunner[QueueContext[M]]):
    """Items of a queue that are chosen by state, time and payload, made by ``queue.select``.

    Without any I/O. Filters are evaluated slice by slice, so that no command keeps the server busy with a whole queue;
    ``progress`` is a plain function that is called with the number of items examined so far, after each slice.
    Documents of other programs that cannot be decoded are left out; a warning names them. ``FilterInvalid`` is raised
    if the server refuses the filter, and ``PayloadInvalid`` for a payload that does not fit the model.

    Attributes:
        query: the selection, as it is sent; a list that continues elsewhere keeps it.
    """

    def __init__(self, driver: AioDriver, context: QueueContext[M], wanted: Query) -> None:
        super().__init__(driver, context)
        self.query = wanted

    async def count(
        self, limit: int = COUNT_LIMIT, *, free: bool = False, progress: Callable[[int], object] | None = None
    ) -> BoundedCount:
        """Count the selected items among the first ``limit`` items of the state (``find``, ``aggregate``).

        ``free=True`` counts what ``purge`` deletes and ``replay`` sends: live items that no caller holds, blocked ones
        too.
        """
        counter = query.count_free if free else query.count_range
        return await self._run(counter, self.query, limit=count(limit, "limit"), progress=progress)

    async def read(self, limit: int, *, progress: Callable[[int], object] | None = None) -> list[Item[M]]:
        """Return the first ``limit`` selected items in their order, reserved ones included (``find``)."""
        documents = await self._run(query.search, self.query, limit=count(limit, "limit"), progress=progress)
        return self._items(documents)[:limit]

    async def read_slice(self) -> tuple[list[Item[M]], Query | None]:
        """Return the items of the next slice, a page of them at most, and the query of what is behind it (``find``).

        A slice may be empty although there are more; ``None`` stands for the end.
        """
        documents, behind, _ = await self._run(query.read_slice, self.query)
        return self._items(documents), behind

    async def pages(
        self, *, page: int = PAGE, progress: Callable[[int], object] | None = None
    ) -> AsyncIterator[list[Item[M]]]:
        """Iterate over the selected items in lists of ``page`` items at most (``find``); none is empty."""
        async for documents in self._slices(count(page, "page"), progress):
            if items := self._items(documents):
                yield items

    async def export(
        self, *, progress: Callable[[int], object] | None = None
    ) -> AsyncIterator[tuple[list[dict[str, Any]], list[Any]]]:
        """Iterate over the selected items as ``queue.import_items`` takes them, in lists (``find``).

        With each list come the ids of the documents of other programs that cannot be decoded, and are left out. An
        item has its id, payload, due date, priority, attempts, key, headers, failure, origin and trail, and no
        reservation: a reserved one is due when its lease ends.
        """
        async for documents in self._slices(PAGE, progress):
            unreadable = [each["_id"] for each in documents if isinstance(each, UnreadableDocument)]
            readable = [each for each in documents if not isinstance(each, UnreadableDocument)]
            yield list(map(exported_fields, readable)), unreadable

    async def groups(
        self, *, limit: int = GROUPED_LETTERS, groups: int = MAX_GROUPS
    ) -> tuple[list[FailureGroup], bool]:
        """Group the selected dead letters by reason and type of error (``aggregate``).

        ``limit`` letters are examined, at most. Returns the largest ``groups``, and whether there are letters behind
        the limit.
        """
        return await self._run(dead_letters.group_letters, self.query, limit=limit, groups=groups)

    async def releases(self) -> tuple[list[ReleasedSequence], int]:
        """Return the sequences that go on when the selected dead letters are gone, and how many more may (``find``)."""
        return await self._run(dead_letters.find_releases, self.query)

    async def _slices(self, page: int, progress: Callable[[int], object] | None) -> AsyncIterator[list[Document]]:
        search = Search(self._context, replace(self.query, page=page))
        while search.rest is not None:
            yield await self._run_given(search.read)
            if progress is not None:
                progress(search.examined)

    def _items(self, documents: list[Document]) -> list[Item[M]]:
        return self._context.items(documents, self._context.broker.clock.now())
