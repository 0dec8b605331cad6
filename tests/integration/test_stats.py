"""Counters: what a fork, a crash and a failing server leave of them."""

from __future__ import annotations

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.errors import OperationFailure

import mongoq
from tests.integration.commands import failing


@pytest.mark.usefixtures("patient_close")
def test_a_forked_child_does_not_count_what_its_parent_did(uri: str, database: str, raw: Any) -> None:
    with mongoq.connect(uri, database=database) as broker:
        broker.queue("orders").push(1)
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore")  # PyMongo warns of clients in children
            try:
                broker.stats()  # writes what this process has counted
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert raw.find_one({"_id": "stats:orders"})["put"] == 1


def test_what_could_not_be_written_is_written_later(broker: mongoq.Broker, client: Any) -> None:
    broker.ensure_indexes()
    with failing(client, "update", times=None, errorCode=20, namespace=broker.namespace):
        for name in ("a", "b"):
            broker.queue(name).push(1)
        with pytest.raises(OperationFailure):
            broker.stats()
    assert {name: each.put for name, each in broker.stats().items()} == {"a": 1, "b": 1}


@pytest.mark.usefixtures("patient_close")
def test_many_threads_count_and_write_at_once(uri: str, database: str, broker: mongoq.Broker) -> None:
    with mongoq.connect(uri, database=database) as counting, ThreadPoolExecutor(6) as pool:
        queue = counting.queue("orders")
        work = [pool.submit(queue.push, n) for n in range(100)]
        work += [pool.submit(queue.pop) for _ in range(50)]
        work += [pool.submit(counting.stats) for _ in range(15)]
        for each in work:
            each.result()
        left = queue.size()
    stats = broker.stats()["orders"]
    assert (stats.put, stats.get) == (100, 100 - left)


def test_a_process_that_can_start_no_thread_does_its_work(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    broker.ping()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    broker.queue("orders").push(1)
    assert broker.queue("orders").pop() is not None


def test_counters_of_another_program_spoil_no_others(broker: mongoq.Broker, raw: Any) -> None:
    foreign = [{"put": "many"}, {"put": [1]}, {"put": None}]
    raw.insert_many({"_id": f"stats:foreign {n}", **each} for n, each in enumerate(foreign))
    for name in ("foreign 0", "foreign 1", "foreign 2", "others"):
        broker.queue(name).push(1)
    counters = broker.stats()
    assert [counters[f"foreign {n}"].put for n in range(3)] == [0, 0, 0]
    assert counters["others"].put == 1
