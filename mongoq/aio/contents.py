"""The contents of a queue: its items, selections of them, replays of its history, its settings, and deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from mongoq.core import admin
from mongoq.core.base import queue_settings
from mongoq.core.coordination.limits import read_limits
from mongoq.core.history import dead_letters, query, read, replay
from mongoq.core.history.dead_letters import FailureGroup, ReleasedSequence
from mongoq.core.history.mistaken import log_no_history
from mongoq.core.history.query import PAGE, BoundedCount, Query, make_query
from mongoq.core.history.read import Counts, Selection, blocked_by
from mongoq.core.history.transfer import ImportResult, check_history, check_import, exported_fields, import_items
from mongoq.core.sequence.hold import repair_sequences
from mongoq.core.state.context import QueueContext, context_of
from mongoq.core.wait.wait import find_next_due
from mongoq.data.arguments import Duration, Id, count
from mongoq.data.copies import Replayed
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.item import Document, Item
from mongoq.data.limits import QueueLimits
from mongoq.data.push_options import DEFAULT_REMEMBER
from mongoq.data.settings import (
    DEFAULT,
    Default,
    OnDead,
    OnExpired,
    QueueSettings,
)
from mongoq.drivers.aio.driver import AioDriver, AsyncRunner

if TYPE_CHECKING:
    from mongoq.aio.queue import AsyncQueue

M = TypeVar("M")
COUNT_LIMIT = 1_000_000
"""Items that a count examines, at most, by default."""
GROUPED_LETTERS = 100_000
"""Dead letters that are grouped, at most, by default."""
MAX_GROUPS = 100
"""Groups of dead letters, at most, by default."""


class AsyncItemSelection(AsyncRunner[QueueContext[M]]):
    """Items of a queue that are chosen by state, time and payload, made by ``queue.select``.

    Making one needs no I/O. Filters are evaluated slice by slice, so that no command keeps the server busy with a whole
    queue; ``progress`` is a plain function that is called after each page, with how many items it has passed at most.
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
        most = {"limit": count(limit, "limit"), "groups": count(groups, "groups")}
        return await self._run(dead_letters.group_letters, self.query, **most)

    async def releases(self) -> tuple[list[ReleasedSequence], int]:
        """Return the sequences that go on when the selected dead letters are gone, and how many more may (``find``)."""
        return await self._run(dead_letters.find_releases, self.query)

    async def _slices(self, page: int, progress: Callable[[int], object] | None) -> AsyncIterator[list[Document]]:
        examined = 0
        rest: Query | None = replace(self.query, page=page)
        while rest is not None:
            documents, rest, more = await self._run(query.read_slice, rest)
            yield documents
            examined += more
            if progress is not None:
                progress(examined)

    def _items(self, documents: list[Document]) -> list[Item[M]]:
        return self._context.items(documents, self._context.broker.clock.now())


