"""The sessions of a client, and the transactions in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pymongo import ReadPreference, WriteConcern
from pymongo.read_concern import ReadConcern

from mongoq.core.base.transaction import Tentative
from mongoq.data.settings import KEEP
from mongoq.drivers import backend
from mongoq.errors import VIRTUAL, ArgumentInvalid, TransactionsUnavailable

STANDALONE = "Standalone"
ENDED = "the transaction in whose block this task began has ended; await the task in the block, or pass session=None"
"""Problem of a call that has outlived its block: nothing shows whether it was meant to be a part of it."""

BLOCKS: ContextVar[tuple[Any, ...]] = ContextVar("mongoq_transactions", default=())
"""Sessions of the transactions whose blocks the caller is in, the innermost last. A task inherits them, and may outlive
them; a new thread has none."""


_calls: list[Any] = []
"""Sessions of the calls that run in transactions at the moment, one for each call; of all brokers."""


def find_session(client: Any) -> Any:
    """Return the session of the innermost block of a client's transaction that the caller is in; ``None`` outside."""
    session = next((session for session in reversed(BLOCKS.get()) if session.client is client), None)
    if session is not None and session.has_ended:
        raise ArgumentInvalid("session", ENDED)
    return session


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
        # The server would take the child's commands for ones of the parent.
        BLOCKS.set(())

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
            raise ArgumentInvalid("session", "is in no transaction; use broker.transaction(), or pass session=None")

    def choose(self, session: Any) -> Any:
        """Return the session of a call: the given one, or by default that of the block that the caller is in."""
        if session is not KEEP:
            return session
        return find_session(self._client)

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

    def bind(self, session: Any) -> None:
        """Make the calls of the running thread or task, and of the tasks that it starts, a part of the transaction."""
        BLOCKS.set((*BLOCKS.get(), session))

    @contextmanager
    def calling(self, session: Any) -> Iterator[None]:
        """Let the end of the transaction know that a call runs in it."""
        _calls.append(session)
        try:
            yield
        finally:
            _calls.remove(session)

    def has_calls(self, session: Any) -> bool:
        """Return whether a call runs in the transaction: to commit a part of its commands would break it."""
        return session in _calls

    def leave(self, caller: Any, session: Any = None) -> None:
        """Let the thread or task have another one."""
        self._callers.discard(caller)
        # Not reset by a token: the task that ends the block may be another one, with a context of its own.
        BLOCKS.set(tuple(each for each in BLOCKS.get() if each is not session))
