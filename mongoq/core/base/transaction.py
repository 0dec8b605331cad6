"""Transactions: operations of a queue that happen together with the caller's own, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

from mongoq.core.base.bootstrap import ensure_broker_ready, ensure_transactional
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.retry import UNKNOWN_COMMIT_LABEL, TransactionRetries, retry_lost_race
from mongoq.core.base.topics import refresh_bindings
from mongoq.core.command import OPERATION, Command
from mongoq.core.perform import perform, run_attached, sleep
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.item import reservation_key
from mongoq.errors import ArgumentInvalid, ReservationLost, TransactionsUnavailable

T = TypeVar("T")
logger = logging.getLogger("mongoq.transaction")

POLL_SECONDS = 0.01
"""Seconds between two checks for the end of a transaction that another task is closing."""


async def begin_transaction(broker: BrokerContext) -> Any:
    """Make the collection ready, and return a session with a transaction in it.

    The collection is made ready first: a transaction cannot write to a collection that was created after the
    transaction's first read. A caller that is cancelled before the end leaves no transaction behind.
    """

    def end(session: Any) -> Command[Any]:
        return Command("end", {"committed": False}, target="sessions", session=session)

    await ensure_transactional(broker)
    session: Any = await perform(Command("start", {}, target="sessions", undo=end))
    await perform(Command("begin", {}, target="sessions", session=session))
    return session


async def run_in_transaction(broker: BrokerContext, make: Callable[[], Awaitable[T]]) -> T:
    """Run an operation in a transaction of its own; retry it as a whole after a conflict or the loss of its server.

    All attempts use one session. The server ends the rest of a transaction when the session starts the next one.
    Otherwise the next attempt would meet, for a minute, the writes of a transaction whose abort was lost.
    """
    retries = TransactionRetries()
    session = await begin_transaction(broker)
    while True:
        try:
            result = await run_attached(session, make)
            await _send_commit(session)
            break
        except Exception as error:
            pause = retries.pause(error)
            if pause is None:
                await abort_transaction(session)
                raise
        await perform(Command("drop", {}, target="sessions", session=session))
        await sleep(pause)
        await perform(Command("begin", {}, target="sessions", session=session))
    await _end(session, committed=True)
    return result


async def ensure_possible(broker: BrokerContext) -> None:
    """Refuse a server without transactions before anything is written.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    if broker.serverless:
        return
    try:
        await ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=["sequences (sequence=)"]) from None


async def run_atomic(broker: BrokerContext, attempt: Callable[[], Awaitable[T]], *, joined: bool = False) -> T:
    """Run an operation in a transaction of its own, or in the caller's (``joined``); without a server, as it is.

    A crash before the commit leaves nothing of it behind. Two processes that begin a sequence at the same moment may
    both insert its control document; the slower one tries again.
    """
    if joined or broker.serverless:
        return await attempt()
    return await retry_lost_race(lambda: run_in_transaction(broker, attempt))


async def commit_transaction(session: Any) -> None:
    """Commit unless the caller has committed or aborted already, and end the session (``commitTransaction``)."""
    by_hand = not session.in_transaction
    try:
        if not by_hand:
            await _send_commit(session)
    except Exception:
        await abort_transaction(session)
        raise
    await _end(session, committed=not by_hand)


async def _send_commit(session: Any) -> None:
    """Commit until the result is known; the server commits a transaction once, however often the command arrives.

    When the caller is cancelled meanwhile, the driver goes on with it: nothing else would end that transaction.
    """
    retries = TransactionRetries()
    commit: Command[None] = Command("commit", {}, target="sessions", session=session)
    undo_log, entry = OPERATION.get().undo_log, (replace(commit, undo=lambda _: commit), session)
    undo_log.append(entry)
    while True:
        try:
            await perform(commit)
        except Exception as error:
            pause = retries.pause(error, UNKNOWN_COMMIT_LABEL)
            if pause is None:
                undo_log.remove(entry)
                raise
        else:
            undo_log.remove(entry)
            return
        await sleep(pause)


async def abort_transaction(session: Any) -> None:
    """End the session, and abort a transaction that still runs in it (``abortTransaction``)."""
    await _end(session, committed=False)


async def _end(session: Any, *, committed: bool) -> None:
    try:
        await perform(Command("end", {"committed": committed}, target="sessions", session=session))
    except Exception as error:
        logger.warning("a transaction could not be aborted, and the server will do so by itself: %r", error)
    undo_log = OPERATION.get().undo_log
    undo_log[:] = [entry for entry in undo_log if entry[1] is not session]


FUNCTION_KIND_HINT = "AsyncBroker takes an async function, Broker a plain one"


def check_result(result: T) -> T:
    """Return the result of a function, unless it is a coroutine, which would run, if ever, after the transaction."""
    if iscoroutine(result):
        result.close()
        raise ArgumentInvalid("function", f"returns a coroutine; {FUNCTION_KIND_HINT}")
    return result


def check_awaitable(result: Any) -> None:
    """Refuse a result that cannot be awaited, from a plain function given to an ``AsyncBroker``."""
    if not isawaitable(result):
        raise ArgumentInvalid(
            "function", f"returns {type(result).__name__}, which is not to be awaited; {FUNCTION_KIND_HINT}"
        )


async def run_within(context: QueueContext[Any], session: Any, work: Callable[[], Awaitable[T]], item: Any = None) -> T:
    """Run an operation in the transaction of a session.

    ``item`` is the item that it settles. A push has none, and reads the bindings of topics instead.
    """
    broker, reservation = context.broker, reservation_key(item)
    join: Command[None] = Command("join", {}, target="sessions", session=session)
    await perform(join)
    if not broker.checked:
        await ensure_broker_ready(broker, write=False)
        await perform(join)  # the client knows the kind of server by now
    await ensure_ready(context)
    if item is None:
        await refresh_bindings(broker)
    is_unsettled = reservation in broker.unsettled
    result = await run_attached(session, work)
    # A waiter of this process that was woken by it finds nothing before the commit, whose events then count.
    broker.registry.expect_events()
    if is_unsettled:
        broker.unsettled.add(reservation)
        await perform(Command("settle", {"reservation": reservation}, target="sessions", session=session))
    return result


@dataclass(slots=True)
class Tentative:
    """A reservation that was settled within a transaction; the end of the transaction decides.

    Attributes:
        session: the session of the transaction.
        closing: true from the moment a task begins to commit or abort it.
        committed: true once mongoq has committed it, false once it has aborted it; ``None`` before, and when unknown.
    """

    session: Any
    closing: bool = False
    committed: bool | None = None


async def skip_if_settled(tentative: Tentative | None, work: Callable[[], Awaitable[None]]) -> None:
    """Run the operation that ends a ``reserved()`` block, unless a transaction has settled the item.

    First wait for the end of the transaction; the fence finds out whether it was committed. A transaction that
    continues after the block decides about the item as well.
    """
    if tentative is None:
        return await work()
    while tentative.closing and tentative.session.in_transaction:
        await sleep(POLL_SECONDS)
    if tentative.committed or tentative.session.in_transaction:
        return None
    try:
        await work()
    except ReservationLost:
        if tentative.committed is False:
            raise
