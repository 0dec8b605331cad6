"""Numbered writes: the server performs each once, however often it is sent.

The server keeps the highest number of each session with the result of that write, and answers a second write of the
same number from there: https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md.
The driver's layer for it numbers its own sessions, and takes longer than all code of mongoq; mongoq numbers its own.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from bson import Int64
from pymongo.errors import BulkWriteError, OperationFailure, WriteError

from mongoq.drivers import fork
from mongoq.protocol.flow.commands import SENDS

__all__ = ["Numbered", "Numbers", "numbers_of", "take_sessions"]

RETRYABLE_SERVER_TYPES = frozenset({"RSPrimary", "Mongos", "LoadBalancer"})
"""The servers that keep numbers."""
CLIENT_ATTRIBUTE = "_mongoq_numbers"
"""Where a client keeps what is its own; a table of ours would keep the client alive."""


class Numbered:
    """A session, lent to one write at a time, and the number of that write."""

    __slots__ = ("_answered", "_lender", "_lost", "_sends", "number", "session")

    def __init__(self, lender: Numbers, session: Any) -> None:
        self._lender = lender
        self.session = session
        self.number = Int64(time.time_ns())  # above what the driver has given it: one more with each write
        self._sends = 1
        self._lost: Exception | None = None
        self._answered = False

    def __enter__(self) -> Numbered:
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

        What comes to no answer then stays lost.
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


class Numbers:
    """The sessions of a client in which writes are numbered.

    They do not go back to the driver, whose lower numbers the server would refuse, but for the moment before a broker
    closes the client that is its own. As many as there were writes at a time stay with the client; the server forgets
    one that is not used for half an hour.

    Attributes:
        free: those that no write has.
    """

    def __init__(self) -> None:
        self.free: list[Numbered] = []
        fork.register(self)

    def lend(self, client: Any) -> Numbered | None:
        """Return a session and a number for a write; ``None`` when no server is seen that keeps them."""
        try:
            return self.free.pop()
        except IndexError:
            pass
        servers = client.topology_description.server_descriptions().values()
        if not any(server.server_type_name in RETRYABLE_SERVER_TYPES for server in servers):
            return None
        return Numbered(self, client.start_session(causal_consistency=False))

    def forget(self) -> None:
        """Drop the sessions in a forked child: the server would take the child's writes for the parent's."""
        self.free = []


def numbers_of(client: Any) -> Numbers | None:
    """Return the numbers of a PyMongo client; ``None`` for a client with ``retryWrites=false``."""
    if not client.options.retry_writes:
        return None
    own = vars(client)
    numbers: Numbers = own.get(CLIENT_ATTRIBUTE) or own.setdefault(CLIENT_ATTRIBUTE, Numbers())
    return numbers


def take_sessions(client: Any) -> list[Any]:
    """Take all sessions in which a client numbers writes, to be ended before it closes."""
    numbers: Numbers | None = vars(client).pop(CLIENT_ATTRIBUTE, None)
    return [] if numbers is None else [one.session for one in numbers.free]
