"""``max_running``: how many items of a queue run at a time, over all workers; permits, their leases, their shares."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import KINDS, Desk
from tests.worker.processes import Process


class Gauge:
    """Counts what runs at a time, by queue."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def handler(self, queue: str, seconds: float = 0.01, reach: int = 1) -> Any:
        """Return a handler whose runs wait until so many have run at a time."""

        async def handle(payload: Any) -> None:
            with self.lock:
                self.running[queue] += 1
                self.most[queue] = max(self.most[queue], self.running[queue])
            while self.most[queue] < reach:
                await asyncio.sleep(0.005)
            await asyncio.sleep(seconds)
            with self.lock:
                self.running[queue] -= 1
                self.done[queue] += 1

        return handle


def permits(raw: Any, queue: str = "orders") -> dict[str, int]:
    document = raw.find_one({"_id": f"limit:{queue}"}) or {"holders": []}
    return {holder["by"]: holder["number"] for holder in document["holders"] if holder["number"]}


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_each_queue_of_a_worker_goes_by_its_own_limit(desk: Desk, raw: Any, broker: mongoq.Broker) -> None:
    gauge = Gauge()
    for queue, limit in (("orders", 2), ("mails", 4)):
        broker.queue(queue).push_many(list(range(30)))
        desk.consume(queue, gauge.handler(queue, reach=limit), concurrency=8, max_running=limit)
    broker.queue("free").push_many(list(range(30)))
    desk.consume("free", gauge.handler("free", reach=6), concurrency=6)
    desk.run()
    assert gauge.done == {"orders": 30, "mails": 30, "free": 30}
    assert gauge.most == {"orders": 2, "mails": 4, "free": 6}
    assert permits(raw) == permits(raw, "mails") == {}
    assert sorted(raw.distinct("_id", {"_id": {"$regex": "^limit:"}})) == ["limit:mails", "limit:orders"]


def test_two_workers_share_a_limit_and_give_all_of_it_back(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(5_000)))
    desk.consume("orders", gauge.handler("orders", 0.02), concurrency=8, max_running=4)
    desk.start()
    desk.start()
    until(lambda: len(permits(raw)) == 2)
    done = gauge.done["orders"]
    until(lambda: gauge.done["orders"] > done + 20)
    desk.stop_all()
    assert gauge.most["orders"] <= 4
    assert permits(raw) == {}


def test_a_limit_follows_what_is_configured(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(5_000)))
    desk.consume("orders", gauge.handler("orders", 0.02), concurrency=10, max_running=1)
    running = desk.start()
    until(lambda: gauge.done["orders"] > 5)
    assert gauge.most["orders"] == 1
    queue.configure(max_running=6)
    until(lambda: gauge.most["orders"] == 6)
    queue.configure(max_running=2)
    until(lambda: list(permits(raw).values()) == [2])
    with gauge.lock:
        gauge.most["orders"], done = 0, gauge.done["orders"]
    until(lambda: gauge.done["orders"] > done + 10)
    assert gauge.most["orders"] == 2
    running.stop()


def test_stored_limits_win_over_those_of_a_consumer(desk: Desk, queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    gauge = Gauge()
    queue.configure(max_running=2)
    queue.push_many(list(range(30)))
    desk.consume("orders", gauge.handler("orders", reach=2), concurrency=10, max_running=7)
    desk.run()
    assert gauge.most["orders"] == 2
    assert "max_running=2, not by the 7" in caplog.text


def test_a_paused_queue_takes_no_permits(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(10)))
    queue.pause()
    desk.consume("orders", gauge.handler("orders"), concurrency=4, max_running=2)
    running = desk.start()
    until(lambda: raw.find_one({"_id": "queue:orders", "settings.max_running": 2}))
    assert permits(raw) == {}
    queue.resume()
    until(lambda: gauge.done["orders"] == 10)
    until(lambda: permits(raw) == {})
    running.stop()


