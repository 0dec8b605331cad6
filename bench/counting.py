"""The cost of counters: a busy queue beside one whose broker counts nothing."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

from bench import operations, report
from bench.bare_many import Steps, step_through
from bench.measure import Spread, Way, interleave
from bench.pairs import QUEUES, Pairs, silence
from bench.place import Place
from bench.shells import SHELLS, Shell
from mongoq.data.process import Counters, Event
from mongoq.drivers.counter_flush import FLUSH_INTERVAL_SECONDS

__all__ = ["TARGET", "measure_counting"]

TARGET = 0.02
"""The share of its time that a busy queue may lose."""
EVENTS: tuple[Event, ...] = ("put", "reserve", "commit")
"""What one turn of the loop counts."""
FLUSHES = 20
COUNTED = 2000
"""Turns whose counting alone is timed."""


def measure_counting(name: str, place: Place, *, rounds: int) -> dict[str, Any]:
    """Measure a loop of push, reserve and commit with and without counters in one shell, turn by turn.

    The flush runs beside the loop every few seconds and touches few turns, so their median does not show it. It is
    timed by itself, and its share is added as if the loop stood still meanwhile.
    """
    with SHELLS[name](place.uri) as shell:
        pairs = Pairs(shell, place)
        broker, deaf = pairs.brokers[False], silence(shell.broker(pairs.collections[False]))
        on, off = (_busy(each, queue) for each, queue in zip((broker, deaf), QUEUES, strict=True))
        comparison = interleave(shell.caller, on, off, rounds=rounds, calls=1)
        loop = comparison.time_ratio()
        noise = interleave(shell.caller, off, off, rounds=rounds, calls=1).time_ratio()
        latencies = {"on": report.latency(comparison.subject), "off": report.latency(comparison.reference)}
        flush = _flush_seconds(shell, broker, int(FLUSH_INTERVAL_SECONDS * latencies["on"]["rate"]))
        alone = _count_seconds(broker)
    cost = loop.median - 1 + flush.median / FLUSH_INTERVAL_SECONDS
    result = {
        "operation": "stats",
        **latencies,
        "loop": report.spread(loop),
        "off_beside_itself": report.spread(noise),
        "count_us": round(alone * 1_000_000, 2),
        "flush_ms": round(flush.median * 1000, 2),
        "flush_share": round(flush.median / FLUSH_INTERVAL_SECONDS, 5),
        "cost": round(cost, 4),
        "target": TARGET,
        "reached": cost <= TARGET,
    }
    report.progress(_line(name, result))
    return result


def _line(shell: str, result: dict[str, Any]) -> str:
    return (
        f"{shell:8} {'stats':30} cost {result['cost']:.2%} ± {result['loop']['error']:.2%} of push+reserve+commit, "
        f"{result['on']['median_us']:.0f} and {result['off']['median_us']:.0f} µs; "
        f"noise {result['off_beside_itself']['median'] - 1:.2%} ± {result['off_beside_itself']['error']:.2%}; "
        f"counting alone {result['count_us']:.1f} µs, "
        f"a flush {result['flush_ms']:.1f} ms every {FLUSH_INTERVAL_SECONDS:.0f} s"
    )


def _busy(broker: Any, name: str) -> Way:
    queue = broker.queue(name)

    @step_through
    def turn(payload: Any) -> Steps:
        yield queue.push(payload)
        item = yield queue.reserve()
        yield queue.commit(item)

    def prepare(n: int) -> list[Any]:
        return [operations.payload() for _ in range(n)]

    return Way(turn, prepare)


def _flush_seconds(shell: Shell, broker: Any, turns: int) -> Spread:
    """Time one flush of the counts of many turns."""
    counters = broker._context.counters

    def fill(n: int) -> list[None]:
        for _ in range(turns):
            _count_turn(counters)
        return [None] * n

    def call(_: Any) -> Any:
        return broker._driver.run(broker._driver._flush)

    blocks = [shell.caller.block(call, fill(1)) for _ in range(FLUSHES)]
    return Spread.of([block.mean / 1e9 for block in blocks])


def _count_seconds(broker: Any) -> float:
    """Time the counting of one turn alone: processor time, which other processes disturb little."""
    counters, background, times = broker._context.counters, broker._driver._counter_flush, []
    background.armed = True  # as it is but once in some seconds
    for _ in range(COUNTED):
        started = perf_counter()
        for event in EVENTS:
            counters.add(QUEUES[0], event)
            if not background.armed:
                background.arm()
        times.append(perf_counter() - started)
    background.armed = False
    return median(times)


def _count_turn(counters: Counters) -> None:
    for event in EVENTS:
        counters.add(QUEUES[0], event)
