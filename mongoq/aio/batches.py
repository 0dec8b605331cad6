"""Operations on many items of a queue at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.drivers.aio.driver import AsyncRunner
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, Expires, Id
from mongoq.model.arguments import expires as checked_expires
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.item import Item
from mongoq.model.outcomes import Move
from mongoq.model.sequence import check_sequence
from mongoq.model.settings import KEEP
from mongoq.protocol.base.transaction import run_within
from mongoq.protocol.claim import reserve
from mongoq.protocol.claim.judge import OnInvalid
from mongoq.protocol.flow import Flow
from mongoq.protocol.push import push
from mongoq.protocol.push.insert import KEYED, check_key
from mongoq.protocol.settle import move, settle
from mongoq.protocol.state.context import QueueContext, context_of

M = TypeVar("M")
T = TypeVar("T")


class AsyncBatches(AsyncRunner[QueueContext[M]]):
    """The part of ``AsyncQueue`` that handles many items in few commands."""

    async def push_many(
        self,
        payloads: Iterable[Any],
        *,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        ids: Iterable[Id] | None = None,
        once: Duration | None = None,
        sequence: str | None = None,
        sequences: Iterable[str | None] | None = None,
        expires: Expires | Iterable[Expires | None] | None = None,
        session: Any = KEEP,
    ) -> list[ObjectId]:
        """Add items, and return their ids in order once a majority has them (``insert`` of many).

        They are claimed in the given order; with ``ids`` in the order of the ids. One command carries up to 10,000
        items or 16 MiB. Not atomic: a crash between two commands leaves the first items pushed.

        If other queues are bound to this name (``broker.bind``), copies of all items go into each of them in one
        transaction: all of them, or none. The returned ids are those of the publications, the ``origin.id`` of each
        copy.

        Args:
            payloads: any iterable of BSON values, or of values of the queue's model; read once.
            delay: as for ``push``, for all items.
            when: as for ``push``, for all items.
            priority: as for ``push``, for all items.
            headers: as for ``push``, for all items.
            ids: the items' ids, one for each payload, unique in the collection. The same push again, also after the
                item was moved or settled, adds nothing and is no error.
            once: time for which given ``ids`` are remembered, a ``timedelta`` or seconds. Default 7 days.
            sequence: as for ``push``, for all items; they take their places in the order given, in one transaction for
                each 1,000 items.
            sequences: the items' sequences instead, one or ``None`` for each payload.
            expires: as for ``push``, for all items; or a list with one for each payload, ``None`` for an item that
                never expires. A topic takes one for all.
            session: a session of the client with a transaction in it. Then the push happens when the transaction is
                committed, or not at all. By default that of the block of ``broker.transaction()`` that the call is in,
                if any; ``None`` for a push that happens at once.

        Raises:
            PayloadInvalid, PayloadTooLarge: one of the payloads cannot be stored; the message names it, as
                ``payloads[3].at``, and nothing was written.
            ArgumentInvalid: another argument cannot be used; the message names it. It names ``payloads`` when the
                copies for bound queues, or the items of a call with ``session``, are more than 30,000, or 32 MiB in
                all.
            TransactionsUnavailable: queues are bound to this name, or there is a ``session``, and the server is no
                replica set.
            BatchIncomplete: some items are not known to be pushed. After a network error they may have been; with
                ``ids``, push them again without any duplicate. Or pushes to other queues have used some of the ``ids``:
                the rest is pushed, and ``failed`` has a ``DuplicateItem`` for each, with the queue that has the id.
            DuplicateItem: pushes to other queues have used some of the ``ids``, and queues are bound to this name;
                nothing is pushed.

        A cancelled call may still push all or the first of them.
        """
        return await self._run_joined(
            push.push_many,
            payloads,
            delay=delay,
            when=when,
            priority=priority,
            headers=headers,
            ids=ids,
            once=once,
            sequence=sequence,
            sequences=sequences,
            expires=expires,
            session=session,
        )

    def check_push(
        self,
        payloads: Iterable[Any],
        *,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        sequence: str | None = None,
        expires: Expires | None = None,
    ) -> None:
        """Check that ``push`` takes each of these payloads with these options, without any I/O.

        Raises:
            PayloadInvalid, PayloadTooLarge: one of the payloads cannot be stored.
            ArgumentInvalid: another argument cannot be used; the message names it.
        """
        push.check_due(delay, when)
        checked_priority(priority)
        push.check_headers(headers, self._context.broker.encoding)
        if expires is not None:
            checked_expires(expires)
        if key is not None:
            check_key(key)
        if sequence is not None:
            check_sequence(sequence)
            if key is not None:
                raise ArgumentInvalid("sequence", KEYED)
        self._context.codec.wrap_many(list(payloads))

    async def reserve_many(
        self,
        n: int,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_invalid: OnInvalid = "bury",
    ) -> list[Item[M]]:
        """Reserve up to ``n`` items in the order of the queue under one token (``find``, ``update`` of many, ``find``).

        Fewer items may be returned than are eligible, when other consumers claim at the same time; none means that no
        item is ready or the queue is paused. A crash of the holder counts as an attempt of each item. An item that had
        all its runs is buried, unless its last reservation was in a batch. A neighbour may then have killed the holder,
        so the item gets one more run, alone, as the only item of a batch or by ``reserve``.

        Args:
            n: number of items, at most, 1 to 10,000.
            lease: duration, a ``timedelta`` or seconds; default the queue's.
            wait: time to wait for the first item, as for ``reserve``. A cancelled call leaves nothing reserved, if the
                broker is closed before the event loop ends.
            on_invalid: what to do with payloads that do not fit the model: ``"bury"`` them, or ``"raise"``.

        Raises:
            ArgumentInvalid: an argument cannot be used; the message names it.
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the first raw item that
                does not fit, reserved. The other items were given back unused.
        """
        return await self._run(reserve.reserve_many, n, lease=lease, wait=wait, on_invalid=on_invalid)

    async def commit_many(self, items: Iterable[Item[Any]]) -> None:
        """Settle items as done (``bulkWrite`` with one ``delete`` of many for each token; with history ``update``).

        Args:
            items: results of ``reserve_many`` or ``reserve``, each once; any iterable.

        Raises:
            BatchIncomplete: some items could not be settled; its ``failed`` has the ``ReservationLost`` of each. The
                server only returns a count: the lost items are found by a later read, and ``certain`` is false for an
                item that it cannot decide. Items whose leases may be over are settled one by one, with exact answers.
            ItemForeign: an item belongs to another queue or broker; nothing was sent.
            ReservationLost: an item was never reserved; nothing was sent.
            ArgumentInvalid: no iterable, or an item is given twice; nothing was sent.

        A cancelled call may still settle all or some of them; a call that ends by a crash or a network error may, too.
        Items that are not settled are eligible again when their leases end.
        """
        await self._run(settle.commit_many, items)

    async def rollback_many(
        self, items: Iterable[Item[Any]], *, delay: Duration = 0, error: BaseException | str | None = None
    ) -> None:
        """Hand items back after a failure; bury items without retries left (``bulkWrite`` of ``update``).

        Args:
            items: as for ``commit_many``.
            delay: time from now until they may be claimed again, a ``timedelta`` or seconds.
            error: cause of the failure; its type and text are kept on every item, shortened to 4 KiB.

        Raises:
            BatchIncomplete, ItemForeign, ReservationLost, ArgumentInvalid: as for ``commit_many``.
        """
        await self._run(settle.rollback_many, items, delay=delay, error=error)

    async def release_many(self, items: Iterable[Item[Any]], *, delay: Duration | None = None) -> None:
        """Hand items back unused: to their places in the order, attempts not counted (``bulkWrite`` of ``update``).

        Args:
            items: as for ``commit_many``.
            delay: time from now until they may be claimed again, as for ``release``.

        Raises:
            BatchIncomplete, ItemForeign, ReservationLost, ArgumentInvalid: as for ``commit_many``.
        """
        await self._run(settle.release_many, items, delay=delay)

    async def extend_many(self, items: Iterable[Item[M]], *, lease: Duration | None = None) -> list[Item[M]]:
        """Restart the leases with this length, and return the items with new ends (``bulkWrite`` of ``update``).

        Args:
            items: as for ``commit_many``; they can be settled like the returned ones. But only the returned ones
                contain the new end of their leases, and are settled together.
            lease: duration from now on, a ``timedelta`` or seconds; default the queue's.

        Raises:
            BatchIncomplete: some leases could not be extended; the leases of its ``done`` were.
            ItemForeign, ReservationLost, ArgumentInvalid: as for ``commit_many``.
        """
        return await self._run(settle.extend_many, items, lease=lease)

    async def move_many(self, moves: Iterable[tuple[Item[Any], Move]]) -> None:
        """Hand items on to other queues, each in one ``update`` (``bulkWrite``): none is ever in both or in neither.

        Moves that are equal and have no patch share a statement; they need not go to the same queue.

        Args:
            moves: pairs of an item and a ``Move``, each item once; any iterable.

        Raises:
            BatchIncomplete: some items could not be moved; its ``failed`` has the error of each, such as
                ``PatchInvalid`` for a patch that does not fit its payload. These items are unchanged and still
                reserved.
            PayloadInvalid, PayloadTooLarge, PatchInvalid, ArgumentInvalid: a move cannot be made; the message names it,
                as ``moves[3].priority``, and nothing was sent.
            ItemForeign, ReservationLost: as for ``commit_many``.
        """
        await self._run(move.move_many, moves, context_of)

    async def _run_joined(
        self, flow: Callable[..., Flow[T]], *args: Any, session: Any, reserved: Item[Any] | None = None, **options: Any
    ) -> T:
        """Run a flow in the transaction of a session, if any; ``reserved`` is the item that it settles."""
        session = self._driver.sessions.choose(session)
        running = self._observed(flow)(self._context, *args, session=session, **options)
        if session is None:
            return await self._run_flow(running)
        with self._sessions.calling(session):
            return await self._run_flow(run_within(self._context, session, running, reserved))
