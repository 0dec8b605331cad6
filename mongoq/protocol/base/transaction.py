"""Transactions: operations of a queue that happen together with the caller's own, or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutine
from typing import Any, Never, TypeVar

from mongoq.errors import ArgumentInvalid, ReservationLost
from mongoq.model.item import reservation_key
from mongoq.model.process.jitter import dice
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.topics import refresh_bindings
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, Interruption, Refused, Request, Wait
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "Retries",
    "Tentative",
    "abort_transaction",
    "begin_transaction",
    "check_awaitable",
    "check_result",
    "commit_transaction",
    "ensure_transactional",
    "run_in_transaction",
    "run_within",
    "skip_if_settled",
]

T = TypeVar("T")
logger = logging.getLogger("mongoq.transaction")

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
TIME_EXPIRED = 50
RETRY_LIMIT_SECONDS = 120.0
"""Seconds after which nothing is tried again, as with the drivers' own ``with_transaction``."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.5
POLL_SECONDS = 0.01


def begin_transaction(broker: BrokerContext) -> Flow[Any]:
    """Make the collection ready and return a session with a transaction in it.

    Ready beforehand: a transaction cannot write to a collection that was made after it began to read. A caller who goes
    before the flow that this is part of has ended leaves no transaction behind.
    """
    yield from ensure_transactional(broker)
    session: Any = yield from Command("start", {}, target="sessions", undo=_end_command)
    yield from Command("begin", {}, target="sessions", session=session)
    return session


def ensure_transactional(broker: BrokerContext) -> Flow[None]:
    """Make the collection ready, and refuse a server without transactions before anything is written."""
    require: Command[None] = Command("require", {}, target="sessions")
    yield from require
    yield from ensure_broker_ready(broker, write=False)
    yield from require  # the client knows by now what kind of server it is
    yield from ensure_broker_ready(broker, write=True)


def _end_command(session: Any) -> Command[Any]:
    return Command("end", {"committed": False}, target="sessions", session=session)


def run_in_transaction(broker: BrokerContext, make: Callable[[], Flow[T]]) -> Flow[T]:
    """Run a flow in a transaction of its own, and again as a whole when that met a conflict or lost its server.

    All in one session, where the server ends what is left of a transaction as it hears of the next one; that would
    otherwise meet the writes of one whose abort was lost, for a minute.
    """
    retries = Retries()
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
    """Commit, unless the caller has done so or has aborted, and end the session (``commitTransaction``)."""
    by_hand = not session.in_transaction
    try:
        if not by_hand:
            yield from _send_commit(session)
    except Exception:
        yield from abort_transaction(session)
        raise
    yield from _end(session, committed=not by_hand)


def _send_commit(session: Any) -> Flow[None]:
    """Commit until the result is known; the server commits a transaction once, however often it is told to."""
    retries = Retries()
    while True:
        try:
            yield from Command("commit", {}, target="sessions", session=session)
            return
        except Exception as error:
            pause = retries.pause(error, UNKNOWN_COMMIT)
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


class Retries:
    """Says whether and when to try again: with growing pauses, for two minutes in all."""

    def __init__(self) -> None:
        self._until = time.monotonic() + RETRY_LIMIT_SECONDS
        self._longest = PAUSE_SECONDS

    def pause(self, error: Exception, label: str = TRANSIENT) -> Wait | None:
        """Return the pause after an error, ``None`` when it is not to be tried again."""
        cause: Any = error.cause if isinstance(error, Interruption) else error
        if not _has_label(cause, label) or getattr(cause, "code", None) == TIME_EXPIRED:
            return None
        if time.monotonic() >= self._until:
            return None
        self._longest = min(self._longest * 1.5, MAX_PAUSE_SECONDS)
        return Wait(dice.uniform(self._longest / 2, self._longest))


def _has_label(error: Any, label: str) -> bool:
    has = getattr(error, "has_error_label", None)
    return bool(has is not None and has(label))


