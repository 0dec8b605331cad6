"""What a queue has done: its history, and replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bson import ObjectId

from mongoq.drivers.aio import AioDriver
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.model.replay_result import Replayed
from mongoq.protocol.history import replay
from mongoq.protocol.history.pages import Range, history_page, history_range
from mongoq.protocol.history.read import Selection
from mongoq.protocol.push.push import DEFAULT_REMEMBER
from mongoq.protocol.state.context import QueueContext, context_of

if TYPE_CHECKING:
    from mongoq.aio.queue import AsyncQueue

__all__ = ["AsyncPast"]

M = TypeVar("M")


class AsyncPast(Generic[M]):
    """The side of a queue that looks back; part of ``AsyncQueue``."""

    _driver: AioDriver
    _context: QueueContext[M]

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

        No cursor stays open between pages, so a reader may take its time. What was processed before the iteration
        began is met exactly once, and what is processed meanwhile follows at the end. A commit is dated when it is
        sent: one that arrives a moment late may stand behind what was read already.

        With another ``state`` it goes over live items in the order in which they would be handed out, to look through
        a long queue such as a dead one. Items that stay as they are while it does are met exactly once. One that was
        ready or expired is met at most once, whatever becomes of it; others, put off meanwhile by ``extend`` or
        ``rollback``, may be met again. Documents of other programs that cannot be decoded are left out, as by ``peek``.

        Args:
            since: processed at this time or later (aware); of live items, due, or held, until this time or later.
            until: processed before this time (aware); of live items, due, or held, until before this time.
            where: a filter on payloads, such as ``{"customer.name": "Ada", "n": {"$gt": 3}}``, evaluated by the
                server; operators without a path, such as ``{"$gt": 3}``, are about payloads that are no documents.
                Allowed are ``$and $or $nor`` and ``$eq $ne $gt $gte $lt $lte $in $nin $all $exists $type $regex
                $options $size $mod $not $elemMatch``. Values are taken literally.
            state: ``"processed"``, or ``"ready"``, ``"scheduled"``, ``"reserved"``, ``"expired"``, or ``None`` for
                all live items, as they are when the first page is read.
            page: items per command at most.

        Raises:
            FilterInvalid: ``where`` has an operator, a path or a value that is not allowed, or that the server refuses.
            ArgumentInvalid: another argument cannot be used; it is named.
            PayloadInvalid: while iterating, a payload does not fit the model; its ``item`` is the raw item.
        """
        wanted = history_range(self._context, since=since, until=until, where=where, state=state, page=page)
        return self._pages(wanted)

    async def _pages(self, wanted: Range) -> AsyncIterator[Item[M]]:
        rest: Range | None = wanted
        while rest is not None:
            found = await self._driver.run(history_page(self._context, rest))
            for item in found.items:
                yield item
            rest = found.rest

    async def replay(
        self,
        *,
        to: str | AsyncQueue[Any] | None = None,
        hop: str | None = None,
        ids: Iterable[ObjectId] | None = None,
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
        """Push copies of processed items, each once, and return what was done (``find`` by pages, ``insert`` of many).

        A copy is a fresh item with the payload, priority and headers of the original, and an ``origin`` that tells
        its queue, id, attempts and key; the key itself is not live again. Copies are handed out in the order in which
        the originals were processed, within each priority.

        The id of a copy follows from the original's id, when that was processed, the queue that it goes to, ``hop``
        and ``label``. It is remembered after the copy is settled. So the same replay sent twice, or sent again after it
        was interrupted, pushes each copy once. Give another ``label`` to replay the same items once more.

        Items that are processed after it began are not selected, and neither are copies that a replay of this queue
        has made, unless they are chosen by ``ids``.

        Args:
            to: the queue to push to, by its name, or a handle of the same collection, whose model then checks
                payloads. By default this queue.
            hop: a queue of a pipeline that the items came through: the copies go there, each with the payload that its
                original had when it last left that queue, if the pipeline keeps payloads in its trails. Items whose
                trail does not lead through it, or has no payload there, are refused. ``to`` can only be a handle of
                that queue then, and ``transform`` is given those payloads as they were stored.
            ids: these items, in the order in which they were processed; not together with a range or a filter.
            since: processed at this time or later (aware).
            until: processed before this time (aware); by default, before the replay began.
            after: processed behind this position, which an earlier replay has told (``Replayed.position``); instead of
                ``since``.
            where: a filter on payloads, as in ``history``.
            limit: no more than so many items, the oldest first; ``after=done.position`` takes the next ones.
            label: a name that tells this replay from another one of the same items, at most 100 bytes.
            transform: ``transform(payload, item)`` returns the payload of the copy, or ``mongoq.SKIP`` for none. A
                plain function, called for each item just before its chunk is sent. ``None`` is refused, since it
                mostly means a forgotten ``return``. Payloads that do not fit this handle's model are not given to it
                but refused; use a handle without a model to mend old ones.
            delay: not to be handed out before so long from now, a ``timedelta`` or seconds.
            priority: the priority of the copies, instead of the originals'.
            once: how long copies are remembered, a ``timedelta`` or seconds. Default 7 days.
            rate: add no more than so many copies a second.
            progress: called with what was done so far after each chunk that was written, or would be; a plain function.
            dry_run: write nothing, and return what would be done; ``transform`` and ``progress`` are called all the
                same.
            page: items that are read, and written, at a time.

        Returns:
            The counts, what was refused and why, and how far it came. A payload that does not fit is counted, and
            the rest goes on.

        Raises:
            FilterInvalid: ``where`` has an operator, a path or a value that is not allowed, or that the server refuses.
            ArgumentInvalid: another argument cannot be used, or ``transform`` returned ``None``; it is named. Or
                nothing was found, and this is a dead queue that holds letters: the message names the call that sends
                them back.
            QueueUnknown: nothing was found, and no such queue is there, but one whose name is much like it.

        What ``transform`` and ``progress`` raise ends the replay, and so does a driver's error, a crash, or a
        cancellation. The copies pushed by then stay; send the same replay again to complete it. Copies whose answer
        was lost count as ``already`` then.
        """
        return await self._driver.run(
            replay.replay(
                self._context,
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
        )
