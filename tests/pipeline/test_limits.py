"""Limits of stages: how many items run and start, on a server, over runs, and by the virtual clock; what is refused."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.pipeline import stations
from tests.pipeline.conftest import Site
from tests.waiting import until

NAMES = {"handler": "tests.pipeline.stations:pass_on", "name": "work"}


def limited(handler: Callable[[Any], Any], **options: Any) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", outputs=["out", "free.out"])
    pipeline.stage("raw", to="out", name="work", **options)(handler)
    pipeline.stage("free", to="free.out", name="pass")(lambda payload: payload)
    return pipeline


def test_no_more_items_of_a_stage_start_than_its_rate_allows(broker: mongoq.Broker) -> None:
    started: list[int] = []

    def work(payload: int) -> int:
        started.append(payload)
        return payload

    raw = broker.queue("raw")
    raw.push_many(range(6))
    with limited(work, concurrency=4, rate="2/h", burst=2).start(broker) as run:
        until(lambda: len(started) >= 2)
        broker.queue("free").push_many(range(50))  # the run goes on with other stages
        until(lambda: broker.queue("free.out").counts().total == 50)
        assert len(started) == 2
        assert (raw.settings.rate, raw.settings.burst) == ("2/h", 2)
        raw.configure(rate=None)
        until(lambda: broker.queue("out").counts().total == 6)
        run.stop()
    assert sorted(started) == list(range(6))


def test_a_limit_of_a_stage_holds_for_all_runs_together(broker: mongoq.Broker, uri: str, database: str) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(payload: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return payload

    pipeline = limited(work, concurrency=6, max_running=3)
    broker.queue("raw").push_many(range(60))
    with mongoq.connect(uri, database=database) as other, pipeline.start(broker), pipeline.start(other):
        until(lambda: broker.queue("out").counts().total == 60)
    assert most <= 3
    assert broker.queue("raw").settings.max_running == 3


def test_each_key_has_the_rate_of_a_stage_to_itself(site: Site) -> None:
    broker, done = site.broker, Counter[str]()

    def work(payload: dict[str, str]) -> Any:
        done[payload["customer"]] += 1
        return payload

    broker.queue("raw").push_many({"customer": name} for name in "aabbac")
    with limited(work, rate="1/h", rate_key="customer").start(broker) as run:
        until(lambda: broker.queue("out").counts().total == 3)
        until(lambda: broker.queue("raw").counts().scheduled == 3)
        run.stop()
    assert done == Counter("abc")


def test_a_stage_follows_its_rate_by_the_virtual_clock() -> None:
    done: list[int] = []

    def work(payload: int) -> int:
        done.append(payload)
        return payload

    with VirtualBroker() as virtual:
        virtual.queue("raw").push_many([1, 2, 3, 4])
        worker = virtual.worker(limited(work, rate="2/m", burst=2))
        worker.run_until_idle()
        assert done == [1, 2]
        virtual.advance(30)
        worker.run_until_idle()
        assert done == [1, 2, 3]
        virtual.advance(30)
        worker.run_until_idle()
        assert [item.payload for item in virtual.queue("out").peek(9)] == [1, 2, 3, 4]


def test_a_batch_stage_takes_no_larger_frames_than_its_limit(broker: mongoq.Broker) -> None:
    sizes: list[int] = []
    pipeline = mongoq.Pipeline("frames")

    @pipeline.batch_stage("raw", format="pandas", batch=10, max_running=4)
    def work(frame: Any) -> None:
        sizes.append(len(frame))

    broker.queue("raw").push_many({"n": n} for n in range(20))
    pipeline.drain(broker)
    assert sum(sizes) == 20
    assert max(sizes) <= 4


# --- what is refused -----------------------------------------------------------------------------


def faults(make: Callable[[], mongoq.Pipeline]) -> list[str]:
    with pytest.raises(mongoq.GraphInvalid) as caught:
        make().check()
    return list(caught.value.faults)


def from_recipe(**stage: Any) -> mongoq.Pipeline:
    return mongoq.Pipeline.from_recipe({"name": "line", "outputs": ["out"], "stages": [{**NAMES, **stage}]})


SEVERAL = "stage 'work': rate and rate_key: limits belong to one queue, and it takes items from 2; make a stage of each"


def test_limits_that_cannot_hold_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_running": 0}, "stage 'work': max_running: "),
        ({"rate": "100 a minute"}, "stage 'work': rate: "),
        ({"rate": "5/s", "burst": 1.5}, "stage 'work': burst: "),
        ({"rate": "5/s", "rate_key": 7}, "stage 'work': rate_key: a field or a function, not int"),
        ({"rate_key": "customer", "batch": 5}, "stage 'work': rate_key: the items of a batch start together"),
        ({"from": ["raw", "other"], "rate": "5/s", "rate_key": "customer"}, SEVERAL),
        (
            {
                "from": ["raw", "other"],
                "join": {"on": "n"},
                "max_running": 3,
                "handler": "tests.pipeline.stations:pair",
            },
            "stage 'work': max_running: a join has no such option; leave it out",
        ),
        ({"frame": {}, "rate": "5/s"}, "stage 'work': rate: a stage on frames of Spark has no such option"),
    ]
    for options, fault in cases:
        (found,) = faults(lambda options=options: from_recipe(**{"from": "raw", "to": "out", **options}))  # type: ignore[misc]
        assert found.startswith(fault)


def test_a_recipe_has_limits() -> None:
    options: dict[str, Any] = {"max_running": 8, "rate": "100/m", "burst": 5, "rate_key": "customer.id"}
    by_hand = mongoq.Pipeline("line", outputs="out")
    by_hand.stage("raw", to="out", name="work", **options)(stations.pass_on)
    assert from_recipe(**{"from": "raw", "to": "out"}, **options).compare(by_hand) == []


def test_a_burst_needs_a_rate_of_the_queue_or_of_the_stage(broker: mongoq.Broker) -> None:
    pipeline = limited(stations.pass_on, burst=5)
    with pytest.raises(mongoq.GraphInvalid, match="stage 'work': burst: it goes with a rate, and there is none"):
        pipeline.drain(broker)
    broker.queue("raw").configure(rate="5/s")
    pipeline.drain(broker)
    assert broker.queue("raw").settings.burst == 5


def test_spark_refuses_limits_before_it_looks_for_a_server() -> None:
    pipeline = limited(stations.pass_on, rate="5/s", max_running=3)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.run_on_spark(object(), "mongodb://127.0.0.1:1")  # type: ignore[arg-type]
    (fault,) = caught.value.faults
    assert fault.startswith(
        "stage 'work': max_running and rate: tasks of Spark do not wait for limits; run it by start("
    )
    with pytest.raises(mongoq.ArgumentInvalid, match="spark: a SparkSession"):
        pipeline.run_on_spark(object(), "mongodb://127.0.0.1:1", stages=["pass"])  # type: ignore[arg-type]


def by_customer(payload: Any) -> Any:
    return payload["customer"]


def test_a_function_of_the_rate_key_has_its_name_in_descriptions_and_comparisons() -> None:
    one, other = (limited(stations.pass_on, rate="5/s", rate_key=key) for key in (by_customer, "customer"))
    assert "rate_key    by tests.pipeline.test_limits:by_customer" in one.describe()
    (difference,) = one.compare(other)
    assert difference.field == "rate_key"
    assert (difference.before, difference.after) == ("tests.pipeline.test_limits:by_customer", "customer")
