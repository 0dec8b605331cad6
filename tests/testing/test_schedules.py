"""Schedules under virtual brokers: they follow the clock that the test moves."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest

import mongoq
from mongoq.testing import AsyncVirtualBroker, VirtualBroker, VirtualWorker

START = datetime(2024, 1, 1, tzinfo=UTC)


def test_a_function_gets_the_ticks_as_the_clock_moves(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    seen: list[mongoq.Tick] = []
    worker.schedule("report", cron="0 6 * * *", timezone="Europe/Berlin", missed="all")(seen.append)
    assert worker.run_until_idle() == []
    virtual.advance(timedelta(hours=5))
    (result,) = worker.run_until_idle()
    assert result.outcome == "done"
    assert seen == [mongoq.Tick("report", START + timedelta(hours=5), "Europe/Berlin")]
    assert seen[0].local.hour == 6
    virtual.advance(timedelta(days=1))
    assert worker.run_one("report") is not None
    virtual.advance(timedelta(days=1))
    assert len(worker.run_batch("report")) == 1
    assert [tick.at.day for tick in seen] == [1, 2, 3]


def test_the_schedules_of_a_worker_of_production_are_taken_over(virtual: VirtualBroker) -> None:
    elsewhere = VirtualBroker()
    production = mongoq.Worker(elsewhere)
    seen: list[Any] = []

    @production.schedule("report", every=60, max_retries=0)
    def report(tick: mongoq.Tick, job: mongoq.Job) -> None:
        seen.append((tick.at, job.item.headers["mongoq-schedule"]))

    worker = virtual.worker(production)
    virtual.advance(60)
    worker.run_until_idle()
    assert seen == [(START + timedelta(minutes=1), "report")]
    assert elsewhere.schedules() == []
    assert [record.name for record in virtual.schedules()] == ["report"]
    elsewhere.close()


def test_schedules_of_the_broker_are_ticked_too(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    seen: list[Any] = []
    worker.consumer("chores")(seen.append)
    virtual.schedule("clean", queue="chores", every=60, make=lambda tick: tick.at.minute)
    virtual.advance(60)
    worker.run_until_idle()
    assert seen == [1]


def test_an_asynchronous_worker_does_the_same() -> None:
    async def run() -> None:
        broker = AsyncVirtualBroker()
        worker = broker.worker()
        seen: list[Any] = []

        @worker.schedule("report", every=60)
        async def report(tick: mongoq.Tick) -> None:
            seen.append(tick.at)

        for n, call in enumerate([worker.run_until_idle, lambda: worker.run_one("report")]):
            broker.advance(60)
            assert await call()
            assert seen[-1] == START + timedelta(minutes=n + 1)
        broker.advance(60)
        assert len(await worker.run_batch("report")) == 1
        broker.advance(60)
        assert await broker.tick() == 1
        await broker.close()

    asyncio.run(run())


def test_a_failed_tick_is_retried_with_its_time(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    seen: list[mongoq.Tick] = []

    @worker.schedule("report", every=3600, retry=mongoq.Fixed(60))
    def report(tick: mongoq.Tick) -> None:
        seen.append(tick)
        if len(seen) == 1:
            raise OSError

    virtual.advance(3600)
    assert [result.outcome for result in worker.run_until_idle()] == ["retry"]
    virtual.advance(60)
    assert [result.outcome for result in worker.run_until_idle()] == ["done"]
    assert seen[0] == seen[1]


def test_a_schedule_takes_the_options_of_a_consumer(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    seen: list[list[mongoq.Tick]] = []
    options: dict[str, Any] = {"every": 60, "missed": "all"}
    worker.schedule("report", batch=5, concurrency=2, max_running=1, **options)(seen.append)
    virtual.advance(180)
    worker.run_until_idle()
    assert [[tick.at for tick in ticks] for ticks in seen] == [[START + timedelta(minutes=n) for n in (1, 2, 3)]]
    assert virtual.queue("report").limits().max_running == 1
    with pytest.raises(mongoq.ArgumentInvalid, match="^on_timeout: .* needs a max_time"):
        worker.schedule("other", on_timeout="release", **options)
    with pytest.raises(TypeError, match="paralel"):
        worker.schedule("other", paralel=3, **options)
    assert [record.name for record in virtual.schedules()] == ["report"]


@pytest.mark.parametrize("kind", [mongoq.Worker, mongoq.AsyncWorker])
def test_the_options_of_a_schedule_are_those_of_the_consumer(kind: Any) -> None:
    parameters = set(inspect.signature(kind.consumer).parameters) - {"self", "queue"}
    expected = {name: get_type_hints(kind.consumer)[name] for name in parameters}
    (options,) = get_args(get_type_hints(kind.schedule)["consumer"])
    assert get_type_hints(options) == expected


def test_ticks_are_values(virtual: VirtualBroker) -> None:
    tick = mongoq.Tick("report", START)
    assert tick.local == START
    assert tick == mongoq.Tick("report", START)
    with pytest.raises(AttributeError):
        tick.name = "other"  # type: ignore[misc]
