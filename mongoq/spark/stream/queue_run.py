"""Run of a query that reads a queue, in the driver's process: its claim, its leases, and the settlement of its batches.

There is one run for each process and set of options, although Spark makes several instances of the reader in it. A
thread, the lease keeper, extends the leases, since no worker does during a batch.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

from bson import ObjectId

from mongoq.data.stream_claim import StreamClaim, stream_id
from mongoq.errors import ConsumerBusy
from mongoq.spark.clients import broker_at, flush_observer, scan_at
from mongoq.spark.read.views import QueueSelection, refuse_unknown
from mongoq.spark.stream.stream_options import QueueStreamOptions
from mongoq.sync import Broker, operations
from mongoq.sync.operations import (
    ForeignLease,
    QueueContext,
    StreamRun,
    TakenOver,
    cut_ids,
    extend_held,
    extend_lease,
    give_back,
    wait_for_item,
)

logger = logging.getLogger("mongoq.spark")

RUN_LEASE = timedelta(seconds=10)
"""Lease of a run; a query waits this long for a run whose process was killed."""
LAST_EXTENSION_SECONDS = 1.0
"""Seconds in which a process that is about to end may still extend its lease."""
CHECK_SECONDS = 0.25
EMPTY_WAIT_SECONDS = 0.5
"""Seconds to wait at an empty queue; then Spark asks again, at once."""

EXTENSIONS_PER_LEASE = 4
"""Extensions of the run's lease within its length."""
STOP_SECONDS = 2.0
"""Seconds that giving back the run may take when it ends."""
END_SECONDS = 2.0
"""Seconds after which the process ends in any case."""
TERMINATED = 128 + signal.SIGTERM

_runs: dict[tuple[int, QueueStreamOptions], QueueRun] = {}
_lock = threading.Lock()


def run_of(options: QueueStreamOptions) -> QueueRun:
    """Return the run of this process, made at the first call, which sends only the commands of ``connect``.

    The run is given back when a signal ends the process.
    """
    key = os.getpid(), options
    with _lock:
        # One run for all instances: Spark may make several readers, and the claim belongs to the query.
        if key not in _runs:
            _runs[key] = QueueRun(options)
            at_the_end(_runs[key].close)
        return _runs[key]


def end_run(options: QueueStreamOptions) -> None:
    """Give back the run of this process, if there is one: the process ends."""
    run = _runs.get((os.getpid(), options))
    if run is not None:
        run.close()


