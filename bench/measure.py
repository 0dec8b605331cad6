"""Interleaved measuring: small blocks of two ways in turn, so that a disturbance of the machine affects both."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time_ns
from typing import Any, Protocol

__all__ = ["WARM_UP", "Block", "Caller", "Comparison", "LoopCaller", "Spread", "ThreadCaller", "Way", "interleave"]

Call = Callable[[Any], Any]
WARM_UP = 2
"""Rounds that are not counted."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in a row: the nanoseconds and the reply of each, and the processor time of this process.

    Processor time shows the cost of a way by itself, whatever else the machine is doing.
    """

    times: list[int]
    replies: list[Any]
    processor: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.times)

    @property
    def median(self) -> float:
        return statistics.median(self.times)


class Caller(Protocol):
    """The caller: one thread or one task."""

    def block(self, call: Call, subjects: Sequence[Any]) -> Block:
        """Call with each subject in turn, and time each call."""
        ...


class ThreadCaller:
    def block(self, call: Call, subjects: Sequence[Any]) -> Block:
        times, replies, before = [], [], process_time_ns()
        for subject in subjects:
            started = perf_counter_ns()
            reply = call(subject)
            ended = perf_counter_ns()
            times.append(ended - started)
            replies.append(reply)
        return Block(times, replies, process_time_ns() - before)


class LoopCaller:
    """Awaits in one task of one event loop, which rests between blocks."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def block(self, call: Call, subjects: Sequence[Any]) -> Block:
        return self._runner.run(self._await_all(call, subjects))

    async def _await_all(self, call: Call, subjects: Sequence[Any]) -> Block:
        times, replies, before = [], [], process_time_ns()
        for subject in subjects:
            started = perf_counter_ns()
            reply = await call(subject)
            ended = perf_counter_ns()
            times.append(ended - started)
            replies.append(reply)
        return Block(times, replies, process_time_ns() - before)


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two ways to compare.

    Attributes:
        call: the call that is timed.
        prepare: brings about the state for so many calls and returns their subjects; not timed.
        restore: given the replies of a block, checks them or undoes what it did; not timed.
    """

    call: Call
    prepare: Callable[[int], Sequence[Any]]
    restore: Callable[[list[Any]], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some numbers, and their spread."""

    median: float
    low: float
    high: float
    """Quartiles."""
    error: float
    """What the median may be off by, from the quartiles and the number of blocks (about 95 %)."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0], math.inf)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, 1.57 * (high - low) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The blocks of two ways, pair by pair."""

    subject: list[Block] = field(default_factory=list)
    reference: list[Block] = field(default_factory=list)

    def rate_ratio(self) -> Spread:
        """The subject's rate divided by the reference's, per pair of blocks."""
        return Spread.of([theirs.mean / ours.mean for ours, theirs in self._pairs()])

    def median_ratio(self) -> Spread:
        """The same for the median calls: blind to occasional costs, also to noise from other processes."""
        return Spread.of([theirs.median / ours.median for ours, theirs in self._pairs()])

    def time_ratio(self) -> Spread:
        """The subject's time divided by the reference's, per pair of blocks."""
        return Spread.of([ours.mean / theirs.mean for ours, theirs in self._pairs()])

    def _pairs(self) -> list[tuple[Block, Block]]:
        return list(zip(self.subject, self.reference, strict=True))


def interleave(caller: Caller, subject: Way, reference: Way, *, rounds: int, calls: int) -> Comparison:
    """Measure blocks of ``calls`` calls of both ways in turn; the way that begins changes with every round."""
    comparison = Comparison()
    for turn in range(-WARM_UP, rounds):
        pair = [(subject, comparison.subject), (reference, comparison.reference)]
        for way, blocks in pair if turn % 2 else reversed(pair):
            subjects = way.prepare(calls)
            block = caller.block(way.call, subjects)
            way.restore(block.replies)
            if turn >= 0:
                blocks.append(block)
    return comparison
