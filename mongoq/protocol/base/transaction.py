"""Transactions: operations of a queue that happen together with the caller's own, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutine
from typing import Any, Never, TypeVar

from mongoq.errors import ArgumentInvalid, ReservationLost
from mongoq.model.item import reservation_key
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import TRANSIENT_LABEL, UNKNOWN_COMMIT_LABEL, TransactionRetries, has_label
from mongoq.protocol.base.topics import refresh_bindings
from mongoq.protocol.flow import Command, Duplicate, Flow, Interruption, Refused, Request, Wait
from mongoq.protocol.state.context import BrokerContext, QueueContext

T = TypeVar("T")
logger = logging.getLogger("mongoq.transaction")

POLL_SECONDS = 0.01
"""Seconds between two checks for the end of a transaction that another task is closing."""


def begin_transaction(broker: BrokerContext) -> Flow[Any]:
    """Make the collection ready, and return a session with a transaction in it.

    The collection is made ready first: a transaction cannot write to a collection that was created after the
    transaction's first read. A caller that is cancelled before the flow ends leaves no transaction behind.
    """

    def end(session: Any) -> Command[Any]:
        return Command("end", {"committed": False}, target="sessions", session=session)

    yield from ensure_transactional(broker)
    session: Any = yield from Command("start", {}, target="sessions", undo=end)
    yield from Command("begin", {}, target="sessions", session=session)
    return session


def ensure_transactional(broker: BrokerContext) -> Flow[None]:
    """Make the collection ready, and refuse a server without transactions before anything is written."""
    require: Command[None] = Command("require", {}, target="sessions")
    # Before any I/O: a broker whose client is known to have no transactions is refused at once.
    yield from require
    yield from ensure_broker_ready(broker, write=False)
    yield from require  # the client knows the kind of server by now
    yield from ensure_broker_ready(broker, write=True)


def run_in_transaction(broker: BrokerContext, make: Callable[[], Flow[T]]) -> Flow[T]:
    """Run a flow in a transaction of its own; retry it as a whole after a conflict or the loss of its server.

    All attempts use one session. The server ends the rest of a transaction when the session starts the next one.
    Otherwise the next attempt would meet, for a minute, the writes of a transaction whose abort was lost.
    """
    retries = TransactionRetries()
    session = yield from begin_transaction(broker)
    while True:
        try:
            result = yield from _run_attached(session, make())
            yield from _send_commit(session)
            break
        except Exception as error:
            pause = retries.pause(error)
            if pause is None:
                yield from abort_transaction(session)
                raise
        yield from Command("drop", {}, target="sessions", session=session)
        yield from pause
        yield from Command("begin", {}, target="sessions", session=session)
    yield from _end(session, committed=True)
    return result


def commit_transaction(session: Any) -> Flow[None]:
    """Commit unless the caller has committed or aborted already, and end the session (``commitTransaction``)."""
    by_hand = not session.in_transaction
    try:
        if not by_hand:
            yield from _send_commit(session)
    except Exception:
        yield from abort_transaction(session)
        raise
    yield from _end(session, committed=not by_hand)


def _send_commit(session: Any) -> Flow[None]:
    """Commit until the result is known; the server commits a transaction once, however often the command arrives."""
    retries = TransactionRetries()
    while True:
        try:
            yield from Command("commit", {}, target="sessions", session=session)
            return
        except Exception as error:
            pause = retries.pause(error, UNKNOWN_COMMIT_LABEL)
            if pause is None:
                raise
        yield from pause


def abort_transaction(session: Any) -> Flow[None]:
    """End the session, and abort a transaction that still runs in it (``abortTransaction``)."""
    yield from _end(session, committed=False)


def _end(session: Any, *, committed: bool) -> Flow[None]:
    try:
        yield from Command("end", {"committed": committed}, target="sessions", session=session)
    except Exception as error:
        logger.warning("a transaction could not be aborted, and the server will do so by itself: %r", error)


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


def run_within(context: QueueContext[Any], session: Any, flow: Flow[T], item: Any = None) -> Flow[T]:
    """Run the flow in the transaction of a session.

    ``item`` is the item that the flow settles. A push has none, and reads the bindings of topics instead.
    """
    broker, reservation = context.broker, reservation_key(item)
    join: Command[None] = Command("join", {}, target="sessions", session=session)
    yield from join
    if not broker.checked:
        yield from ensure_broker_ready(broker, write=False)
        yield from join  # the client knows the kind of server by now
    yield from ensure_ready(context)
    if item is None:
        yield from refresh_bindings(broker)
    is_unsettled = reservation in broker.unsettled
    result = yield from _run_attached(session, flow)
    # A waiter of this process that was woken by the flow finds nothing before the commit, whose events then count.
    broker.registry.expect_events()
    if is_unsettled:
        broker.unsettled.add(reservation)
        yield from Command("settle", {"reservation": reservation}, target="sessions", session=session)
    return result


def _run_attached(session: Any, flow: Flow[T]) -> Flow[T]:
    """Run a flow with the session attached to its commands.

    No command is sent again, and the flow recovers from no error: the server has aborted the transaction by then.
    """
    try:
        request = next(flow)
        while True:
            try:
                reply = yield from _perform(session, request)
            except _Present as present:
                request = flow.throw(Duplicate(present))
            except (Duplicate, Refused) as error:
                yield from _raise_explained(flow, error)
            else:
                request = flow.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()


def _raise_explained(flow: Flow[Any], error: Interruption) -> Flow[Never]:
    """Let the flow replace an error by its own; its reads run outside the transaction, which is over by then."""
    if not has_label(error.cause, TRANSIENT_LABEL):
        try:
            request = flow.throw(error)
            while isinstance(request, Command) and _is_find(request):
                request = flow.send((yield request))
        except StopIteration:
            pass
    raise error


class _Present(Exception):
    """An item with this id exists already."""


def _perform(session: Any, request: Request) -> Flow[Any]:
    """Perform a request in the transaction, and replace inserts: a failed insert aborts it, even when caught."""
    if not isinstance(request, Command) or (request.target == "database" and not _is_find(request)):
        return (yield request)  # ``hello`` and index creation would abort the transaction
    command = replace(request, session=session, undo=None)
    if command.method != "insert_one":
        return (yield command)
    fields = dict(command.arguments["document"])
    arguments = {"filter": {"_id": fields.pop("_id")}, "update": {"$setOnInsert": fields}, "upsert": True}
    reply = yield from replace(command, method="update_one", arguments=arguments)
    if reply.upserted_id is None:
        raise _Present
    return reply


def _is_find(command: Command[Any]) -> bool:
    return "find" in command.arguments.get("command", {})


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


def skip_if_settled(tentative: Tentative | None, flow: Flow[None]) -> Flow[None]:
    """Run the flow that ends a ``reserved()`` block, unless a transaction has settled the item.

    First wait for the end of the transaction; the fence finds out whether it was committed. A transaction that
    continues after the block decides about the item as well.
    """
    if tentative is None:
        return (yield from flow)
    while tentative.closing and tentative.session.in_transaction:
        yield from Wait(POLL_SECONDS)
    if tentative.committed or tentative.session.in_transaction:
        flow.close()
        return
    try:
        yield from flow
    except ReservationLost:
        if tentative.committed is False:
            raise
