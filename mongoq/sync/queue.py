# Generated from mongoq/aio/queue.py by scripts/unasync.py. Do not edit.
"""One queue: every operation on its items is one atomic command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from bson import ObjectId

from mongoq.model.arguments import Duration, Expires, Id
from mongoq.model.copies import Replayed
from mongoq.model.item import Item
from mongoq.model.outcomes import Move
from mongoq.model.process import Local
from mongoq.model.settings import KEEP, QueueSettings
from mongoq.protocol.claim.judge import OnInvalid
from mongoq.protocol.history.dead_letters import selection
from mongoq.protocol.history.read import Selection
from mongoq.protocol.push.insert import OnDuplicate
from mongoq.protocol.state.context import context_of
from mongoq.protocol_threads import admin
from mongoq.protocol_threads.claim import pop, reserve
from mongoq.protocol_threads.history.dead_letters import revive
from mongoq.protocol_threads.push import push
from mongoq.protocol_threads.settle import move, settle
from mongoq.sync.batches import Batches
from mongoq.sync.blocks import Reserved
from mongoq.sync.contents import Contents

M = TypeVar("M")


class Queue(Batches[M], Contents[M], Local):
    """A handle of one queue, made by ``broker.queue(name)``; cheap, without I/O, safe to share between tasks.

    ``M`` is the type of the payloads: the ``model`` of the handle, else ``Any``.
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
        return DeadQueue(self._driver, settle.dead_context(self._context))

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

        Args:
            payload: any BSON value, or a value of the queue's model.
            delay: time from now until the item may be claimed, a ``timedelta`` or seconds.
            when: time before which it is not claimed (aware).
            priority: -100 (first) to 100 (last).
            key: a non-empty string of at most 1 KiB. The queue holds at most one live item (ready, scheduled or
                reserved) for each key; the key is free again when the item is processed, moved or buried.
            on_duplicate: what to do when the key is taken: ``"keep"`` the live item and return its id; ``"replace"``
                its payload, time, priority and headers, and return its id; or ``"raise"``. A replaced item starts again
                without attempts, and its holder gets ``ReservationLost``.
            headers: metadata that stays with the item over moves, at most 16 KiB as BSON.
            id: the item's id, unique in the collection. The same push again, also after the item was moved or settled,
                adds nothing.
            once: time for which a given ``id`` is remembered, a ``timedelta`` or seconds. Default 7 days.
            sequence: a non-empty string of at most 1 KiB, such as ``"customer-17"``. Items of the queue with the same
                sequence are handed out in the order of their pushes, one at a time: each is *blocked* until the one
                before it is settled. Where ``max_in_sequence`` of the queue allows more, each is blocked while so many
                before it are not settled, and the ones that are not begin by priority and date. It takes a transaction.
            expires: time from now by which the item must be started, a ``timedelta`` or seconds; or an aware time,
                which may be over already. An item that no caller has claimed by then is never handed out: the claim
                that meets it settles it, as the setting ``on_expired`` says. Once claimed, an item does not expire.
            session: a session of the client with a transaction in it. Then the push happens when the transaction is
                committed, or not at all. By default that of the block of ``broker.transaction()`` that the call is in,
                if any; ``None`` for a push that happens at once.

        Raises:
            PayloadInvalid: BSON cannot hold the payload and give it back equal, or the model refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON; or, with several queues bound to this name, more than
                32 MiB in all copies.
            DuplicateItem: the key is taken, and ``on_duplicate="raise"``; it names the live item. Or a push to another
                queue has used ``id``; it names the queue that has it. With ``session`` it aborts the transaction if it
                leaves its block.
            ArgumentInvalid: another argument cannot be used; the message names it.
            TransactionsUnavailable: several queues are bound to this name, or there is a ``sequence``, and the server
                is no replica set.

        After a network error the item may have been pushed; give an ``id`` to push it again without a duplicate. A
        cancelled push may still happen.
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

    def pop(self, *, on_invalid: OnInvalid = "bury") -> Item[M] | None:
        """Remove the first eligible item and return it, or ``None``: at most once, no settling (``findAndModify``).

        A crash after it, or a lost reply, loses the item, unless the queue keeps history. A cancelled call puts the
        item back. For this the event loop must go on: close the broker before the loop ends. An item with a remembered
        id leaves a stub in the same command, so no other push of the id can create it again in between. An item that
        had all its runs under ``reserve`` is buried, and the next one popped. An item of a sequence is popped in a
        transaction, in which the next one follows.

        Args:
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and pop the next item, or
                ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item.
        """
        return self._run(pop.pop, on_invalid=on_invalid)

    def reserve(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_invalid: OnInvalid = "bury",
    ) -> Item[M] | None:
        """Reserve the first eligible item for the duration of a lease, or return ``None`` (``findAndModify``).

        Settle it with ``commit``, ``rollback``, ``move``, ``release`` or ``bury`` before the lease ends, or ``extend``
        it. When the lease ends first, because the worker died or was slow, the item is eligible again and the attempt
        counts; after ``max_retries`` retries it is buried instead.

        Args:
            lease: duration, a ``timedelta`` or seconds; default the queue's.
            wait: time to wait for an item, a ``timedelta`` or seconds, ``math.inf`` for ever; ``None`` does not wait. A
                push, move, rollback, replay or resume in any process ends the wait within milliseconds, and so does an
                item that comes due (``aggregate`` with ``$changeStream``, ``getMore``); on a standalone server
                consumers check now and then. A cancelled wait leaves nothing reserved, if the broker is closed before
                the event loop ends.
            on_invalid: what to do with a payload that does not fit the model: ``"bury"`` it and reserve the next item,
                or ``"raise"``.

        Raises:
            PayloadInvalid: with ``on_invalid="raise"``, and from a dead queue; its ``item`` is the raw item, reserved,
                which can be settled.
        """
        return self._run(reserve.reserve, lease=lease, wait=wait, on_invalid=on_invalid)

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

        Args:
            lease: as for ``reserve``.
            wait: as for ``reserve``.
            delay: time until the item's next run after a failed block, a ``timedelta`` or seconds. Without it, a loop
                around a block that fails at once would use up all retries in a moment.
            on_invalid: as for ``reserve``; an error on entry leaves its ``item`` reserved, to be settled.

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

        Args:
            item: the result of ``reserve``.
            payload: payload for the history instead of the item's; without history it is only checked.
            patch: or operators that change the payload for the history, as for ``move``.
            session: a session of the client with a transaction in it. Then the commit happens when the transaction is
                committed, or not at all. By default that of the block of ``broker.transaction()`` that the call is in,
                if any; ``None`` for a commit that happens at once.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed. With
                ``certain=False`` the reply was lost and the commit may have happened.
            ItemForeign: the item belongs to another queue or broker.
            PatchInvalid, PayloadInvalid, PayloadTooLarge: as for ``move``; the item is unchanged and still reserved.
        """
        # ``None`` is a valid payload, so ``KEEP`` stands for no argument.
        self._run_joined(settle.commit, item, payload=payload, patch=patch, session=session, reserved=item)

    def rollback(self, item: Item[Any], *, delay: Duration = 0, error: BaseException | str | None = None) -> None:
        """Hand an item back after a failure; without retries left, bury it at once (one ``update``).

        Args:
            item: the result of ``reserve``.
            delay: time from now until it may be claimed again, a ``timedelta`` or seconds.
            error: cause of the failure; its type and text are kept on the item, shortened to 4 KiB.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        self._run(settle.rollback, item, delay=delay, error=error)

    def release(self, item: Item[Any], *, delay: Duration | None = None) -> None:
        """Hand an item back unused: to its place in the order, the attempt not counted (``update``).

        Args:
            item: the result of ``reserve``.
            delay: time from now until it may be claimed again, a ``timedelta`` or seconds, as for the outcome
                ``Later``. Its last error stays; no retry is used up.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        self._run(settle.release, item, delay=delay)

    def extend(self, item: Item[M], *, lease: Duration | None = None) -> Item[M]:
        """Extend the lease to this length from now on, and return the item with its new end (``update``).

        A lease that ran out can be extended as long as no other caller has taken the item.

        Args:
            item: the result of ``reserve``; it can be settled just like the returned one.
            lease: duration from now on, a ``timedelta`` or seconds; default the queue's.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
        """
        until = self._run(settle.extend, item, lease=lease)
        # Items are frozen, so the new end of the lease is in a new one.
        return item.held_until(until)

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
            delay: time from now until it may be claimed there, a ``timedelta`` or seconds.
            when: time before which it is not claimed there (aware).
            priority: the new priority.
            key: its key there; its key here becomes free in any case.
            headers: the new headers; ``None`` removes them. The item keeps the headers of its trace, such as
                ``traceparent``, unless the new ones have any of them.
            sequence: the sequence at whose end it takes its place there, such as ``item.sequence``. By default it waits
                for no other item there. Not with ``key``.
            expires: time by which it must be started there, as for ``push``; a duration counts from now. By default it
                waits as long as it takes.
            session: a session of the client with a transaction in it. Then the move happens when the transaction is
                committed, or not at all. By default that of the block of ``broker.transaction()`` that the call is in,
                if any; ``None`` for a move that happens at once.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
            DuplicateItem: ``key`` is taken there; the item is unchanged and still reserved.
            PatchInvalid: an operator or a path that is not allowed, or a patch that does not fit the payload; the item
                is unchanged and still reserved.
            PayloadInvalid: the payload cannot be stored, or the model of ``to`` refuses it.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON.
        """
        self._run_joined(
            move.move,
            item,
            move.destination(self._context, context_of(to)),
            Move(
                to,
                payload=payload,
                patch=patch,
                delay=delay,
                when=when,
                priority=priority,
                headers=headers,
                sequence=sequence,
                expires=expires,
            ),
            key=key,
            session=session,
            reserved=item,
        )

    def bury(self, item: Item[Any], *, reason: str | None = None, error: BaseException | str | None = None) -> None:
        """Move an item to the dead queue, with its origin: queue, reason, attempts and key (one ``update``).

        Args:
            item: the result of ``reserve``.
            reason: a short text to count by, at most 512 bytes; default the text of ``error``, or ``"buried"``.
            error: cause of the burial; its type and text are kept on the item, shortened to 4 KiB.

        Raises:
            ReservationLost: another caller holds the item, or it was settled already; nothing was changed.
            ItemForeign: the item belongs to another queue or broker.
            ArgumentInvalid: this queue has no dead queue: it is one itself, or was opened with ``dead=None``.
        """
        self._run(settle.bury, item, reason=reason, error=error)


