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

from mongoq.protocol.flow.commands import Flow, Interruption, Shared

__all__ = ["CROWD", "LARGE", "MOST", "Batcher", "Batchers", "Send", "copies"]

MOST = 1_000
"""Callers of one batch."""
CROWD = 48
"""Callers from which it is faster to have several batches of a lane under way than to have them all in one."""
NEARLY = 0.75
"""The part of a share that is enough: some of a crowd are always late."""
REST = 1
"""How many times a crowd goes round before it is counted again: to ask who comes takes a twentieth of a call."""
LARGE = 128
"""Callers from which they go in three parts, where they do something else in between; before that, in two."""

Send = Callable[[list[Any]], Flow[Sequence[Any]]]
"""Makes the flow of a batch from the entries of its callers; it returns what each is told, an exception to raise it."""


@dataclass(slots=True, eq=False)
class Batcher:
    """One kind of operation, on one queue mostly.

    Attributes:
        send: makes the flow of a batch.
        abreast: how many batches of a crowd may be under way at a time.
        shares: into how many batches a large crowd is divided, since callers who have come back together would else go
            together ever after, with nothing under way beside them, in this lane or in the one they go to next.
        waiting: who has not gone yet, first come first.
        flying: how many batches are under way, or about to be.
        aboard: how many callers those carry.
        boarded: how many have gone in all.
        crowd: how many go round, as far as that is known: so many have come between two calls of one of them.
        mark: that one, and how many had come before it.
        unlikely: how many have come in all before it may be back.
        last: who came last, of those who may send for themselves.
    """

    send: Send
    abreast: int = 1
    shares: int = 1
    waiting: deque[Shared[Any]] = field(default_factory=deque)
    flying: int = 0
    aboard: int = 0
    boarded: int = 0
    crowd: int = 0
    mark: tuple[Hashable, int] | None = None
    unlikely: int = 0
    last: Hashable = None

    @property
    def is_free(self) -> bool:
        """Whether a further batch may be sent now; beside another one only if nearly a whole share waits for it."""
        if not self.flying or self.flying >= self.abreast:
            return not self.flying
        return len(self.waiting) >= NEARLY * self._share

    @property
    def _share(self) -> int:
        """How many go together at most; where there is no crowd, all."""
        crowd = self.crowd
        if self.abreast > 1:  # else it does not pay to divide those who may have come once
            crowd = max(crowd, len(self.waiting) + self.aboard)
        if crowd < CROWD:
            return MOST
        return -(-crowd // min(self.shares, 2 if crowd < LARGE else self.shares))

    def enter(self, shared: Shared[Any], caller: Callable[[], Hashable]) -> None:
        """Let a caller wait, and count how many come before it does again."""
        if self.shares > 1 and self.boarded + len(self.waiting) >= self.unlikely:
            self._counted(self.boarded + len(self.waiting), caller)
        self.waiting.append(shared)

    def _counted(self, come: int, caller: Callable[[], Hashable]) -> None:
        if self.mark is None:
            self.mark = caller(), come
            self.unlikely = come + -(-self.crowd // 2)
            return
        gone_round = come - self.mark[1]
        if caller() == self.mark[0]:
            self.crowd, self.mark, self.unlikely = gone_round, None, come + REST * gone_round
        elif gone_round > 2 * self.crowd + MOST:  # it has come for the last time
            self.crowd, self.mark = 0, None

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
        most = min(MOST, self._share)
        while self.waiting and len(batch) < most:
            shared = self.waiting.popleft()
            if is_gone(shared.waiter):
                continue
            if not batch:
                kind = shared.kind
            (batch if shared.kind == kind else stay).append(shared)
        self.waiting.extendleft(reversed(stay))
        self.aboard += len(batch)
        self.boarded += len(batch)
        return batch

    def landed(self, batch: Sequence[Shared[Any]]) -> None:
        """Note that a batch is under way no more."""
        self.aboard -= len(batch)

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


def nothing(lane: Batcher) -> None:
    """Have nothing sent: those who wait in the lane do it."""


class Batchers:
    """The lanes of a broker, each made at its first use.

    Attributes:
        divides: the driver can have several batches of a crowd under way at a time.
        caller: tells callers apart; ``None`` where none of them sends for itself.
        go_on: has the next batch of a lane sent.
    """

    def __init__(self) -> None:
        self.divides = False
        self.caller: Callable[[], Hashable] | None = None
        self.go_on: Callable[[Batcher], None] = nothing
        self._lanes: dict[Hashable, Batcher] = {}

    def lane(self, key: Hashable, send: Send, *, abreast: int = 1, shares: int = 1) -> Batcher:
        """Return the lane of this name; if it is new, ``send`` serves it, as ``Batcher`` says."""
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Batcher(send, abreast, shares) if self.divides else Batcher(send)
        return found

    def clear(self) -> None:
        """Start afresh, in a forked child: who waits there is the parent's."""
        self._lanes.clear()
