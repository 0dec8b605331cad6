"""Readings of all queues: shared, limited to a part of the time, and the throughput from them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from mongoq.protocol.history import dead_letters
from mongoq.protocol.insight import QueueInsight
from mongoq.web.pages.drawing import RATES_WIDTH, draw_rates
from mongoq.web.readings import (
    FAILED,
    FAILING_SAMPLES,
    MAX_DEAD_QUEUES,
    MAX_PAUSE_SECONDS,
    MIN_PAUSE_SECONDS,
    LetterReadings,
    QueueReadings,
    Throughput,
)


class Client:
    """Counts the readings, each of which takes some seconds of a clock."""

    def __init__(self, seconds: float) -> None:
        self.now, self.reads, self.done, self.failed = 0.0, 0, 0, 0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    async def read(self, _flow: Any) -> list[QueueInsight]:
        self.reads += 1
        self.now += self._seconds
        events = {"commit": self.done, "put": 10**6, "rollback": self.failed}
        return [QueueInsight("orders", datetime.now(UTC), events=events)]


@pytest.mark.parametrize(("seconds", "pause"), [(0.01, 5.0), (0.4, 80.0)])
def test_a_reading_takes_half_a_hundredth_of_the_time_at_most(seconds: float, pause: float) -> None:
    client = Client(seconds)
    readings = QueueReadings(client, clock=client.clock)  # type: ignore[arg-type]

    async def ask(times: int) -> None:
        await asyncio.gather(*(readings.read() for _ in range(times)))

    asyncio.run(ask(20))
    assert (client.reads, readings.pause) == (1, pytest.approx(pause))
    client.now += pause - 0.001
    asyncio.run(ask(20))
    assert client.reads == 1
    client.now += 0.002
    asyncio.run(ask(20))
    assert client.reads == 2


def test_one_slow_reading_does_not_stop_the_next_ones_for_long() -> None:
    client = Client(30.0)  # a failover
    readings = QueueReadings(client, clock=client.clock)  # type: ignore[arg-type]
    asyncio.run(readings.read())
    assert readings.pause == MAX_PAUSE_SECONDS
    client.now, client._seconds = client.now + MAX_PAUSE_SECONDS, 0.01
    asyncio.run(readings.read())
    assert readings.pause == MIN_PAUSE_SECONDS
    client.now, client._seconds = client.now + MIN_PAUSE_SECONDS, 30.0  # another one, in the midst of fast readings
    asyncio.run(readings.read())
    assert readings.pause == MIN_PAUSE_SECONDS


def test_callers_that_wait_for_a_reading_share_its_failure() -> None:
    client = Client(10.0)
    readings = QueueReadings(client, clock=client.clock)  # type: ignore[arg-type]

    async def fail(_flow: Any) -> Any:
        client.reads += 1
        await asyncio.sleep(0)
        client.now += 10
        raise OSError("away")

    async def ask() -> list[Any]:
        return await asyncio.gather(*(readings.read() for _ in range(20)), return_exceptions=True)

    recovered, client.read = client.read, fail  # type: ignore[method-assign]
    assert [type(answer) for answer in asyncio.run(ask())] == [OSError] * 20
    assert client.reads == 1
    client.read = recovered  # type: ignore[method-assign]
    assert len(asyncio.run(ask())) == 20
    assert client.reads == 2


def test_groups_of_letters_are_read_once_and_anew_after_a_change() -> None:
    reads = []

    class Grouping:
        async def read(self, *_arguments: Any, **options: Any) -> Any:
            reads.append(options["limit"])
            return [], False

    letters = SimpleNamespace(name="orders.dead", _context=SimpleNamespace())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead_letters, "selection", lambda *_arguments, **_options: None)
        readings = LetterReadings(Grouping())  # type: ignore[arg-type]

        async def ask(times: int) -> None:
            await asyncio.gather(*(readings.read(letters) for _ in range(times)))

        asyncio.run(ask(20))
        assert reads == [100_000]
        readings.forget("orders.dead")
        asyncio.run(ask(20))
        assert reads == [100_000] * 2
        for number in range(300):
            letters.name = str(number)
            asyncio.run(ask(1))
    assert len(readings._readings) == MAX_DEAD_QUEUES


def test_an_hour_of_throughput_is_kept() -> None:
    client = Client(0.0)
    readings = QueueReadings(client, clock=client.clock)  # type: ignore[arg-type]

    async def run(minutes: int, each: int) -> None:
        for _ in range(minutes):
            await readings.read()
            client.now += 60
            client.done += each

    asyncio.run(run(3, 120))
    assert readings.rates("orders") == [120.0, 120.0]
    assert readings.rates("unknown") == [0.0, 0.0]
    asyncio.run(run(100, 7))
    assert readings.rates("orders") == [7.0] * 60
    client.done = 0  # the queue was dropped, and made again
    asyncio.run(run(1, 0))
    assert readings.rates("orders")[-1] == 0.0


def test_failures_of_the_last_minutes_make_a_failing_queue() -> None:
    client = Client(0.0)
    readings = QueueReadings(client, clock=client.clock)  # type: ignore[arg-type]

    async def run(minutes: int) -> None:
        for _ in range(minutes):
            await readings.read()
            client.now += 60

    assert readings.measure(["orders"], FAILED) is None
    asyncio.run(run(2))
    assert readings.measure(["orders"], FAILED) == Throughput(0.0, 0)
    client.failed = 3
    asyncio.run(run(1))
    assert readings.measure(["orders", "unknown"], FAILED) == Throughput(3.0, 3)
    asyncio.run(run(FAILING_SAMPLES - 1))
    assert readings.measure(["orders"], FAILED) == Throughput(0.0, 3)
    assert readings.is_failing("orders")
    asyncio.run(run(1))
    assert not readings.is_failing("orders")
    assert not readings.is_failing("unknown")


def test_the_line_of_rates_fits_its_place() -> None:
    line = draw_rates([0.0, 5.0, 10.0])
    points = [tuple(map(float, point.split(","))) for point in line.points.split()]
    assert points == [(0, 23), (60, 12), (RATES_WIDTH, 1)]
    assert (line.last, line.most) == (10, 10)
    assert draw_rates([]).points == draw_rates([3.0]).points == ""
    assert draw_rates([0.0, 0.0]).points == "0.0,23.0 120.0,23.0"