def test_items_of_a_batch_count_one_by_one(desk: Desk, queue: Any) -> None:
    sizes: list[int] = []

    async def handle(payloads: list[Any]) -> None:
        sizes.append(len(payloads))

    queue.push_many(list(range(20)))
    desk.consume("orders", handle, batch=10, max_running=4)
    desk.run()
    assert sum(sizes) == 20
    assert max(sizes) <= 4


def test_a_suspect_runs_under_a_limit_too(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(3)))
    for item in queue.reserve_many(3, lease=0.05):
        raw.update_one({"_id": item.id}, {"$unset": {"batch": ""}})
    desk.consume("orders", gauge.handler("orders"), concurrency=4, max_running=1)
    desk.run()
    assert gauge.done["orders"] == 3
    assert gauge.most["orders"] == 1
    assert permits(raw) == {}


@pytest.mark.parametrize("concurrency", [1, 2], ids=["found by the extension", "found by a claim"])
def test_a_run_that_has_lost_its_permits_loses_its_items(desk: Desk, raw: Any, queue: Any, concurrency: int) -> None:
    lost: list[Any] = []
    entered = threading.Event()

    async def handle(payload: Any, job: Any) -> None:
        entered.set()
        if payload == "first" and not lost:
            await asyncio.to_thread(until, job.lost.is_set)
            lost.append(payload)

    queue.push("first")
    desk.consume("orders", handle, max_running=1, lease=1.5, concurrency=concurrency)
    running = desk.start()
    assert entered.wait(30)
    # As if the process had stood still for so long that another one took the permit.
    raw.update_one({"_id": "limit:orders"}, {"$set": {"holders": [], "version": None}})
    until(lambda: lost)
    until(lambda: not queue.counts().total)
    running.stop()


def lend_all(raw: Any, number: int) -> None:
    """Let another worker hold so many permits."""
    now = datetime.now(UTC)
    holder = {"by": "other", "number": number, "wanted": number, "since": now, "until": now + timedelta(hours=1)}
    fields = {"holders": [holder], "version": ObjectId(), "expires": now + timedelta(hours=2)}
    raw.update_one({"_id": "limit:orders"}, {"$set": fields}, upsert=True)


