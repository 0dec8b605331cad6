"""Outcomes: what is to become of an item, as a value. A handler returns one; what returns anything else is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import REASON_BYTES, Duration, duration, listed, text
from mongoq.model.settings import KEEP

__all__ = ["Dead", "Drop", "Failed", "Fork", "Move", "Outcome", "Release", "Retry", "SettledElsewhere"]


class Outcome:
    """The common type of all outcomes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Retry(Outcome):
    """The run has failed without an exception: the item is rolled back; beyond its retries it is buried.

    Attributes:
        delay: not to be handed out again before so long from now, a ``timedelta`` or seconds; default what the
            consumer's retry policy says.
        error: why, an exception or a text; kept on the item, shortened to 4 KiB.
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
class Dead(Outcome):
    """The item goes to the dead queue at once, whatever retries are left.

    Attributes:
        reason: a short text to count by, at most 512 bytes.
    """

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            text(self.reason, "reason", REASON_BYTES)


@dataclass(frozen=True, slots=True)
class Drop(Outcome):
    """The item is settled as done, and nothing more comes of it; a queue with history keeps it there."""


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """A run has ended with an error; what a worker makes of an exception.

    Attributes:
        error: the exception.
        delay: how long the item waits.
        counted: the attempt counts.
        halts: the consumer is to take nothing more.
    """

    error: BaseException | str | None
    delay: Duration = 0
    counted: bool = True
    halts: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SettledElsewhere(Outcome):
    """An item is settled in a way of its own, together with others that go the same.

    Attributes:
        way: makes the flow that settles those whose ``told`` it is given, and returns the errors of the others by
            ``id_key``.
        told: what it is to know of this one.
        fate: tells once it was settled what became of it, as statistics call that; it is asked once.
    """

    way: Callable[[Sequence[Any]], Any]
    told: Any
    fate: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Release(Outcome):
    """An item goes back unused; what a worker makes of what it has not started when it ends."""


@dataclass(frozen=True, init=False)
class Move(Outcome):
    """An item goes on to another queue, as ``queue.move`` does it. Nothing is checked before it is used.

    Attributes:
        to: the queue, by name, or a handle, whose model then checks ``payload``.
        payload: the new payload.
        patch: or operators that change the payload, such as ``{"$set": {"plane.seats": 180}}``.
        delay: not to be handed out there before so long from now, a ``timedelta`` or seconds.
        when: not to be handed out there before this time (aware).
        priority: the new priority.
        headers: the new headers; ``None`` removes them.
    """

    to: Any
    _: KW_ONLY
    payload: Any = KEEP
    patch: Mapping[str, Mapping[str, Any]] | None = None
    delay: Duration | None = None
    when: datetime | None = None
    priority: int | None = None
    headers: Mapping[str, Any] | None = KEEP

    def __init__(
        self,
        to: Any,
        *,
        payload: Any = KEEP,
        patch: Mapping[str, Mapping[str, Any]] | None = None,
        delay: Duration | None = None,
        when: datetime | None = None,
        priority: int | None = None,
        headers: Mapping[str, Any] | None = KEEP,
    ) -> None:
        told = self.__dict__  # a batch makes thousands, and setting a frozen attribute takes five times as long
        told["to"] = to
        if type(self) is not Move:  # its class may have attributes of these names
            told.update(payload=payload, patch=patch, delay=delay, when=when, priority=priority, headers=headers)
            return
        if payload is not KEEP:
            told["payload"] = payload
        if patch is not None:
            told["patch"] = patch
        if delay is not None:
            told["delay"] = delay
        if when is not None:
            told["when"] = when
        if priority is not None:
            told["priority"] = priority
        if headers is not KEEP:
            told["headers"] = headers


@dataclass(frozen=True, slots=True)
class Fork(Outcome):
    """An item becomes several: it is settled, and an item is written for each output, all of it or nothing.

    That takes a transaction, and so a replica set; one node will do. The outputs are new items with ids of their own,
    each with the priority and the headers of the one they come from unless its ``Move`` says otherwise.

    Attributes:
        outputs: a ``Move`` for each, without ``patch``; one without a payload has that of the item. What is ``None`` is
            left out; if nothing is left, the item is dropped.
    """

    outputs: Sequence[Move | None]

    def __post_init__(self) -> None:
        outputs = tuple(listed(self.outputs, "outputs"))
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
        """Those that are not left out."""
        return [output for output in self.outputs if output is not None]
