"""Outcomes: values that define how an item is settled. A handler that returns any other value settles it as done.

Retry policies: the time that a failed item waits for its next run.

The set is closed: ``HandlerOutcome`` and ``ResolvedOutcome`` list it. Code that tells outcomes apart does so by a
``match`` that ends in ``raise make_unknown_error(…)``, so that a type checker finds a branch that is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Never

from mongoq.data.arguments import (
    LONGEST_DURATION,
    REASON_BYTES,
    Duration,
    Expires,
    count,
    duration,
    moment,
    read_list,
    text,
)
from mongoq.data.encoding.error_text import name_of
from mongoq.data.process import dice as own_dice
from mongoq.data.settings import KEEP
from mongoq.errors import ArgumentInvalid, OutcomeInvalid


class Outcome:
    """The common type of all outcomes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Done(Outcome):
    """The item is settled as done; a worker makes this from a return value that is no outcome."""


@dataclass(frozen=True, slots=True)
class Retry(Outcome):
    """The run has failed without an exception: the item is rolled back; without retries left it is buried.

    Attributes:
        delay: time until the item may be claimed again, a ``timedelta`` or seconds; by default the consumer's retry
            policy decides.
        error: cause, an exception or a text; kept on the item, shortened to 4 KiB.
    """

    delay: Duration | None = None
    _: KW_ONLY
    error: BaseException | str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            duration(self.delay, "delay")
        if self.error is not None and not isinstance(self.error, BaseException | str):
            raise ArgumentInvalid("error", f"an exception or a string, not {type(self.error).__name__}")


@dataclass(frozen=True, slots=True)
class Later(Outcome):
    """The item is put off: it goes back to its queue until a time, and this run of it does not count.

    It is no failure. The attempt is taken back, so no retry is used up; no error is stored, and the error of an earlier
    failure stays. Give either ``delay`` or ``when``. Nothing limits how often an item is put off: the handler decides.

    Attributes:
        delay: time until the item may be claimed again, a ``timedelta`` or seconds.
        when: time before which it is not claimed again (aware).
    """

    delay: Duration | None = None
    _: KW_ONLY
    when: datetime | None = None

    def __post_init__(self) -> None:
        if (self.delay is None) == (self.when is None):
            raise ArgumentInvalid("delay", "give either a delay or when=, such as Later(600), not none or both")
        if self.delay is not None:
            duration(self.delay, "delay")
        if self.when is not None:
            moment(self.when, "when")


@dataclass(frozen=True, slots=True)
class Dead(Outcome):
    """The item goes to the dead queue at once, even if it has retries left.

    Attributes:
        reason: a short text to count by, at most 512 bytes.
    """

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            text(self.reason, "reason", REASON_BYTES)


@dataclass(frozen=True, slots=True)
class Drop(Outcome):
    """The item is settled as done, without any output; a queue with history keeps it there."""


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """A run has ended with an error; a worker makes this from an exception.

    Attributes:
        error: the exception.
        delay: time until the item may be claimed again.
        counted: True when the attempt counts.
        halts: True when the consumer must not claim any more items.
    """

    error: BaseException | str | None
    delay: Duration = 0
    counted: bool = True
    halts: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SettledElsewhere(Outcome):
    """An item is settled by an operation of its own, together with other items of the same operation.

    Attributes:
        settle: the operation that settles items, given the ``entry`` of each; it returns by ``id_key`` the
            errors of items that it did not settle.
        entry: data about this item for that operation.
        pop_ending: returns, after the settlement, what happened to the item, by its name in statistics; called once.
    """

    settle: Callable[[Sequence[Any]], Any]
    entry: Any
    pop_ending: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Release(Outcome):
    """An item goes back unused; a worker makes this when it ends, for items that it has not started.

    Attributes:
        when: time until which a rate puts it off; ``None`` for its old place.
        in_line: True if that is its turn in the line of its key.
    """

    when: datetime | None = None
    in_line: bool = False


@dataclass(frozen=True)
class Move(Outcome):
    """An item goes on to another queue, as by ``queue.move``, whose options these are.

    ``to`` is the queue, by name, or a handle, whose model then checks ``payload``. The arguments are checked when the
    outcome is applied.
    """

    to: Any
    _: KW_ONLY
    payload: Any = KEEP
    patch: Mapping[str, Mapping[str, Any]] | None = None
    delay: Duration | None = None
    when: datetime | None = None
    priority: int | None = None
    headers: Mapping[str, Any] | None = KEEP
    sequence: str | None = None
    expires: Expires | None = None


@dataclass(frozen=True, slots=True)
class Fork(Outcome):
    """An item becomes several: it is settled, and one item is written for each output, all of it or nothing.

    That takes a transaction, and so a replica set; one node is enough. The outputs are new items with ids of their own.
    Each has the priority and the headers of the original unless its ``Move`` gives others.

    Attributes:
        outputs: a ``Move`` for each, without ``patch``; one without a payload has that of the item. Outputs that are
            ``None`` are left out; without any output left, the item is dropped.
    """

    outputs: Sequence[Move | None]

    def __post_init__(self) -> None:
        outputs = tuple(read_list(self.outputs, "outputs"))
        for place, output in enumerate(outputs):
            if output is None:
                continue
            if not isinstance(output, Move):
                raise ArgumentInvalid(f"outputs[{place}]", f"a Move or None, not {type(output).__name__}")
            if output.patch is not None:
                raise ArgumentInvalid(f"outputs[{place}]", "a new item has nothing to patch; give payload=")
        object.__setattr__(self, "outputs", outputs)

    @property
    def moves(self) -> list[Move]:
        """Outputs that are not left out."""
        return [output for output in self.outputs if output is not None]


