"""Many programs at one schedule at once: they tick, change, pause and run it, and each tick stays one item."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import mongoq
from tests.waiting import until
from tests.worker.conftest import Running

MISSED = 60
"""Ticks that are due when the programs begin, a second apart."""


def test_programs_that_tick_and_change_a_schedule_make_each_tick_once(
    broker: mongoq.Broker, raw: Any, uri: str, database: str
) -> None:
    """Four programs tick; others pause it, give it another queue, and run it now."""
    options: dict[str, Any] = {"every": 1, "missed": "all"}
    broker.schedule("often", queue="one", **options)
    due = raw.find_one({"_id": "schedule:often"})["next"]
    first = due - timedelta(seconds=MISSED)
    raw.update_one({"_id": "schedule:often"}, {"$set": {"next": first}})
    ended, errors, extra = threading.Event(), list[BaseException](), list[Any]()

    def program(action: Callable[[mongoq.Broker], object]) -> None:
        with mongoq.connect(uri, database=database) as own:
            while not ended.is_set():
                try:
                    action(own)
                except BaseException as error:
                    errors.append(error)
                    return

    def pause(own: mongoq.Broker) -> None:
        own.pause_schedule("often")
        time.sleep(random.uniform(0, 0.01))
        own.resume_schedule("often")
        time.sleep(random.uniform(0, 0.05))

    def change(own: mongoq.Broker) -> None:
        with suppress(RuntimeError):  # "the schedule keeps changing": four programs tick hundreds of times a second
            own.schedule("often", queue=random.choice(["one", "two"]), **options)
        time.sleep(random.uniform(0.02, 0.05))

    def run_now(own: mongoq.Broker) -> None:
        extra.append(own.run_schedule_now("often"))
        time.sleep(0.05)

    def tick(own: mongoq.Broker) -> None:
        own.tick()
        time.sleep(random.uniform(0, 0.005))

    threads = [threading.Thread(target=program, args=(each,)) for each in [*[tick] * 4, pause, change, run_now]]
    for thread in threads:
        thread.start()
    try:
        until(lambda: errors or (broker.schedules()[0].last or first) > due + timedelta(seconds=1))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert errors == []
    broker.resume_schedule("often")
    broker.tick()
    items = [item for queue in ("one", "two") for item in broker.queue(queue).peek(5_000)]
    assert {item.id for item in items} >= set(extra)
    ticks = Counter(datetime.fromisoformat(item.headers["mongoq-tick"]) for item in items if not item.payload["extra"])
    last = broker.schedules()[0].last
    assert last is not None
    assert sorted(ticks) == [first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)]
    assert set(ticks.values()) == {1}


def test_a_function_that_hangs_keeps_no_worker_of_threads_from_its_work_and_its_end(broker: mongoq.Broker) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def make(tick: mongoq.Tick) -> str:
        hangs.set()
        goes_on.wait(60)
        return "late"

    seen: list[Any] = []
    worker = mongoq.Worker(broker, grace=0.5)
    worker.consumer("orders")(seen.append)
    broker.schedule("slow", queue="elsewhere", every=1, make=make)
    running = Running(worker.run, worker.stop)
    try:
        assert hangs.wait(30)
        broker.queue("orders").push(1)
        until(lambda: seen == [1])
        running.stop()
        assert broker.queue("elsewhere").size() == 0
    finally:
        goes_on.set()
