"""Settings that a worker is given in code: whether they are stored with the queues, and what else goes by them."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq


def _nothing(_: Any) -> None:
    pass


def run(uri: str, database: str, *, broker: Any, worker: Any, queue: Any, consumer: Any) -> None:
    with mongoq.connect(uri, database=database, **broker) as opened:
        instance = mongoq.Worker(opened, **worker)
        instance.consumer(opened.queue("orders", **queue) if queue else "orders", **consumer)(_nothing)
        instance.run(drain=True)


CODE, STORED = {"settings": "code"}, {"settings": "stored"}
GIVEN = {"queue": {"lease": 44, "history": 3600}, "consumer": {"max_retries": 6}}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (GIVEN, {"lease": 30.0, "history": 60.0, "max_retries": 3}),
        ({"broker": CODE, **GIVEN}, {"lease": 44.0, "history": 3600.0, "max_retries": 6}),
        ({"broker": CODE, "worker": STORED, **GIVEN}, {"lease": 30.0, "history": 60.0, "max_retries": 3}),
        ({"worker": CODE, "consumer": {"lease": 7}}, {"lease": 7.0, "history": 60.0, "max_retries": 3}),
    ],
    ids=str,
)
def test_a_worker_stores_what_it_was_given_if_code_wins(raw: Any, uri: str, options: Any, settings: Any) -> None:
    with mongoq.connect(uri, database=raw.database.name) as broker:
        broker.queue("orders", lease=30, history=60, max_retries=3).push(1)
        run(uri, raw.database.name, **{"broker": {}, "worker": {}, "queue": {}, "consumer": {}, **options})
        assert raw.find_one({"_id": "queue:orders"})["settings"] == settings
        assert broker.queue("orders").size() == 0


def test_a_consumer_goes_by_its_own_limit_whatever_a_person_configures_later(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", max_retries=5)
    queue.push(1)
    runs = []

    def fail(_: Any) -> None:
        runs.append(queue.configure(max_retries=9).max_retries)
        raise ValueError

    worker = mongoq.Worker(broker, settings="code")
    worker.consumer("orders", max_retries=1, retry=mongoq.Fixed(0.01))(fail)
    worker.run(drain=True)
    assert runs == [9, 9]
    assert queue.dead.size() == 1


def test_a_consumer_keeps_history_as_a_handle_beside_it_shows(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    broker.queue("raw").push(1)
    worker = mongoq.Worker(broker)
    worker.consumer("raw")(lambda payload: mongoq.Move("orders"))
    worker.consumer("orders")(_nothing)
    worker.run(drain=True)
    assert [item.payload for item in queue.history()] == [1]
