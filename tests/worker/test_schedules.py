"""Schedules of workers: any of them makes the ticks, whatever happens to it, and handlers get each tick once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mongoq
from mongoq.worker.aio import ticker as aio_ticker
from mongoq.worker.threads import ticker as threads_ticker
from tests.proxy import Proxy
from tests.waiting import until
from tests.worker.conftest import Desk

SCRIPT = Path(__file__).with_name("ticking.py")


async def _nothing(_: Any) -> None:
    pass


def _schedule(desk: Desk, seen: list[Any], name: str = "often", **options: Any) -> None:
    """Have the next worker register a schedule each second, whose handler keeps the ticks."""

    async def task(tick: mongoq.Tick) -> None:
        seen.append(tick)

    handler = task if desk.kind == "tasks" else seen.append
    desk.before = lambda: desk._pending.schedule(name, **{"every": 1, **options})(handler)  # type: ignore[attr-defined]


@pytest.fixture
def ticking(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose workers are known before they run, so that a test may register schedules."""
    registered = Desk._registered

    def register(self: Desk, worker: Any) -> Any:
        self._pending = worker  # type: ignore[attr-defined]
        return registered(self, worker)

    monkeypatch.setattr(Desk, "_registered", register)
    return desk


def test_a_handler_gets_each_tick(ticking: Desk, broker: mongoq.Broker) -> None:
    seen: list[mongoq.Tick] = []
    _schedule(ticking, seen, missed="all")
    running = ticking.start()
    until(lambda: len(seen) >= 3)
    running.stop()
    assert all(isinstance(tick, mongoq.Tick) for tick in seen)
    assert {tick.name for tick in seen} == {"often"}
    first = seen[0].at
    assert [tick.at for tick in seen] == [first + timedelta(seconds=n) for n in range(len(seen))]
    (record,) = broker.schedules()
    assert record.queue == "often"
    assert "test_schedules" in record.where or "append" in record.where
    assert not record.unseen


def test_a_worker_ticks_for_queues_that_it_does_not_consume(desk: Desk, broker: mongoq.Broker) -> None:
    broker.schedule("others", queue="elsewhere", every=1)
    desk.consume("orders", _nothing)
    desk.start()
    until(lambda: broker.queue("elsewhere").size() >= 2)
    items = broker.queue("elsewhere").peek(99)
    assert len({item.headers["mongoq-tick"] for item in items}) == len(items)


