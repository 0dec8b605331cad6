"""The sessions of a client, and the transactions in them.

Numbered writes: the server performs each once, however often it is sent. The server keeps the highest number of each
session with the result of that write, and answers a second write of the same number from there:
https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md. The driver's layer
for it numbers its own sessions, and takes longer than all code of mongoq; mongoq numbers its own.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from bson import Int64
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import BulkWriteError, OperationFailure, WriteError
from pymongo.read_concern import ReadConcern

from mongoq.drivers import backend
from mongoq.errors import VIRTUAL, ArgumentInvalid, TransactionsUnavailable
from mongoq.protocol.base.transaction import Tentative
from mongoq.protocol.flow import SENDS

__all__ = ["NumberedSession", "SessionPool", "Sessions", "get_numbers", "take_sessions"]

STANDALONE = "Standalone"


class Sessions:
    """Target of the steps of a transaction. Methods return the driver's own result, for example an awaitable.

    PyMongo's sessions, PyMongo's for asyncio and Motor's have the same methods.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._tentative: dict[Any, Tentative] = {}
        self._callers: set[Any] = set()
        backend.register(self)

    def forget(self) -> None:
        """Drop the transactions of the parent in a forked child: a thread of the child may get the ident of theirs."""
        self._tentative, self._callers = {}, set()

    def require(self) -> None:
        """Refuse mongomock and a standalone server, as far as the client knows what it is; sends nothing."""
        if self._client is None:
            raise TransactionsUnavailable(VIRTUAL)
        for (host, port), server in self._client.topology_description.server_descriptions().items():
            if server.server_type_name == STANDALONE:
                raise TransactionsUnavailable(f"a standalone server at {host}:{port}")

    def join(self, session: Any) -> None:
        """Refuse a session in which this broker's commands cannot be part of a transaction; sends nothing."""
        self.require()
        try:
            client, running = session.client, session.in_transaction and not session.has_ended
        except AttributeError:
            problem = f"a session of the client, such as tx.session, not {type(session).__name__}"
            raise ArgumentInvalid("session", problem) from None
        if client is not self._client:
            raise ArgumentInvalid("session", "belongs to another client than the broker's; start it with that client")
        if not running:
            raise ArgumentInvalid("session", "is in no transaction; use broker.transaction(), or leave session= out")

    def start(self) -> Any:
        """Make a session."""
        return self._client.start_session()

    def begin(self, session: Any) -> Any:
        """Begin a transaction; the server hears of it with the first command."""
        return session.start_transaction(
            read_concern=ReadConcern("snapshot"),
            write_concern=WriteConcern(w="majority"),
            read_preference=ReadPreference.PRIMARY,
        )

    def drop(self, session: Any) -> Any:
        """Abort a transaction that still runs, so that another one can begin in its session."""
        return session.abort_transaction() if session.in_transaction else None

    def commit(self, session: Any) -> Any:
        """Commit, or commit again."""
        return session.commit_transaction()

    def end(self, session: Any, *, committed: bool) -> Any:
        """Give the session back to its client; a transaction that still runs is aborted."""
        outcome = True if committed else False if session.in_transaction else None
        for tentative in self._find_tentative(session):
            tentative.committed = outcome
        return session.end_session()

    def expect_end(self, session: Any) -> None:
        """Record that the transaction is about to end, in a task of its own."""
        for tentative in self._find_tentative(session):
            tentative.closing = True

    def settle(self, session: Any, reservation: Any) -> None:
        """Remember that a reservation, given by its key, ends with the transaction, for the block that holds it."""
        self._tentative[reservation] = Tentative(session)

    def has_tentative(self, reservation: Any) -> bool:
        """Return whether a reservation ends, or has ended, with a transaction."""
        return reservation in self._tentative

    def take_tentative(self, reservation: Any) -> Tentative | None:
        """Remove and return what is known of a reservation, at the end of its block."""
        return self._tentative.pop(reservation, None)

    def _find_tentative(self, session: Any) -> list[Tentative]:
        return [tentative for tentative in list(self._tentative.values()) if tentative.session is session]

    def enter(self, caller: Any) -> None:
        """Refuse a transaction within another one of the same thread or task."""
        if caller in self._callers:
            problem = "one is running here already, and the two could wait for each other; use its tx.session"
            raise ArgumentInvalid("transaction", problem)
        self._callers.add(caller)

    def leave(self, caller: Any) -> None:
        """Let the thread or task have another one."""
        self._callers.discard(caller)


