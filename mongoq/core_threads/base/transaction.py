# Generated from mongoq/core/base/transaction.py by scripts/unasync.py. Do not edit.
"""Transactions: operations of a queue that happen together with the caller's own, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mongoq.core.base.retry import UNKNOWN_COMMIT_LABEL, TransactionRetries
from mongoq.core.base.transaction import POLL_SECONDS, T, Tentative, logger
from mongoq.core.base.transaction import check_awaitable as check_awaitable
from mongoq.core.base.transaction import check_result as check_result
from mongoq.core.command import OPERATION, Command
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready, ensure_transactional
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_lost_race
from mongoq.core_threads.base.topics import refresh_bindings
from mongoq.core_threads.perform import perform, run_attached, sleep
from mongoq.data.item import reservation_key
from mongoq.errors import ReservationLost, TransactionsUnavailable


def begin_transaction(broker: BrokerContext) -> Any:
    """Make the collection ready, and return a session with a transaction in it.

    The collection is made ready first: a transaction cannot write to a collection that was created after the
    transaction's first read. A caller that is cancelled before the end leaves no transaction behind.
    """

    def end(session: Any) -> Command[Any]:
        return Command("end", {"committed": False}, target="sessions", session=session)

    ensure_transactional(broker)
    session: Any = perform(Command("start", {}, target="sessions", undo=end))
    perform(Command("begin", {}, target="sessions", session=session))
    return session


def run_in_transaction(broker: BrokerContext, make: Callable[[], T]) -> T:
    """Run an operation in a transaction of its own; retry it as a whole after a conflict or the loss of its server.

    All attempts use one session. The server ends the rest of a transaction when the session starts the next one.
    Otherwise the next attempt would meet, for a minute, the writes of a transaction whose abort was lost.
    """
    retries = TransactionRetries()
    session = begin_transaction(broker)
    while True:
        try:
            result = run_attached(session, make)
            _send_commit(session)
            break
        except Exception as error:
            pause = retries.pause(error)
            if pause is None:
                abort_transaction(session)
                raise
        perform(Command("drop", {}, target="sessions", session=session))
        sleep(pause)
        perform(Command("begin", {}, target="sessions", session=session))
    _end(session, committed=True)
    return result


def ensure_possible(broker: BrokerContext) -> None:
    """Refuse a server without transactions before anything is written.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    if broker.serverless:
        return
    try:
        ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=["sequences (sequence=)"]) from None


def run_atomic(broker: BrokerContext, attempt: Callable[[], T], *, joined: bool = False) -> T:
    """Run an operation in a transaction of its own, or in the caller's (``joined``); without a server, as it is.

    A crash before the commit leaves nothing of it behind. Two processes that begin a sequence at the same moment may
    both insert its control document; the slower one tries again.
    """
    if joined or broker.serverless:
        return attempt()
    return retry_lost_race(lambda: run_in_transaction(broker, attempt))


def commit_transaction(session: Any) -> None:
    """Commit unless the caller has committed or aborted already, and end the session (``commitTransaction``)."""
    by_hand = not session.in_transaction
    try:
        if not by_hand:
            _send_commit(session)
    except Exception:
        abort_transaction(session)
        raise
    _end(session, committed=not by_hand)


def _send_commit(session: Any) -> None:
    """Commit until the result is known; the server commits a transaction once, however often the command arrives.

    When the caller is cancelled meanwhile, the driver goes on with it: nothing else would end that transaction.
    """
    retries = TransactionRetries()
    commit: Command[None] = Command("commit", {}, target="sessions", session=session)
    undo_log, entry = OPERATION.get().undo_log, (replace(commit, undo=lambda _: commit), session)
    undo_log.append(entry)
    while True:
        try:
            perform(commit)
        except Exception as error:
            pause = retries.pause(error, UNKNOWN_COMMIT_LABEL)
            if pause is None:
                undo_log.remove(entry)
                raise
        else:
            undo_log.remove(entry)
            return
        sleep(pause)


def abort_transaction(session: Any) -> None:
    """End the session, and abort a transaction that still runs in it (``abortTransaction``)."""
    _end(session, committed=False)


def _end(session: Any, *, committed: bool) -> None:
    try:
        perform(Command("end", {"committed": committed}, target="sessions", session=session))
    except Exception as error:
        logger.warning("a transaction could not be aborted, and the server will do so by itself: %r", error)
    undo_log = OPERATION.get().undo_log
    undo_log[:] = [entry for entry in undo_log if entry[1] is not session]


def run_within(context: QueueContext[Any], session: Any, work: Callable[[], T], item: Any = None) -> T:
    """Run an operation in the transaction of a session.

    ``item`` is the item that it settles. A push has none, and reads the bindings of topics instead.
    """
    broker, reservation = context.broker, reservation_key(item)
    join: Command[None] = Command("join", {}, target="sessions", session=session)
    perform(join)
    if not broker.checked:
        ensure_broker_ready(broker, write=False)
        perform(join)  # the client knows the kind of server by now
    ensure_ready(context)
    if item is None:
        refresh_bindings(broker)
    is_unsettled = reservation in broker.unsettled
    result = run_attached(session, work)
    # A waiter of this process that was woken by it finds nothing before the commit, whose events then count.
    broker.registry.expect_events()
    if is_unsettled:
        broker.unsettled.add(reservation)
        perform(Command("settle", {"reservation": reservation}, target="sessions", session=session))
    return result


def skip_if_settled(tentative: Tentative | None, work: Callable[[], None]) -> None:
    """Run the operation that ends a ``reserved()`` block, unless a transaction has settled the item.

    First wait for the end of the transaction; the fence finds out whether it was committed. A transaction that
    continues after the block decides about the item as well.
    """
    if tentative is None:
        return work()
    while tentative.closing and tentative.session.in_transaction:
        sleep(POLL_SECONDS)
    if tentative.committed or tentative.session.in_transaction:
        return None
    try:
        work()
    except ReservationLost:
        if tentative.committed is False:
            raise
