"""Readings of all queues: shared, limited to a part of the time, and the throughput from them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from mongoq.protocol.insight import QueueInsight
from mongoq.web.pages.drawing import RATES_WIDTH, draw_rates
from mongoq.web.readings import QueueReadings


class Client:
    """Counts the readings, each of which takes some seconds of a clock."""

    def __init__(self, seconds: float) -> None:
        self.now, self.reads, self.done = 0.0, 0, 0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    async def read(self, _flow: Any) -> list[QueueInsight]:
        self.reads += 1
        self.now += self._seconds
        return [QueueInsight("orders", datetime.now(UTC), events={"commit": self.done, "put": 10**6})]


@pytest.mark.parametrize(("seconds", "pause"), [(0.01, 5.0), (0.4, 40.0)])
def test_a_reading_takes_a_hundredth_of_the_time_at_most(seconds: float, pause: float) -> None:
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


def test_the_line_of_rates_fits_its_place() -> None:
    line = draw_rates([0.0, 5.0, 10.0])
    points = [tuple(map(float, point.split(","))) for point in line.points.split()]
    assert points == [(0, 23), (60, 12), (RATES_WIDTH, 1)]
    assert (line.last, line.most) == (10, 10)
    assert draw_rates([]).points == draw_rates([3.0]).points == ""
    assert draw_rates([0.0, 0.0]).points == "0.0,23.0 120.0,23.0"