RETRYABLE_SERVER_TYPES = frozenset({"RSPrimary", "Mongos", "LoadBalancer"})
"""The servers that keep numbers."""
CLIENT_ATTRIBUTE = "_mongoq_numbers"
"""Attribute of a client that holds its pool of sessions; a table of mongoq's own would keep the client alive."""


class NumberedSession:
    """A session, lent to one write at a time, and the number of that write."""

    __slots__ = ("_answered", "_lender", "_lost", "_sends", "number", "session")

    def __init__(self, lender: SessionPool, session: Any) -> None:
        self._lender = lender
        self.session = session
        self.number = Int64(time.time_ns())  # above what the driver has given it: one more with each write
        self._sends = 1
        self._lost: Exception | None = None
        self._answered = False

    def __enter__(self) -> NumberedSession:
        """Send a write under the number."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the session back, with the next number.

        A write that was not answered may be under way, and the server would have the next one wait for it: such a
        session is lent after all others.
        """
        answered = kind is None or self._answered
        self.number = Int64(self.number + 1)
        self._sends, self._lost, self._answered = 1, None, False
        if answered:
            self._lender.free.append(self)
        else:
            self._lender.free.insert(0, self)

    def retry_or_raise(self, error: Exception, *, lost: bool) -> None:
        """Return to send a write again when its reply was ``lost``, or raise its final error.

        If no later send gets an exact answer, the error of the first lost reply is raised.
        """
        self._answered = not lost and isinstance(error, OperationFailure)
        if lost and self._sends < SENDS:
            self._sends, self._lost = self._sends + 1, error
            return
        exact = not lost and isinstance(error, (WriteError, BulkWriteError))
        raise error if exact or self._lost is None else self._lost

    def give_back(self) -> None:
        """Give the session back with its number unused."""
        self._lender.free.append(self)


class SessionPool:
    """The sessions of a client in which writes are numbered.

    The driver gets them back only when a broker closes its own client, because the server would refuse the driver's
    lower numbers. The pool is as large as the number of writes at the same time was; the server forgets a session that
    is not used for half an hour.

    Attributes:
        free: the sessions that no write uses.
    """

    def __init__(self) -> None:
        self.free: list[NumberedSession] = []
        backend.register(self)

    def lend(self, client: Any) -> NumberedSession | None:
        """Return a session and a number for a write; ``None`` when no server is seen that keeps them."""
        try:
            return self.free.pop()
        except IndexError:
            pass
        servers = client.topology_description.server_descriptions().values()
        if not any(server.server_type_name in RETRYABLE_SERVER_TYPES for server in servers):
            return None
        return NumberedSession(self, client.start_session(causal_consistency=False))

    def forget(self) -> None:
        """Drop the sessions in a forked child: the server would take the child's writes for the parent's."""
        self.free = []


def get_numbers(client: Any) -> SessionPool | None:
    """Return the numbers of a PyMongo client; ``None`` for a client with ``retryWrites=false``."""
    if not client.options.retry_writes:
        return None
    own = vars(client)
    numbers: SessionPool = own.get(CLIENT_ATTRIBUTE) or own.setdefault(CLIENT_ATTRIBUTE, SessionPool())
    return numbers


def take_sessions(client: Any) -> list[Any]:
    """Take all sessions in which a client numbers writes, to be ended before it closes."""
    numbers: SessionPool | None = vars(client).pop(CLIENT_ATTRIBUTE, None)
    return [] if numbers is None else [one.session for one in numbers.free]
