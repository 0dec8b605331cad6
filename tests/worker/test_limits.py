"""``max_running``: how many items of a queue run at a time, over all workers; permits, their leases, their shares."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.permits import PermitHolder
from mongoq.model.rate import Block
from mongoq.protocol.coordination.limits import change_document, plan_again
from mongoq.worker import limiter
from tests.waiting import PATIENCE, until
from tests.worker.conftest import Desk
from tests.worker.processes import Process


class Gauge:
    """Counts what runs at a time, by queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def handler(self, queue: str, seconds: float = 0.01) -> Any:
        async def handle(payload: Any) -> None:
            with self._lock:
                self.running[queue] += 1
                self.most[queue] = max(self.most[queue], self.running[queue])
            await asyncio.sleep(seconds)
            with self._lock:
                self.running[queue] -= 1
                self.done[queue] += 1

        return handle


def stop_all(desk: Desk, runs: list[Any]) -> None:
    for worker in desk._workers:
        worker.stop()
    for run in runs:
        run.join()


def permits(raw: Any, queue: str = "orders") -> dict[str, int]:
    document = raw.find_one({"_id": f"limit:{queue}"}) or {"holders": []}
    return {holder["by"]: holder["number"] for holder in document["holders"] if holder["number"]}


def test_each_queue_of_a_worker_goes_by_its_own_limit(desk: Desk, raw: Any, broker: mongoq.Broker) -> None:
    gauge = Gauge()
    for queue, limit in (("orders", 2), ("mails", 5)):
        broker.queue(queue).push_many(list(range(60)))
        desk.consume(queue, gauge.handler(queue), concurrency=10, max_running=limit)
    broker.queue("free").push_many(list(range(60)))
    desk.consume("free", gauge.handler("free"), concurrency=10)
    desk.run()
    assert gauge.done == {"orders": 60, "mails": 60, "free": 60}
    assert gauge.most["orders"] == 2
    assert gauge.most["mails"] == 5
    assert gauge.most["free"] > 5
    assert permits(raw) == permits(raw, "mails") == {}
    assert sorted(raw.distinct("_id", {"_id": {"$regex": "^limit:"}})) == ["limit:mails", "limit:orders"]


def test_a_change_that_another_process_made_meanwhile_is_not_lost(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    calls = []

    def change(document: Any, now: Any) -> Any:
        calls.append(document)
        if len(calls) < 3:  # once before the document exists, and once after
            raw.update_one({"_id": "limit:orders"}, {"$set": {"version": ObjectId()}, "$inc": {"n": 5}}, upsert=True)
        return {"n": (document or {}).get("n", 0) + 1}, None

    broker._run(_on_broker, change)
    assert raw.find_one({"_id": "limit:orders"})["n"] == 11
    assert len(calls) == 3


def _on_broker(context: Any, change: Any) -> Any:
    return change_document(context, "limit:orders", change)


def test_two_workers_share_a_limit_and_give_all_of_it_back(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(200)))
    desk.consume("orders", gauge.handler("orders", 0.02), concurrency=8, max_running=4)
    runs = [desk.start(), desk.start()]
    until(lambda: len(permits(raw)) == 2)
    until(lambda: not queue.counts().total)
    stop_all(desk, runs)
    assert gauge.done["orders"] == 200
    assert gauge.most["orders"] <= 4
    assert permits(raw) == {}