def test_a_broken_schedule_makes_no_worker_spin(
    desk: Desk, broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.schedule("others", queue="elsewhere", every=1)
    broken = {**raw.find_one({"_id": "schedule:others"}), "_id": "schedule:broken", "what": {}}
    raw.insert_one({**broken, "next": broken["next"] - timedelta(days=1)})
    looks: list[float] = []
    for module, name in ((aio_ticker, "AsyncTicker"), (threads_ticker, "Ticker")):
        kind = getattr(module, name)
        original = kind._look

        def look(self: Any, original: Any = original) -> Any:
            looks.append(time.monotonic())
            return original(self)

        monkeypatch.setattr(kind, "_look", look)
    desk.consume("orders", _nothing)
    desk.start()
    until(lambda: broker.queue("elsewhere").size() >= 3)
    assert len(looks) <= 2 * broker.queue("elsewhere").size() + 5
    assert broker.queue("elsewhere").size() >= 3


def test_a_worker_waits_longer_without_anything_due(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    for module, name in ((aio_ticker, "AsyncTicker"), (threads_ticker, "Ticker")):
        kind = getattr(module, name)
        original = kind._look
        if module is aio_ticker:

            async def look_async(self: Any, original: Any = original) -> float:
                pauses.append(await original(self))
                return pauses[-1]

            monkeypatch.setattr(kind, "_look", look_async)
        else:

            def look(self: Any, original: Any = original) -> float:
                pauses.append(original(self))
                return pauses[-1]

            monkeypatch.setattr(kind, "_look", look)
    desk.consume("orders", _nothing)
    running = desk.start()
    until(lambda: pauses)
    running.stop()
    assert all(4.0 <= pause <= 5.0 for pause in pauses)


def test_schedules_that_no_code_has_are_logged(
    desk: Desk, broker: mongoq.Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.schedule("gone", queue="elsewhere", every=3600, make=str)
    raw.update_one({"_id": "schedule:gone"}, [{"$set": {"seen": {"$subtract": ["$seen", 2 * 86_400_000]}}}])
    desk.consume("orders", _nothing)
    desk.start()
    until(lambda: "'gone' is in no running code since" in caplog.text)
    assert [record.unseen for record in broker.schedules()] == [True]


def test_a_worker_notes_that_it_has_its_schedules(ticking: Desk, broker: mongoq.Broker, raw: Any) -> None:
    _schedule(ticking, [], every=3600)
    running = ticking.start()
    until(broker.schedules)
    running.stop()
    raw.update_one({"_id": "schedule:often"}, [{"$set": {"seen": {"$subtract": ["$seen", 2 * 86_400_000]}}}])
    assert broker.schedules()[0].unseen
    _schedule(ticking, [], every=3600)
    ticking.start()
    until(lambda: not broker.schedules()[0].unseen)


@pytest.fixture
def noting(ticking: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose workers look, and note the schedules of their code, all the time."""
    for module in (aio_ticker, threads_ticker):
        monkeypatch.setattr(module, "SEEN_SECONDS", 0.0)
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    return ticking


def _seen(broker: mongoq.Broker, name: str) -> datetime:
    (seen,) = [record.seen for record in broker.schedules() if record.name == name]
    assert seen is not None
    return seen


def _wait_for_notes(broker: mongoq.Broker, name: str) -> None:
    """Wait until a worker has noted this schedule of its code twice: it has read all of them in between."""
    for _ in range(2):
        before = _seen(broker, name)
        until(lambda before=before: _seen(broker, name) > before)


def test_a_worker_logs_once_that_a_schedule_of_its_code_was_removed(
    noting: Desk, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    _schedule(noting, [], every=3600)
    often = noting.before
    _schedule(noting, [], "stays", every=3600)
    stays = noting.before

    def register_both() -> None:
        often()
        stays()

    noting.before = register_both
    noting.start()
    until(lambda: len(broker.schedules()) == 2)
    _wait_for_notes(broker, "stays")
    assert "schedule 'often'" not in caplog.text
    broker.remove_schedule("often")
    until(lambda: "schedule 'often' was removed; this process has it in its code" in caplog.text)
    _wait_for_notes(broker, "stays")
    assert caplog.text.count("schedule 'often' was removed") == 1
    assert "schedule 'stays'" not in caplog.text


@pytest.mark.parametrize("version", [0, 1])
def test_a_worker_logs_once_that_a_schedule_of_its_code_was_replaced(
    noting: Desk, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    _schedule(noting, [], every=3600)
    noting.start()
    until(broker.schedules)
    _wait_for_notes(broker, "often")
    assert "schedule 'often'" not in caplog.text
    broker.schedule("often", queue="elsewhere", every=7200, version=version)
    lines = [
        "schedule 'often' has another definition than the code of this process: every 7200 s into queue 'elsewhere'",
        "schedule 'often' goes by version 1 of its definition; this process has version 0",
    ]
    until(lambda: lines[version] in caplog.text)
    broker.remove_schedule("often")
    until(lambda: "schedule 'often' was removed" in caplog.text)
    assert caplog.text.count(lines[version]) == 1


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_worker_notices_soon_that_a_schedule_of_its_code_was_changed(
    ticking: Desk,
    broker: mongoq.Broker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    """It notes every ten minutes what it has, and does not wait for that."""
    calls: list[str] = []
    for module in (aio_ticker, threads_ticker):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
        for name in ("refresh_seen", "read_editions"):
            original = getattr(module, name)

            def flow(context: Any, name: str = name, original: Any = original) -> Any:
                calls.append(name)
                return (yield from original(context))

            monkeypatch.setattr(module, name, flow)
    _schedule(ticking, [], every=3600)
    ticking.start()
    until(lambda: calls.count("read_editions") >= 5)
    assert calls.count("refresh_seen") == 1
    assert "schedule 'often'" not in caplog.text
    if change == "removed":
        broker.remove_schedule("often")
        until(lambda: "schedule 'often' was removed" in caplog.text)
    else:
        broker.schedule("often", queue="elsewhere", every=7200)
        until(lambda: "schedule 'often' has another definition than the code of this process" in caplog.text)
    number = calls.count("read_editions")
    until(lambda: calls.count("read_editions") >= number + 3)
    assert calls.count("refresh_seen") == 2


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
        end = broker._context.clock.now()
        until(lambda: (broker.schedules()[0].last or end) > end)
        running.stop()
    assert "the server does tick schedules again" in caplog.text
    ticks = sorted(item.headers["mongoq-tick"] for item in broker.queue("elsewhere").peek(1_000))
    first = datetime.fromisoformat(ticks[0])
    assert [datetime.fromisoformat(tick) - first for tick in ticks] == [timedelta(seconds=n) for n in range(len(ticks))]


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_bad_schedules_are_refused_at_once(broker: mongoq.Broker, uri: str, database: str, kind: str) -> None:
    def check(worker: Any) -> None:
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

    async def check_async() -> None:
        async with mongoq.connect_async(uri, database=database) as asynchronous:
            check(mongoq.AsyncWorker(asynchronous))

    if kind == "sync":
        check(mongoq.Worker(broker))
    else:
        asyncio.run(check_async())


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_tick_that_no_worker_has_started_in_time_does_not_run(
    broker: mongoq.Broker, uri: str, database: str, kind: str
) -> None:
    """The queue of the schedule is paused meanwhile, so the items of its first ticks wait too long."""
    queue, ran = broker.queue("report", on_expired="dead"), list[str]()
    queue.pause()

    def run(worker: Any) -> Any:
        def report(tick: mongoq.Tick, job: Any) -> None:
            ran.append(job.item.headers["mongoq-tick"])

        worker.schedule("report", every=1, missed="all", expires=0.2)(report)
        return worker

    def resume() -> None:
        until(lambda: queue.size() >= 2)
        queue.resume()
        until(lambda: len(ran) >= 1 and queue.dead.size() >= 1)

    if kind == "sync":
        with mongoq.connect(uri, database=database) as own:
            worker = run(mongoq.Worker(own))
            running = threading.Thread(target=worker.run)
            running.start()
            resume()
            worker.stop()
            running.join()
    else:
        asyncio.run(_run_meanwhile(uri, database, run, resume))
    letters = queue.dead.peek(100)
    assert {letter.origin.reason for letter in letters if letter.origin} == {"expired"}
    assert not set(ran) & {letter.headers["mongoq-tick"] for letter in letters}


async def _run_meanwhile(uri: str, database: str, make: Any, meanwhile: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        worker = make(mongoq.AsyncWorker(broker))
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(meanwhile)
        worker.stop()
        await running


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


@pytest.mark.slow
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
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.2, 0.6))
            for worker in workers:
                worker.keep_alive()
            os.kill(random.choice(workers).process.pid, signal.SIGKILL)
        end = broker._context.clock.now()
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
    assert sum(worker.starts for worker in workers) > 10
    for queue in ("counted", "handled"):
        handle = broker.queue(queue)
        items = [*handle.history(), *handle.peek(10_000, state=None)]
        ticks = sorted(item.headers["mongoq-tick"] for item in items)
        first, last = (datetime.fromisoformat(ticks[place]) for place in (0, -1))
        expected = [first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)]
        assert [datetime.fromisoformat(tick) for tick in ticks] == expected
        assert last > end
        assert len(ticks) >= 12
