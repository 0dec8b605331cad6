"""Lanes: callers of one operation who share commands while earlier ones are under way (group commit).

Nothing waits for a timer. A caller who comes while nothing is under way goes at once, alone; who comes meanwhile goes
with all the others who do, or with half of a crowd, and each returns when its own part is acknowledged. A lane only
decides who goes together; a driver sends, and says whose ``waiter`` is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from mongoq.protocol.request import Flow, Interruption, Shared

__all__ = ["CROWD", "MOST", "Lane", "Lanes", "Send", "copies"]

MOST = 1_000
"""Callers of one batch."""
CROWD = 48
"""Callers from which it is faster to have several batches of a lane under way than to have them all in one."""

Send = Callable[[list[Any]], Flow[Sequence[Any]]]
"""Makes the flow of a batch from the entries of its callers; it returns what each is told, an exception to raise it."""


@dataclass(slots=True, eq=False)
class Lane:
    """One kind of operation, on one queue mostly.

    Attributes:
        send: makes the flow of a batch.
        abreast: how many batches of a crowd may be under way at a time.
        shares: into how many batches a crowd is divided, since callers who have come back together would else go
            together ever after, with nothing under way beside them, in this lane or in the one they go to next.
        waiting: who has not gone yet, first come first.
        flying: how many batches are under way, or about to be.
        aboard: how many callers those carry.
        gone: how many the last batch carried, where they do something else before they come back.
        last: who came last, of those who may send for themselves.
    """

    send: Send
    abreast: int = 1
    shares: int = 1
    waiting: deque[Shared[Any]] = field(default_factory=deque)
    flying: int = 0
    aboard: int = 0
    gone: int = 0
    last: Hashable = None

    @property
    def is_free(self) -> bool:
        """Whether a further batch may be sent now."""
        return not self.flying or (self.flying < self.abreast and self.flying < self._parts)

    @property
    def _parts(self) -> int:
        return self.shares if self._crowd >= CROWD else 1

    @property
    def _crowd(self) -> int:
        return len(self.waiting) + self.aboard + self.gone

    def set_out(self, caller: Hashable) -> bool:
        """Let a caller go that sends for itself, if it came last as well, and nobody is under way.

        The first of many who come at once is another one. It is ``aboard`` until it has come ``back``.
        """
        alone = caller == self.last and not self.flying and not self.waiting
        self.last = caller
        if alone:
            self.flying = self.aboard = 1
        return alone

    def back(self) -> None:
        """Note that such a caller is under way no more."""
        self.flying -= 1
        self.aboard -= 1

    def board(self, is_gone: Callable[[Any], bool]) -> list[Shared[Any]]:
        """Take the next batch: the first who waits and those of its kind, in their order, but for those who have gone.

        They are ``aboard`` until they have ``landed``.
        """
        batch: list[Shared[Any]] = []
        stay: deque[Shared[Any]] = deque()
        kind: Hashable = None
        most = min(MOST, -(-self._crowd // self._parts))
        while self.waiting and len(batch) < most:
            shared = self.waiting.popleft()
            if is_gone(shared.waiter):
                continue
            if not batch:
                kind = shared.kind
            (batch if shared.kind == kind else stay).append(shared)
        self.waiting.extendleft(reversed(stay))
        self.aboard += len(batch)
        return batch

    def landed(self, batch: Sequence[Shared[Any]]) -> None:
        """Note that a batch is under way no more."""
        self.aboard -= len(batch)
        self.gone = len(batch) if self.abreast < self.shares else 0

    def take_over(self, kind: Hashable, is_gone: Callable[[Any], bool]) -> Shared[Any] | None:
        """Take the first who waits for what another caller has left behind."""
        for shared in self.waiting:
            if shared.kind == kind and not is_gone(shared.waiter):
                self.waiting.remove(shared)
                return shared
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


def nothing(lane: Lane) -> None:
    """Have nothing sent: those who wait in the lane do it."""


class Lanes:
    """The lanes of a broker, each made at its first use.

    Attributes:
        shares: into how many batches the driver divides a crowd.
        caller: tells callers apart; ``None`` where none of them sends for itself.
        go_on: has the next batch of a lane sent.
    """

    def __init__(self) -> None:
        self.shares = 1
        self.caller: Callable[[], Hashable] | None = None
        self.go_on: Callable[[Lane], None] = nothing
        self._lanes: dict[Hashable, Lane] = {}

    def lane(self, key: Hashable, send: Send, *, divided: bool = False, abreast: bool = False) -> Lane:
        """Return the lane of this name; if it is new, ``send`` serves it.

        A crowd in it is ``divided`` into batches, which go ``abreast`` or one at a time.
        """
        found = self._lanes.get(key)
        if found is None:
            shares = self.shares if divided else 1
            found = self._lanes[key] = Lane(send, shares if abreast else 1, shares)
        return found

    def clear(self) -> None:
        """Start afresh, in a forked child: who waits there is the parent's."""
        self._lanes.clear()
