"""Wake-ups: what another process does is noticed by a consumer that waits, where a look would come minutes later."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.protocol.state import wait_queue
from tests.integration.waiters import Waiter, at_rest, listened_to, until
from tests.proxy import Proxy
from tests.waiting import PATIENCE

APP = "mongoq-waits"


@pytest.fixture(autouse=True)
def _looks_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look find what should wake: these tests tell one from the other by their patience."""
    monkeypatch.setattr(wait_queue, "LIVE_POLL_SECONDS", 10 * PATIENCE)


@pytest.fixture
def other_broker(uri: str, database: str) -> Iterator[mongoq.Broker]:
    """A broker that shares nothing with ``broker`` but the collection, as one in another process."""
    with mongoq.connect(uri, database=database) as opened:
        yield opened


def push(other_broker: mongoq.Broker) -> None:
    other_broker.queue("orders").push(1)


def push_many(other_broker: mongoq.Broker) -> None:
    other_broker.queue("orders").push_many([1, 2, 3])


def push_keyed(other_broker: mongoq.Broker) -> None:
    other_broker.queue("orders").push(1, key="k")


def push_in_transaction(other_broker: mongoq.Broker) -> None:
    with other_broker.transaction() as tx:
        other_broker.queue("orders").push(1, session=tx.session)


def push_large(other_broker: mongoq.Broker) -> None:
    other_broker.queue("orders").push("x" * (16 * 1024 * 1024 - 70_000))


def move(other_broker: mongoq.Broker) -> None:
    other_broker.queue("raw").push(1)
    item = other_broker.queue("raw").reserve()
    assert item is not None
    other_broker.queue("raw").move(item, "orders")


def move_many(other_broker: mongoq.Broker) -> None:
    other_broker.queue("raw").push_many([1, 2])
    other_broker.queue("raw").move_many(
        (item, mongoq.Move("orders")) for item in other_broker.queue("raw").reserve_many(2)
    )


@pytest.mark.parametrize("act", [push, push_many, push_keyed, push_in_transaction, push_large, move, move_many])
def test_what_is_put_into_the_queue_elsewhere_wakes(
    broker: mongoq.Broker, other_broker: mongoq.Broker, act: Callable[[mongoq.Broker], None]
) -> None:
    waiter = Waiter(broker)
    act(other_broker)
    assert waiter.result() is not None


def push_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("orders").push(1, session=tx.session)


def push_keyed_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("orders").push(1, key="k", session=tx.session)


def push_many_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("orders").push_many([1], session=tx.session)


def publish_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("topic").push(1, session=tx.session)


def move_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    item = broker.queue("raw").reserve()
    assert item is not None
    broker.queue("raw").move(item, "orders", session=tx.session)


@pytest.mark.parametrize("act", [push_joined, push_keyed_joined, push_many_joined, publish_joined, move_joined])
def test_what_this_process_puts_into_the_queue_in_a_transaction_wakes_at_its_commit(
    broker: mongoq.Broker, act: Callable[[mongoq.Broker, mongoq.Transaction], None]
) -> None:
    broker.bind("topic", "orders")
    broker.queue("raw").push(1)
    waiter = Waiter(broker)
    with broker.transaction() as tx:
        act(broker, tx)
        until(lambda: at_rest(broker, "orders"))  # it has asked again, and found nothing before the commit
    assert waiter.result() is not None


def rollback(queue: Any, item: Any) -> None:
    queue.rollback(item)


def release(queue: Any, item: Any) -> None:
    queue.release(item)


def rollback_many(queue: Any, item: Any) -> None:
    queue.rollback_many([item])


def release_many(queue: Any, item: Any) -> None:
    queue.release_many([item])


def shorten_lease(queue: Any, item: Any) -> None:
    queue.extend(item, lease=0.1)


@pytest.mark.parametrize("act", [rollback, release, rollback_many, release_many, shorten_lease])
def test_what_is_handed_back_elsewhere_wakes(
    broker: mongoq.Broker, other_broker: mongoq.Broker, act: Callable[[Any, Any], None]
) -> None:
    queue = other_broker.queue("orders")
    queue.push(1)
    item = queue.reserve(lease=600)
    waiter = Waiter(broker)
    act(queue, item)
    assert waiter.result().id == item.id


