"""Several workers, clocks and processes on one queue, and a server that confirms, refuses and breaks off."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, WriteConcernError

import mongoq
from tests.integration.commands import Commands, failing, listened_to
from tests.waiting import CLOCKS, PATIENCE, until

ROOT = Path(__file__).parents[2]


def test_no_item_is_handed_out_twice_to_threads(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(120))
    payloads: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while (item := queue.reserve()) is not None:
                payloads.append(item.payload)
                queue.commit(item)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert Counter(payloads) == Counter(range(120))
    assert queue.size() == 0


def test_a_lease_runs_out_on_the_servers_clock(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    first = queue.reserve(lease=0.5)
    assert first is not None
    second = queue.reserve(wait=PATIENCE)
    assert second is not None
    assert second.attempts == 2
    with pytest.raises(mongoq.ReservationLost):
        queue.commit(first)
    queue.commit(second)


ODD_CLOCK = """
import sys, time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + 3600
time.time_ns = lambda: real_ns() + 3600 * 10**9
import mongoq
with mongoq.connect(sys.argv[1], database=sys.argv[2]) as broker:
    queue = broker.queue("orders")
    queue.push("in a minute", delay=60)
    queue.push("now")
    item = queue.reserve(lease=600)
    assert item.payload == "now", item
"""


def test_a_machine_whose_clock_is_an_hour_off_behaves_like_any_other(
    broker: mongoq.Broker, uri: str, database: str, raw: Any
) -> None:
    def server_time() -> Any:
        return raw.database.command("hello")["localTime"].replace(tzinfo=UTC)

    before = server_time()
    subprocess.run([sys.executable, "-c", ODD_CLOCK, uri, database], cwd=ROOT, check=True, timeout=PATIENCE)
    after = server_time()
    queue = broker.queue("orders")
    assert queue.counts() == mongoq.Counts(scheduled=1, reserved=1)
    (scheduled,), (held,) = queue.peek(state="scheduled"), queue.peek(state="reserved")
    assert scheduled.due is not None
    assert before - CLOCKS < scheduled.due - timedelta(seconds=60) < after + CLOCKS
    assert held.lease_until is not None
    assert before - CLOCKS < held.lease_until - timedelta(seconds=600) < after + CLOCKS


def test_pushes_are_found_by_another_broker_at_once_and_in_their_order(broker: mongoq.Broker, raw: Any) -> None:
    ours, theirs = broker.queue("orders"), mongoq.Broker(raw).queue("orders")
    theirs.size()
    for n in range(100):
        ours.push(n)
        item = theirs.pop()
        assert item is not None, n
    for n in range(100):
        ours.push(n)
    assert [item.payload for _ in range(100) if (item := theirs.pop()) is not None] == list(range(100))


def test_pause_is_soon_seen_by_another_broker(broker: mongoq.Broker, raw: Any) -> None:
    ours, theirs = broker.queue("orders"), mongoq.Broker(raw).queue("orders")
    ours.push("a")

    def is_paused_there() -> bool:
        item = theirs.reserve()
        if item is not None:
            theirs.release(item)
        return item is None

    assert not is_paused_there()
    ours.pause()
    until(is_paused_there)
    assert ours.counts() == mongoq.Counts(ready=1)
    ours.resume()
    assert theirs.reserve(wait=PATIENCE) is not None


def test_a_forked_child_has_an_identity_of_its_own(uri: str, database: str, raw: Any) -> None:
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many([1, 2])
        assert queue.reserve() is not None
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore")  # PyMongo warns of clients in children
            try:
                queue.reserve()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    parents, childs = (document["by"] for document in raw.find({"q": "orders"}).sort("payload"))
    assert childs != parents
    assert childs.split(":")[1] == str(child)


CONCERN = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}


def test_a_write_that_was_not_confirmed_is_looked_for(broker: mongoq.Broker, client: Any) -> None:
    """A writeConcernError comes although the write happened."""
    queue, following = broker.queue("orders", history=60), broker.queue("next", history=60)
    queue.push("warm")
    assert queue.pop() is not None
    with failing(client, "insert", **CONCERN):
        id = queue.push("a")
    assert queue.size() == 1
    with failing(client, "findAndModify", **CONCERN):
        item = queue.reserve()
    assert item is not None
    assert (item.id, item.attempts) == (id, 1)
    with failing(client, "update", **CONCERN):
        queue.rollback(item)
    again = queue.reserve()
    assert again is not None
    with failing(client, "update", **CONCERN):
        queue.move(again, "next")
    moved = following.reserve()
    assert moved is not None
    with failing(client, "update", **CONCERN):
        following.commit(moved)
    until(lambda: [item.id for item in following.history()] == [id])  # it is read with majority concern


def test_a_batch_that_was_not_confirmed_and_is_gone_is_no_success(uri: str, database: str, client: Any) -> None:
    """As when another server is elected that had not got it."""
    raw = client[database]["mongoq"]

    def roll_back(name: str, _: Any) -> None:
        if name == "insert":
            raw.delete_many({"q": "orders"})

    with listened_to(uri, database, appname=database) as (broker, commands):
        broker.ensure_indexes()
        commands.after = roll_back
        with (
            failing(client, "insert", times=2, appName=database, **CONCERN),
            pytest.raises(mongoq.BatchIncomplete) as caught,
        ):
            broker.queue("orders").push_many(range(3))
    assert len(caught.value.failed) == 3


def test_an_unconfirmed_delete_is_uncertain_and_never_success(broker: mongoq.Broker, client: Any) -> None:
    """The driver does not send it again, and a deleted item leaves nothing to read."""
    queue = broker.queue("orders")
    queue.push_many(["a", "b"])
    first, second = queue.reserve_many(2)
    with failing(client, "delete", **CONCERN), pytest.raises(mongoq.ReservationLost) as caught:
        queue.commit(first)
    assert not caught.value.certain
    assert (queue.size(), broker.stats()["orders"].commit) == (1, 0)
    with failing(client, "delete", times=None, **CONCERN), pytest.raises(WriteConcernError):
        queue.commit(second)


@pytest.mark.usefixtures("impatient")
def test_a_broken_connection_is_survived(broker: mongoq.Broker, client: Any) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    with failing(client, "findAndModify", closeConnection=True):
        item = queue.reserve()
    assert item is not None
    with failing(client, "delete", closeConnection=True):
        queue.commit(item)
    assert queue.size() == 0


def test_a_refused_command_is_the_drivers_error_and_changes_nothing(broker: mongoq.Broker, client: Any) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    with failing(client, "findAndModify", errorCode=13), pytest.raises(OperationFailure):
        queue.reserve()
    assert queue.counts() == mongoq.Counts(ready=1)


def test_a_batch_that_took_long_to_bury_others_begins_its_leases_anew(uri: str, database: str) -> None:
    clock, commands = mongoq.VirtualClock(), Commands()

    def take_long(_: str, body: Mapping[str, Any]) -> None:
        if "origin" in str(body.get("updates")):
            clock.advance(6)

    with (
        MongoClient[Any](uri, event_listeners=[commands]) as client,
        mongoq.Broker(client[database]["mongoq"], clock=clock) as broker,
    ):
        queue = broker.queue("orders", max_retries=0, model=int)
        broker.queue("orders").push_many(["no number", "nor this", 3])
        commands.before = take_long
        (item,) = queue.reserve_many(5, lease=10)
        commands.before = None
        assert (item.payload, item.lease_until) == (3, clock.now() + timedelta(seconds=10))
        assert queue.dead.size() == 2
        queue.commit_many([item])
