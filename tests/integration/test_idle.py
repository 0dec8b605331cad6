"""What is stored of idle queues: what expires, and when, and what never does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq
from mongoq.protocol import admin
from mongoq.protocol.base import queue_settings
from mongoq.protocol.history import stats
from mongoq.protocol.state import context

DAY = timedelta(days=1)
MONTH, SEASON = timedelta(days=30), timedelta(days=100)
AN_AGE = timedelta(days=400)


class Process:
    """A broker on a clock that the test moves."""

    def __init__(self, raw: Any, clock: mongoq.VirtualClock) -> None:
        self.raw, self.clock = raw, clock
        self.broker = mongoq.Broker(raw, clock=clock)

    def queue(self, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def another(self) -> Process:
        return Process(self.raw, self.clock)

    def flush(self) -> None:
        self.broker._driver.run(stats.flush(self.broker._context))

    def sweep(self, days: float = 0) -> bool:
        """Let the time pass, and then sweep from a process that does nothing else."""
        self.clock.advance(timedelta(days=days, hours=1))
        sweeper = self.another()
        swept = sweeper.broker._driver.run(admin.sweep(sweeper.broker._context))
        sweeper.broker.close()
        return swept

    def stored(self, name: str = "orders", kind: str = "queue") -> dict[str, Any]:
        """Return what is stored of a queue; what the TTL index would have deleted by now is gone."""
        self.raw.delete_many({"expires": {"$lte": self.clock.now()}})
        return dict(self.raw.find_one({"_id": f"{kind}:{name}"}) or {})


@pytest.fixture
def process(raw: Any) -> Iterator[Process]:
    # far ahead of the server's own clock, so that its TTL monitor deletes nothing
    instance = Process(raw, mongoq.VirtualClock(datetime.now(UTC) + timedelta(days=3650)))
    yield instance
    instance.broker.close()


def _emptied(process: Process, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
    queue = process.queue(name, **options)
    queue.push(1)
    queue.pop()
    process.flush()
    return queue


# --- counters --------------------------------------------------------------------------------------


def test_counters_of_a_queue_that_was_emptied_expire(process: Process) -> None:
    _emptied(process)
    assert process.stored(kind="stats") == {
        "_id": "stats:orders",
        "put": 1,
        "get": 1,
        "expires": process.clock.now() + MONTH,
    }


def _ready(queue: mongoq.Queue[Any]) -> None:
    queue.push(2)


def _scheduled(queue: mongoq.Queue[Any]) -> None:
    queue.push(2, delay=AN_AGE)


def _reserved(queue: mongoq.Queue[Any]) -> None:
    queue.push(2)
    queue.reserve(lease=AN_AGE)


def _kept(queue: mongoq.Queue[Any]) -> None:
    queue.configure(history=AN_AGE + DAY)
    queue.push(2)
    queue.commit(_held(queue))


def _remembered(queue: mongoq.Queue[Any]) -> None:
    queue.push(2, id=ObjectId(), once=AN_AGE + DAY)
    queue.commit(_held(queue))


def _held(queue: mongoq.Queue[Any]) -> mongoq.Item[Any]:
    item = queue.reserve()
    assert item is not None
    return item


HOLDINGS = [_ready, _scheduled, _reserved, _kept, _remembered]


@pytest.mark.parametrize("hold", HOLDINGS)
@pytest.mark.parametrize("notices", [True, False], ids=["", "its process is killed before it writes anything"])
def test_what_holds_an_item_keeps_its_counters_and_settings_however_long(
    process: Process, hold: Callable[[Any], None], notices: bool
) -> None:
    _emptied(process, lease=77)
    process.sweep()
    assert "idle" in process.stored()
    pusher = process.another()
    hold(pusher.queue())
    if notices:
        pusher.flush()
    for _ in range(8):
        process.sweep(days=49)
    document = process.stored()
    assert document["settings"]["lease"] == 77.0
    assert not document.keys() & {"idle", "expires"}
    counted = process.stored(kind="stats")
    assert counted["put"] == 1 + notices
    assert "expires" not in counted


def test_a_queue_that_still_holds_an_item_gets_no_date(process: Process) -> None:
    process.queue().push_many([1, 2])
    process.queue().pop()
    process.flush()
    assert process.stored(kind="stats") == {"_id": "stats:orders", "put": 2, "get": 1}


def test_a_push_takes_the_date_away_at_once(process: Process) -> None:
    _emptied(process)
    process.queue().push(2)
    process.flush()
    assert "expires" not in process.stored(kind="stats")


def test_counters_without_a_date_get_one_when_the_queue_is_found_empty(process: Process) -> None:
    process.raw.insert_one({"_id": "stats:orders", "put": 5})
    assert process.sweep()
    assert process.stored(kind="stats")["expires"] == process.clock.now() + MONTH
    process.sweep(days=29.9)
    assert process.stored(kind="stats") != {}
    process.sweep(days=1)
    assert process.stored(kind="stats") == {}


def test_a_letter_keeps_the_counters_of_the_dead_queue(process: Process) -> None:
    _emptied(process, "orders.dead")
    queue = process.another().queue()
    queue.push(1)
    queue.bury(_held(queue))
    queue._driver.run(stats.flush(queue._context.broker))
    assert "expires" not in process.stored("orders.dead", kind="stats")


def test_a_look_that_takes_long_is_taken_seldom(process: Process) -> None:
    process.broker._context.look_at = time.monotonic() + 3600
    _emptied(process)
    assert process.stored(kind="stats") == {"_id": "stats:orders", "put": 1, "get": 1}


def test_marks_at_the_end_of_priorities_expire_with_the_queue(process: Process) -> None:
    process.raw.insert_many({"_id": f"end:{n}:{queue}", "q": queue} for n in (-1, 5) for queue in ("orders", "others"))
    process.queue("others").push(1)
    process.sweep()
    process.sweep(days=31)
    for priority in (-1, 5):
        assert process.stored(f"{priority}:orders", kind="end") == {}
        assert process.stored(f"{priority}:others", kind="end") == {"_id": f"end:{priority}:others", "q": "others"}


# --- settings --------------------------------------------------------------------------------------


def test_settings_go_when_the_queue_was_empty_and_unused_for_a_season(process: Process) -> None:
    _emptied(process, history=5)
    process.clock.advance(10)
    process.stored()
    assert process.sweep()
    since = process.clock.now()
    assert process.stored()["idle"] == since
    process.sweep(days=99)
    assert "expires" not in process.stored()
    process.sweep(days=1)
    assert process.stored()["expires"] == process.clock.now() + timedelta(hours=1)
    process.sweep()
    assert process.stored() == {}


def test_without_a_sweep_no_settings_expire(process: Process) -> None:
    _emptied(process, lease=77)
    process.clock.advance(AN_AGE)
    assert process.stored()["settings"] == {"lease": 77.0}


@pytest.mark.parametrize("idle_before", [True, False])
def test_a_pause_never_ends_by_itself(process: Process, idle_before: bool) -> None:
    queue = _emptied(process, lease=77)
    if idle_before:
        process.sweep(days=1)
        process.sweep(days=101)
        assert "expires" in process.stored()
    queue.pause()
    for _ in range(4):
        process.sweep(days=101)
    assert process.stored() == {"_id": "queue:orders", "settings": {"lease": 77.0}, "paused": True}
    queue.resume()
    process.sweep()
    assert "idle" in process.stored()


def _used_by_claims(process: Process) -> None:
    process.queue().reserve()


def _used_by_pushes(process: Process) -> None:
    process.queue().push(1)
    process.queue().pop()
    process.flush()


def _used_by_moves(process: Process) -> None:
    process.queue("source").push(1)
    process.queue("source").move(_held(process.queue("source")), "orders")
    process.raw.delete_many({"q": "orders"})
    process.flush()


def _used_by_settings(process: Process) -> None:
    process.queue().configure(max_retries=3)


def _used_by_a_pause(process: Process) -> None:
    process.queue().pause()
    process.queue().resume()


USES = [_used_by_claims, _used_by_pushes, _used_by_moves, _used_by_settings, _used_by_a_pause]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("days", [98, 101], ids=["before it gets a date", "when it has a date"])
def test_every_use_lets_settings_stay_for_another_season(
    process: Process, monkeypatch: pytest.MonkeyPatch, use: Callable[[Process], None], days: int
) -> None:
    _emptied(process, lease=77)
    process.sweep()
    process.sweep(days=days)
    assert ("expires" in process.stored()) is (days > 100)
    monkeypatch.setattr(context, "MARK_IN_USE_SECONDS", -1.0)
    use(process.another())
    assert not process.stored().keys() & {"idle", "expires"}
    process.sweep(days=1)
    process.sweep(days=98)
    assert process.stored()["settings"]["lease"] == 77.0


def test_a_consumer_that_only_waits_uses_its_queue(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    _emptied(process, lease=77)
    waiter = process.another()
    queue = waiter.queue()
    assert queue.reserve() is None
    process.sweep()
    waiting = threading.Thread(target=_until_closed, args=(queue,))
    waiting.start()
    state = waiter.broker._context.states["orders"]
    while "idle" in process.stored():
        state.used_until = float("-inf")  # as when a day is over
        waiter.broker._context.wake("orders")
        time.sleep(0.05)
    waiter.broker.close()
    waiting.join(60)
    assert not waiting.is_alive()


def _until_closed(queue: mongoq.Queue[Any]) -> None:
    with suppress(mongoq.BrokerClosed):
        queue.reserve(wait=600)


def test_queues_that_others_rely_on_keep_their_settings(process: Process) -> None:
    names = ("orders.dead", "graves", "bound", "topic", "consumed", "streamed", "idle")
    for name in names:
        process.queue(name).configure(lease=77)
    process.queue("orders").push(1)
    process.queue("others", dead="graves").push(1)
    process.broker.bind("topic", "bound")
    for _ in range(5):
        now = process.clock.now() + timedelta(days=51)
        record = {
            "host": "h",
            "pid": 1,
            "started": now,
            "seen": now,
            "every": 5.0,
            "queues": [{"queue": "consumed", "held": 0}],
        }
        process.raw.replace_one({"_id": "worker:h:1:x"}, record, upsert=True)
        stream = {"queue": "streamed", "until": now}
        process.raw.replace_one({"_id": "stream:report"}, stream, upsert=True)
        process.sweep(days=51)
    assert [name for name in names if process.stored(name)] == list(names[:-1])


def test_one_process_sweeps_within_the_hour(process: Process) -> None:
    assert process.sweep()
    second = process.another().broker
    assert not second._driver.run(admin.sweep(second._context))
    assert process.sweep()


def test_a_process_sweeps_by_itself(process: Process) -> None:
    _emptied(process, lease=77)
    process.broker._context.sweep_at = float("-inf")
    process.broker.close()
    assert "idle" in process.stored()


@pytest.mark.parametrize(
    "junk", [{"settings": 7}, {"settings": {"dead": 3}}, {"idle": "x"}, {"paused": "yes"}], ids=str
)
def test_documents_of_another_program_spoil_no_sweep(process: Process, junk: Any) -> None:
    process.raw.insert_one({"_id": "queue:foreign", **junk})
    process.raw.insert_one({"_id": "stats:foreign", "expires": "never"})
    _emptied(process, lease=77)
    process.sweep()
    assert "idle" in process.stored()


# --- processes that know what has expired -------------------------------------------------------------


@pytest.mark.parametrize("operation", ["push", "reserve"])
def test_a_process_that_was_given_settings_stores_them_again(
    process: Process, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    queue = process.queue(history=DAY)
    queue.push(1)
    process.raw.delete_one({"_id": "queue:orders"})
    monkeypatch.setattr(queue_settings, "RECHECK_SECONDS", 0.0)
    queue.push(2) if operation == "push" else queue.reserve()
    assert process.stored()["settings"] == {"history": 86400.0}


def test_the_ttl_index_deletes_what_has_expired(raw: Any, client: MongoClient[Any]) -> None:
    """On a clock that is a year behind, so that every date has passed for the server."""
    process = Process(raw, mongoq.VirtualClock(datetime.now(UTC) - AN_AGE))
    _emptied(process, lease=77)
    process.queue("paused").pause()
    process.queue("held", lease=5).push(1)
    process.flush()
    process.sweep()
    process.sweep(days=101)
    assert "expires" in (raw.find_one({"_id": "queue:orders"}) or {"expires": "gone already"})
    client.admin.command({"setParameter": 1, "ttlMonitorSleepSecs": 1})
    try:
        deadline = time.monotonic() + 120
        while raw.count_documents({"_id": {"$in": ["queue:orders", "stats:orders"]}}):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        client.admin.command({"setParameter": 1, "ttlMonitorSleepSecs": 60})
    remaining = {document["_id"] for document in raw.find({"_id": {"$regex": "^(queue|stats):"}})}
    assert remaining == {"queue:paused", "queue:held", "stats:held"}
    process.broker.close()


# --- how many commands -------------------------------------------------------------------------------


class Counted(CommandListener):
    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()

    def started(self, event: Any) -> None:
        self.commands[event.command_name] += 1

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


@pytest.mark.parametrize("looked", ["stats", "queues", "sweep"])
def test_the_number_of_commands_does_not_grow_with_the_number_of_queues(uri: str, database: str, looked: str) -> None:
    listener, counts = Counted(), []
    with MongoClient[Any](uri, event_listeners=[listener]) as client:
        for number in (3, 700):
            raw = client[database][f"of{number}"]
            with mongoq.Broker(raw) as broker:
                broker.ensure_indexes()
                raw.insert_many({"_id": f"queue:q{n}", "settings": {"lease": 5.0}} for n in range(number))
                for n in range(number):
                    broker._context.counters.add(f"q{n}", "get")
                    broker._context.counters.add(f"held{n}", "put")
                now = datetime.now(UTC)
                raw.insert_many({"q": f"held{n}", "payload": n, "when": now, "priority": 0} for n in range(number))
                listener.commands.clear()
                if looked == "sweep":
                    broker._driver.run(admin.sweep(broker._context))
                else:
                    result = getattr(broker, looked)()
                    assert len(result) == number * (2 if looked == "stats" else 1)
                counts.append(Counter(name for name in listener.commands if name != "getMore"))  # one for each 16 MB
    assert counts[0] == counts[1]
    assert counts[0].total() < 20
