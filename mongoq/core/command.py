"""Commands of operations: what is sent, by whom it may be shared, and how it may end.

An operation is a function of the core: it performs commands (``core.perform``), and returns its result. Each call
of a broker or queue runs one, by its driver (``mongoq.drivers``). Many items are cut into several commands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, BatchIncomplete, MongoqError, PayloadInvalid, PayloadTooLarge


class WakeEvent:
    """An event that wakes one waiter; it may be set before the waiter waits.

    Attributes:
        alarm: called when the event is set; installed by the driver while a caller waits.
        was_set: the event was set since the waiter last looked.
    """

    __slots__ = ("alarm", "was_set")

    def __init__(self) -> None:
        self.alarm: Callable[[], None] | None = None
        self.was_set = False

    def set(self) -> None:
        """Set the event and wake its waiter."""
        self.was_set = True
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            alarm()


class Waiter(WakeEvent):
    """One caller that waits for an item of a queue; its place in the ``WaitQueue``.

    Attributes:
        called: the waiter is to ask the server next.
        woken: the waiter was asleep when it was called.
        asking: the waiter has sent a claim, and has not reported yet that it found nothing.
        asleep: the waiter waits on the event.
    """

    __slots__ = ("asking", "asleep", "called", "woken")

    def __init__(self) -> None:
        super().__init__()
        self.called = self.woken = self.asking = self.asleep = False


T = TypeVar("T")

Target = Literal["collection", "bytes", "history", "database", "sessions"]
"""The object whose method is called: the collection, its database, or mongoq's sessions.

``bytes`` is the collection as well, whose documents come as ``RawBSONDocument``; ``history`` has majority read concern.
"""


@dataclass(slots=True)
class Command(Generic[T]):
    """One call of a method of the collection or its database; one command to the server, but for a mixed bulk.

    Attributes:
        method: the method's name, the same in every driver.
        arguments: its keyword arguments.
        parse: turns the reply into the result; ``None`` returns it unchanged. ``find`` and ``aggregate`` reply with a
            list.
        undo: given the reply, returns the command that gives back what this one took, or ``None`` when it took
            nothing. The driver runs it when the caller was cancelled before the reply, or when the operation fails
            later.
        target: the object whose method is called.
        session: the driver's session of the transaction, if any.
        fenced: a second one changes nothing that the first did not, so an undo may be sent again.
        resolved: the operation handles a lost reply itself, so the command may be sent without the driver's retry.
    """

    method: str
    arguments: Mapping[str, Any]
    parse: Callable[[Any], T] | None = None
    undo: Callable[[Any], Command[Any] | None] | None = None
    target: Target = "collection"
    session: Any = None
    fenced: bool = True
    resolved: bool = False


@dataclass(slots=True, eq=False)
class Shared(Generic[T]):
    """One caller's part of a command that concurrent callers of one operation share.

    While a command of the operation is under way, callers gather; then one goes for all of them. Each caller returns
    when its own part is acknowledged, so durability is that of a single command.

    Attributes:
        key: the operation; callers with equal keys share.
        send: called with all entries by ``driver.run``, such as ``push._insert_for_callers``. It returns one answer for
            each; an exception for a failure.
        entry: the caller's request, in the form that ``send`` takes.
        undo: given this caller's answer, returns the command that gives back what it took; as for ``Command``.
        waiter: the future by which the driver answers the caller on asyncio; ``None`` for threads.
    """

    key: Hashable
    send: Callable[[list[Any]], Any]
    entry: Any
    undo: Callable[[Any], Command[Any] | None] | None = None
    waiter: Any = None


LOST: Any = object()
"""What the undo of a command gets in place of a reply that was lost: the server may have done it."""
UndoLog = list[tuple[Command[Any] | Shared[Any], Any]]
"""The last request of an operation that took items, with its reply, and then those that began its transaction, and
began to commit it, if any.

One that took items is enough: before an operation takes more, it has handed over or given back what it had. In a queue
of unfit items an operation may take thousands, one after the other."""


def note_taken(undo_log: UndoLog, request: Command[Any] | Shared[Any], reply: Any) -> None:
    """Note what is to be given back when the operation fails, in place of what was taken before."""
    if is_of_transaction(request):
        undo_log.append((request, reply))
    else:
        undo_log[:] = [(request, reply)]


def is_of_transaction(request: Command[Any] | Shared[Any]) -> bool:
    """Return whether a request with an undo begins a transaction, or commits it; the others take items."""
    return isinstance(request, Command) and request.target == "sessions"


@dataclass(slots=True)
class Attached:
    """A transaction that an operation runs in: its session goes with every command.

    Attributes:
        session: the driver's session.
        error: the error that has ended the transaction; ``None`` before.
        may_explain: the operation may replace that error by its own, for which it may read.
    """

    session: Any
    error: Exception | None = None
    may_explain: bool = False


@dataclass(slots=True)
class Operation:
    """One call of a broker or queue, from its first command to its result.

    Attributes:
        driver: performs its commands.
        undo_log: what it has taken last, to be given back when it fails.
        transaction: the transaction that its commands belong to, if any.
    """

    driver: Any
    undo_log: UndoLog = field(default_factory=list)
    transaction: Attached | None = None


OPERATION: ContextVar[Operation] = ContextVar("mongoq_operation")
"""The operation that the thread or task runs."""


MAX_SHARED = 1_000
"""Callers that share one command, at most."""
MAX_SENDS = 4
"""Attempts of a command that is sent without the driver's retry; the first one included."""


