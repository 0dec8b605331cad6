# Generated from mongoq/aio/broker.py by scripts/unasync.py. Do not edit.
"""The broker: one collection, and the queues in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from mongoq.core.base.bootstrap import find_notes
from mongoq.core.base.retry import TransactionRetries
from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.counters import QueueStats
from mongoq.core.settle.settle import graveyard
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads import admin, insight
from mongoq.core_threads.base import bootstrap, transaction
from mongoq.core_threads.base import topics as binding
from mongoq.core_threads.base.bootstrap import find_faults
from mongoq.core_threads.coordination import heartbeats, streams
from mongoq.core_threads.history import counters, read
from mongoq.data.arguments import Duration, Id, duration
from mongoq.data.clock import Clock, LocalClock, ServerClock
from mongoq.data.encoding.codec import Codec, Encoding
from mongoq.data.item import Hop
from mongoq.data.process import Health, Local
from mongoq.data.settings import DEFAULT, Default, OnDead, OnExpired, SettingsFrom, check_source, queue_options
from mongoq.drivers.backend import open_backend
from mongoq.drivers.health import CHECK_ERRORS, HealthWatch, describe_trouble
from mongoq.drivers.threads.driver import ThreadDriver
from mongoq.errors import ArgumentInvalid
from mongoq.sync.blocks import Transaction
from mongoq.sync.inspection import Inspection
from mongoq.sync.queue import DeadQueue, Queue
from mongoq.sync.schedules import Schedules

if TYPE_CHECKING:
    from pydantic import TypeAdapter

M = TypeVar("M")
T = TypeVar("T")
logger = logging.getLogger("mongoq.health")

HEALTH_SECONDS = 2.0
"""Default time limit of a check of the health: a probe gives up soon after."""


class Broker(Schedules, Local):
    """Many named queues in one MongoDB collection.

    ``mongoq.connect`` makes one from a URI. On a collection of your own:

    ```python
    broker = mongoq.Broker(client["app"]["mongoq"])
    ```

    The broker derives its own handle from the collection (primary reads, majority writes, aware dates, standard UUIDs;
    other codec options are kept, except a ``type_registry``, which is refused), so yours is not changed. Nothing is
    sent before the first operation, which checks the collection; the first write creates the indexes.

    A duration is a ``timedelta``, a number of seconds, or a text such as ``"5m"``. Each method raises
    ``ArgumentInvalid``, which names the argument, for a value that cannot be used, and ``QueueNameInvalid`` for a name
    of a queue that cannot be stored; nothing was sent then. Methods that change a schedule raise ``ScheduleUnknown`` if
    there is none of this name.

    Args:
        collection: a collection of PyMongo's ``MongoClient``; for asyncio also one of Motor, for threads one of
            mongomock.
        group_commit: concurrent calls of ``push``, ``reserve``, ``commit``, ``rollback``, ``extend`` and ``move`` share
            commands: a call during the command of another one is part of the next command. Each caller gets the result
            of its own part. Default on with asyncio, off with threads.
        settings: which settings win where the options of ``queue`` differ from the ones stored with the queue. With
            ``"stored"`` the stored ones win, with one warning in the log for each queue and process. With ``"code"``
            the options given in code are stored, each once in a process, at the first write of the broker after the
            handle is made (one ``findAndModify`` for a queue), and each change is logged (INFO, ``mongoq.settings``).
            Where two processes give different options, the last one wins. Pauses do not change.
        clock: the clock to use; by default the server's. Tests pass a ``VirtualClock``.
        on_close: called at the end of ``close``, such as the ``close`` of a client that only this broker uses.

    Raises:
        TypeError: ``collection`` is no collection, or one of the other kind.
        ArgumentInvalid: ``group_commit`` is none of ``True``, ``False`` and ``None``, ``settings`` is neither
            ``"stored"`` nor ``"code"``, or the codec options of the collection have a ``type_registry``: its converters
            would convert mongoq's own dates and names as well.
    """

    _elsewhere = (
        "it belongs to its process, with the client behind it; threads and tasks share it, and another process, or a "
        "function that Spark runs, makes its own from the URI"
    )

    def __init__(
        self,
        collection: Any,
        *,
        group_commit: bool | None = None,
        settings: SettingsFrom = "stored",
        clock: Clock | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        if group_commit is not None and not isinstance(group_commit, bool):
            raise ArgumentInvalid("group_commit", f"True, False or None, not {group_commit!r}")
        source = check_source(settings)
        backend = open_backend(collection, asynchronous=ThreadDriver.asynchronous)
        own_clock = clock or (LocalClock() if backend.serverless else ServerClock())
        context = BrokerContext(backend.namespace, own_clock, Encoding(backend.options), backend.serverless)
        context.settings_from = source
        is_wanted = ThreadDriver.asynchronous if group_commit is None else group_commit
        context.group_commit = is_wanted and not backend.serverless
        # At intervals: write the counters, and let control documents of idle queues expire.
        super().__init__(ThreadDriver(backend, context, partial(admin.upkeep, context)), context)
        self._collection = backend.targets["collection"]
        self._on_close = on_close
        self._watches: list[HealthWatch] = []

    def __repr__(self) -> str:
        """Return the namespace of the collection; a URI and its credentials are never kept here."""
        return f"<{type(self).__name__} {self.namespace}>"

    @property
    def namespace(self) -> str:
        """``database.collection`` that holds the queues."""
        return self._context.namespace

    @property
    def collection(self) -> Any:
        """The driver's collection that holds the queues, as this broker uses it: for commands of your own."""
        return self._collection

    def inspect(self, *, within: Duration | None = None) -> Inspection:
        """Return reads for people and for monitoring: states of queues, one item, blocked sequences, faults.

        ```python
        for queue in broker.inspect().queues():
            print(queue.name, queue.ready, queue.oldest_age)
        ```

        All reads of the returned object may take ``within`` together, from now on; then the driver raises its error of
        a time limit. By default there is no limit.
        """
        limit = None if within is None else duration(within, "within", zero=False)
        return Inspection(self._driver, self._context, limit)

    @overload
    def queue(
        self,
        name: str,
        *,
        model: type[M] | TypeAdapter[M],
        lease: Duration | None = None,
        history: Duration | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        dead: str | Default | None = DEFAULT,
        max_in_sequence: int | Default = DEFAULT,
        on_expired: OnExpired | Default = DEFAULT,
        on_dead: OnDead | Default = DEFAULT,
    ) -> Queue[M]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        model: None = None,
        lease: Duration | None = None,
        history: Duration | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        dead: str | Default | None = DEFAULT,
        max_in_sequence: int | Default = DEFAULT,
        on_expired: OnExpired | Default = DEFAULT,
        on_dead: OnDead | Default = DEFAULT,
    ) -> Queue[Any]: ...

    def queue(
        self,
        name: str,
        *,
        model: Any = None,
        lease: Duration | None = None,
        history: Duration | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        dead: str | Default | None = DEFAULT,
        max_in_sequence: int | Default = DEFAULT,
        on_expired: OnExpired | Default = DEFAULT,
        on_dead: OnDead | Default = DEFAULT,
    ) -> Queue[Any]:
        """Return a handle of a queue, without any I/O; a queue exists as soon as an item is in it.

        ``name`` is not empty, has at most 120 bytes (125 when it ends in ``.dead``) and no NUL, and does not begin with
        ``$``. ``model`` is a type that pydantic can validate, or a ``TypeAdapter``; payloads are validated when they
        are pushed and when they are read. Without one, any BSON value is accepted. It belongs to the handle and is not
        stored.

        The other options are settings of the queue, with the meanings and defaults of ``QueueSettings``. They hold for
        all handles, workers and pipelines of the broker. Its next write to any queue stores the given ones, and every
        process uses the stored ones. If a setting is stored already, the stored value wins, with a warning in the log,
        unless the broker has ``settings="code"``; ``queue.configure`` changes it. With ``dead=None`` a payload that
        does not fit the model is raised, since it cannot be buried.
        """
        options = queue_options(
            name,
            lease=lease,
            history=history,
            max_retries=max_retries,
            dead=dead,
            max_in_sequence=max_in_sequence,
            on_expired=on_expired,
            on_dead=on_dead,
        )
        codec: Codec[Any] = Codec(self._context.encoding, model)
        return Queue(self._driver, QueueContext(self._context, options, codec))

    def dead_queue(self, name: str) -> DeadQueue:
        """Return a handle of a queue of dead letters by its own name, without any I/O.

        Use it for a queue that receives the failed items of several queues, such as the error queue of a pipeline; the
        dead letters of one queue are ``queue.dead``.
        """
        return DeadQueue(self._driver, graveyard(self._context, name))

    def queues(self) -> list[str]:
        """Return the sorted names of the queues that hold an item, live or in history, or have a live consumer.

        A remembered id counts as an item; workers and running streams of Spark are consumers, callers of ``reserve``
        are not. Three ``aggregate`` commands, each answered from an index in time proportional to the number of queues,
        and two ``find``.
        """
        return self._run(insight.list_queues)

    def stats(self) -> dict[str, QueueStats]:
        """Return event counts and the present number of items of each queue, by the queue's name.

        Every process counts the events of its brokers, and adds them to the collection every five seconds and when a
        broker is closed (``update`` of one document for each queue, all in one command); a process that is killed loses
        the counts of its last seconds. Events in a transaction count even if it is aborted. The counters of a queue
        that is empty expire 30 days after its last use. Depths are counted from the index of live items
        (``aggregate``): processed items cost nothing. Depths are a second old at most, and the counts of other
        processes five more.

        A few commands, for any number of queues.
        """
        return self._run(counters.stats)

    def drop_queue(self, name: str, *, force: bool = False) -> int:
        """Delete all stored data of a queue: its history, remembered ids, counters, settings, pause and marks.

        A queue that holds live items is refused, unless ``force`` deletes them. Its dead queue is a queue of its own,
        and stays; bindings of topics stay as well. The queue may be used again, and is then a new one: a process whose
        code gives options for it stores them again, at its next claim or within an hour.

        One ``find``, and ``delete`` of the live items (with ``force``), of the history, and of the control documents,
        in this order; what belongs to sequences goes in transactions. A crash in between leaves the later parts: call
        it again. A call for a queue that does not exist, or a second call, does nothing. An item that is pushed
        meanwhile stays.

        Returns:
            The number of deleted live items, whose holders get ``ReservationLost``; 0 without ``force``.

        Raises:
            QueueNotEmpty: it holds live items; nothing was deleted.
        """
        return self._run(admin.drop, name, force=force)

    def trail(self, id: Id) -> tuple[Hop, ...] | None:
        """Return the settlements of an item by stages of pipelines, oldest first, from any queue (``find``).

        Only a pipeline with that option records them, at most the last 50 hops. An item without any has an empty trail;
        ``None`` means that the item does not exist, neither live nor in a history.
        """
        return self._run(read.trail, id)

    def workers(self) -> list[WorkerRecord]:
        """Return the last heartbeats of the workers of this collection (``find``).

        Workers that ended regularly are not included; a worker that was killed is, for some minutes, as not ``alive``.
        """
        return self._run(heartbeats.workers)

    def release_claims(self, consumer: str) -> int:
        """Give back at once all items that a stream of Spark holds under its option ``consumer``; return how many.

        Use it for a query that has ended for good, whose items would only come back when their leases end. The items
        return to the place of the first of them, the attempt not counted. A query that still runs under the name is
        ended: its next step fails with ``ConsumerBusy``, and the next holder of these items reads again what the query
        has read of them.

        ``findAndModify`` and ``update`` of the consumer's control document, ``update`` of many items for each 10,000. A
        crash in between leaves some items with the consumer: call it again.
        """
        return self._run(streams.release_consumer, consumer)

    def transaction(self) -> Transaction:
        """Return a block with writes that happen together or not at all: ``with broker.transaction() as tx``.

        ```python
        with broker.transaction() as tx:
            orders.insert_one(order, session=tx.session)
            queue.push(order["_id"])
        ```

        Calls of ``push``, ``push_many``, ``commit``, ``move`` and ``mongoq.once`` in the block are part of the
        transaction, of this broker and of others of the same client, and so are those of tasks that the block starts
        and awaits. Threads that it starts are not. ``session=None`` makes a call that happens at once.

        It reads a snapshot and is committed to the majority at the end of the block (``commitTransaction``). An
        exception that leaves the block aborts it (``abortTransaction``) and is raised further; a cancellation does the
        same. A process that dies within the block leaves nothing; the server releases the documents of the transaction
        after ``transactionLifetimeLimitSeconds``, 60 by default. Keep the block short: other callers wait for the items
        that it settles.

        When the reply to the commit is lost, the broker asks for it again, for up to two minutes. A cancelled commit
        goes on.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: another transaction of this broker runs in this thread or task; or, at the end of a block,
                a call of a task still runs in it, and the transaction was aborted.

        Errors of the driver are raised unchanged. After one with the label ``TransientTransactionError``, such as a
        write conflict, nothing has happened and the whole may be tried again, as ``run_transaction`` does; after one
        with ``UnknownTransactionCommitResult``, the transaction may have happened.
        """
        return Transaction(self._driver, self._context)

    def run_transaction(self, function: Callable[[Transaction], T]) -> T:
        """Call ``function(tx)`` in a transaction, commit it, and return the result of the function.

        A transaction that met a write conflict, or lost its server, is aborted and run again as a whole, with growing
        pauses, for up to two minutes. So the function may be called several times, and should have no effects outside
        of the transaction. Its calls are part of it, as in the block of ``transaction``. It must not catch the driver's
        errors: they have aborted the transaction.

        Any other exception of the function aborts the transaction and is raised unchanged. Other errors are those of
        ``transaction``.
        """
        retries = TransactionRetries()
        while True:
            try:
                with self.transaction() as tx:
                    result = function(tx)
                    return transaction.check_result(result)
            except Exception as error:
                pause = retries.pause(error)
                # Not an error to retry, or the two minutes are over.
                if pause is None:
                    raise
            time.sleep(pause)

    def bind(self, topic: str, *queues: str) -> tuple[str, ...]:
        """Bind queues to a topic, so that its pushes go to them instead, and return all queues bound to it now.

        From then on ``push`` and ``push_many`` to ``topic`` put a copy into each bound queue and none into the queue of
        that name, in one transaction: into all of them, or into none. The binding is stored with the collection
        (``findAndModify`` of one control document). This broker uses it at once, and every other producer within a
        second. Until then their pushes go where they went before. Items in the queue ``topic`` stay there, and so do
        items that a move or a replay brings. Queues that are bound already stay bound.

        Copies are written in the order in which the queues were bound.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: no queue is named, one is bound to itself, is a topic itself, or the topic is bound to
                another topic; or one of the names is that of a dead queue. Nothing was changed.
        """
        return self._run(binding.bind, topic, queues)

    def unbind(self, topic: str, *queues: str) -> tuple[str, ...]:
        """Undo the binding of these queues, or of all if none is named, and return the remaining bound queues.

        Without any bound queue, the topic is an ordinary queue again. This broker uses the change at once, and every
        other producer within a second (``findAndModify`` of one control document). Items in the queues stay there. A
        queue that is not bound is ignored.
        """
        return self._run(binding.unbind, topic, queues)

    def bindings(self) -> dict[str, tuple[str, ...]]:
        """Return the queues bound to each topic, in the order they were bound (``find`` of one control document)."""
        return self._run(binding.bindings)

    def ensure_indexes(self) -> None:
        """Create the indexes and the schema document; the first write does this by itself.

        Idempotent (``createIndexes``, ``insert``), outside of any session. A crash in between leaves indexes that the
        next call completes.

        Raises:
            CollectionSharded: mongoq needs an unsharded collection.
            SchemaTooNew: a later mongoq has written the collection.
        """
        self._run(bootstrap.ensure_indexes)

    def ping(self) -> timedelta:
        """Check that the server answers and the collection is suitable, and return the time of one round trip.

        Raises:
            CollectionSharded, SchemaTooNew: as for ``ensure_indexes``.
        """
        # Before the measurement, which covers only one round trip.
        self._run(bootstrap.check_collection)
        started = time.perf_counter()
        self._run(bootstrap.hello)
        return timedelta(seconds=time.perf_counter() - started)

    def health(self, *, within: Duration = HEALTH_SECONDS) -> Health:
        """Check that a server takes writes and the collection is suitable; an outage is a result, and no error.

        ``hello``, ``listCollections`` and ``find``. ``notes`` of the result name the last outage that any call of this
        broker has met, and waiting callers that have no change stream. The check takes no longer than ``within``.
        """
        seconds = duration(within, "within", zero=False).total_seconds()
        outage = self._driver.last_outage
        try:
            reasons = self._run_within(seconds, find_faults)
        except CHECK_ERRORS as error:
            reasons = [describe_trouble(error, seconds)]
        notes = find_notes(self._context)
        if outage is not None:
            notes.append(f"{time.monotonic() - outage[0]:.0f} s ago no server answered a call ({outage[1]})")
        return Health.of(reasons, notes)

    def watch_health(
        self, callback: Callable[[Health], Any], *, every: Duration = 5, within: Duration = HEALTH_SECONDS
    ) -> Callable[[], None]:
        """Call a function when this broker gets into trouble, and when it has recovered; returns what ends that.

        The health is checked at once, and then at intervals, until the broker is closed. ``callback(health)`` is called
        once for each change; a broker counts as healthy at first. It runs beside everything else, in a thread, or on
        the event loop of an ``Broker``, where it may be a coroutine function; call this method there then. What it
        raises is logged. A forked child has no such checks. ``every`` is the time between two checks; one takes no
        longer than ``within``.
        """
        if not callable(callback):
            raise ArgumentInvalid("callback", f"a function, not {type(callback).__name__}")
        seconds = duration(every, "every", zero=False).total_seconds()
        check = partial(self._check_health, duration(within, "within", zero=False))
        watch = HealthWatch(check, self._driver.start_later, every=seconds, callback=callback)
        self._watches.append(watch)
        return watch.stop

    def _check_health(self, limit: timedelta, watch: HealthWatch) -> None:
        """Check once for a watch; errors of the callback are logged."""
        try:
            watch.report(self.health(within=limit))
        except Exception as error:
            logger.exception("a check of the health, or the function that it calls, has failed", exc_info=error)

    def close(self) -> None:
        """End waits with ``BrokerClosed``, complete the clean-up of cancelled calls, call ``on_close``. Idempotent.

        A broker made by ``connect`` closes its client.

        Reserved items stay reserved until their leases end.
        """
        for watch in self._watches:
            watch.stop()
        self._driver.close()
        if self._on_close is not None:
            # Cleared before the call, so that a second ``close`` does not call it again.
            closing, self._on_close = self._on_close, None
            closing()

    def __enter__(self) -> Self:
        """Return the broker; ``with`` closes it at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the broker."""
        self.close()
