"""Requests and flows: how an operation says what to do without doing it.

A flow is a generator that yields requests and returns the operation's result. A driver (``mongoq.drivers``) runs it:
it performs each request, sends the parsed reply in, or throws the error in. The same flow so serves threads and
asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from mongoq.protocol.flow.event import WakeEvent

__all__ = [
    "SENDS",
    "Begin",
    "Begun",
    "Beside",
    "Blocked",
    "Command",
    "Duplicate",
    "Flow",
    "Interruption",
    "PartlyRefused",
    "Refused",
    "ReplyLost",
    "Request",
    "Rest",
    "Shared",
    "Target",
    "Unreadable",
    "Wait",
    "ask",
    "hands_over",
    "insisted",
    "matched",
    "persisted",
]

T = TypeVar("T")

Target = Literal["collection", "bytes", "history", "database", "sessions"]
"""Where a method is called: the collection, its database, or our sessions.

``bytes`` is the collection as well, whose documents come as ``RawBSONDocument``; ``history`` has majority read concern.
"""


@dataclass(slots=True)
class Command(Generic[T]):
    """One call of a method of the collection or its database; one command to the server.

    Attributes:
        method: the method's name, the same in every driver.
        arguments: its keyword arguments.
        parse: makes the result of the reply; ``None`` takes it as it is. ``find`` and ``aggregate`` reply with a list.
        undo: given the reply, the command that gives back what this one took, or ``None`` when it took nothing;
            run by the driver when the caller has gone before the reply came, or when the flow fails later.
        target: what the method is called on.
        session: the driver's session in whose transaction it is sent.
        resolved: the flow itself sends it again, or finds out what became of it, when its reply is lost, so that it may
            be sent without the driver's retry.
        here: it takes nothing, and a caller that is cancelled may take it along: its own task sends it.
    """

    method: str
    arguments: Mapping[str, Any]
    parse: Callable[[Any], T] | None = None
    undo: Callable[[Any], Command[Any] | None] | None = None
    target: Target = "collection"
    session: Any = None
    resolved: bool = False
    here: bool = False

    def __iter__(self) -> Flow[T]:
        """Perform this command: ``reply = yield from command``."""
        return (yield self)  # type: ignore[no-any-return]  # the driver sends what ``parse`` made


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so many seconds; a cancelled caller is cancelled here."""

    seconds: float

    def __iter__(self) -> Flow[None]:
        """Perform this wait."""
        yield self


@dataclass(slots=True, eq=False)
class Shared(Generic[T]):
    """One caller's part of a command that callers share (``mongoq.protocol.state.batcher``).

    Attributes:
        lane: where it waits for the others.
        entry: what it asks for, in the form that the lane's flow takes.
        kind: only entries of one kind go together.
        undo: given what this caller was told, the command that gives back what it took; as for ``Command``.
        waiter: how the driver reaches the caller, once it waits.
    """

    lane: Any
    entry: Any
    kind: Hashable = None
    undo: Callable[[Any], Command[Any] | None] | None = None
    waiter: Any = None

    def __iter__(self) -> Flow[T]:
        """Perform this: ``told = yield from shared``."""
        return (yield self)  # type: ignore[no-any-return]  # what the lane's flow made


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing until the bell rings, or for so many seconds; a cancelled caller is cancelled here."""

    bell: WakeEvent
    seconds: float

    def __iter__(self) -> Flow[None]:
        """Perform this rest."""
        yield self


@dataclass(frozen=True, slots=True)
class Beside:
    """Run a flow beside this one, in a thread or task of the driver's; nobody hears how it ends.

    Attributes:
        flow: makes the flow.
        over: called when it has ended, or will not begin: its task was cancelled before that.
    """

    flow: Callable[[], Flow[None]]
    over: Callable[[], object]

    def __iter__(self) -> Flow[None]:
        """Perform this: the other flow has begun, or will in a moment."""
        yield self


@dataclass(frozen=True, slots=True)
class Begin:
    """Send a command, and do not wait for its reply; the answer is what to wait for, a ``Begun``.

    When the flow ends before that, the command ends by itself, and nobody hears of it, nor gives back what it took.
    """

    command: Command[Any]

    def __iter__(self) -> Flow[Begun]:
        """Perform this: ``begun = yield from Begin(command)``."""
        return (yield self)  # type: ignore[no-any-return]  # what the driver makes


@dataclass(frozen=True, slots=True)
class Begun:
    """A command under way: wait for what it makes of its reply, or for its error.

    Attributes:
        command: what was sent.
        reply: the driver's means to wait.
    """

    command: Command[Any]
    reply: Any

    def __iter__(self) -> Flow[Any]:
        """Wait: ``reply = yield from begun``."""
        return (yield self)


Request = Command[Any] | Shared[Any] | Wait | Rest | Beside | Begin | Begun
Flow = Generator[Request, Any, T]


SENDS = 4
"""How often a command is sent, the first time included, that does without the driver's retry."""


def insisted(command: Command[T], begun: Begun | None = None) -> Flow[T]:
    """Perform a command that is safe to send twice, or has ``begun``; when its reply is lost it is sent again, once."""
    try:
        return (yield from begun or command)
    except ReplyLost:
        return (yield from command)


def persisted(send: Callable[[], Flow[T]], *, sent: int = 0) -> Flow[tuple[T, bool]]:
    """Send such a command, which does without the driver's retry, until there is a reply, ``SENDS`` times at most.

    Some of them it may have been ``sent`` for already. Returns its result, and whether a reply was lost before it.
    """
    for lost in range(sent, SENDS - 1):
        try:
            return (yield from send()), lost > 0
        except ReplyLost:
            pass
    return (yield from send()), True


def ask(command: Command[T]) -> Flow[T]:
    """Send a command that is safe to repeat until there is a reply, ``SENDS`` times at most, and return its result."""
    result, _ = yield from persisted(command.__iter__)
    return result


def matched(reply: Any) -> bool:
    """Say whether an update found its document; a ``parse``."""
    return bool(reply.matched_count)


def number_matched(reply: Any) -> int:
    """Return how many documents an update of many found; a ``parse``."""
    return int(reply.matched_count)


def delete_many(filter: Mapping[str, Any]) -> Command[int]:
    """Return the command that deletes all documents that match, and how many those were."""
    return Command("delete_many", {"filter": filter}, lambda reply: int(reply.deleted_count))


class Interruption(Exception):
    """What a driver throws into a flow in place of a driver's error that flows know how to handle.

    One that leaves the flow becomes the driver's own error again.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class ReplyLost(Interruption):
    """The command may or may not have happened: the connection broke, or the write concern was not confirmed."""


class Blocked(Interruption):
    """The server gave up after the time that the command was given, most likely waiting for a transaction to end."""


class Duplicate(Interruption):
    """A unique index, or ``_id``, refused the write."""


class Unreadable(Interruption):
    """The command happened, and its reply holds bytes that no value can be made of: some other program's document."""


def hands_over(error: BaseException) -> bool:
    """Say whether an error gives the caller the item that was claimed, so that it must not be given back."""
    return getattr(error, "item", None) is not None


class Refused(Interruption):
    """The server refused an update that does not fit the stored document."""


class PartlyRefused(Interruption):
    """The server refused some statements of a bulk, or some documents of an insert; the others happened.

    Attributes:
        refusals: by the position of each, its error as a flow would have met it alone.
        total: how many documents the others matched, deleted or inserted.
    """

    def __init__(self, cause: Exception, refusals: Mapping[int, Exception], total: int) -> None:
        super().__init__(cause)
        self.refusals = refusals
        self.total = total
