"""Wake-ups: what another process does is noticed by a consumer that waits, where a look would come minutes later."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.clients import opened
from tests.integration.commands import Commands, failing, listened_to
from tests.integration.waiters import Waiter, rest
from tests.waiting import PATIENCE, until

Listened = tuple[mongoq.Broker, Commands]


@pytest.fixture
def listened(uri: str, database: str) -> Iterator[Listened]:
    """The broker of those that wait, and what it sends."""
    with listened_to(uri, database) as broker_and_commands:
        yield broker_and_commands


@pytest.fixture
def other_queue(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    """The queue, of a broker that shares nothing with those that wait but the collection, as in another process."""
    return broker.queue("orders", history=timedelta(days=1))


def push(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)


def push_many(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many([1, 2, 3])


def push_keyed(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, key="k")


def push_in_transaction(broker: mongoq.Broker) -> None:
    with broker.transaction() as tx:
        broker.queue("orders").push(1, session=tx.session)


def push_large(broker: mongoq.Broker) -> None:
    broker.queue("orders").push("x" * (16 * 1024 * 1024 - 70_000))


def move(broker: mongoq.Broker) -> None:
    broker.queue("raw").push(1)
    item = broker.queue("raw").reserve()
    assert item is not None
    broker.queue("raw").move(item, "orders")


def move_many(broker: mongoq.Broker) -> None:
    source = broker.queue("raw")
    source.push_many([1, 2])
    source.move_many((item, mongoq.Move("orders")) for item in source.reserve_many(2))


@pytest.mark.parametrize("act", [push, push_many, push_keyed, push_in_transaction, push_large, move, move_many])
def test_what_is_put_into_the_queue_elsewhere_wakes(
    listened: Listened, broker: mongoq.Broker, act: Callable[[mongoq.Broker], None]
) -> None:
    waiter = Waiter(*listened)
    act(broker)
    assert waiter.result() is not None


def push_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("orders").push(1, session=tx.session)


def publish_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    broker.queue("topic").push(1, session=tx.session)


def move_joined(broker: mongoq.Broker, tx: mongoq.Transaction) -> None:
    item = broker.queue("raw").reserve()
    assert item is not None
    broker.queue("raw").move(item, "orders", session=tx.session)


@pytest.mark.parametrize("act", [push_joined, publish_joined, move_joined])
def test_what_this_process_puts_into_the_queue_in_a_transaction_wakes_at_its_commit(
    listened: Listened, act: Callable[[mongoq.Broker, mongoq.Transaction], None]
) -> None:
    broker, commands = listened
    broker.bind("topic", "orders")
    broker.queue("raw").push(1)
    waiter = Waiter(*listened)
    with broker.transaction() as tx:
        act(broker, tx)
        rest(commands, len(commands.sent))  # it may have asked again, and found nothing before the commit
    assert waiter.result() is not None


def rollback(queue: Any, item: Any) -> None:
    queue.rollback(item)


def rollback_many(queue: Any, item: Any) -> None:
    queue.rollback_many([item])


def release(queue: Any, item: Any) -> None:
    queue.release(item)


def shorten_lease(queue: Any, item: Any) -> None:
    queue.extend(item, lease=0.1)


@pytest.mark.parametrize("act", [rollback, rollback_many, release, shorten_lease])
def test_what_is_handed_back_elsewhere_wakes(
    listened: Listened, other_queue: Any, act: Callable[[Any, Any], None]
) -> None:
    other_queue.push(1)
    item = other_queue.reserve(lease=600)
    waiter = Waiter(*listened)
    act(other_queue, item)
    assert waiter.result().id == item.id


def test_a_burial_wakes_who_waits_for_dead_letters_and_replays_who_waits_for_items(
    listened: Listened, other_queue: Any
) -> None:
    broker, commands = listened
    other_queue.push("dead")
    waiter = Waiter(broker, commands, "orders.dead")
    other_queue.bury(other_queue.reserve())
    letter = waiter.result()
    broker.dead_queue("orders.dead").release(letter)
    waiter = Waiter(*listened)
    assert other_queue.dead.replay().pushed == 1
    item = waiter.result()
    assert item.payload == "dead"
    other_queue.commit(item)
    waiter = Waiter(*listened)
    assert other_queue.replay().pushed == 1
    assert waiter.result().payload == "dead"


def test_an_item_that_is_rescheduled_elsewhere_wakes(listened: Listened, other_queue: Any) -> None:
    """The update tells of nothing but a date."""
    other_queue.push(1, key="k", delay=3600)
    waiter = Waiter(*listened)
    other_queue.push(1, key="k", on_duplicate="replace")
    assert waiter.result().payload == 1


def test_a_resumed_queue_wakes_and_a_paused_one_hands_out_nothing(listened: Listened, other_queue: Any) -> None:
    other_queue.pause()
    waiter = Waiter(*listened)
    other_queue.push(1)
    rest(listened[1], len(listened[1].sent))
    assert waiter.is_waiting()
    assert other_queue.size("ready") == 1
    other_queue.resume()
    assert waiter.result().payload == 1


def test_settings_changed_elsewhere_hold_for_the_next_item(listened: Listened, other_queue: Any) -> None:
    assert other_queue.reserve() is None  # stores its options: the waiter would be woken, and claim before the change
    waiter = Waiter(*listened)
    other_queue.configure(lease=timedelta(hours=2))
    other_queue.push(1)
    assert waiter.result().lease_until - datetime.now(UTC) > timedelta(hours=1)


@pytest.mark.parametrize("before", [True, False])
def test_a_scheduled_item_is_handed_out_when_it_is_due(listened: Listened, other_queue: Any, before: bool) -> None:
    if before:
        other_queue.push(1, delay=0.5)
    waiter = Waiter(listened[0], None if before else listened[1])
    if not before:
        other_queue.push(1, delay=0.5)
    assert waiter.result().payload == 1


def test_an_item_is_handed_out_when_its_lease_is_over(listened: Listened, other_queue: Any) -> None:
    other_queue.push(1)
    assert other_queue.reserve(lease=0.5) is not None
    assert Waiter(listened[0]).result().attempts == 2


def test_reserve_many_is_woken_too(listened: Listened, other_queue: Any) -> None:
    broker, commands = listened
    items: list[Any] = []
    thread = threading.Thread(target=lambda: items.extend(broker.queue("orders").reserve_many(10, wait=2 * PATIENCE)))
    thread.start()
    rest(commands)
    other_queue.push_many(range(5))
    thread.join(PATIENCE)
    assert 1 <= len(items) <= 5


@pytest.fixture
def deaf(uri: str, database: str, client: MongoClient[Any]) -> Iterator[Listened]:
    """A broker whose change stream is open and tells nothing: the server does not answer its first read."""
    block = {"blockConnection": True, "blockTimeMS": 600_000, "appName": database}
    with listened_to(uri, database, appname=database) as (broker, commands), failing(client, "getMore", **block):
        yield broker, commands
        commands.before = commands.after = None
        blocked = [{"$currentOp": {}}, {"$match": {"appName": database, "command.getMore": {"$exists": True}}}]
        for operation in client.admin.aggregate(blocked):
            client.admin.command("killOp", op=operation["opid"])


def test_in_the_same_process_it_wakes_without_the_server(deaf: Listened) -> None:
    """Pushes and moves, what is handed back, a resumption and replays."""
    broker, commands = deaf
    queue = broker.queue("orders", history=3600)

    def waiter() -> Waiter:
        """Begin to wait, and find nothing; the first one asks again when the stream is open."""
        done: list[str] = []
        claims = 1 if "getMore" in commands.names() else 2
        commands.after = lambda name, _: done.append(name)
        waiting = Waiter(broker)
        until(lambda: done.count("findAndModify") >= claims and done[-1] == "aggregate")
        return waiting

    for act in (push, push_keyed, push_many, move, move_many):
        waiting = waiter()
        act(broker)
        item = waiting.result()
        assert item is not None, act
        queue.commit(item)
        queue.purge()
    for hand_back in (rollback, rollback_many, release, shorten_lease):
        queue.push(hand_back.__name__)
        item = queue.reserve(lease=600)
        waiting = waiter()
        hand_back(queue, item)
        assert waiting.result().payload == hand_back.__name__
        queue.purge(state="reserved")
    queue.purge(state="processed")
    queue.push(1)
    queue.pause()
    waiting = Waiter(broker)
    queue.resume()
    queue.bury(waiting.result())
    waiting = waiter()
    assert queue.dead.replay().pushed == 1
    queue.commit(waiting.result())
    waiting = waiter()
    assert queue.replay().pushed == 1
    assert waiting.result().payload == 1


def test_a_queue_waited_for_later_is_watched_as_well(listened: Listened, broker: mongoq.Broker) -> None:
    waiting, commands = listened
    first = Waiter(waiting, commands, "first")
    until(lambda: commands.names().count("getMore") >= 5)  # the server holds its answers back for longer by now
    second, third = Waiter(waiting, commands, "second"), Waiter(waiting, commands, "third")
    for name, waiter in (("third", third), ("second", second), ("first", first)):
        broker.queue(name).push(name)
        assert waiter.result().payload == name


def test_a_process_that_is_never_idle_has_no_stream(listened: Listened) -> None:
    broker, commands = listened
    queue = broker.queue("orders")
    queue.push_many(range(20))
    for _ in range(20):
        queue.commit(queue.reserve(wait=PATIENCE))  # type: ignore[arg-type]
    assert "getMore" not in commands.names()


def test_the_stream_is_closed_when_nobody_waits_any_more(listened: Listened, other_queue: Any) -> None:
    _, commands = listened
    waiter = Waiter(*listened)
    other_queue.push(1)
    waiter.result()
    until(lambda: "killCursors" in commands.names())
    again = Waiter(*listened)
    other_queue.push(2)
    assert again.result().payload == 2


def test_many_waiters_and_one_push_make_few_claims(listened: Listened, other_queue: Any) -> None:
    broker, commands = listened
    number, pushes = 30, 5
    waiters = [Waiter(broker) for _ in range(number)]
    rest(commands)
    before = len(commands.sent)
    for pushed in range(1, pushes + 1):
        other_queue.push(pushed)
        until(lambda: number - sum(waiter.is_waiting() for waiter in waiters) == pushed)  # noqa: B023
    assert commands.names()[before:].count("findAndModify") < pushes * number / 3
    other_queue.push_many(range(number - pushes))
    for waiter in waiters:
        assert waiter.result() is not None


@pytest.mark.prove
@pytest.mark.parametrize("replica_set", ["mongoq", None])
def test_a_hundred_idle_queues_cost_less_than_a_command_a_second(replica_set: str | None) -> None:
    with EmbeddedServer(replica_set=replica_set) as server, listened_to(server.uri, "idle") as (broker, commands):
        waiters = [Waiter(broker, queue=f"q{number}") for number in range(100)]

        def is_quiet() -> bool:
            before = len(commands.sent)
            threading.Event().wait(8)
            return len(commands.sent) - before < 8

        until(is_quiet)  # what the beginning costs may come late
        assert all(waiter.is_waiting() for waiter in waiters)
        with mongoq.connect(server.uri, database="idle") as other_broker:
            for number in range(100):
                other_broker.queue(f"q{number}").push(number)
        for number, waiter in enumerate(waiters):
            assert waiter.result().payload == number


def test_waiting_again_asks_nothing_while_nothing_happens(listened: Listened) -> None:
    broker, commands = listened
    keep = Waiter(*listened)
    until(lambda: commands.names().count("findAndModify") >= 2)  # it asks again when the stream is open

    def is_asked() -> bool:
        before = len(commands.sent)
        assert broker.queue("orders").reserve(wait=1) is None
        return "findAndModify" in commands.names()[before:]

    until(lambda: not is_asked())  # the first waiter may not have noted yet that it found nothing
    assert keep.is_waiting()


@pytest.mark.parametrize("step", range(1, 9))
def test_a_push_before_any_command_of_the_wait_is_found(listened: Listened, other_queue: Any, step: int) -> None:
    """From 'the queue is empty' to 'waiting', and the commands of the stream besides."""
    broker, commands = listened
    other_queue.push(0)
    assert broker.queue("orders").pop() is not None
    lock, steps = threading.Lock(), [0]

    def push_at_step(_: str, __: Mapping[str, Any]) -> None:
        with lock:
            steps[0] += 1
            now = steps[0] == step
        if now:
            other_queue.push(1)

    commands.before = push_at_step
    assert Waiter(broker).result().payload == 1  # a stream that is read sends more commands all the time


@pytest.mark.parametrize(
    "failure",
    [{"errorCode": 286}, {"errorCode": 43}, {"errorCode": 10107}, {"closeConnection": True}],
    ids=["log overwritten", "cursor killed", "no primary", "disconnected"],
)
def test_a_stream_that_breaks_is_opened_again(
    uri: str, database: str, client: MongoClient[Any], other_queue: Any, failure: dict[str, Any]
) -> None:
    with listened_to(uri, database, appname=database) as (broker, commands):
        waiter = Waiter(broker, commands)
        with failing(client, "getMore", times=2, appName=database, **failure):
            rest(commands, len(commands.sent))
            other_queue.push(1)
            assert waiter.result().payload == 1
        again = Waiter(broker, commands)
        other_queue.push(2)
        assert again.result().payload == 2


def test_without_its_stream_a_waiter_looks_by_itself(
    uri: str, database: str, client: MongoClient[Any], other_queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.core_threads.wait.wait.PAUSE_SECONDS", 600.0)  # it is not opened again
    with listened_to(uri, database, appname=database) as (broker, commands):
        waiter = Waiter(broker, commands)
        broken = len(commands.sent)
        with failing(client, "getMore", appName=database, closeConnection=True):
            until(lambda: "findAndModify" in commands.names()[broken:])
        other_queue.push(1)
        assert waiter.result().payload == 1


@pytest.mark.parametrize("drop", ["collection", "database"])
def test_a_dropped_collection_ends_no_wait(
    listened: Listened, other_queue: Any, client: MongoClient[Any], database: str, drop: str
) -> None:
    waiter = Waiter(*listened)
    if drop == "collection":
        client[database].drop_collection("mongoq")
    else:
        client.drop_database(database)
    other_queue.push(1)
    assert waiter.result().payload == 1


def test_a_failover_ends_no_wait() -> None:
    with EmbeddedServer() as server, listened_to(server.uri, "failover") as (broker, commands):
        broker.ensure_indexes()
        waiter = Waiter(broker, commands)
        with MongoClient[Any](server.uri) as client:
            client.admin.command({"replSetStepDown": 1, "force": True})
            until(lambda: client.admin.command("hello").get("isWritablePrimary"))
        with mongoq.connect(server.uri, database="failover") as other_broker:
            other_broker.queue("orders").push(1)
        assert waiter.result().payload == 1


def test_on_a_standalone_server_looks_take_the_place_of_the_stream() -> None:
    with (
        EmbeddedServer(replica_set=None) as server,
        listened_to(server.uri, "alone") as (broker, commands),
        mongoq.connect(server.uri, database="alone") as other_broker,
    ):
        waiter = Waiter(broker)
        until(lambda: commands.names().count("findAndModify") >= 2)
        other_broker.queue("orders").push(1)
        assert waiter.result().payload == 1
        waiter = Waiter(broker)
        other_broker.queue("orders").push(2, delay=0.2)
        assert waiter.result().payload == 2


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Does something soon, in a handler of a signal."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(act: Callable[[], Any]) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: act())
        signal.setitimer(signal.ITIMER_REAL, 0.3)

    yield set_alarm
    signal.signal(signal.SIGALRM, before)


def test_a_signal_interrupts_a_wait(broker: mongoq.Broker, alarm: Any) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    queue = broker.queue("orders")
    with pytest.raises(KeyboardInterrupt):
        alarm(interrupt)
        queue.reserve(wait=2 * PATIENCE)
    queue.push(1)
    item = queue.reserve(wait=PATIENCE)
    assert item is not None
    assert item.attempts == 1


def test_a_signal_handler_may_push_what_its_thread_waits_for(broker: mongoq.Broker, alarm: Any) -> None:
    alarm(lambda: broker.queue("orders").push("from a handler"))
    item = broker.queue("orders").reserve(wait=PATIENCE)
    assert item is not None
    assert item.payload == "from a handler"


def test_a_signal_that_another_thread_gets_is_handled_while_the_main_thread_waits(listened: Listened) -> None:
    """Python runs the handler in the main thread, whose wait nothing has interrupted."""
    broker, commands = listened

    def hand_over() -> None:
        rest(commands)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: broker.queue("orders").push("from a handler"))
    thread = threading.Thread(target=hand_over)
    try:
        thread.start()
        item = broker.queue("orders").reserve(wait=PATIENCE)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert item is not None
    assert item.payload == "from a handler"


def test_after_a_fork_both_are_woken(listened: Listened, uri: str, database: str, other_queue: Any) -> None:
    broker, _ = listened
    waiter = Waiter(*listened)
    child = os.fork()
    if child == 0:
        warnings.simplefilter("ignore")  # PyMongo warns of clients in children
        try:
            with mongoq.connect(uri, database=database) as fresh:
                item = broker.queue("others").reserve(wait=PATIENCE)
                fresh.queue("orders").push(item.payload if item else "nothing")
        finally:
            os._exit(0)
    with mongoq.connect(uri, database=database) as other_broker:
        other_broker.queue("others").push("to the child")
    assert waiter.result().payload == "to the child"
    os.waitpid(child, 0)


def test_a_closed_broker_wakes_all_at_once(listened: Listened) -> None:
    broker, commands = listened
    waiters = [Waiter(broker) for _ in range(5)]
    rest(commands)
    broker.close()
    for waiter in waiters:
        with pytest.raises(mongoq.BrokerClosed):
            waiter.result()


async def rested(commands: Commands) -> None:
    """Wait until an asynchronous broker reads its change stream."""
    start = len(commands.sent)
    async with asyncio.timeout(PATIENCE):
        while commands.names()[start:].count("getMore") < 2:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["aio", "motor"])
async def test_asyncio_is_woken_by_another_process_and_closes_at_once(
    uri: str, database: str, other_queue: Any, kind: str
) -> None:
    commands = Commands()
    async with opened(kind, uri, event_listeners=[commands]) as client:
        broker = mongoq.AsyncBroker(client[database]["mongoq"])
        waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
        await rested(commands)
        other_queue.push(1)
        item = await asyncio.wait_for(waiting, PATIENCE)
        assert item is not None
        waiting = asyncio.create_task(broker.queue("orders").reserve(wait=2 * PATIENCE))
        await rested(commands)
        await broker.close()
        with pytest.raises(mongoq.BrokerClosed):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_a_deadline_of_the_caller_does_not_bind_the_stream(uri: str, database: str, other_queue: Any) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        with suppress(PyMongoError), pymongo.timeout(1):  # a busy machine may need longer for it
            await queue.reserve(wait=0.5)
        waiting = asyncio.create_task(queue.reserve(wait=2 * PATIENCE))
        await asyncio.sleep(1)  # the deadline has passed
        other_queue.push(1)
        assert await asyncio.wait_for(waiting, PATIENCE) is not None


async def test_random_cancellations_lose_nothing_and_leave_nothing_reserved(uri: str, database: str, raw: Any) -> None:
    chance = random.Random(1)
    items: list[Any] = []
    broker = await mongoq.connect_async(uri, database=database)
    queue = broker.queue("orders")

    async def consume() -> None:
        item = await queue.reserve(wait=2 * PATIENCE)
        assert item is not None
        items.append(item)

    with closing(mongoq.connect(uri, database=database)) as other_broker:
        tasks = [asyncio.create_task(consume()) for _ in range(20)]
        ids: list[ObjectId] = []
        for _ in range(30):
            await asyncio.sleep(chance.random() * 0.01)
            pushing = queue.push if chance.random() < 0.5 else None
            ids.append(await pushing(1) if pushing else await asyncio.to_thread(other_broker.queue("orders").push, 1))
            chance.choice(tasks).cancel()
            tasks.append(asyncio.create_task(consume()))
        async with asyncio.timeout(PATIENCE):
            while len(items) < len(ids):
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await broker.close()
    assert sorted(item.id for item in items) == sorted(ids)
    reserved = {document["_id"] for document in raw.find({"reserved": True})}
    assert reserved == {item.id for item in items}
    assert raw.count_documents({"q": "orders"}) == len(ids)
