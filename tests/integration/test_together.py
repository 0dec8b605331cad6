"""Several workers, clocks and processes on one queue."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import WriteConcernError

import mongoq
from mongoq.model.clock import ServerClock, local_seconds
from mongoq.protocol.flow import MAX_SENDS
from tests.waiting import CLOCKS, PATIENCE


def server_time(raw: Any) -> datetime:
    return raw.database.command("hello")["localTime"].replace(tzinfo=UTC)


def test_no_item_is_handed_out_twice_to_threads(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    for n in range(200):
        queue.push(n)
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
    assert Counter(payloads) == Counter(range(200))
    assert queue.size() == 0


def test_a_waiting_thread_gets_what_is_pushed_later(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(queue.reserve(wait=30)))
    thread.start()
    queue.push("late")
    thread.join(PATIENCE)
    assert [item.payload for item in got] == ["late"]


def test_a_lease_runs_out_on_the_servers_clock(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    first = queue.reserve(lease=2)
    assert first is not None
    assert queue.reserve() is None
    second = queue.reserve(wait=PATIENCE)
    assert second is not None
    assert second.attempts == 2
    with pytest.raises(mongoq.ReservationLost):
        queue.commit(first)
    queue.commit(second)


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_machine_whose_clock_is_an_hour_off_behaves_like_any_other(
    broker: mongoq.Broker, raw: Any, off: timedelta
) -> None:
    seconds = off.total_seconds()
    clock = ServerClock(local=lambda: local_seconds() + seconds, wall=lambda: local_seconds() * 3 + seconds)
    odd = mongoq.Broker(raw, clock=clock).queue("orders")
    even = broker.queue("orders")
    odd.push("from the odd one")
    item = even.reserve(wait=1)
    assert item is not None
    even.commit(item)
    even.push("from the even one")
    item = odd.reserve(wait=1, lease=60)
    assert item is not None
    assert even.reserve() is None
    odd.commit(item)
    before = server_time(raw)
    odd.push("in a minute", delay=60)
    assert even.counts() == mongoq.Counts(scheduled=1)
    due = even.next_when()
    assert due is not None
    assert before - CLOCKS < due - timedelta(seconds=60) < server_time(raw) + CLOCKS


def test_pushes_of_one_producer_keep_their_order_on_the_servers_clock(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    for n in range(300):
        queue.push(n)
    got = []
    while (item := queue.pop()) is not None:
        got.append(item.payload)
    assert got == list(range(300))


def test_what_was_just_pushed_is_found_by_another_broker_at_once(broker: mongoq.Broker, raw: Any) -> None:
    ours, theirs = broker.queue("orders"), mongoq.Broker(raw).queue("orders")
    theirs.size()
    for n in range(300):
        ours.push(n)
        item = theirs.pop()
        assert item is not None, n


def test_pause_is_soon_seen_by_another_broker(broker: mongoq.Broker, raw: Any) -> None:
    ours, theirs = broker.queue("orders"), mongoq.Broker(raw).queue("orders")
    ours.push("a")
    ours.pause()
    deadline = time.monotonic() + PATIENCE
    while (item := theirs.reserve()) is not None:
        assert time.monotonic() < deadline
        theirs.release(item)
    assert theirs.reserve(wait=0.3) is None
    assert ours.counts() == mongoq.Counts(ready=1)
    ours.resume()
    assert theirs.reserve(wait=PATIENCE) is not None


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_has_an_identity_of_its_own(uri: str, broker: mongoq.Broker) -> None:
    parent = str(broker._context.identity)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(broker._context.identity).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    identity = os.read(read, 1000).decode()
    os.close(read)
    assert identity != parent
    assert identity.split(":")[1] == str(child)


@pytest.fixture
def failing(client: MongoClient[Any]) -> Any:
    """Sets a fail point, and clears it in the end."""

    def fail(commands: list[str], times: int = 1, **how: Any) -> None:
        client.admin.command(
            "configureFailPoint", "failCommand", mode={"times": times}, data={"failCommands": commands, **how}
        )

    yield fail
    client.admin.command("configureFailPoint", "failCommand", mode="off")


CONCERN = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}


def test_a_write_that_was_not_confirmed_is_looked_for(broker: mongoq.Broker, failing: Any) -> None:
    """A writeConcernError comes although the write happened."""
    queue = broker.queue("orders", history=60)
    queue.push("warm")
    assert queue.pop() is not None
    failing(["insert"], **CONCERN)
    id = queue.push("a")
    assert queue.size() == 1
    failing(["findAndModify"], **CONCERN)
    item = queue.reserve()
    assert item is not None
    assert (item.id, item.attempts) == (id, 1)
    failing(["update"], **CONCERN)
    queue.rollback(item)
    again = queue.reserve()
    assert again is not None
    failing(["update"], **CONCERN)
    queue.move(again, "next")
    moved = broker.queue("next", history=60).reserve()
    assert moved is not None
    failing(["update"], **CONCERN)
    broker.queue("next", history=60).commit(moved)
    deadline = time.monotonic() + PATIENCE
    while [item.id for item in broker.queue("next").history()] != [id]:
        # history is read with majority concern, and nobody waited for the majority
        assert time.monotonic() < deadline


def test_an_unconfirmed_delete_is_uncertain_and_never_success(broker: mongoq.Broker, failing: Any) -> None:
    """The driver does not send it again, and a deleted item leaves nothing to read."""
    queue = broker.queue("orders")
    queue.push("a")
    item = queue.reserve()
    assert item is not None
    failing(["delete"], **CONCERN)
    with pytest.raises(mongoq.ReservationLost) as caught:
        queue.commit(item)
    assert not caught.value.certain
    assert (queue.size(), broker.stats()["orders"].commit) == (0, 0)


def test_a_delete_that_is_never_confirmed_raises_the_drivers_error(broker: mongoq.Broker, failing: Any) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    item = queue.reserve()
    assert item is not None
    failing(["delete"], times=MAX_SENDS, **CONCERN)
    with pytest.raises(WriteConcernError):
        queue.commit(item)


def test_a_broken_connection_is_survived(broker: mongoq.Broker, failing: Any) -> None:
    queue = broker.queue("orders")
    queue.push("a")
    for command in ("findAndModify", "delete"):
        failing([command], closeConnection=True)
        if command == "findAndModify":
            item = queue.reserve()
            assert item is not None
        else:
            queue.commit(item)
    assert queue.size() == 0


def test_a_refused_command_is_the_drivers_error_and_changes_nothing(broker: mongoq.Broker, failing: Any) -> None:
    from pymongo.errors import OperationFailure

    queue = broker.queue("orders")
    queue.push("a")
    failing(["findAndModify"], errorCode=13)
    with pytest.raises(OperationFailure):
        queue.reserve()
    assert queue.counts() == mongoq.Counts(ready=1)


@pytest.mark.parametrize("spent", [True, False])
def test_a_batch_that_took_long_to_bury_others_begins_its_leases_anew(raw: Any, spent: bool) -> None:
    clock = mongoq.VirtualClock()
    broker = mongoq.Broker(raw, clock=clock)
    queue = broker.queue("orders", max_retries=0, model=int)
    untyped = broker.queue("orders")
    untyped.push_many([1, 2] if spent else ["no number", "nor this"])
    if spent:
        for _ in range(2):
            untyped.reserve(lease=1)
        clock.advance(2)
    untyped.push(3)
    sender: Any = broker._driver._sender
    send = sender.send

    def slow(command: Any) -> Any:
        if "origin" in str(command.arguments):
            clock.advance(6)
        return send(command)

    sender.send = slow
    (item,) = queue.reserve_many(5, lease=10)
    assert (item.payload, item.lease_until) == (3, clock.now() + timedelta(seconds=10))
    assert queue.dead.size() == 2
    queue.commit_many([item])
    broker.close()