class QueueRun:
    """Claims, hands out and settles the batches of one query.

    Every method raises ``ConsumerBusy`` when another query runs under the consumer's name.
    """

    def __init__(self, options: QueueStreamOptions) -> None:
        self._options = options
        self._broker = broker_at(options.place)
        queue = self._broker.queue(options.queue)
        self._queue = queue if options.stage is None else options.stage.mark_queue(queue)
        self._run: StreamRun | None = None
        self._keeper: LeaseKeeper | None = None
        self._due: datetime | None = None
        self._affirmed: tuple[Any, float] = None, 0.0
        self._closing = threading.Lock()

    def now(self) -> datetime:
        """Return the server's time."""
        return self._broker._run(operations.server_time)

    def stop_at_now(self) -> None:
        """Restrict all later batches to items that are eligible now, and never wait for items."""
        self._due = self.now()

    def last(self) -> int:
        """Return the number of the last settled claim; an unsettled claim is the next batch."""
        run = self._open_run()
        return run.number - (run.claim is not None)

    @property
    def token(self) -> str | None:
        """Token of the current claim, in hex."""
        return None if self._run is None or self._run.claim is None else str(self._run.claim.token)

    def renumber_foreign_claim(self, number: int, token: str | None) -> None:
        """Give the current claim the next number, if another consumer's checkpoint has its number for another batch.

        Otherwise the claim would be settled in place of that batch, unread.
        """
        run = self._open_run()
        if run.claim is not None and run.claim.number == number and self.token != token:
            with self._in_plain_words():
                self._broker._run(operations.take_up_claim, run, after=number)

    def latest(self, start: int, most: int) -> int:
        """Settle the batch that ends with ``start``, and return the end of the next one, or ``start`` when it is empty.

        The next batch is an earlier unsettled claim, if there is one.
        """
        run = self._open_run()
        with self._in_plain_words():
            self._queue._run(operations.settle_claim, run, start)
            claim = self._broker._run(operations.take_up_claim, run, after=start) or self._next(run, start, most)
        return start if claim is None else claim.number

    def _next(self, run: StreamRun, start: int, most: int) -> StreamClaim | None:
        next_claim = self._queue._observed(operations.next_claim)

        def attempt(context: QueueContext[Any]) -> list[Any] | None:
            claim = next_claim(context, run, most, self._options.lease, after=start, due=self._due)
            return None if claim is None else []

        if self._due is not None:
            self._queue._run(attempt)
        else:
            self._queue._run(wait_for_item, partial(attempt, self._queue._context), EMPTY_WAIT_SECONDS)
        if run.claim is not None:
            self._affirmed = run.claim.token, time.monotonic()
        return run.claim

    def find_held(self, start: int, end: int) -> tuple[StreamClaim | None, Sequence[Any]]:
        """Return the claim of a batch, and the ids that it still holds; their leases begin anew.

        ``None`` and no ids if the batch was settled: its checkpoint is older than the consumer.
        """
        run = self._open_run()
        claim = run.claim
        if start == end:
            return None, ()
        if claim is None or claim.number != end:
            problem = "batch %d of consumer %r was settled before, and is empty now: is its checkpoint an old copy?"
            logger.warning(problem, end, self._options.consumer)
            return None, ()
        with self._in_plain_words():
            return claim, self._affirm(claim)

    def _affirm(self, claim: StreamClaim) -> Sequence[Any]:
        assert claim.ids is not None
        token, at = self._affirmed
        lease = self._lease()
        if token == claim.token and time.monotonic() - at < lease.total_seconds() / 4:
            return claim.ids  # claimed a moment ago: the leases are new
        held_ids = self._broker._run(extend_held, claim.token, claim.ids, lease)
        self._affirmed = claim.token, time.monotonic()
        if lost_number := len(claim.ids) - len(held_ids):
            sentence = "%d of %d items of batch %d of consumer %r are left out: they were settled, moved or taken since"
            logger.warning(sentence, lost_number, len(claim.ids), claim.number, self._options.consumer)
        return held_ids

    def settle(self, end: int) -> None:
        """Settle the batch that ends with this number, unless it is settled."""
        if self._run is not None:
            with self._in_plain_words():
                self._queue._run(operations.settle_claim, self._open_run(), end)

    def end(self) -> None:
        """Give the run back at once. Its items go to the next run, or wait for their leases."""
        if self._keeper is not None:
            self._keeper.end()

    def close(self) -> None:
        """End the run, and store the counters; several threads may call it."""
        with self._closing:
            self.end()
            flush_observer(self._broker)
            self._broker.close()

    def _open_run(self) -> StreamRun:
        if self._run is None or self._keeper is None or self._keeper.ended:
            with self._in_plain_words():
                self._run = self._begin_run()
            self._keeper = LeaseKeeper(self._broker, self._run, self._lease())
        elif self._keeper.lost is not None:
            self._busy(self._keeper.lost)
        return self._run

    def _begin_run(self) -> StreamRun:
        """Begin the run. A living process extends its lease, so it is busy; a dead one's lease is waited for."""
        options = self._options
        if not options.empty_if_missing:
            with scan_at(options.place) as scan, scan.in_plain_words():
                # A queue that this consumer has read before is known.
                if not scan.has({"_id": stream_id(options.consumer), "queue": {"$eq": options.queue}}):
                    refuse_unknown(scan, QueueSelection((options.queue,)))
        began, until = time.monotonic(), None
        while True:
            run = self._broker._run(operations.open_run, options.consumer, options.queue, RUN_LEASE)
            if isinstance(run, StreamRun):
                return run
            # In the first second an extension may come from a process that is about to end; later it means that it
            # lives.
            if time.monotonic() - began < LAST_EXTENSION_SECONDS:
                until = run.until
            elif run.until != until and run.by is not None:
                self._busy(run)
            time.sleep(CHECK_SECONDS)

    def _lease(self) -> timedelta:
        return self._options.lease or self._queue.settings.lease

    def _busy(self, lease: ForeignLease) -> NoReturn:
        raise ConsumerBusy(self._options.consumer, lease.by, lease.until)

    @contextmanager
    def _in_plain_words(self) -> Iterator[None]:
        try:
            yield
        except TakenOver as error:
            self._busy(error.held)