def test_what_is_buried_elsewhere_wakes_who_waits_for_dead_letters(
    broker: mongoq.Broker, other_broker: mongoq.Broker
) -> None:
    queue = other_broker.queue("orders")
    queue.push(1)
    waiter = Waiter(broker, "orders.dead")
    item = queue.reserve()
    queue.bury(item)
    assert waiter.result().id == item.id


def test_a_replay_elsewhere_wakes(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    queue = other_broker.queue("orders", history=timedelta(days=1))
    queue.push(1)
    queue.pop()
    waiter = Waiter(broker)
    assert queue.replay().pushed == 1
    assert waiter.result().payload == 1


def test_dead_letters_sent_back_elsewhere_wake(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    queue = other_broker.queue("orders")
    queue.push(1)
    queue.bury(queue.reserve())
    waiter = Waiter(broker)
    assert queue.dead.replay().pushed == 1
    assert waiter.result().payload == 1


def test_an_item_that_is_rescheduled_elsewhere_wakes(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    """The update tells of nothing but a date."""
    queue = other_broker.queue("orders")
    queue.push(1, key="k", delay=3600)
    waiter = Waiter(broker)
    queue.push(1, key="k", on_duplicate="replace")
    assert waiter.result().payload == 1


def test_a_resumed_queue_wakes_and_a_paused_one_hands_out_nothing(
    broker: mongoq.Broker, other_broker: mongoq.Broker
) -> None:
    waiter = Waiter(broker)
    queue = other_broker.queue("orders")
    queue.pause()
    until(lambda: broker._context.state("orders").paused)
    queue.push(1)
    time.sleep(0.3)
    assert waiter.is_waiting()
    assert queue.size("ready") == 1
    queue.resume()
    assert waiter.result().payload == 1


def test_settings_changed_elsewhere_hold_for_the_next_item(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    waiter = Waiter(broker)
    other_broker.queue("orders").configure(lease=timedelta(hours=2))
    other_broker.queue("orders").push(1)
    item = waiter.result()
    assert item.lease_until - broker._context.clock.now() > timedelta(hours=1)


def test_another_process_wakes(broker: mongoq.Broker, uri: str, database: str) -> None:
    waiter = Waiter(broker)
    code = "import sys, mongoq; mongoq.connect(sys.argv[1], database=sys.argv[2]).queue('orders').push('hello')"
    subprocess.run([sys.executable, "-c", code, uri, database], check=True, timeout=PATIENCE)
    assert waiter.result().payload == "hello"


@pytest.mark.parametrize("before", [True, False])
def test_a_scheduled_item_is_handed_out_when_it_is_due(
    broker: mongoq.Broker, other_broker: mongoq.Broker, before: bool
) -> None:
    if before:
        other_broker.queue("orders").push(1, delay=1.5)
    waiter = Waiter(broker)
    if not before:
        other_broker.queue("orders").push(1, delay=1.5)
    item = waiter.result()
    assert item.payload == 1
    assert broker._context.clock.now() >= item.due


@pytest.mark.parametrize("before", [True, False])
def test_an_item_is_handed_out_when_its_lease_is_over(
    broker: mongoq.Broker, other_broker: mongoq.Broker, before: bool
) -> None:
    queue = other_broker.queue("orders")
    if before:
        queue.push(1)
        claimed = queue.reserve(lease=1.5)
        waiter = Waiter(broker)
    else:
        waiter = Waiter(broker)
        queue.pause()
        until(lambda: broker._context.state("orders").paused)
        queue.push(1)
        raw = other_broker._driver._backend.targets["collection"]  # taken by somebody who was faster
        until_ = broker._context.clock.now() + timedelta(seconds=1.5)
        fields = {"when": until_, "reserved": True, "token": ObjectId(), "attempts": 1}
        claimed = raw.find_one_and_update({"q": "orders"}, {"$set": fields})
        queue.resume()
    assert claimed is not None
    assert waiter.result().attempts == 2


def test_reserve_many_is_woken_too(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    items: list[Any] = []
    thread = threading.Thread(target=lambda: items.extend(broker.queue("orders").reserve_many(10, wait=2 * PATIENCE)))
    thread.start()
    until(lambda: at_rest(broker, "orders"))
    other_broker.queue("orders").push_many(range(5))
    thread.join(PATIENCE)
    assert 1 <= len(items) <= 5


@pytest.fixture
def deaf(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> mongoq.Broker:
    """A broker without a stream, whose looks come late as well."""
    broker._context.registry.barred = True
    monkeypatch.setattr(wait_queue, "POLL_IDLE", 600.0)
    monkeypatch.setattr(wait_queue, "POLL_SHARE", 1e9)
    return broker


def asleep(broker: mongoq.Broker) -> bool:
    return any(waiter.asleep for waiter in broker._context.registry.wait_queue("orders").waiters)


@pytest.mark.parametrize("act", [push, push_many, push_keyed, move, move_many])
def test_in_the_same_process_it_wakes_without_a_stream(
    deaf: mongoq.Broker, act: Callable[[mongoq.Broker], None]
) -> None:
    waiter = Waiter(deaf, rest=False)
    until(lambda: asleep(deaf))
    act(deaf)
    assert waiter.result() is not None


@pytest.mark.parametrize("act", [rollback, release, rollback_many, release_many, shorten_lease])
def test_in_the_same_process_what_is_handed_back_wakes_without_a_stream(
    deaf: mongoq.Broker, act: Callable[[Any, Any], None]
) -> None:
    queue = deaf.queue("orders")
    queue.push(1)
    item = queue.reserve(lease=600)
    waiter = Waiter(deaf, rest=False)
    until(lambda: asleep(deaf))
    act(queue, item)
    assert waiter.result().payload == 1


def test_in_the_same_process_resume_and_replays_wake_without_a_stream(deaf: mongoq.Broker) -> None:
    queue = deaf.queue("orders", history=3600)
    queue.push(1)
    queue.pause()
    waiter = Waiter(deaf, rest=False)
    until(lambda: asleep(deaf))
    queue.resume()
    queue.bury(waiter.result())
    waiter = Waiter(deaf, rest=False)
    until(lambda: asleep(deaf))
    assert queue.dead.replay().pushed == 1
    queue.commit(waiter.result())
    waiter = Waiter(deaf, rest=False)
    until(lambda: asleep(deaf))
    assert queue.replay().pushed == 1
    assert waiter.result().payload == 1


def test_a_queue_waited_for_later_is_watched_as_well(broker: mongoq.Broker, other_broker: mongoq.Broker) -> None:
    first = Waiter(broker, "first")
    time.sleep(2.5)  # the server holds its answers back for seconds by now
    second, third = Waiter(broker, "second"), Waiter(broker, "third")
    for name, waiter in (("third", third), ("second", second), ("first", first)):
        other_broker.queue(name).push(name)
        assert waiter.result().payload == name


def test_a_process_that_is_never_idle_has_no_stream(uri: str, database: str) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders")
        queue.push_many(range(50))
        for _ in range(50):
            queue.commit(queue.reserve(wait=10))
    assert "getMore" not in commands.names


def test_the_stream_is_closed_when_nobody_waits_any_more(
    broker: mongoq.Broker, other_broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(broker)
    registry = broker._context.registry
    other_broker.queue("orders").push(1)
    waiter.result()
    until(lambda: not registry.running)
    assert registry.cursor is None
    again = Waiter(broker)
    other_broker.queue("orders").push(2)
    assert again.result().payload == 2


def test_a_hundred_waiters_and_one_push_make_few_claims(uri: str, database: str, other_broker: mongoq.Broker) -> None:
    with listened_to(uri, database) as (broker, commands):
        waiters = [Waiter(broker, rest=False) for _ in range(100)]
        until(lambda: at_rest(broker, "orders", 100))
        time.sleep(0.3)
        before = len(commands.names)
        other_broker.queue("orders").push(1)
        until(lambda: any(not waiter.is_waiting() for waiter in waiters))
        time.sleep(0.5)
        names = commands.names[before:]
        assert sum(not waiter.is_waiting() for waiter in waiters) == 1
        assert names.count("findAndModify") <= 4, names
        other_broker.queue("orders").push_many(range(99))
        for waiter in waiters:
            assert waiter.result() is not None


def test_a_hundred_idle_queues_cost_less_than_a_command_a_second(uri: str, database: str) -> None:
    with listened_to(uri, database) as (broker, commands):
        waiters = [Waiter(broker, f"q{number}", rest=False) for number in range(100)]
        until(lambda: all(at_rest(broker, f"q{number}") for number in range(100)))

        def is_quiet() -> bool:
            before = len(commands.names)
            time.sleep(8)
            return len(commands.names) - before < 8

        until(is_quiet)  # what the beginning costs may come late
        assert all(waiter.is_waiting() for waiter in waiters)


def test_waiting_again_and_again_asks_nothing_while_nothing_happens(uri: str, database: str) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders")
        keep = Waiter(broker)
        before = len(commands.names)
        for _ in range(3):
            assert queue.reserve(wait=1) is None
        assert "findAndModify" not in commands.names[before:]
        assert keep.is_waiting()


@pytest.mark.parametrize("step", range(12))
def test_a_push_before_any_step_of_the_wait_is_found(
    broker: mongoq.Broker, other_broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """From 'the queue is empty' to 'waiting', and the steps of the stream's reader besides."""
    queue = broker.queue("orders")
    other_broker.queue("orders").push(0)
    assert queue.pop() is not None
    perform, steps, lock = broker._driver._performer.perform, [0], threading.Lock()

    def pushed_before(request: Any, undo_log: Any) -> Any:
        with lock:
            if steps[0] == step:
                other_broker.queue("orders").push(1)
            steps[0] += 1
        return perform(request, undo_log)

    monkeypatch.setattr(broker._driver._performer, "perform", pushed_before)
    waiter = Waiter(broker, rest=False)
    time.sleep(1.5)
    if steps[0] <= step:
        other_broker.queue("orders").push(1)
    assert waiter.result().payload == 1


FAILURES = [
    {"errorCode": 286},  # the log has been overwritten
    {"errorCode": 280},
    {"errorCode": 260},
    {"errorCode": 43},
    {"errorCode": 237},
    {"errorCode": 10107},
    {"closeConnection": True},
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: str(next(iter(failure.values()))))
@pytest.mark.parametrize("commands", [["getMore"], ["getMore", "aggregate"]], ids="+".join)
def test_a_stream_that_breaks_is_opened_again(
    uri: str, database: str, client: MongoClient[Any], failure: dict[str, Any], commands: list[str]
) -> None:
    with (
        MongoClient[Any](uri, appname=APP) as own,
        mongoq.Broker(own[database]["mongoq"]) as broker,
        mongoq.connect(uri, database=database) as other_broker,
    ):
        waiter = Waiter(broker)
        data = {"failCommands": commands, "appName": APP, **failure}
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": len(commands)}, "data": data})
        try:
            time.sleep(0.1)
            other_broker.queue("orders").push(1)
            assert waiter.result().payload == 1
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        again = Waiter(broker)
        other_broker.queue("orders").push(2)
        assert again.result().payload == 2


@pytest.mark.parametrize("drop", ["collection", "database"])
def test_a_dropped_collection_ends_no_wait(
    broker: mongoq.Broker, other_broker: mongoq.Broker, client: MongoClient[Any], database: str, drop: str
) -> None:
    waiter = Waiter(broker)
    if drop == "collection":
        client[database].drop_collection("mongoq")
    else:
        client.drop_database(database)
    time.sleep(0.5)
    other_broker.queue("orders").push(1)
    assert waiter.result().payload == 1


@pytest.mark.slow
def test_a_failover_ends_no_wait(broker: mongoq.Broker, other_broker: mongoq.Broker, client: MongoClient[Any]) -> None:
    waiter = Waiter(broker)
    client.admin.command({"replSetStepDown": 2, "force": True})
    until(lambda: client.admin.command("hello").get("isWritablePrimary"), 60)
    other_broker.queue("orders").push(1)
    assert waiter.result().payload == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_server_that_is_gone_for_a_while_ends_no_wait(way: str, tmp_path: Any) -> None:
    with (
        EmbeddedServer(tmp_path / "data") as server,
        Proxy(server.uri) as proxy,
        mongoq.connect(proxy.uri, database="gone") as broker,
    ):
        broker.queue("orders").push(0, delay=3600)
        waiter = Waiter(broker)
        assert server.pid is not None
        if way == "stopped":
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(4)
            os.kill(server.pid, signal.SIGCONT)
        else:
            os.kill(server.pid, signal.SIGKILL)
            time.sleep(10)
            server.start()
            proxy._server = ("127.0.0.1", server.port)  # another port at each start
        with mongoq.connect(server.uri, database="gone") as other_broker:
            other_broker.queue("orders").push(1)
        assert waiter.result(60).payload == 1


def test_on_a_standalone_server_looks_take_the_place_of_the_stream() -> None:
    with (
        EmbeddedServer(replica_set=None) as server,
        mongoq.connect(server.uri, database="alone") as broker,
        mongoq.connect(server.uri, database="alone") as other_broker,
    ):
        waiter = Waiter(broker, rest=False)
        until(lambda: broker._context.registry.deaf)
        time.sleep(0.5)
        other_broker.queue("orders").push(1)
        assert waiter.result().payload == 1
        waiter = Waiter(broker, rest=False)
        other_broker.queue("orders").push(2, delay=0.5)
        assert waiter.result().payload == 2


@pytest.mark.prove
def test_a_hundred_idle_queues_of_a_standalone_server_share_their_looks() -> None:
    with EmbeddedServer(replica_set=None) as server, listened_to(server.uri, "alone") as (broker, commands):
        waiters = [Waiter(broker, f"q{number}", rest=False) for number in range(100)]
        time.sleep(20)
        before, began = len(commands.names), time.monotonic()
        time.sleep(10)
        count = len(commands.names) - before
        assert count < 5 * (time.monotonic() - began), "alone, each would look every few seconds"
        with mongoq.connect(server.uri, database="alone") as other_broker:
            for number in (0, 50, 99):
                other_broker.queue(f"q{number}").push(number)
        for number in (0, 50, 99):
            assert waiters[number].result().payload == number


def test_a_signal_interrupts_a_wait(broker: mongoq.Broker, raw: Any) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            broker.queue("orders").reserve(wait=2 * PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not broker._context.registry.wait_queues["orders"].waiters
    broker.queue("orders").push(1)
    time.sleep(0.2)
    assert raw.count_documents({"reserved": True}) == 0


def test_a_signal_handler_may_push_what_its_thread_waits_for(broker: mongoq.Broker) -> None:
    before = signal.signal(signal.SIGALRM, lambda number, frame: broker.queue("orders").push("from a handler"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        item = broker.queue("orders").reserve(wait=2 * PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert item is not None
    assert item.payload == "from a handler"


def test_a_signal_that_another_thread_gets_is_handled_while_the_main_thread_waits(broker: mongoq.Broker) -> None:
    """Python runs the handler in the main thread, whose wait nothing has interrupted."""

    def hand_over() -> None:
        until(lambda: at_rest(broker, "orders", 1))
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: broker.queue("orders").push("from a handler"))
    thread = threading.Thread(target=hand_over)
    try:
        thread.start()
        began = time.monotonic()
        item = broker.queue("orders").reserve(wait=2 * PATIENCE)
        assert time.monotonic() - began < PATIENCE
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert item is not None
    assert item.payload == "from a handler"


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_after_a_fork_both_are_woken(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database) as broker, mongoq.connect(uri, database=database) as other_broker:
        waiter = Waiter(broker)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with mongoq.connect(uri, database=database) as fresh:
                    item = broker.queue("others").reserve(wait=PATIENCE)
                    fresh.queue("orders").push(item.payload if item else "nothing")
            finally:
                os._exit(0)
        os.close(writing)
        time.sleep(1.0)
        other_broker.queue("others").push("to the child")
        assert waiter.result().payload == "to the child"
        os.close(reading)
        os.waitpid(child, 0)


def test_a_closed_broker_wakes_all_at_once(uri: str, database: str) -> None:
    broker = mongoq.connect(uri, database=database)
    waiters = [Waiter(broker, rest=False) for _ in range(10)]
    until(lambda: at_rest(broker, "orders", 10))
    time.sleep(1.5)
    broker.close()
    for waiter in waiters:
        with pytest.raises(mongoq.BrokerClosed):
            waiter.result()


async def rested(broker: Any, queue: str, number: int = 1) -> None:
    async with asyncio.timeout(PATIENCE):
        while not at_rest(broker, queue, number):
            await asyncio.sleep(0.005)


async def test_asyncio_is_woken_by_another_process_and_closes_at_once(
    uri: str, database: str, other_broker: mongoq.Broker
) -> None:
    broker = await mongoq.connect_async(uri, database=database)
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
    await rested(broker, "orders")
    other_broker.queue("orders").push(1)
    item = await asyncio.wait_for(waiting, PATIENCE)
    assert item is not None
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
    await rested(broker, "orders")
    await asyncio.sleep(2.5)
    await broker.close()
    with pytest.raises(mongoq.BrokerClosed):
        await asyncio.wait_for(waiting, PATIENCE)


async def test_motor_is_woken_too(uri: str, database: str, other_broker: mongoq.Broker) -> None:
    motor = pytest.importorskip("motor.motor_asyncio")
    client = motor.AsyncIOMotorClient(uri)
    broker = mongoq.AsyncBroker(client[database]["mongoq"])
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
    await rested(broker, "orders")
    other_broker.queue("orders").push(1)
    item = await asyncio.wait_for(waiting, PATIENCE)
    assert item is not None
    await broker.close()
    client.close()


async def test_a_deadline_of_the_caller_does_not_bind_the_stream(
    uri: str, database: str, other_broker: mongoq.Broker
) -> None:
    import pymongo

    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    broker = mongoq.AsyncBroker(client[database]["mongoq"])
    with pymongo.timeout(5):
        waiting = asyncio.create_task(broker.queue("orders").reserve(wait=1))
        await waiting
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
    await asyncio.sleep(5.5)
    await rested(broker, "orders")
    other_broker.queue("orders").push(1)
    assert await asyncio.wait_for(waiting, PATIENCE) is not None
    await broker.close()
    await client.close()


@pytest.mark.parametrize("seed", range(3))
async def test_random_cancellations_lose_nothing_and_leave_nothing_reserved(
    uri: str, database: str, raw: Any, seed: int
) -> None:
    chance = random.Random(seed)
    items: list[Any] = []
    broker = await mongoq.connect_async(uri, database=database)
    queue = broker.queue("orders")

    async def consume() -> None:
        item = await queue.reserve(wait=2 * PATIENCE)
        assert item is not None
        items.append(item)

    with closing(mongoq.connect(uri, database=database)) as other_broker:
        tasks = [asyncio.create_task(consume()) for _ in range(30)]
        ids: list[ObjectId] = []
        for _ in range(60):
            await asyncio.sleep(chance.random() * 0.02)
            pushing = queue.push if chance.random() < 0.5 else None
            ids.append(await pushing(1) if pushing else await asyncio.to_thread(other_broker.queue("orders").push, 1))
            chance.choice(tasks).cancel()
            tasks.append(asyncio.create_task(consume()))
        for _ in range(2000):
            if len(items) == len(ids):
                break
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await broker.close()
    assert sorted(item.id for item in items) == sorted(ids)
    reserved = {document["_id"] for document in raw.find({"reserved": True})}
    assert reserved == {item.id for item in items}
    assert raw.count_documents({"q": "orders"}) == len(ids)