HandlerOutcome = Dead | Drop | Fork | Later | Move | Retry
"""Outcomes that a handler may return."""
ResolvedOutcome = Dead | Done | Drop | Failed | Fork | Later | Move | Release | SettledElsewhere
"""Outcomes that items are settled by: those of ``OutcomeResolver``, and ``Release``."""


def make_unknown_error(outcome: Never) -> OutcomeInvalid:
    """Return the error of an outcome that a ``match`` has no branch for; its item fails, and is never committed."""
    return OutcomeInvalid(f"no item can be settled by a {name_of(outcome)}")


def name_ending(outcome: ResolvedOutcome, *, spent: bool) -> str:
    """Return what happened to a settled item, by its name in statistics; ``spent``: it had no run left."""
    match outcome:
        case Done():
            return "done"
        case Move() | Fork():
            return "moved"
        case Drop():
            return "dropped"
        case Failed():
            return "dead" if spent and outcome.counted else "retried"
        case Dead():
            return "dead"
        case Release() | Later():
            return "released"
        case SettledElsewhere():
            return outcome.pop_ending()
        case _:
            raise make_unknown_error(outcome)


@dataclass(frozen=True, slots=True)
class Record:
    """A value that a source yields: a payload to push, and the position after it, from which the source goes on.

    Payload and position are stored in one transaction. So a source that was killed goes on after the last record with
    its payload in the queue: none is lost, and none comes twice. Values are checked and copied when the record is
    yielded; a record that cannot be stored stops the source there.

    Attributes:
        payload: payload to push.
        position: argument of the source's next call, if this is the last record that was stored: any value that BSON
            holds, of at most 64 KiB; not ``None``, which stands for the beginning.
        priority: as for ``push``, and so are the other options.
        delay: time after the push until the item is eligible.
        headers: metadata that goes with the item.
        sequence: sequence at whose end the item takes its place; not for a topic.
        expires: time by which the item must be started; a duration counts from the push of its batch.
    """

    payload: Any
    _: KW_ONLY
    position: Any
    priority: int = 0
    delay: Duration | None = None
    headers: Mapping[str, Any] | None = None
    sequence: str | None = None
    expires: Expires | None = None


# --- retry policies -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryPolicy(ABC):
    """Defines how long a failed item waits; the three policies differ in the growth of the delay.

    Attributes:
        base: delay before the first retry, a ``timedelta`` or seconds.
        cap: longest delay, a ``timedelta`` or seconds; ``None`` for no bound of its own.
        jitter: each delay is random, up to this share shorter or longer (0 to 1), so that items that failed together do
            not come back together. A delay may exceed ``cap`` by that share.

    Raises:
        ArgumentInvalid: a value cannot be used; the message names it.
    """

    base: Duration = 1
    _: KW_ONLY
    cap: Duration | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        duration(self.base, "base")
        if self.cap is not None:
            duration(self.cap, "cap")
        _number(self.jitter, "jitter", least=0, most=1)

    def delay(self, retry: int, dice: Callable[[], float] = own_dice.random) -> timedelta:
        """Return the delay before a retry.

        Args:
            retry: number of the retry; the first is 1.
            dice: returns a number from 0 to 1, for the jitter.

        Raises:
            ArgumentInvalid: ``retry`` is not a whole number from 1 up.
        """
        seconds = self._seconds(duration(self.base, "base").total_seconds(), count(retry, "retry"))
        if self.cap is not None:
            seconds = min(seconds, duration(self.cap, "cap").total_seconds())
        if self.jitter:
            seconds *= 1 + self.jitter * (2 * dice() - 1)
        return duration(min(seconds, LONGEST_DURATION.total_seconds()), "delay")

    @abstractmethod
    def _seconds(self, base: float, retry: int) -> float:
        """Return the delay before cap and jitter are applied."""


@dataclass(frozen=True, slots=True)
class Fixed(RetryPolicy):
    """The same delay before every retry: ``base``, default one second."""

    def _seconds(self, base: float, retry: int) -> float:
        return base


@dataclass(frozen=True, slots=True)
class Linear(RetryPolicy):
    """``base``, then twice, then three times as long, and so on."""

    def _seconds(self, base: float, retry: int) -> float:
        return base * retry


@dataclass(frozen=True, slots=True)
class Exponential(RetryPolicy):
    """``base``, then ``factor`` times as long each time; bounded by ``cap``, default one hour.

    Attributes:
        factor: growth per retry, from 1 up.
    """

    _: KW_ONLY
    cap: Duration | None = 3600
    jitter: float = 0.1
    factor: float = 2.0

    def __post_init__(self) -> None:
        RetryPolicy.__post_init__(self)
        _number(self.factor, "factor", least=1, most=1e9)

    def _seconds(self, base: float, retry: int) -> float:
        try:
            return float(base * self.factor ** (retry - 1))
        except OverflowError:
            # Beyond the range of a float; ``delay`` cuts it to the cap. A base of 0 stays 0.
            return LONGEST_DURATION.total_seconds() if base else 0.0


def _number(value: Any, argument: str, *, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentInvalid(argument, f"a number from {least} to {most:g}, not {value!r}")
