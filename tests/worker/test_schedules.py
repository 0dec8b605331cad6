"""Schedules of workers: any of them makes the ticks, whatever happens to it, and handlers get each tick once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.proxy import Proxy
from tests.waiting import until
from tests.worker.conftest import Desk, Running, in_tasks

SCRIPT = Path(__file__).with_name("ticking.py")


async def _nothing(_: Any) -> None:
    pass


def noting(seen: list[Any]) -> Callable[[Any], Any]:
    """Return a handler that keeps the ticks."""

    async def handle(tick: mongoq.Tick) -> None:
        seen.append(tick)

    return handle


def test_a_handler_gets_each_tick(desk: Desk, broker: mongoq.Broker) -> None:
    seen: list[mongoq.Tick] = []
    desk.schedule("often", noting(seen), every=1, missed="all")
    running = desk.start()
    until(lambda: len(seen) >= 2)
    running.stop()
    assert all(isinstance(tick, mongoq.Tick) for tick in seen)
    assert {tick.name for tick in seen} == {"often"}
    first = seen[0].at
    assert [tick.at for tick in seen] == [first + timedelta(seconds=n) for n in range(len(seen))]
    (record,) = broker.schedules()
    assert record.queue == "often"
    assert not record.unseen


def test_a_worker_ticks_for_queues_that_it_does_not_consume(desk: Desk, broker: mongoq.Broker) -> None:
    broker.schedule("others", queue="elsewhere", every=1)
    desk.consume("orders", _nothing)
    desk.start()
    until(lambda: broker.queue("elsewhere").size() >= 2)
    items = broker.queue("elsewhere").peek(99)
    assert len({item.headers["mongoq-tick"] for item in items}) == len(items)


@in_tasks
def test_schedules_that_no_code_has_are_logged(
    desk: Desk, broker: mongoq.Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.schedule("gone", queue="elsewhere", every=3600, make=str)
    raw.update_one({"_id": "schedule:gone"}, [{"$set": {"seen": {"$subtract": ["$seen", 2 * 86_400_000]}}}])
    desk.consume("orders", _nothing)
    desk.start()
    until(lambda: "'gone' is in no running code since" in caplog.text)
    assert [record.unseen for record in broker.schedules()] == [True]


@in_tasks
def test_a_worker_notes_that_it_has_its_schedules(desk: Desk, broker: mongoq.Broker, raw: Any) -> None:
    desk.schedule("often", noting([]), every=3600)
    running = desk.start()
    until(broker.schedules)
    running.stop()
    raw.update_one({"_id": "schedule:often"}, [{"$set": {"seen": {"$subtract": ["$seen", 2 * 86_400_000]}}}])
    assert broker.schedules()[0].unseen
    desk.start()
    until(lambda: not broker.schedules()[0].unseen)


@pytest.mark.prove
@in_tasks
def test_ticks_go_on_after_an_outage(desk: Desk, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.schedule("often", queue="elsewhere", every=1, missed="all")
    with Proxy(desk.uri) as proxy:
        desk.uri = proxy.uri + "&socketTimeoutMS=300&serverSelectionTimeoutMS=300"
        desk.consume("orders", _nothing)
        running = desk.start()
        until(lambda: broker.queue("elsewhere").size() >= 1)
        proxy.hold()
        until(lambda: "does not tick schedules as it should" in caplog.text)
        proxy.pass_on()
        end = datetime.now(UTC)
        until(lambda: (broker.schedules()[0].last or end) > end)
        running.stop()
    assert "the server does tick schedules again" in caplog.text
    ticks = sorted(item.headers["mongoq-tick"] for item in broker.queue("elsewhere").peek(1_000))
    first = datetime.fromisoformat(ticks[0])
    assert [datetime.fromisoformat(tick) - first for tick in ticks] == [timedelta(seconds=n) for n in range(len(ticks))]


def test_bad_schedules_are_refused_at_once(broker: mongoq.Broker) -> None:
    worker: Any = mongoq.Worker(broker)
    with pytest.raises(mongoq.ArgumentInvalid, match="^cron: the field hour"):
        worker.schedule("report", cron="0 25 * * *", timezone="UTC")
    with pytest.raises(mongoq.ArgumentInvalid, match="^expires: must be longer than the jitter"):
        worker.schedule("report", every=60, expires=5, jitter=5)
    worker.schedule("report", every=60)(print)
    with pytest.raises(mongoq.ArgumentInvalid, match="has a schedule 'report' already"):
        worker.schedule("report", every=60)
    worker.consumer("orders")(print)
    with pytest.raises(mongoq.ArgumentInvalid, match="'orders' has a consumer"):
        worker.schedule("other", every=60, queue="orders")(print)
    with pytest.raises(TypeError, match=r"Worker\.schedule\(\) got an unexpected keyword argument 'evry'"):
        worker.schedule("another", evry=60)


def test_a_tick_that_no_worker_has_started_in_time_does_not_run(broker: mongoq.Broker) -> None:
    """The queue of the schedule is paused meanwhile, so the items of its first ticks wait too long."""
    queue, ran = broker.queue("report", on_expired="dead"), list[str]()
    queue.pause()
    worker = mongoq.Worker(broker)

    def report(tick: mongoq.Tick, job: Any) -> None:
        ran.append(job.item.headers["mongoq-tick"])

    worker.schedule("report", every=1, missed="all", expires=0.2)(report)
    running = Running(worker.run, worker.stop)
    until(lambda: queue.size() >= 2)
    queue.resume()
    until(lambda: ran and queue.dead.size() >= 1)
    running.stop()
    letters = queue.dead.peek(100)
    assert {letter.origin.reason for letter in letters if letter.origin} == {"expired"}
    assert not set(ran) & {letter.headers["mongoq-tick"] for letter in letters}


# --- killed processes ------------------------------------------------------------------------------------


class Ticking:
    """A process with the schedules of ``ticking.py``, started again when it has ended."""

    def __init__(self, *arguments: object) -> None:
        self._command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        self.starts = 0
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        root = str(SCRIPT.parents[2])
        env = {**os.environ, "PYTHONPATH": root}
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=root, env=env)
        self.starts += 1
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, output: Any) -> None:
        with output:
            self.lines += [line.strip() for line in output]

    def spare(self) -> None:
        """Let the next start of the process be one that does not kill itself."""
        self._command[-1] = "0"

    def keep_alive(self) -> None:
        if self.process.poll() is not None:
            self.start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.prove
def test_each_tick_is_one_item_whatever_is_killed_and_whatever_the_clocks_say(
    broker: mongoq.Broker, uri: str, database: str
) -> None:
    """Three processes, with clocks an hour off, under SIGKILL from outside, and between a push and its advance."""
    broker.queue("handled", history=3600)
    broker.queue("handled").configure(history=3600)
    workers = [
        Ticking(uri, database, "threads", -3600, 0.2),
        Ticking(uri, database, "tasks", 3600, 0.2),
        Ticking(uri, database, "tasks", 0, 0.2),
    ]
    try:
        until(lambda: broker.queue("counted").size() >= 1)
        deadline = time.monotonic() + 12
        while time.monotonic() < deadline or sum(worker.starts for worker in workers) <= 10:
            time.sleep(random.uniform(0.2, 0.6))
            for worker in workers:
                worker.keep_alive()
            os.kill(random.choice(workers).process.pid, signal.SIGKILL)
        end = datetime.now(UTC)
        for worker in workers:
            worker.spare()

        def caught_up() -> bool:
            for worker in workers:
                worker.keep_alive()
            return all(record.last is not None and record.last > end for record in broker.schedules())

        until(caught_up)
    finally:
        for worker in workers:
            worker.close()
    for queue in ("counted", "handled"):
        handle = broker.queue(queue)
        items = [*handle.history(), *handle.peek(10_000, state=None)]
        ticks = sorted(item.headers["mongoq-tick"] for item in items)
        first, last = (datetime.fromisoformat(ticks[place]) for place in (0, -1))
        expected = [first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)]
        assert [datetime.fromisoformat(tick) for tick in ticks] == expected
        assert last > end
        assert len(ticks) >= 12
