"""Counters: what a fork, a crash and a failing server leave of them, and what they look at."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.errors import OperationFailure

import mongoq
from mongoq.protocol.history import stats
from tests.integration.test_plans import IGNORED, Watched


def test_a_forked_child_does_not_count_what_its_parent_did(broker: mongoq.Broker, raw: Any, uri: str) -> None:
    broker.queue("orders").push(1)
    child = os.fork()
    if child == 0:
        os._exit(17 if broker._context.counters else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    broker.close()
    assert raw.find_one({"_id": "stats:orders"})["put"] == 1


def test_what_could_not_be_written_is_written_later(
    broker: mongoq.Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "STATS_CACHE_SECONDS", 0.0)
    for name in ("a", "b"):
        broker.queue(name).push(1)
    mode = {"times": 1}
    fault = {"failCommands": ["update"], "errorCode": 20, "namespace": broker.namespace}
    client.admin.command("configureFailPoint", "failCommand", mode=mode, data=fault)
    with pytest.raises(OperationFailure):
        broker.stats()
    assert {name: each.put for name, each in broker.stats().items()} == {"a": 1, "b": 1}


def test_depths_come_from_the_index_of_live_items(uri: str, database: str) -> None:
    watched = Watched(uri, database)
    with watched.client, watched.broker:
        for n in range(20):
            watched.queue.push(n)
        assert watched.broker.stats()["orders"].counts.ready == 20
        command = {key: value for key, value in watched.recorder.commands["aggregate"].items() if key not in IGNORED}
        plan = str(watched.collection.database.command("explain", command, verbosity="queryPlanner")["stages"])
    assert "'stage': 'IXSCAN'" in plan
    assert "'indexName': 'mongoq1_claim'" in plan
    assert "'indexName': 'mongoq1_sequence'" in plan  # of blocked items
    assert "COLLSCAN" not in plan


def test_many_threads_count_and_write_at_once(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "STATS_CACHE_SECONDS", 0.0)
    counters = broker._context.counters
    broker.queue("orders").push(1)

    def count(_: int) -> None:
        for _ in range(2000):
            counters.add("orders", "get")

    def read(_: int) -> None:
        for _ in range(15):
            broker.stats()

    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(count, n) for n in range(4)] + [pool.submit(read, n) for n in range(3)]
        for each in work:
            each.result()
    assert broker.stats()["orders"].get == 8000


def test_a_process_that_can_start_no_thread_does_its_work(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    broker.queue("orders").push(1)
    assert broker.queue("orders").pop() is not None


@pytest.mark.parametrize("foreign", [{"put": "many"}, {"put": [1]}, {"put": None}])
def test_counters_of_another_program_spoil_no_others(broker: mongoq.Broker, raw: Any, foreign: Any) -> None:
    raw.insert_one({"_id": "stats:orders", **foreign})
    for name in ("orders", "others"):
        broker.queue(name).push(1)
    counters = broker.stats()
    assert (counters["orders"].put, counters["others"].put) == (0, 1)