def has_matched(reply: Any) -> bool:
    """Return whether an update found its document; a ``parse``."""
    return bool(reply.matched_count)


def number_matched(reply: Any) -> int:
    """Return the number of documents that an update of many found; a ``parse``."""
    return int(reply.matched_count)


def delete_many(filter: Mapping[str, Any]) -> Command[int]:
    """Return the command that deletes all matching documents and returns their number."""
    return Command("delete_many", {"filter": filter}, lambda reply: int(reply.deleted_count))


class Interruption(Exception):
    """An error that operations can handle, raised in place of the driver's own.

    A caller gets the driver's own error when the operation lets it pass.
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
    """The command happened, but its reply holds bytes that cannot be decoded: the document of another program."""


def hands_over(error: BaseException) -> bool:
    """Return whether an error hands the claimed item to the caller, so that it must not be given back."""
    return getattr(error, "item", None) is not None


class Refused(Interruption):
    """The server refused an update that does not fit the stored document."""


class PartlyRefused(Interruption):
    """The server refused some statements of a bulk, or some documents of an insert; the others happened.

    Attributes:
        refusals: the error of each refused statement, by its position, as for a single command.
        total: documents that the other statements matched, deleted or inserted.
    """

    def __init__(self, cause: Exception, refusals: Mapping[int, Exception], total: int) -> None:
        super().__init__(cause)
        self.refusals = refusals
        self.total = total


MAX_COMMAND_ITEMS = 10_000
"""Items of one command, at most."""
MAX_COMMAND_BYTES = 16 * 1024 * 1024


def chunks(
    parts: Sequence[T],
    size: Callable[[T], int],
    *,
    items: Callable[[T], int] | None = None,
    most: int = MAX_COMMAND_ITEMS,
) -> Iterator[list[T]]:
    """Cut parts into chunks of at most ``most`` parts, 10,000 items and 16 MiB; a larger part is a chunk of its own."""
    are_few = items is None and 0 < len(parts) <= min(most, MAX_COMMAND_ITEMS)
    if len(parts) == 1 or (are_few and sum(map(size, parts)) <= MAX_COMMAND_BYTES):
        yield [*parts]
        return
    run: list[T] = []
    total = number = 0
    for part in parts:
        more, count = size(part), 1 if items is None else items(part)
        if run and (len(run) == most or total + more > MAX_COMMAND_BYTES or number + count > MAX_COMMAND_ITEMS):
            yield run
            run, total, number = [], 0, 0
        run.append(part)
        total, number = total + more, number + count
    if run:
        yield run


def finish(queue: str, done: Iterable[ObjectId], failed: Mapping[ObjectId, Exception]) -> None:
    """Raise the error of a batch, if any: the driver's own error when nothing was done and nothing else is known."""
    if not failed:
        return
    first = next(iter(failed.values()))
    if not list(done) and not any(isinstance(error, MongoqError) for error in failed.values()):
        raise first
    raise BatchIncomplete(queue, done, failed) from first


def own_error(error: Exception) -> Exception:
    """Return the driver's error behind an interruption; any other error unchanged."""
    return error.cause if isinstance(error, Interruption) else error


def copies(error: Exception, number: int) -> list[Exception]:
    """Return one copy of the error per caller: an error that all of them raise would collect all their tracebacks."""
    return [_copy(error) for _ in range(number)]


def _copy(error: Exception) -> Exception:
    try:
        copied = copy(error)
    except Exception:  # an error may be made in any way
        return error
    if isinstance(copied, Interruption):
        copied.cause = _copy(copied.cause)
    return copied


def with_place(error: ArgumentInvalid, place: str, root: str = "") -> ArgumentInvalid:
    """Return the error with its place in the caller's argument: ``payloads[3].a`` instead of ``payload.a``."""
    if isinstance(error, PayloadInvalid):
        return PayloadInvalid(place + error.path.removeprefix(root), error.problem, item=error.item, raw=error.raw)
    argument = place + error.argument.removeprefix(root)
    if isinstance(error, PayloadTooLarge):
        return PayloadTooLarge(argument, error.size, error.limit)
    return type(error)(argument, error.problem)
