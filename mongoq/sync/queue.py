# Generated from mongoq/aio/queue.py by scripts/unasync.py. Do not edit.
"""One queue: every operation on its items is one atomic command, and a batch of them is a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

from bson import ObjectId

from mongoq.core.claim.judge import OnInvalid
from mongoq.core.history.dead_letters import selection
from mongoq.core.history.read import Selection
from mongoq.core.push import draft
from mongoq.core.state.context import context_of
from mongoq.core_threads import admin
from mongoq.core_threads.base.transaction import run_within
from mongoq.core_threads.claim import pop, reserve
from mongoq.core_threads.history.dead_letters import revive
from mongoq.core_threads.push import push
from mongoq.core_threads.settle import move, settle
from mongoq.data.arguments import Duration, Expires, Id, read_list
from mongoq.data.clock import VirtualClock, roughly_now
from mongoq.data.copies import Replayed
from mongoq.data.item import Item
from mongoq.data.outcomes import Move
from mongoq.data.process import Local
from mongoq.data.push_options import KEYED, OnDuplicate, check_expires, check_key
from mongoq.data.sequence import check_sequence
from mongoq.data.settings import KEEP, QueueSettings
from mongoq.drivers.sessions import BLOCKS
from mongoq.errors import ArgumentInvalid
from mongoq.sync.blocks import Reserved
from mongoq.sync.contents import Contents, ItemSelection

M = TypeVar("M")
T = TypeVar("T")


class Queue(Contents[M], Local):
    """A handle of one queue, made by ``broker.queue(name)``; cheap, without I/O, safe to share between tasks.

    ``M`` is the type of the payloads: the ``model`` of the handle, else ``Any``. A duration is a ``timedelta``, a
    number of seconds, or a text such as ``"5m"``; a time is aware. Each method raises ``ArgumentInvalid``, which names
    the argument, for a value that cannot be used; nothing was sent then.

    **Transactions.** The option ``session`` is a session of the client with a transaction in it. Then the call happens
    when the transaction is committed, or not at all. By default it is that of the block of ``broker.transaction()``
    that the call is in, if any; ``None`` is for a call that happens at once.

    **Settling.** ``commit``, ``rollback``, ``release``, ``extend``, ``move`` and ``bury`` take the result of
    ``reserve``. They raise ``ReservationLost`` if another caller holds the item, or it was settled already; nothing was
    changed then. With ``certain=False`` the reply was lost, and the call may have happened. They raise ``ItemForeign``
    for an item of another queue or broker; nothing was sent.

    **Batches.** ``commit_many``, ``rollback_many``, ``release_many``, ``extend_many`` and ``move_many`` take any
    iterable of results of ``reserve_many`` or ``reserve``, each once, and send a ``bulkWrite``. They raise
    ``BatchIncomplete`` if some items could not be settled: its ``failed`` has the error of each, such as
    ``ReservationLost``. The server only returns a count: the lost items are found by a later read, and ``certain`` is
    false for an item that it cannot decide. Items whose leases may be over are settled one by one, with exact answers.
    Nothing is sent if one item is of another queue (``ItemForeign``), or was never reserved (``ReservationLost``). A
    call that is cancelled, or ends by a crash or a network error, may still settle all or some of the items. The others
    are eligible again when their leases end.

    **Reading.** The option ``where`` is a filter on payloads, such as ``{"customer.name": "Ada", "n": {"$gt": 3}}``,
    evaluated by the server; operators without a path, such as ``{"$gt": 3}``, apply to payloads that are no documents.
    Allowed are ``$and $or $nor`` and ``$eq $ne $gt $gte $lt $lte $in $nin $all $exists $type $regex $options $size $mod
    $not $elemMatch``. Values are taken literally. ``FilterInvalid`` is raised for others, and for a filter that the
    server refuses. ``PayloadInvalid`` is raised for a payload that does not fit the model; its ``item`` is the raw
    item. Documents of other programs that cannot be decoded are left out; a warning names them, ``get`` raises with
    their bytes, ``remove`` deletes them.
    """

    _elsewhere = (
        "it belongs to its broker and its process; another process, or a function that Spark runs, makes a broker of "
        "its own from the URI and takes the queue from that by its name; items can be pickled"
    )

    def __repr__(self) -> str:
        """Return the names of the queue and its collection."""
        return f"<{type(self).__name__} {self.name!r} in {self._context.broker.namespace}>"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._context.name

    @property
    def settings(self) -> QueueSettings:
        """Lease, history, retries and dead queue, as this process knows them: stored, given, or the defaults.

        Equal for all handles of the queue in this broker. Without any I/O: stored settings are known after the first
        claim, ``configure`` or ``is_paused`` of this queue in this process. Operations that use settings read them
        again once a second.
        """
        return self._context.settings

    @property
    def dead(self) -> DeadQueue:
        """The dead queue, untyped, so that payloads that fit no model can be read.

        Raises:
            ArgumentInvalid: this queue has none: it is one itself, or was opened with ``dead=None``.
        """
        return DeadQueue(self._driver, settle.graveyard(self._context.broker, settle.dead_queue(self._context)))

    def _with(self, **changes: Any) -> Self:
        """Return a handle of the same queue whose context has other settings or marks."""
        return type(self)(self._driver, replace(self._context, **changes))

    def push(
        self,
        payload: Any,
        *,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        headers: Mapping[str, Any] | None = None,
        id: Id | None = None,
        once: Duration | None = None,
        sequence: str | None = None,
        expires: Expires | None = None,
        session: Any = KEEP,
    ) -> ObjectId:
        """Add an item, and return its id once a majority has it (``insert``; with a key ``findAndModify``, upsert).

        If other queues are bound to this name (``broker.bind``), a copy goes into each of them instead, in one
        transaction, and everything below applies to each copy. The returned id is then that of the publication, the
        ``origin.id`` of each copy.

        After a network error the item may have been pushed; give an ``id`` to push it again without a duplicate. A
        cancelled push may still happen.

        Args:
            payload: any BSON value, or a value of the queue's model.
            delay: time from now until the item may be claimed.
            when: time before which it is not claimed.
            priority: -100 (first) to 100 (last).
            key: a non-empty string of at most 1 KiB. The queue holds at most one live item (ready, scheduled or
                reserved) for each key; the key is free again when the item is processed, moved or buried.
            on_duplicate: what to do when the key is taken: ``"keep"`` the live item and return its id; ``"replace"``
                its payload, time, priority and headers, and return its id; or ``"raise"``. A replaced item starts again
                without attempts, and its holder gets ``ReservationLost``.
            headers: metadata that stays with the item over moves, at most 16 KiB as BSON.
            id: the item's id, unique in the collection. The same push again, also after the item was moved or settled,
                adds nothing.
            once: time for which a given ``id`` is remembered. Default 7 days.
            sequence: a non-empty string of at most 1 KiB, such as ``"customer-17"``. Items of the queue with the same
                sequence are handed out in the order of their pushes, one at a time: each is *blocked* until the one
                before it is settled. Where ``max_in_sequence`` of the queue allows more, each is blocked while so many
                before it are not settled, and the ones that are not begin by priority and date. It takes a transaction.
            expires: duration from now, or time, by which the item must be started; the time may be over already. An
                item that no caller has claimed by then is never handed out: the claim that meets it settles it, as the
                setting ``on_expired`` says. Once claimed, an item does not expire.
            session: see the class.

        Raises:
            PayloadInvalid: BSON cannot hold the payload and give it back equal, or the model refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON; or, with several queues bound to this name, more than
                32 MiB in all copies.
            DuplicateItem: the key is taken, and ``on_duplicate="raise"``; it names the live item. Or a push to another
                queue has used ``id``; it names the queue that has it. With ``session`` it aborts the transaction if it
                leaves its block.
            TransactionsUnavailable: several queues are bound to this name, or there is a ``sequence``, and the server
                is no replica set.
        """
        return self._run_joined(
            push.push,
            payload,
            delay=delay,
            when=when,
            priority=priority,
            headers=headers,
            id=id,
            once=once,
            key=key,
            on_duplicate=on_duplicate,
            sequence=sequence,
            expires=expires,
            session=session,
        )

    def push_many(
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
        items or 16 MiB. Not atomic: a crash between two commands leaves the first items pushed, and a cancelled call
        may still push all or the first of them.

        If other queues are bound to this name, copies of all items go into each of them in one transaction: all of
        them, or none.

        Args:
            payloads: any iterable of payloads; read once.
            delay: as for ``push``, for all items.
            when: as for ``push``, for all items.
            priority: as for ``push``, for all items.
            headers: as for ``push``, for all items.
            ids: the items' ids, one for each payload, as the ``id`` of ``push``; the same push again is no error.
            once: time for which given ``ids`` are remembered. Default 7 days.
            sequence: as for ``push``, for all items; they take their places in the order given, in one transaction for
                each 1,000 items.
            sequences: the items' sequences instead, one or ``None`` for each payload.
            expires: as for ``push``, for all items; or a list with one for each payload, ``None`` for an item that
                never expires. A topic takes one for all.
            session: see the class.

        Raises:
            PayloadInvalid, PayloadTooLarge: one of the payloads cannot be stored; the message names it, as
                ``payloads[3].at``, and nothing was written.
            ArgumentInvalid: it names ``payloads`` when the copies for bound queues, or the items of a call with
                ``session``, are more than 30,000, or 32 MiB in all.
            TransactionsUnavailable: queues are bound to this name, or there is a ``session``, and the server is no
                replica set.
            BatchIncomplete: some items are not known to be pushed. After a network error they may have been; with
                ``ids``, push them again without any duplicate. Or pushes to other queues have used some of the ``ids``:
                the rest is pushed, and ``failed`` has a ``DuplicateItem`` for each, with the queue that has the id.
            DuplicateItem: pushes to other queues have used some of the ``ids``, and queues are bound to this name;
                nothing is pushed.
        """
        return self._run_joined(
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
        """
        draft.make_draft(self._context, delay, when, priority, headers)
        check_expires(VirtualClock(roughly_now(self._context.broker.clock)), expires, delay, when)
        if key is not None:
            check_key(key)
        if sequence is not None:
            check_sequence(sequence)
            if key is not None:
                raise ArgumentInvalid("sequence", KEYED)
        self._context.codec.wrap_many(read_list(payloads, "payloads"))

    def pop(self, *, on_invalid: OnInvalid = "bury") -> Item[M] | None:
        """Remove the first eligible item and return it, or ``None``: at most once, no settling (``findAndModify``).

        A crash after it, or a lost reply, loses the item, unless the queue keeps history. A cancelled call puts the
        item back. For this the event loop must go on: close the broker before the loop ends. An item with a remembered
        id, or with a place in a sequence, is reserved and then committed, before the caller gets it: a crash in between
        leaves it reserved until the lease ends. A call that is cancelled then may lose an item of a sequence. An item
        that had all its runs under ``reserve`` is buried, and the next one popped.

        Args:
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and pop the next item, or
                ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item.
            ReservationLost: the reply to the commit of a reserved item was lost (``certain=False``).
        """
        return self._run(pop.pop, on_invalid=on_invalid)

    def reserve(
        self, *, lease: Duration | None = None, wait: Duration | None = None, on_invalid: OnInvalid = "bury"
    ) -> Item[M] | None:
        """Reserve the first eligible item for the duration of a lease, or return ``None`` (``findAndModify``).

        Settle it with ``commit``, ``rollback``, ``move``, ``release`` or ``bury`` before the lease ends, or ``extend``
        it. When the lease ends first, because the worker died or was slow, the item is eligible again and the attempt
        counts; after ``max_retries`` retries it is buried instead.

        Args:
            lease: length of the reservation; default the queue's.
            wait: time to wait for an item, ``math.inf`` for ever; ``None`` does not wait. A push, move, rollback,
                replay or resume in any process ends the wait within milliseconds, and so does an item that comes due
                (``aggregate`` with ``$changeStream``, ``getMore``); on a standalone server consumers check now and
                then. A cancelled wait leaves nothing reserved, if the broker is closed before the event loop ends.
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and reserve the next item,
                or ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item, reserved,
                which can be settled.
        """
        return self._run(reserve.reserve, lease=lease, wait=wait, on_invalid=on_invalid)

    def reserve_many(
        self, n: int, *, lease: Duration | None = None, wait: Duration | None = None, on_invalid: OnInvalid = "bury"
    ) -> list[Item[M]]:
        """Reserve up to ``n`` items in the order of the queue under one token (``find``, ``update`` of many, ``find``).

        Fewer items may be returned than are eligible, when other consumers claim at the same time; none means that no
        item is ready or the queue is paused. A crash of the holder counts as an attempt of each item. An item that had
        all its runs is buried, unless its last reservation was in a batch. A neighbour may then have killed the holder,
        so the item gets one more run, alone, as the only item of a batch or by ``reserve``.

        ``n`` is 1 to 10,000; ``wait`` is the time to wait for the first item. The other options are those of
        ``reserve``, and so is ``PayloadInvalid``, for the first item that does not fit; the others were given back
        unused then.
        """
        return self._run(reserve.reserve_many, n, lease=lease, wait=wait, on_invalid=on_invalid)

    def reserved(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
        delay: Duration = 0,
        on_invalid: OnInvalid = "bury",
    ) -> Reserved[M]:
        """Reserve an item for the duration of a block: ``with queue.reserved(wait=5) as item``.

        ``item`` is ``None`` when none came in time. At the end of the block the item is committed. An exception rolls
        it back with the error. An interruption of the process or the task (``SystemExit``, ``KeyboardInterrupt``, a
        cancellation) releases it at once, its attempt not counted. If the block settles the item itself (for example by
        ``move``), nothing more is done.

        After a failed block, the item's next run comes after ``delay``. Without it, a loop around a block that fails at
        once would use up all retries in a moment. The other options are those of ``reserve``; a ``PayloadInvalid`` on
        entry leaves its ``item`` reserved, to be settled.

        Raises:
            ReservationLost: at the end of the block, when the lease was over and another caller took the item.
        """
        return Reserved(self._driver, self._context, lease=lease, wait=wait, delay=delay, on_invalid=on_invalid)

    def commit(
        self,
        item: Item[Any],
        *,
        payload: Any = KEEP,
        patch: Mapping[str, Mapping[str, Any]] | None = None,
        session: Any = KEEP,
    ) -> None:
        """Settle an item as done (``delete``; with history, or a remembered id, ``update``).

        ``payload`` goes to the history instead of the item's, or ``patch`` changes that for the history, as for
        ``move``; without history they are only checked.

        Raises:
            PatchInvalid, PayloadInvalid, PayloadTooLarge: as for ``move``; the item is unchanged and still reserved.
        """
        # ``None`` is a valid payload, so ``KEEP`` stands for no argument.
        self._run_joined(settle.commit, item, payload=payload, patch=patch, session=session, reserved=item)

    def commit_many(self, items: Iterable[Item[Any]]) -> None:
        """Settle items as done (one ``delete`` of many for each token; with history ``update``)."""
        self._run(settle.commit_many, items)

    def rollback(self, item: Item[Any], *, delay: Duration = 0, error: BaseException | str | None = None) -> None:
        """Hand an item back after a failure; without retries left, bury it at once (one ``update``).

        It may be claimed again after ``delay``. Type and text of ``error`` are kept on it, shortened to 4 KiB.
        """
        self._run(settle.rollback, item, delay=delay, error=error)

    def rollback_many(
        self, items: Iterable[Item[Any]], *, delay: Duration = 0, error: BaseException | str | None = None
    ) -> None:
        """Hand items back after a failure, as ``rollback`` does; bury items without retries left (``update``)."""
        self._run(settle.rollback_many, items, delay=delay, error=error)

    def release(self, item: Item[Any], *, delay: Duration | None = None) -> None:
        """Hand an item back unused: to its place in the order, the attempt not counted (``update``).

        It may be claimed again after ``delay``, if any, as for the outcome ``Later``. Its last error stays; no retry
        is used up.
        """
        self._run(settle.release, item, delay=delay)

    def release_many(self, items: Iterable[Item[Any]], *, delay: Duration | None = None) -> None:
        """Hand items back unused, as ``release`` does (``update``)."""
        self._run(settle.release_many, items, delay=delay)

    def extend(self, item: Item[M], *, lease: Duration | None = None) -> Item[M]:
        """Extend the lease to this length from now on, and return the item with its new end (``update``).

        A lease that ran out can be extended as long as no other caller has taken the item. The given item can be
        settled just like the returned one. Without ``lease`` it is the queue's.
        """
        until = self._run(settle.extend, item, lease=lease)
        # Items are frozen, so the new end of the lease is in a new one.
        return item.held_until(until)

    def extend_many(self, items: Iterable[Item[M]], *, lease: Duration | None = None) -> list[Item[M]]:
        """Extend the leases to this length from now on, and return the items with their new ends (``update``).

        The given items can be settled like the returned ones. But only the returned ones contain the new end of their
        leases, and are settled together. Of a ``BatchIncomplete``, the leases of the ``done`` were extended.
        """
        return self._run(settle.extend_many, items, lease=lease)

    def move(
        self,
        item: Item[Any],
        to: str | Queue[Any],
        *,
        payload: Any = KEEP,
        patch: Mapping[str, Mapping[str, Any]] | None = None,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        headers: Mapping[str, Any] | None = KEEP,
        sequence: str | None = None,
        expires: Expires | None = None,
        session: Any = KEEP,
    ) -> None:
        """Hand an item on to another queue in one ``update``: it is never in both and never in neither.

        It keeps its id, headers and priority, and its attempts start again at 0; its last error and its key are
        removed.

        Args:
            item: the result of ``reserve``.
            to: the queue, by name, or a handle, whose model then checks ``payload``.
            payload: the new payload.
            patch: update operators applied under the payload, such as ``{"$set": {"plane.seats": 180}}``; one of
                ``$set $unset $inc $mul $min $max $push $addToSet $pullAll $pop $rename``. Values are taken literally.
            delay: time from now until it may be claimed there.
            when: time before which it is not claimed there.
            priority: the new priority.
            key: its key there; its key here becomes free in any case.
            headers: the new headers; ``None`` removes them. The item keeps the headers of its trace, such as
                ``traceparent``, unless the new ones have any of them.
            sequence: the sequence at whose end it takes its place there, such as ``item.sequence``. By default it waits
                for no other item there. Not with ``key``.
            expires: time by which it must be started there, as for ``push``; a duration counts from now. By default it
                waits as long as it takes.
            session: see the class.

        Raises:
            DuplicateItem: ``key`` is taken there; the item is unchanged and still reserved.
            PatchInvalid: an operator or a path that is not allowed, or a patch that does not fit the payload; the item
                is unchanged and still reserved.
            PayloadInvalid: the payload cannot be stored, or the model of ``to`` refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON.
        """
        outcome = Move(
            to,
            payload=payload,
            patch=patch,
            delay=delay,
            when=when,
            priority=priority,
            headers=headers,
            sequence=sequence,
            expires=expires,
        )
        there = move.destination(self._context, context_of(to))
        self._run_joined(move.move, item, there, outcome, key=key, session=session, reserved=item)

    def move_many(self, moves: Iterable[tuple[Item[Any], Move]]) -> None:
        """Hand items on to other queues, each in one ``update``: none is ever in both or in neither.

        Each item comes with its ``Move``. Moves that are equal and have no patch share a statement; they need not go to
        the same queue.

        Raises:
            BatchIncomplete: some items could not be moved, for example a ``PatchInvalid`` for a patch that does not fit
                its payload. These items are unchanged and still reserved.
            PayloadInvalid, PayloadTooLarge, PatchInvalid, ArgumentInvalid: a move cannot be made; the message names it,
                as ``moves[3].priority``, and nothing was sent.
        """
        self._run(move.move_many, moves, context_of)

    def bury(self, item: Item[Any], *, reason: str | None = None, error: BaseException | str | None = None) -> None:
        """Move an item to the dead queue, with its origin: queue, reason, attempts and key (one ``update``).

        ``reason`` is a short text to count by, at most 512 bytes; default the text of ``error``, or ``"buried"``. Type
        and text of ``error`` are kept on the item, shortened to 4 KiB.

        Raises:
            ArgumentInvalid: this queue has no dead queue: it is one itself, or was opened with ``dead=None``.
        """
        self._run(settle.bury, item, reason=reason, error=error)

    def _run_joined(
        self,
        work: Callable[..., T],
        *args: Any,
        session: Any,
        reserved: Item[Any] | None = None,
        **options: Any,
    ) -> T:
        """Run an operation in the transaction of a session, if any; ``reserved`` is the item that it settles."""
        session = self._driver.sessions.choose(session) if session is not KEEP or BLOCKS.get() else None
        if session is None:
            return self._driver.run(work, self._context, *args, session=None, **options)
        with self._sessions.calling(session):
            joined = partial(self._observed(work), self._context, *args, session=session, **options)
            return self._run(run_within, session, joined, reserved)


class DeadQueue(Queue[Any]):
    """The dead letters of a queue, made by ``queue.dead``: an ordinary queue that can also send its items back.

    ``select``, ``replay`` and ``purge`` choose letters by these options: ``ids``, only these; ``where``, a filter on
    payloads; ``stage`` of a pipeline in which they failed; ``reason``, their whole
    ``origin.reason``; ``error``, the whole ``error.type`` of their last error, such as
    ``pymongo.errors.DuplicateKeyError``, or ``""`` for errors that were given as a text; ``as_of``, without letters
    that came after this time, such as that of a count before; ``limit``, the first ones in the order of claims. A
    letter that failed once more in the dead queue has the error of that failure.
    """

    @property
    def letters_of(self) -> str | None:
        """Queue or stage whose letters this handle of an error queue selects; ``None`` for all letters in it."""
        return self._context.letters_of

    def select(  # type: ignore[override]  # letters are chosen by their failure, and not by a time
        self,
        *,
        state: Selection = None,
        ids: Iterable[Id] | None = None,
        where: Mapping[str, Any] | None = None,
        stage: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        as_of: datetime | None = None,
    ) -> ItemSelection[Any]:
        """Return a selection of dead letters, to count, read, group or export them, without any I/O.

        The options are those of the class; ``state`` is as for ``peek``.
        """
        chosen = selection(
            self._context, ids=ids, where=where, stage=stage, reason=reason, error=error, until=as_of, state=state
        )
        return ItemSelection(self._driver, self._context, chosen)

    def replay(  # type: ignore[override]  # the letters themselves go back, and no copies of a history
        self,
        *,
        ids: Iterable[Id] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        to: str | Queue[Any] | None = None,
        hop: str | None = None,
        stage: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        as_of: datetime | None = None,
        progress: Callable[[Replayed], object] | None = None,
    ) -> Replayed:
        """Send dead letters back to the queues they died in, in the order of their claims (``find``, ``update``).

        Each letter goes in one update, with its id, payload, headers and origin, with its key if that is free, and with
        its attempts at 0. Letters that a caller has reserved here stay. A crash in between leaves the rest here: call
        it again.

        ``to`` sends all to this queue instead, without their keys. ``hop`` sends all to this queue of a pipeline, each
        with the payload that it had when it last left that queue, if the pipeline keeps payloads in its trails; without
        their keys. ``progress`` is a plain function, called with the result so far after each page of 500 letters.

        Returns:
            ``pushed`` letters went back; ``skipped`` are held by a caller; ``refused`` have no origin, or a live item
                of the origin has their key, or their trail has no such hop, or no payload of it; ``missing`` are
                ``ids`` that are not here.

        Raises:
            ArgumentInvalid: there are no letters here, but in another dead queue of this queue, which the message
                names.
            QueueUnknown: there are no letters here and no queue has this name, but one has a similar name.
        """
        letters = selection(self._context, ids=ids, where=where, stage=stage, reason=reason, error=error, until=as_of)
        return self._run(revive, letters, to=context_of(to), hop=hop, limit=limit, progress=progress)

    def purge(
        self,
        *,
        state: Selection = None,
        ids: Iterable[Id] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        stage: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        as_of: datetime | None = None,
    ) -> int:
        """Delete dead letters, all or a selection, and return how many (``delete``).

        It works as ``purge`` of any queue: letters that a caller has reserved here stay, except with
        ``state="reserved"``, and a crash in between leaves the rest.
        """
        options: dict[str, Any] = {"limit": limit, "ids": ids, "where": where, "until": as_of}
        return self._run(admin.purge, state, stage=stage, reason=reason, error=error, **options)