KINDS = "AsyncBroker takes an async function, Broker a plain one"


def check_result(result: T) -> T:
    """Return what a function returned, unless it is async and would run, if ever, after the transaction."""
    if iscoroutine(result):
        result.close()
        raise ArgumentInvalid("function", f"returns a coroutine; {KINDS}")
    return result


def check_awaitable(result: Any) -> None:
    """Refuse what a plain function returned where it is to be awaited."""
    if not isawaitable(result):
        raise ArgumentInvalid("function", f"returns {type(result).__name__}, which is not to be awaited; {KINDS}")


def run_within(context: QueueContext[Any], session: Any, flow: Flow[T], item: Any = None) -> Flow[T]:
    """Run the flow in the transaction of a session.

    ``item`` is the one that the flow settles; a push settles none, and goes by the bindings of topics.
    """
    broker, reservation = context.broker, reservation_key(item)
    join: Command[None] = Command("join", {}, target="sessions", session=session)
    yield from join
    if not broker.checked:
        yield from ensure_broker_ready(broker, write=False)
        yield from join  # the client knows by now what kind of server it is
    yield from ensure_ready(context)
    if item is None:
        yield from refresh_bindings(broker)
    held = reservation in broker.unsettled
    result = yield from _run_attached(session, flow)
    if held:
        broker.unsettled.add(reservation)
        yield from Command("settle", {"reservation": reservation}, target="sessions", session=session)
    return result


def _run_attached(session: Any, flow: Flow[T]) -> Flow[T]:
    """Run a flow with the session attached to its commands.

    Nothing is sent again and no error is got over: the server has aborted the transaction by then.
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
    """Let the flow put an error into words of its own; it may look, outside of the transaction that is over."""
    if not _has_label(error.cause, TRANSIENT):
        try:
            request = flow.throw(error)
            while isinstance(request, Command) and _is_find(request):
                request = flow.send((yield request))
        except StopIteration:
            pass
    raise error


class _Present(Exception):
    """An item with the id is there already."""


def _perform(session: Any, request: Request) -> Flow[Any]:
    """Perform a request in the transaction, without an insert that could fail: caught or not, that aborts it."""
    if not isinstance(request, Command) or not _is_allowed(request):
        return (yield request)
    command = replace(request, session=session, undo=None)
    if command.method == "insert_one":
        return (yield from _upsert(command))
    return (yield command)


def _is_allowed(command: Command[Any]) -> bool:
    """Tell what a transaction may hold from ``hello`` and the making of indexes, which would abort it."""
    return command.target != "database" or _is_find(command)


def _is_find(command: Command[Any]) -> bool:
    return "find" in command.arguments.get("command", {})


def _upsert(command: Command[Any]) -> Flow[Any]:
    """Insert by an update that leaves alone what is there."""
    fields = dict(command.arguments["document"])
    arguments = {"filter": {"_id": fields.pop("_id")}, "update": {"$setOnInsert": fields}, "upsert": True}
    reply = yield from replace(command, method="update_one", arguments=arguments)
    if reply.upserted_id is None:
        raise _Present
    return reply


@dataclass(slots=True)
class Tentative:
    """A reservation that was settled within a transaction, whose end decides.

    Attributes:
        session: the session of the transaction.
        closing: a task is about to commit or abort it.
        committed: mongoq has committed it, or has aborted it; ``None`` for neither, or not known.
    """

    session: Any
    closing: bool = False
    committed: bool | None = None


def skip_if_settled(tentative: Tentative | None, flow: Flow[None]) -> Flow[None]:
    """Return what ends a ``reserved()`` block, as it runs when a transaction may have settled the item before."""
    return flow if tentative is None else _skip_if_settled(tentative, flow)


def _skip_if_settled(tentative: Tentative, flow: Flow[None]) -> Flow[None]:
    """End the block once the transaction is over: the fence then says whether it was committed.

    A transaction that goes on after the block decides on the item as well.
    """
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
