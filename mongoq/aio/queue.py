"""One queue: every operation on its items is one atomic command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from bson import ObjectId

from mongoq.aio.reserved import AsyncReserved
from mongoq.drive.aio import AioDriver
from mongoq.model.arguments import Duration, queue_name
from mongoq.model.codec import Codec
from mongoq.model.item import Item
from mongoq.model.settings import Default, QueueSettings, queue_settings
from mongoq.protocol import claim, control, move, push, read, settle
from mongoq.protocol.claim import OnInvalid
from mongoq.protocol.context import QueueContext
from mongoq.protocol.history import Range, history_page, history_range
from mongoq.protocol.read import Counts, Selection

__all__ = ["KEEP", "AsyncQueue"]

M = TypeVar("M")


class _Keep(Default):
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Any = _Keep()
"""Stands for a payload or headers that stay as they are."""


class AsyncQueue(Generic[M]):
    """A handle of one queue, made by ``broker.queue(name)``; cheap, without I/O, safe to share between tasks.

    ``M`` is the type of the payloads: the ``model`` of the handle, else ``Any``.
    """

    def __init__(self, driver: AioDriver, context: QueueContext[M]) -> None:
        self._driver = driver
        self._context = context

    def __repr__(self) -> str:
        """Name the queue and its collection."""
        return f"<{type(self).__name__} {self.name!r} in {self._context.broker.namespace}>"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._context.name

    @property
    def settings(self) -> QueueSettings:
        """Lease, history, retries and dead queue that this handle goes by."""
        return self._context.settings

    @property
    def dead(self) -> AsyncQueue[Any]:
        """The dead queue, untyped, so that what no model fits can be looked at.

        Raises:
            ArgumentInvalid: this queue has none, being a dead queue itself.
        """
        settings = queue_settings(move.dead_queue(self._context), dead=None)
        codec: Codec[Any] = Codec(self._context.broker.encoding)
        return AsyncQueue(self._driver, QueueContext(self._context.broker, settings, codec))

    async def push(
        self,
        payload: Any,
        *,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        id: ObjectId | None = None,
        once: Duration = push.REMEMBER,
    ) -> ObjectId:
        """Add an item, and return its id once a majority has it (``insert``).

        Args:
            payload: any BSON value, or a value of the queue's model.
            delay: not to be handed out before so long from now, a ``timedelta`` or seconds.
            when: not to be handed out before this time (aware).
            priority: -100 (first) to 100 (last).
            headers: metadata that stays with the item over moves, at most 16 KiB as BSON.
            id: the item's id. The same id again, also after the item was settled, adds nothing.
            once: how long a given ``id`` is remembered, a ``timedelta`` or seconds. Default 7 days.

        Raises:
            PayloadInvalid: BSON cannot hold the payload and give it back equal, or the model refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON.
            ArgumentInvalid: another argument cannot be used; it is named.

        After a network error the item may have been pushed; give an ``id`` to push it again without doubling it.
        A cancelled push may still happen.
        """
        return await self._driver.run(
            push.push(
                self._context,
                payload,
                delay=delay,
                when=when,
                priority=priority,
                headers=headers,
                id=id,
                once=once,
            )
        )

    async def pop(self, *, on_invalid: OnInvalid = "bury") -> Item[M] | None:
        """Take the first eligible item for good, or return ``None``: at most once, no settling (``findAndModify``).

        A crash after it, or a lost reply, loses the item, unless the queue keeps history. A cancelled call puts the
        item back, for which the event loop must go on: close the broker before it ends.
        An item whose id is remembered leaves a stub by a second command; a crash between them forgets the id.

        Args:
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and take the next,
                or ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item.
        """
        return await self._driver.run(claim.pop(self._context, on_invalid=on_invalid))

    async def reserve(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_invalid: OnInvalid = "bury",
    ) -> Item[M] | None:
        """Reserve the first eligible item for the length of a lease, or return ``None`` (``findAndModify``).

        Settle it with ``commit``, ``rollback``, ``move``, ``release`` or ``bury`` before the lease ends, or
        ``extend`` it. When the lease ends first, because the worker died or was slow, the item is eligible again
        and the attempt counts; after ``max_retries`` retries it is buried instead of handed out.

        Args:
            lease: how long, a ``timedelta`` or seconds; default the queue's.
            wait: how long to wait for an item, a ``timedelta`` or seconds, ``math.inf`` for ever; ``None`` does
                not wait. A cancelled wait leaves nothing reserved, if the broker is closed before the event loop ends.
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and take the next,
                or ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item,
                reserved, which can be settled.
        """
        return await self._driver.run(claim.reserve(self._context, lease=lease, wait=wait, on_invalid=on_invalid))

    def reserved(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_invalid: OnInvalid = "bury",
    ) -> AsyncReserved[M]:
        """Reserve an item for the length of a block: ``async with queue.reserved(wait=5) as item``.

        ``item`` is ``None`` when none came in time. At the end of the block the item is committed; an exception
        rolls it back with the error; a cancelled or interrupted block releases it, its attempt not counted.
        A block that settles the item itself (by ``move``, say) is left alone. Arguments as for ``reserve``.

        Raises:
            ReservationLost: at the end of the block, when the lease was over and somebody else took the item.
        """
        return AsyncReserved(self._driver, self._context, lease, wait, on_invalid)

    async def commit(self, item: Item[Any], *, payload: Any = KEEP) -> None:
        """Settle an item as done (``delete``; with history, or a remembered id, ``update``).

        Args:
            item: what ``reserve`` returned.
            payload: what the history shall keep instead of the payload; without history it is checked, and gone.

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
                With ``certain=False`` the reply was lost and the commit may have happened.
            ItemForeign: the item belongs to another queue or broker.
        """
        given = payload is not KEEP
        await self._driver.run(settle.commit(self._context, item, payload=payload, replace_payload=given))

    async def rollback(self, item: Item[Any], *, delay: Duration = 0, error: BaseException | str | None = None) -> None:
        """Hand an item back after a failure; beyond its retries, bury it at once (one ``update``).

        Args:
            item: what ``reserve`` returned.
            delay: not to be handed out again before so long from now, a ``timedelta`` or seconds.
            error: what went wrong; its type and text are kept on the item, shortened to 4 KiB.

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        await self._driver.run(settle.rollback(self._context, item, delay=delay, error=error))

    async def release(self, item: Item[Any]) -> None:
        """Hand an item back unused: to its place in the order, the attempt not counted (``update``).

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        await self._driver.run(settle.release(self._context, item))

    async def extend(self, item: Item[M], *, lease: Duration | None = None) -> Item[M]:
        """Let the lease end so long from now, and return the item with its new end (``update``).

        A lease that ran out can be extended as long as nobody has taken the item.

        Args:
            item: what ``reserve`` returned; it stays as good as the returned one for settling.
            lease: how long from now, a ``timedelta`` or seconds; default the queue's.

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        until = await self._driver.run(settle.extend(self._context, item, lease=lease))
        return item.held_until(until)

    async def move(
        self,
        item: Item[Any],
        to: str | AsyncQueue[Any],
        *,
        payload: Any = KEEP,
        patch: Mapping[str, Mapping[str, Any]] | None = None,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int | None = None,
        headers: Mapping[str, Any] | None = KEEP,
    ) -> None:
        """Hand an item on to another queue in one ``update``: it is never in both and never in neither.

        It keeps its id, headers and priority, and gets a fresh budget of attempts; its last error and its key
        are left behind.

        Args:
            item: what ``reserve`` returned.
            to: the queue, by name, or a handle, whose model then checks ``payload``.
            payload: the new payload.
            patch: update operators applied under the payload, such as ``{"$set": {"plane.seats": 180}}``; one of
                ``$set $unset $inc $mul $min $max $push $addToSet $pullAll $pop $rename``. Values are taken
                literally.
            delay: not to be handed out there before so long from now, a ``timedelta`` or seconds.
            when: not to be handed out there before this time (aware).
            priority: the new priority.
            headers: the new headers; ``None`` removes them.

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
            PatchInvalid: an operator or a path that is not allowed, or a patch that does not fit the payload; the
                item is untouched and still reserved.
            PayloadInvalid: the payload cannot be stored, or the model of ``to`` refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON.
        """
        await self._driver.run(
            move.move(
                self._context,
                item,
                self._destination(to),
                payload=payload,
                replace_payload=payload is not KEEP,
                patch=patch,
                delay=delay,
                when=when,
                priority=priority,
                headers=headers,
                replace_headers=headers is not KEEP,
            )
        )

    def _destination(self, to: str | AsyncQueue[Any]) -> QueueContext[Any]:
        broker = self._context.broker
        if isinstance(to, AsyncQueue):
            move.check_destination(self._context, to._context)
            return to._context
        settings = queue_settings(queue_name(to, "to"), dead=None)
        return QueueContext(broker, settings, Codec(broker.encoding))

    async def bury(
        self, item: Item[Any], *, reason: str | None = None, error: BaseException | str | None = None
    ) -> None:
        """Move an item to the dead queue, with its origin: queue, reason, attempts and key (one ``update``).

        Args:
            item: what ``reserve`` returned.
            reason: a short text to count by, at most 512 bytes; default the text of ``error``.
            error: what went wrong; its type and text are kept on the item, shortened to 4 KiB.

        Raises:
            ReservationLost: somebody else holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
            ArgumentInvalid: this queue has no dead queue, being one itself.
        """
        await self._driver.run(move.bury(self._context, item, reason=reason, error=error))

    async def get(self, id: ObjectId) -> Item[M] | None:
        """Return one item of this queue by its id, live or in history, or ``None`` (``find`` by ``_id``).

        Raises:
            PayloadInvalid: the payload does not fit the model; its ``item`` is the raw item.
        """
        return await self._driver.run(read.get(self._context, id))

    async def peek(self, n: int = 1, *, state: Selection = "ready") -> list[Item[M]]:
        """Return up to ``n`` items of a state in the order in which they would be handed out (``find``).

        Args:
            n: how many at most.
            state: ``"ready"``, ``"scheduled"``, ``"reserved"``, ``"expired"``, ``"processed"`` (history, oldest
                first), or ``None`` for all that are not processed.

        Raises:
            PayloadInvalid: a payload does not fit the model; its ``item`` is the raw item.
        """
        return await self._driver.run(read.peek(self._context, n, state))

    async def size(self, state: Selection = None) -> int:
        """Count the items of a state, or all that are not processed, in time proportional to them (``aggregate``)."""
        return await self._driver.run(read.size(self._context, state))

    async def counts(self, *, limit: int | None = None) -> Counts:
        """Count the live items by state in one pass (``aggregate``); one that changes meanwhile may be missed.

        Takes time in proportion to the live items; history costs nothing.

        Args:
            limit: look at no more than so many items.
        """
        return await self._driver.run(read.counts(self._context, limit))

    async def next_when(self) -> datetime | None:
        """Return when the next item is, or was, due: ready since, scheduled for, or its lease's end; else ``None``.

        One ``aggregate`` that looks at one index key for each priority in use.
        """
        return await self._driver.run(read.next_when(self._context))

    async def remove(self, id: ObjectId) -> bool:
        """Delete an item, live or in history, unless somebody holds it; say whether it was deleted (``delete``).

        Its id is forgotten: pushed again, it is a new item.
        """
        return await self._driver.run(read.remove(self._context, id))

    async def purge(self, *, state: Selection = None) -> int:
        """Delete all items of a state, and return how many (``delete``).

        ``None`` deletes what is live and held by nobody; ``"reserved"`` takes items away from their holders, who
        get ``ReservationLost``; ``"processed"`` empties the history. One command, not atomic: a crash of the
        server leaves the rest.
        """
        return await self._driver.run(read.purge(self._context, state))

    async def pause(self) -> None:
        """Hand out nothing, in any process, within a second; pushes go on (``update`` of a control document)."""
        await self._driver.run(control.set_paused(self._context, True))

    async def resume(self) -> None:
        """End a pause, in every process within a second (``update`` of a control document)."""
        await self._driver.run(control.set_paused(self._context, False))

    async def is_paused(self) -> bool:
        """Ask the server whether the queue is paused (``find`` of a control document)."""
        return await self._driver.run(control.is_paused(self._context))

    def history(
        self, *, since: datetime | None = None, until: datetime | None = None, page: int = 500
    ) -> AsyncIterator[Item[M]]:
        """Iterate over processed items, oldest first, in pages by key (``find``, majority read concern).

        No cursor stays open between pages, so a reader may take its time.

        Args:
            since: processed at this time or later (aware).
            until: processed before this time (aware).
            page: items per command.

        Raises:
            ArgumentInvalid: an argument cannot be used; it is named.
            PayloadInvalid: while iterating, a payload does not fit the model; its ``item`` is the raw item.
        """
        return self._pages(history_range(since, until, page))

    async def _pages(self, wanted: Range) -> AsyncIterator[Item[M]]:
        rest: Range | None = wanted
        while rest is not None:
            found = await self._driver.run(history_page(self._context, rest))
            for item in found.items:
                yield item
            rest = found.rest