def test_a_limit_follows_what_is_configured(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(list(range(10_000)))
    desk.consume("orders", gauge.handler("orders", 0.02), concurrency=10, max_running=1)
    running = desk.start()
    until(lambda: gauge.done["orders"] > 5)
    assert gauge.most["orders"] == 1
    queue.configure(max_running=6)
    until(lambda: gauge.most["orders"] == 6)
    queue.configure(max_running=None)
    until(lambda: gauge.most["orders"] == 10)
    queue.configure(max_running=2)
    until(lambda: list(permits(raw).values()) == [2])
    gauge.most["orders"], done = 0, gauge.done["orders"]
    until(lambda: gauge.done["orders"] > done + 40)
    assert gauge.most["orders"] == 2
    running.stop()


def test_stored_limits_win_over_those_of_a_consumer(desk: Desk, queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    gauge = Gauge()
    queue.configure(max_running=2)
    queue.push_many(list(range(30)))
    desk.consume("orders", gauge.handler("orders"), concurrency=10, max_running=7)
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


class Noting:
    """Stands in for the lock around changes of permits; notes which permits seem to be unused when it is free again."""

    def __init__(self, loop: Any) -> None:
        self._lock, self._loop, self.unused = threading.Lock(), loop, list[int]()

    def acquire(self, *, blocking: bool) -> bool:
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        own = self._loop.limiter
        self.unused.append(0 if own._permits is None else own._permits.number - own._count_needed())
        self._lock.release()


def lend_all(raw: Any, number: int) -> None:
    """Let another worker hold so many permits."""
    now = datetime.now(UTC)
    holder = PermitHolder("other", number, number, now, now + timedelta(hours=1)).to_document()
    fields = {"holders": [holder], "version": ObjectId(), "expires": now + timedelta(hours=2)}
    raw.update_one({"_id": "limit:orders"}, {"$set": fields}, upsert=True)


def test_a_worker_without_a_permit_takes_no_slot(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    lend_all(raw, 1)
    desk.consume("orders", gauge.handler("orders"), max_running=1, rate="2/s")
    queue.push(1)
    running = desk.start()
    until(lambda: len(raw.find_one({"_id": "limit:orders"})["holders"]) == 2)  # it has asked
    asked = desk._workers[-1]._engine.loops[0].limiter
    until(lambda: asked._used_at > 0)
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
    held = desk._workers[-1]._engine.loops[0].limiter
    until(lambda: held._waits_for_slot() and not permits(raw))
    version = raw.find_one({"_id": "limit:orders"})["version"]
    looks: list[float] = []
    until(lambda: looks.append(held._used_at) or len(set(looks)) > 3)
    assert raw.find_one({"_id": "limit:orders"})["version"] == version
    running.stop()


def test_permits_are_kept_for_slots_of_about_now(broker: mongoq.Broker, queue: Any) -> None:
    worker, needed = mongoq.Worker(broker), list[int]()
    queue.push(1)

    @worker.consumer(queue, max_running=4, rate="1/s", concurrency=4)
    def handle(_: Any) -> None:
        own = worker._engine.loops[0].limiter  # type: ignore[union-attr]
        assert own._pace is not None
        for ahead in (300.0, 5_000.0, -5_000.0):
            own._slots.clear()
            now = own._now()
            own._slots.add(Block(now + ahead, now + ahead + own._pace.interval, own._pace))
            needed.append(own._count_needed())
        own._slots.clear()

    worker.run(drain=True, signals=False)
    assert needed == [2, 1, 1]


def test_the_permit_that_cannot_be_divided_is_used(desk: Desk, raw: Any, queue: Any) -> None:
    gauge = Gauge()
    queue.push_many(range(2_000))
    desk.consume("orders", gauge.handler("orders", seconds=0.05), max_running=3, concurrency=4)
    runs = [desk.start(), desk.start()]
    held: list[tuple[int, ...]] = []

    def both_have_had_two() -> bool:
        names = [worker._engine._name for worker in desk._workers]
        numbers = permits(raw)
        held.append(tuple(numbers.get(name, 0) for name in names))
        return (2, 1) in held and (1, 2) in held

    until(both_have_had_two, seconds=30)
    stop_all(desk, runs)
    assert gauge.most["orders"] == 3


def test_permits_for_a_claim_never_look_unused(desk: Desk, queue: Any) -> None:
    gauge = Gauge()
    desk.consume("orders", gauge.handler("orders"), concurrency=1, max_running=1)
    running = desk.start()
    loop = desk._workers[-1]._engine.loops[0]
    loop.limiter._changing = noting = Noting(loop)
    queue.push(1)
    until(lambda: gauge.done["orders"] == 1)
    running.stop()
    assert set(noting.unused) == {0}


def test_a_worker_goes_on_when_the_runs_of_lost_permits_end_by_themselves(desk: Desk, raw: Any, queue: Any) -> None:
    done: list[Any] = []
    entered, goes_on = threading.Event(), threading.Event()

    async def handle(payload: Any) -> None:
        entered.set()
        await asyncio.to_thread(goes_on.wait, 60)
        done.append(payload)

    queue.push("first")
    # So long a lease that no extension is due in the test: it would notice the loss as well.
    desk.consume("orders", handle, max_running=1, lease=3600, concurrency=2)
    running = desk.start()
    assert entered.wait(30)
    raw.update_one({"_id": "limit:orders"}, {"$set": {"holders": [], "version": None}})
    held = desk._workers[-1]._engine.loops[0].limiter
    queue.push("second")
    until(lambda: held.is_lost)
    goes_on.set()
    until(lambda: len(done) == 2)
    running.stop()


def test_a_worker_that_has_given_permits_back_gets_them_again(
    desk: Desk, raw: Any, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "KNOWN_SECONDS", 3600.0)  # it asks because it wants more, not because time has passed
    started: list[Any] = []
    goes_on = threading.Event()

    async def handle(payload: Any) -> None:
        started.append(payload)
        await asyncio.to_thread(goes_on.wait, 2 * PATIENCE)

    queue.push(0)
    # So long a lease that no permit is extended in the test: the worker would ask then.
    desk.consume("orders", handle, concurrency=4, max_running=4, lease=3600)
    running = desk.start()
    try:
        until(lambda: started == [0] and list(permits(raw).values()) == [1])
        held = desk._workers[-1]._engine.loops[0].limiter
        until(lambda: held._seen_at > 0)  # it has looked, and no other worker wants its permit
        queue.push_many([1, 2, 3])
        until(lambda: len(started) == 4, seconds=40)
    finally:
        goes_on.set()
    running.stop()


def test_a_worker_that_holds_all_permits_finds_out_that_another_one_wants_some(
    desk: Desk, raw: Any, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    goes_on = threading.Event()

    async def handle(payload: Any) -> None:
        begun.append(payload)
        await asyncio.to_thread(goes_on.wait, 2 * PATIENCE)

    queue.push_many(list(range(50)))
    desk.consume("orders", handle, concurrency=4, max_running=4, lease=3600)
    runs = [desk.start()]
    held = desk._workers[-1]._engine.loops[0].limiter
    try:
        until(lambda: len(begun) == 4)
        with monkeypatch.context() as patch:
            patch.setattr(limiter, "KNOWN_SECONDS", 3600.0)
            held._asked_at = float("-inf")  # as if it had asked long ago: it looks
            until(lambda: held._seen_at > 0)
            runs.append(desk.start())
            until(lambda: held._seen_at < 0, seconds=40)  # the next claim asks
    finally:
        goes_on.set()
    until(lambda: len(begun) == 50)
    stop_all(desk, runs)


def test_a_look_that_a_claim_has_overtaken_says_nothing(
    desk: Desk, raw: Any, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, goes_on = threading.Event(), threading.Event()

    async def handle(payload: Any) -> None:
        entered.set()
        await asyncio.to_thread(goes_on.wait, 2 * PATIENCE)

    monkeypatch.setattr(limiter, "KNOWN_SECONDS", 3600.0)  # the worker itself does not look
    queue.push(1)
    desk.consume("orders", handle, max_running=1)
    running = desk.start()
    try:
        assert entered.wait(PATIENCE)
        held = desk._workers[-1]._engine.loops[0].limiter
        for overtaken, seen_at in ((False, 7.0), (True, 8.0)):
            own = held._permits
            look = held._look(own, seen_at)
            next(look)
            held._permits = replace(own) if overtaken else own
            with pytest.raises(StopIteration):
                look.send({"firstBatch": [raw.find_one({"_id": "limit:orders"})], "id": 0})
            assert (held._seen_at == seen_at) is not overtaken
    finally:
        goes_on.set()
    running.stop()


def test_a_look_at_permits_finds_what_a_worker_would_get() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)

    def plan(*others: tuple[int, int], mine: tuple[int, int] = (4, 8), since: float = 0) -> int | None:
        every = [("me", *mine, since), *((f"other-{n}", *one, 0.5) for n, one in enumerate(others))]
        until = now + timedelta(seconds=9)
        holders = [PermitHolder(by, n, wanted, now - timedelta(seconds=s), until) for by, n, wanted, s in every]
        return plan_again({"holders": [holder.to_document() for holder in holders]}, "me", 8, now)

    assert plan((4, 8)) == 4
    assert plan((3, 3)) == 5
    assert plan((0, 8), mine=(8, 8)) == 4
    assert plan((0, 1), mine=(8, 8)) == 7
    assert plan((2, 2), mine=(2, 2)) == 2
    assert plan(*[(0, 1)] * 8, mine=(8, 8), since=3) == 0
    assert plan((4, 8), mine=(0, 8)) is None
    assert plan_again(None, "me", 8, now) is None


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
    queue.push_many(list(range(300)))
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
    until(lambda: not queue.counts().total)
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
