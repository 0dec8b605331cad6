"""Lanes: callers of one operation who share commands while earlier ones are under way (group commit).

Nothing waits for a timer. A caller who comes while nothing is under way goes at once, alone; who comes meanwhile goes
with all the others who do, or with half of a crowd, and each returns when its own part is acknowledged. A lane only
decides who goes together; a driver sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mongoq.protocol.request import Flow, Interruption, Shared

__all__ = ["CROWD", "MOST", "Lane", "Lanes", "Send", "Ticket", "copies"]

W = TypeVar("W")

MOST = 1_000
"""Callers of one batch."""
CROWD = 48
"""Callers from which it is faster to have several batches of a lane under way than to have them all in one."""

Send = Callable[[list[Any]], Flow[Sequence[Any]]]
"""Makes the flow of a batch from the entries of its callers; it returns what each is told, an exception to raise it."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[W]):
    """A caller in a lane: what it asks for, and how the driver reaches it."""

    shared: Shared[Any]
    waiter: W


@dataclass(slots=True, eq=False)
class Lane(Generic[W]):
    """One kind of operation, on one queue mostly.

    Attributes:
        send: makes the flow of a batch.
        abreast: how many batches of a crowd may be under way at a time; each then takes its share of the crowd, since
            callers who have come back together would else go together ever after, with nothing beside them.
        waiting: who has not gone yet, first come first.
        flying: how many batches are under way, or about to be.
        aboard: how many callers those carry.
    """

    send: Send
    abreast: int = 1
    waiting: deque[Ticket[W]] = field(default_factory=deque)
    flying: int = 0
    aboard: int = 0

    @property
    def is_free(self) -> bool:
        """Whether a further batch may be sent now."""
        return not self.flying or (self.flying < self.abreast and self.flying < self._parts)

    @property
    def _parts(self) -> int:
        return self.abreast if len(self.waiting) + self.aboard >= CROWD else 1

    def board(self, is_gone: Callable[[W], bool]) -> list[Ticket[W]]:
        """Take the next batch: the first who waits and those of its kind, in their order, but for those who have gone.

        They are ``aboard`` until they have ``landed``.
        """
        batch: list[Ticket[W]] = []
        stay: deque[Ticket[W]] = deque()
        kind: Hashable = None
        most = min(MOST, -(-(len(self.waiting) + self.aboard) // self._parts))
        while self.waiting and len(batch) < most:
            ticket = self.waiting.popleft()
            if is_gone(ticket.waiter):
                continue
            if not batch:
                kind = ticket.shared.kind
            (batch if ticket.shared.kind == kind else stay).append(ticket)
        self.waiting.extendleft(reversed(stay))
        self.aboard += len(batch)
        return batch

    def landed(self, batch: Sequence[Ticket[W]]) -> None:
        """Note that a batch is under way no more."""
        self.aboard -= len(batch)

    def take_over(self, kind: Hashable, is_gone: Callable[[W], bool]) -> Ticket[W] | None:
        """Take the first who waits for what another caller has left behind."""
        for ticket in self.waiting:
            if ticket.shared.kind == kind and not is_gone(ticket.waiter):
                self.waiting.remove(ticket)
                return ticket
        return None


def copies(error: Exception, number: int) -> list[Exception]:
    """Return an error for each of so many callers: one that all of them raised would gather all their tracebacks."""
    return [_copy(error) for _ in range(number)]


def _copy(error: Exception) -> Exception:
    try:
        made = copy(error)
    except Exception:  # an error may be made in any way
        return error
    if isinstance(made, Interruption):
        made.cause = _copy(made.cause)
    return made


class Lanes:
    """The lanes of a broker, each made at its first use.

    Attributes:
        abreast: how many batches of one lane the driver can have under way at a time.
    """

    def __init__(self) -> None:
        self.abreast = 1
        self._lanes: dict[Hashable, Lane[Any]] = {}

    def lane(self, key: Hashable, send: Send, *, abreast: bool = False) -> Lane[Any]:
        """Return the lane of this name; if it is new, ``send`` serves it, with batches ``abreast`` or one at a time."""
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Lane(send, self.abreast if abreast else 1)
        return found

    def clear(self) -> None:
        """Start afresh, in a forked child: who waits there is the parent's."""
        self._lanes.clear()