class LeaseKeeper:
    """Extends the lease of a run, and the leases of its items, until the run ends or is lost.

    A daemon thread, which ends with its process. After a network error it tries again at the next turn; there are
    several turns within a lease.

    Attributes:
        lost: lease of the process that has the run instead; ``None`` until the run is lost.
    """

    def __init__(self, broker: Broker, run: StreamRun, lease: timedelta) -> None:
        self.lost: ForeignLease | None = None
        self._broker = broker
        self._run = run
        self._lease = lease
        self._pause = min(run.length, lease).total_seconds() / EXTENSIONS_PER_LEASE
        self._token: ObjectId | None = None
        self._due = 0.0
        self._extended = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mongoq-keeper", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True after ``end`` was called."""
        return self._ended.is_set()

    def end(self) -> None:
        """End the thread, and give the run back at once for other processes, if this takes less than two seconds.

        Several threads may call it; each call returns when this is done.
        """
        self._ended.set()
        self._thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                self._turn()
            except TakenOver as error:
                self.lost = error.held
                return
            except Exception as error:
                logger.warning("leases of consumer %r could not be extended just now: %r", self._run.consumer, error)
        try:
            self._broker._run(give_back, self._run)
        except Exception as error:
            logger.debug("the run of consumer %r was not given back: %r", self._run.consumer, error)

    def _turn(self) -> None:
        self._keep_run()
        claim = self._run.claim
        if claim is None or claim.ids is None:
            return
        # At a third of the lease: after one failed extension there is time for another.
        third = self._lease.total_seconds() / 3
        if claim.token != self._token:  # claimed since the last turn
            self._token, self._due = claim.token, time.monotonic() + third
        if time.monotonic() < self._due:
            return
        for chunk in cut_ids(claim.ids):
            self._broker._run(extend_held, claim.token, chunk, self._lease)
            # Between two commands: the process may have only two seconds left.
            if self._ended.is_set():
                return
            # Extending many items takes time: the lease of the run itself must not end meanwhile.
            if time.monotonic() - self._extended > self._pause:
                self._keep_run()
        self._due = time.monotonic() + third

    def _keep_run(self) -> None:
        self._broker._run(extend_lease, self._run)
        self._extended = time.monotonic()


def at_the_end(last: Callable[[], None]) -> None:
    """Call ``last`` when a signal ends the process, within two seconds; no effect if another handler is installed."""
    # signal.signal works in the main thread only; another handler is the application's own and stays.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    signals: SimpleQueue[int] = SimpleQueue()  # a SimpleQueue, because its put is reentrant: a signal may interrupt it

    def wait() -> None:
        signals.get()
        limit = threading.Timer(END_SECONDS, os._exit, (TERMINATED,))
        limit.daemon = True
        limit.start()
        try:
            last()
        finally:
            os._exit(TERMINATED)

    def handle(number: int, _frame: Any) -> None:
        signals.put(number)

    threading.Thread(target=wait, name="mongoq-ending", daemon=True).start()
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGHUP, handle)