class DeadQueue(Queue[Any]):
    """The dead letters of a queue, made by ``queue.dead``: an ordinary queue that can also send its items back."""

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
    ) -> Replayed:
        """Send dead letters back to the queues they died in, in the order of their claims (``find``, ``update``).

        Each letter goes in one update, with its id, payload, headers and origin, with its key if that is free, and with
        its attempts at 0. Letters that a caller has reserved here stay.

        Args:
            ids: only these letters.
            where: only letters with a payload that matches this filter, as for ``history``.
            limit: number of letters, at most.
            to: send all to this queue instead, without their keys.
            hop: send all to this queue of a pipeline, each with the payload that it had when it last left that queue,
                if the pipeline keeps payloads in its trails; without their keys.
            stage: only letters that failed in this stage of a pipeline.
            reason: only letters that were buried for this reason, their whole ``origin.reason``.
            error: only letters whose last error is of this type, their whole ``error.type``, such as
                ``pymongo.errors.DuplicateKeyError``; ``""`` for errors that were given as a text. A letter that failed
                once more in the dead queue has the error of that failure.

        Returns:
            ``pushed`` letters went back; ``skipped`` are held by a caller; ``refused`` have no origin, or a live item
                of the origin has their key, or their trail has no such hop, or no payload of it; ``missing`` are
                ``ids`` that are not here.

        Raises:
            ArgumentInvalid: an argument cannot be used; the message names it, and nothing was changed. Or there are no
                letters here, but in another dead queue of this queue, which the message names.
            QueueUnknown: there are no letters here and no queue has this name, but one has a similar name.

        A crash in between leaves the rest here: call it again.
        """
        letters = selection(self._context, ids=ids, where=where, stage=stage, reason=reason, error=error)
        return self._run(revive, letters, to=context_of(to), hop=hop, limit=limit)

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
    ) -> int:
        """Delete dead letters, all or a selection, and return how many (``delete``).

        It works as ``purge`` of any queue, with the selection of ``replay``: letters that a caller has reserved here
        stay, except with ``state="reserved"``, and a crash in between leaves the rest.

        Args:
            state: as for ``peek``; ``None`` for all live letters that no caller holds.
            ids: only these letters.
            where: only letters with a payload that matches this filter, as for ``history``.
            limit: number of letters, at most, the first ones in the order of claims.
            stage: only letters that failed in this stage of a pipeline.
            reason: only letters that were buried for this reason, as for ``replay``.
            error: only letters whose last error is of this type, as for ``replay``.

        Raises:
            FilterInvalid: ``where`` has an operator, a path or a value that is not allowed, or the server refuses it.
            ArgumentInvalid: another argument cannot be used; the message names it, and nothing was deleted.
        """
        return self._run(admin.purge, state, ids=ids, where=where, limit=limit, stage=stage, reason=reason, error=error)