class AsyncContents(AsyncRunner[QueueContext[M]]):
    """The part of ``AsyncQueue`` that reads, replays, configures and purges the queue as a whole."""

    async def get(self, id: Id) -> Item[M] | None:
        """Return one item of this queue by its id, live or in history, or ``None`` (``find`` by ``_id``).

        A reserved item has its holder's token, and can be settled with it in place of the holder, which then gets
        ``ReservationLost``. This can free an item that hangs; it is no way to share work.

        Raises:
            PayloadInvalid: the payload does not fit the model. Or another program wrote data that cannot be decoded,
                such as text that is not UTF-8: then ``raw`` is the document in BSON.
        """
        return await self._run(read.get, id)

    async def peek(self, n: int = 1, *, state: Selection = "ready") -> list[Item[M]]:
        """Return up to ``n`` items of a state in the order of claims (``find``).

        Reserved items have their holders' tokens, as with ``get``.

        Args:
            n: number of items, at most.
            state: ``"ready"``, ``"scheduled"``, ``"reserved"``, ``"expired"``, ``"processed"`` (history, oldest first),
                ``"blocked"`` (by the item before it in its sequence; in the order of sequences and places), or
                ``None`` for all items that are not processed or blocked.
        """
        return await self._run(read.peek, n, state)

    async def size(self, state: Selection = None) -> int:
        """Count the items of a state, or all live ones but blocked ones, in time proportional to them (``aggregate``).

        ``counts().total`` has the blocked items of sequences too.
        """
        return await self._run(read.size, state)

    async def counts(self, *, limit: int | None = None) -> Counts:
        """Count the live items by state in one pass (``aggregate``); an item that changes meanwhile may be missed.

        Takes time in proportion to the live items, of which it reads ``limit`` at most; history costs nothing.
        """
        return await self._run(read.counts, limit)

    async def limits(self) -> QueueLimits:
        """Return the limits of the queue and what is used of them, which says why due items wait (two ``find``).

        ``limits().reason`` is the text: which part of ``max_running`` is in use, and when the next item may start under
        the ``rate``; ``None`` if the limits let an item start now. See [limits](limits.md).

        Raises:
            CollectionUnsuitable: another program has stored settings that cannot be used.
        """
        return await self._run(read_limits)

    async def blocked_by(self, id: Id) -> list[Item[M]]:
        """Return the items that an item waits for, the first ones of its sequence (three or four ``find``).

        An empty list if the item is not blocked, or the queue has no item of this id; else as many as
        ``max_in_sequence`` of the queue allows, in the order of their places. A dead letter that holds the sequence
        is an item of the dead queue: its ``queue`` says so, and its ``state`` there is mostly ``"ready"``.
        """
        return await self._run(blocked_by, id)

    async def repair_sequences(self) -> int:
        """Let sequences go on in order after another program has deleted items or control documents (transactions).

        Items that wait for one that is gone may be claimed; where more are first than the queue allows, the last ones
        wait again, but for reserved ones. Returns the number of both. mongoq itself leaves no such sequence. A crash in
        between leaves the rest: call it again.
        """
        return await self._run(repair_sequences)

    async def next_when(self) -> datetime | None:
        """Return the time at which the next item is or was due, by its schedule or the end of its lease; else ``None``.

        One ``aggregate`` that reads one index key for each priority in use.
        """
        return await self._run(find_next_due)

    async def remove(self, id: Id) -> bool:
        """Delete an item, live or in history, unless a caller holds it; return whether it was deleted (``delete``).

        Its id is forgotten: pushed again, it is a new item. One for which others of its sequence wait goes in a
        transaction, in which the next one follows.
        """
        return await self._run(read.remove, id)

    def select(
        self,
        *,
        state: Selection = None,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Mapping[str, Any] | None = None,
        as_of: datetime | None = None,
    ) -> AsyncItemSelection[M]:
        """Return a selection of items, to count, read or export them, without any I/O.

        The options are those of ``history``, with the state ``None`` for all live items that are not blocked. ``as_of``
        leaves out items that came after this time, such as that of a count before.
        """
        wanted = make_query(self._context, since=since, until=until, where=where, state=state)
        chosen = wanted.without_later(as_of, self._context.broker.clock)
        return AsyncItemSelection(self._driver, self._context, chosen)

    def check_import(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Check that these are items as ``select(…).export`` returns them, without any I/O.

        Raises:
            ArgumentInvalid: one of them is not; the message names the field.
        """
        for item in items:
            check_import(self._context, item)

    async def import_items(self, items: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> ImportResult:
        """Add items that ``select(…).export`` has returned, each once, and return the result (``insert``, ``find``).

        Each keeps its id, and what else the export carries. Items with a place in a sequence take places at its end, in
        the order given (transactions). Live items are remembered for seven days after they are settled: the same import
        again adds nothing. Processed ones go to the history, and are kept as long as items that are processed now. A
        crash in between leaves some of them; import all again.

        1,000 items at a time are a good number. ``dry_run=True`` checks them, and writes nothing; it does not look
        which of them are there already.

        Raises:
            ArgumentInvalid: one of them is no exported item, the message names the field, or is a processed one and the
                queue keeps no history; nothing was written.
        """
        envelopes = [check_import(self._context, item) for item in items]
        if dry_run:
            await self._run(check_history, envelopes)
            return ImportResult(len(envelopes))
        return await self._run(import_items, envelopes) if envelopes else ImportResult()

    def history(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Mapping[str, Any] | None = None,
        state: Selection = "processed",
        page: int = 500,
    ) -> AsyncIterator[Item[M]]:
        """Iterate over processed items, oldest first, in pages by key (``find``, majority read concern).

        No cursor stays open between pages, so a slow reader is no problem. Items processed before the iteration began
        are returned exactly once, and items processed meanwhile follow at the end. A commit has the time when it was
        sent: one that arrives a moment late may lie before the page that was read last, and is then left out.

        With another ``state`` the iteration goes over live items in the order of claims, for example to search a long
        dead queue. Items that do not change meanwhile are returned exactly once. An item that was ready or expired is
        returned at most once, even if it changes; other items, postponed meanwhile by ``extend`` or ``rollback``, may
        be returned again.

        Args:
            since: processed at this time or later (aware); for live items, due, or reserved, until this time or later.
            until: processed before this time (aware); for live items, due, or reserved, until before this time.
            where: a filter on payloads.
            state: ``"processed"``, or ``"ready"``, ``"scheduled"``, ``"reserved"``, ``"expired"``, or ``None`` for all
                live items that are not blocked, as they are when the first page is read; or ``"blocked"``, sequence by
                sequence, without ``since`` and ``until``.
            page: items per command, at most.
        """
        wanted = make_query(self._context, since=since, until=until, where=where, state=state, page=page)
        return self._pages(wanted)

    async def _pages(self, wanted: Query) -> AsyncIterator[Item[M]]:
        rest: Query | None = wanted
        while rest is not None:
            # Each page is a command of its own: no cursor stays open while the caller works on the items.
            documents, behind = await self._run(query.documents_page, rest)
            for item in self._context.items(documents, self._context.broker.clock.now()):
                yield item
            if rest is wanted and not documents and wanted.state == "processed":
                await self._run(log_no_history)
            rest = behind

    async def replay(
        self,
        *,
        to: str | AsyncQueue[Any] | None = None,
        hop: str | None = None,
        ids: Iterable[Id] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: tuple[datetime, Any] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        label: str = "",
        transform: Callable[[Any, Item[Any]], Any] | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        once: Duration = DEFAULT_REMEMBER,
        rate: float | None = None,
        progress: Callable[[Replayed], object] | None = None,
        dry_run: bool = False,
        page: int = 500,
    ) -> Replayed:
        """Push copies of processed items, each once, and return the result (``find`` by pages, ``insert`` of many).

        A copy is a new item with the payload, priority and headers of the original, and an ``origin`` with its queue,
        id, attempts and key; the key itself is not used again. Copies are claimed in the order in which the originals
        were processed, within each priority.

        The id of a copy is computed from the original's id, the time it was processed, the target queue, ``hop`` and
        ``label``. It is remembered after the copy is settled. So a replay that is sent twice, or sent again after an
        interruption, pushes each copy once. Give another ``label`` to replay the same items once more.

        Items that are processed after the replay began are not selected. Neither are copies that a replay of this queue
        has made, unless they are selected by ``ids``.

        Args:
            to: the target queue, by its name, or a handle of the same collection, whose model then checks payloads. By
                default this queue.
            hop: a queue of a pipeline that the items came through: the copies go there, each with the payload that its
                original had when it last left that queue, if the pipeline keeps payloads in its trails. Items are
                refused if their trail does not lead through it, or has no payload there. ``to`` can then only be a
                handle of that queue, and ``transform`` receives those payloads as they were stored.
            ids: only these items, in the order in which they were processed; not together with a range or a filter.
            since: processed at this time or later (aware).
            until: processed before this time (aware); by default, before the replay began.
            after: processed after this position, the ``Replayed.position`` of an earlier replay; instead of ``since``.
            where: a filter on payloads.
            limit: number of items, at most, the oldest first; ``after=done.position`` continues with the next ones.
            label: a name that distinguishes this replay from another one of the same items, at most 100 bytes.
            transform: ``transform(payload, item)`` returns the payload of the copy, or ``mongoq.SKIP`` for none. A
                plain function, called for each item just before its chunk is sent. ``None`` is refused, because it
                mostly means a forgotten ``return``. Payloads that do not fit this handle's model are refused without a
                call; use a handle without a model to repair old ones.
            delay: time from now until the copies may be claimed.
            priority: the priority of the copies, instead of the originals'.
            once: time for which copies are remembered. Default 7 days.
            rate: copies added per second, at most.
            progress: a plain function, called with the result so far after each chunk that was written, or in a dry run
                would be.
            dry_run: write nothing, and return the result that a replay would have; ``transform`` and ``progress`` are
                called as usual.
            page: items read, and written, at a time.

        Returns:
            The counts, the refused items with their reasons, and the position reached. A payload that does not fit is
                counted, and the replay goes on.

        Raises:
            ArgumentInvalid: ``transform`` returned ``None``. Or nothing was found, and this is a dead queue that holds
                letters: the message names the call that sends them back.
            QueueUnknown: nothing was found, and no queue has this name, but one has a similar name.

        An exception of ``transform`` or ``progress`` ends the replay, and so does a driver's error, a crash, or a
        cancellation. Copies pushed by then stay; send the same replay again to complete it. It counts copies with a
        lost reply as ``already``.
        """
        return await self._run(
            replay.replay,
            to=context_of(to),
            hop=hop,
            ids=ids,
            since=since,
            until=until,
            after=after,
            where=where,
            limit=limit,
            label=label,
            transform=transform,
            delay=delay,
            priority=priority,
            once=once,
            rate=rate,
            progress=progress,
            dry_run=dry_run,
            page=page,
        )

    async def purge(
        self,
        *,
        state: Selection = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        as_of: datetime | None = None,
    ) -> int:
        """Delete the items of a state, all or a selection, and return how many (``delete``).

        ``None`` deletes live items that no caller holds; ``"reserved"`` takes items away from their holders, which get
        ``ReservationLost``; ``"processed"`` empties the history. Remembered ids of deleted items are forgotten: pushed
        again, the items are new. The id of an item that was settled and is not in history stays remembered; ``remove``
        forgets that one.

        Without a limit it is one command, not atomic: a crash of the server leaves the rest. With a limit it is a
        ``find`` of ids and a ``delete`` of them for each 1,000 items: a crash in between leaves the rest as well, and
        so does a lost reply, whose error is raised. Call it again for the rest. Items for which others of their
        sequences wait go in transactions of up to 1,000, in which the next ones follow.

        ``state`` is as for ``peek``. Up to ``limit`` items go, the first ones in the order of claims; of
        ``"processed"`` items the oldest. ``as_of`` leaves out items that came after this time, such as that of a count
        before.
        """
        return await self._run(admin.purge, state, where=where, limit=limit, until=as_of)

    async def configure(
        self,
        *,
        lease: Duration | Default = DEFAULT,
        history: Duration | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        dead: str | Default | None = DEFAULT,
        max_running: int | Default | None = DEFAULT,
        rate: str | Default | None = DEFAULT,
        burst: int | Default | None = DEFAULT,
        max_in_sequence: int | Default = DEFAULT,
        on_expired: OnExpired | Default = DEFAULT,
        on_dead: OnDead | Default = DEFAULT,
        existing: bool = False,
        dry_run: bool = False,
    ) -> QueueSettings:
        """Change the queue's settings for all processes within a second, and return them (``update``).

        The options are those of ``QueueSettings``; ones that are left out stay as they are. A new ``lease`` holds for
        reservations from the next one on, a new ``history`` for items processed from now on, ``max_in_sequence`` from
        the next push or settlement of each sequence on, ``on_dead`` for items that are buried from now on.

        ``existing=True`` applies ``history`` to items in the history too: one ``update`` of all of them, in time
        proportional to their number. A crash after the first command leaves it undone; call it again. ``dry_run=True``
        returns the settings that the change would lead to, and writes nothing (``find``).
        """
        options: dict[str, Any] = {"lease": lease, "history": history, "max_retries": max_retries, "dead": dead}
        options |= {"max_running": max_running, "rate": rate, "burst": burst, "max_in_sequence": max_in_sequence}
        options |= {"on_expired": on_expired, "on_dead": on_dead}
        change = queue_settings.try_configure if dry_run else queue_settings.configure
        return await self._run(change, options, existing=existing)

    async def pause(self) -> None:
        """Stop claims of this queue in all processes within a second; pushes go on (``update``, control document)."""
        await self._run(queue_settings.set_paused, True)

    async def resume(self) -> None:
        """End a pause, in every process within a second (``update`` of a control document)."""
        await self._run(queue_settings.set_paused, False)

    async def is_paused(self) -> bool:
        """Ask the server whether the queue is paused (``find`` of a control document)."""
        return await self._run(queue_settings.is_paused)