def test_a_worker_without_a_permit_takes_no_slot(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    lend_all(raw, 1)
    desk.consume("orders", gauge.handler("orders"), max_running=1, rate="2/s")
    desk.consume("others", gauge.handler("others"))
    queue.push(1)
    running = desk.start()
    until(lambda: len(raw.find_one({"_id": "limit:orders"})["holders"]) == 2)  # it has asked
    desk.broker.queue("others").push(1)
    until(lambda: gauge.done["others"] == 1)
    assert raw.find_one({"_id": "rate:orders"}) is None
    raw.update_one({"_id": "limit:orders"}, {"$pull": {"holders": {"by": "other"}}, "$set": {"version": ObjectId()}})
    until(lambda: gauge.done["orders"] == 1)
    running.stop()


def test_a_worker_that_waits_for_its_slot_holds_no_permit(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    desk.consume("orders", gauge.handler("orders"), max_running=1, rate="6/h", burst=1)
    queue.push_many([1, 2])
    running = desk.start()
    until(lambda: gauge.done["orders"] == 1)
    until(lambda: not permits(raw))
    assert queue.size() == 1
    running.stop()


def test_the_only_permit_goes_round(raw: Any) -> None:
    clock, served = mongoq.VirtualClock(datetime.now(UTC) + timedelta(days=1)), Counter[str]()
    with mongoq.Broker(raw, clock=clock) as broker, ThreadPoolExecutor(2) as pool:
        broker.queue("orders").push_many(range(1_000))
        workers = {name: mongoq.Worker(broker) for name in "ab"}
        for name, worker in workers.items():
            worker.consumer("orders", max_running=1)(lambda _, name=name: served.update([name]))
        running = [pool.submit(worker.run) for worker in workers.values()]

        def both_have_had_it() -> bool:
            clock.advance(0.1)
            return len(served) == 2

        try:
            until(both_have_had_it)
        finally:
            for worker in workers.values():
                worker.stop()
            for run in running:
                run.result()


@pytest.mark.prove
def test_the_permit_that_cannot_be_divided_is_used(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(range(2_000))
    desk.consume("orders", gauge.handler("orders", seconds=0.05), max_running=3, concurrency=4)
    desk.start()
    desk.start()
    had_two: set[str] = set()

    def both_have_had_two() -> bool:
        had_two.update(name for name, number in permits(raw).items() if number == 2)
        return len(had_two) == 2

    until(both_have_had_two)
    desk.stop_all()
    assert gauge.most["orders"] == 3


def test_the_limits_of_a_queue_name_the_workers_that_hold_permits(desk: Desk, queue: Any) -> None:
    entered: list[Any] = []
    goes_on = threading.Event()

    async def handle(payload: Any) -> None:
        entered.append(payload)
        await asyncio.to_thread(goes_on.wait, 2 * PATIENCE)

    queue.push_many(list(range(5)))
    desk.consume("orders", handle, concurrency=4, max_running=2)
    running = desk.start()
    try:
        until(lambda: len(entered) == 2)
        until(lambda: desk.broker.workers())
        limits = queue.limits()
        assert limits.reason == "workers hold 2 of 2 permits"
        assert [(each.by, each.number) for each in limits.holders] == [(desk.broker.workers()[0].name, 2)]
        assert limits.holders[0].until > limits.read_at
    finally:
        goes_on.set()
    until(lambda: len(entered) == 5)
    running.stop()
    assert queue.limits().permits == 0


SCRIPT = Path(__file__).with_name("limited.py")


@pytest.fixture
def limited(uri: str, database: str) -> Iterator[Callable[..., Process]]:
    """Starts workers under limits in processes of their own, and ends them."""
    started: list[Process] = []

    def start(seconds: float, **options: Any) -> Process:
        started.append(Process(uri, database, seconds, json.dumps(options), script=SCRIPT))
        return started[-1]

    yield start
    for one in started:
        one.close()


def spans(processes: list[Process]) -> list[tuple[float, int]]:
    """Return the begins and ends of runs, in the order of time."""
    events = []
    for process in processes:
        for word, step in (("begin", 1), ("end", -1)):
            events += [(float(line.split()[0]), step) for line in process.said(word)]
    return sorted(events)


def test_the_limit_holds_when_a_worker_is_killed_and_its_permits_come_back(
    limited: Callable[..., Process], raw: Any, queue: Any
) -> None:
    queue.push_many(list(range(5_000)))
    options: dict[str, Any] = {"concurrency": 4, "max_running": 4, "lease": 2}
    victim, other = limited(0.1, **options), limited(0.1, **options)
    until(lambda: len(permits(raw)) == 2)
    until(lambda: victim.said("end") and other.said("end"))
    before = raw.find_one({"_id": "limit:orders"})
    victim.process.send_signal(signal.SIGKILL)
    assert victim.end() == -signal.SIGKILL
    # The permits of the killed worker are not used until their lease has ended.
    assert any(f":{victim.process.pid}:" in holder["by"] and holder["number"] for holder in before["holders"])
    until(lambda: list(permits(raw).values()) == [4])
    done = len(other.said("end"))
    until(lambda: len(other.said("end")) > done + 8)
    other.process.send_signal(signal.SIGTERM)
    assert other.end() == 0
    assert permits(raw) == {}
    running = most = 0
    for _, step in spans([victim, other]):
        running += step
        most = max(most, running)
    # The runs of the killed worker have no end here, so they count as running for ever: never more than its permits.
    cut = len(victim.said("begin")) - len(victim.said("end"))
    assert 2 < most <= 4 + cut
    assert cut <= 4
