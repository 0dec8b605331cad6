"""Topics against a server that refuses, conflicts and loses replies, and among producers that know more or less."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.clients import opened
from tests.integration.commands import Commands, failing, listened_to
from tests.proxy import Kind, Proxy
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
QUEUES = ("billing", "shipping")
BOTH = ["billing", "shipping"]


@pytest.fixture
def orders(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    """A topic with two queues."""
    broker.bind("orders", *QUEUES)
    return broker.queue("orders")


def there(raw: Any) -> dict[Any, list[str]]:
    """The queues that hold each payload."""
    queues = defaultdict(list)
    for document in raw.find({"q": {"$exists": True}}, sort=[("q", 1)]):
        queues[document["payload"]].append(document["q"])
    return dict(queues)


# --- where there are no transactions -------------------------------------------------------------------


def test_a_standalone_server_is_refused_before_anything_is_written() -> None:
    with EmbeddedServer(replica_set=None) as server, MongoClient[Any](server.uri) as client:
        broker = mongoq.Broker(client["one"]["mongoq"])
        with pytest.raises(mongoq.TransactionsUnavailable, match=r"standalone server at 127.*rs\.initiate"):
            broker.bind("orders", "billing")
        assert client["one"].list_collection_names() == []
        raw = client["two"]["mongoq"]
        bound = [{"topic": topic, "queue": queue} for topic, queue in (("a", "b"), ("a", "c"), ("d", "e"))]
        raw.insert_one({"_id": "topics:mongoq", "bound": bound})
        broker = mongoq.Broker(raw)
        for attempt in (broker.queue("a").push, broker.queue("a").push_many):
            with pytest.raises(mongoq.TransactionsUnavailable):
                attempt([1])
        broker.queue("d").push(1)
        assert there(raw) == {1: ["e"]}


# --- what is sent --------------------------------------------------------------------------------------


def test_a_push_to_a_topic_is_one_transaction_and_one_to_a_single_queue_is_none(uri: str, database: str) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders")
        broker.bind("orders", *QUEUES)
        queue.push(0)
        for push in (
            lambda: queue.push(1),
            lambda: queue.push(1, id=ObjectId()),
            lambda: queue.push(1, key="k"),
            lambda: queue.push_many(range(10)),
        ):
            commands.sent.clear()
            push()
            writes = [command for command in commands.sent if next(iter(command)) != "find"]
            assert all(command["autocommit"] is False for command in writes)
            assert commands.names().count("commitTransaction") == 1
        broker.unbind("orders", "billing")
        commands.sent.clear()
        queue.push(1)
        without_topics = [next(iter(each)) for each in commands.sent if each.get("filter") != {"_id": "topics:mongoq"}]
        assert without_topics == ["insert"]  # every second a push looks at the topics as well


# --- producers that know more or less ------------------------------------------------------------------


def test_another_process_goes_by_a_binding_that_is_a_second_old(broker: mongoq.Broker, raw: Any) -> None:
    producer = mongoq.Broker(raw).queue("orders")
    producer.push("before")
    broker.bind("orders", *QUEUES)
    pushed = iter(range(10**6))

    def goes_to(*queues: str) -> bool:
        payload = next(pushed)
        producer.push(payload)
        return there(raw)[payload] == list(queues)

    until(lambda: goes_to("billing", "shipping"))
    broker.unbind("orders", "billing")
    until(lambda: goes_to("shipping"))
    assert {tuple(queues) for queues in there(raw).values()} <= {("orders",), tuple(QUEUES), ("shipping",)}


def test_within_a_transaction_too_though_that_began_to_read_before(broker: mongoq.Broker, raw: Any) -> None:
    producer = mongoq.Broker(raw)
    queue = producer.queue("orders")
    pushed = iter(range(10**6))
    with producer.transaction() as tx:
        queue.push("before", session=tx.session)
        broker.bind("orders", *QUEUES)

        def is_published() -> bool:
            queue.push(next(pushed), session=tx.session)
            return bool(raw.database["mongoq"].count_documents({"q": "billing"}, session=tx.session))

        until(is_published)
    published = there(raw)
    assert published["before"] == ["orders"]
    assert published[next(pushed) - 1] == BOTH


def test_bindings_made_at_the_same_moment_make_no_chain(uri: str, database: str, raw: Any) -> None:
    with mongoq.connect(uri, database=database) as broker_a, mongoq.connect(uri, database=database) as broker_b:
        broker_a.ensure_indexes(), broker_b.ping()
        barrier, outcomes = threading.Barrier(2), []

        def bind(broker: mongoq.Broker, topic: str, queue: str) -> bool:
            barrier.wait()
            try:
                broker.bind(topic, queue)
            except mongoq.ArgumentInvalid:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            for n in range(20):
                if n % 5 == 0:
                    raw.delete_one({"_id": "topics:mongoq"})  # the first of all is an insert
                jobs = [(broker_a, f"{n}a", f"{n}b"), (broker_b, f"{n}b", f"{n}c")]
                outcomes.append(sorted(future.result() for future in [pool.submit(bind, *job) for job in jobs]))
        assert outcomes == [[False, True]] * 20


def test_pushes_go_to_all_of_one_moment_while_bindings_come_and_go(broker: mongoq.Broker, raw: Any) -> None:
    ended, failures = threading.Event(), []
    starts = (0, 10**6, 2 * 10**6)

    def produce(first: int) -> None:
        queue = mongoq.Broker(raw).queue("orders")
        n = first
        try:
            while not ended.is_set():
                queue.push(n)
                queue.push_many([n + 1, n + 2])
                n += 3
        except BaseException as error:
            failures.append(error)

    def is_published(*queues: str) -> bool:
        """Say whether a push of any producer went to these queues, and to no others."""
        return list(queues) in there(raw).values()

    threads = [threading.Thread(target=produce, args=(first,)) for first in starts]
    for thread in threads:
        thread.start()
    try:
        broker.bind("orders", *QUEUES)
        until(lambda: failures or is_published(*QUEUES))
        broker.bind("orders", "audit")
        until(lambda: failures or is_published("audit", *QUEUES))
        broker.unbind("orders", "shipping")
        until(lambda: failures or is_published("audit", "billing"))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures
    published = there(raw)
    ways = [["orders"], BOTH, ["audit", *BOTH], ["audit", "billing"]]
    assert [queues for queues in published.values() if queues not in ways] == []
    for first in starts:
        own = sorted(n for n in published if first <= n < first + 10**6)
        assert own == list(range(first, first + len(own))), "nothing is lost"


# --- lost replies, conflicts, cancellation, death ------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", ["request", "reply"])
def test_whatever_is_lost_there_is_one_copy_in_each_queue(
    proxy: Proxy, database: str, raw: Any, *, times: int, kind: Kind
) -> None:
    losses = ["insert", "insert many", "update", "findAndModify", "commitTransaction", "abortTransaction"]
    with mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        broker.bind("orders", *QUEUES)
        queue = broker.queue("orders")
        queue.push("first")
        for loss in losses:
            proxy.calm()
            proxy.lose(kind, loss.partition(" ")[0], times=times)
            if loss == "abortTransaction":
                proxy.lose("reply", "insert", times=1)
            if loss == "insert many":
                queue.push_many([loss])
            elif loss == "findAndModify":
                queue.push(loss, key="k")
            else:
                queue.push(loss, id=ObjectId() if loss == "update" else None)
            assert proxy.lost >= times
    assert there(raw) == {"first": BOTH, **dict.fromkeys(losses, BOTH)}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("command", ["insert", "findAndModify"])
def test_and_in_a_single_queue(proxy: Proxy, database: str, raw: Any, *, kind: Kind, command: str) -> None:
    with mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        broker.bind("orders", "billing")
        queue, id = broker.queue("orders"), ObjectId()
        queue.push("first")
        proxy.lose(kind, command)
        for _ in range(2):
            queue.push("x", id=id, key="k" if command == "findAndModify" else None)
        assert proxy.lost
        assert there(raw) == {"first": ["billing"], "x": ["billing"]}


def test_a_conflict_is_run_again_as_a_whole(orders: mongoq.Queue[Any], raw: Any, client: Any) -> None:
    transient = {"errorCode": 112, "errorLabels": ["TransientTransactionError"]}
    for command in ("insert", "commitTransaction"):
        with failing(client, command, **transient):
            orders.push(command)
        with failing(client, command, times=2, **transient):
            orders.push_many([f"{command}s"])
    assert list(there(raw).values()) == [BOTH] * 4


def test_pushes_of_one_key_or_one_id_at_the_same_moment(
    broker: mongoq.Broker, uri: str, database: str, raw: Any
) -> None:
    broker.bind("orders", *QUEUES)
    barrier, rounds = threading.Barrier(4), 6
    ids = [ObjectId() for _ in range(rounds)]

    def work(_: int) -> list[ObjectId]:
        with mongoq.connect(uri, database=database) as own:
            queue = own.queue("orders")
            own.ping()
            pushed = []
            for n in range(rounds):
                barrier.wait()
                queue.push("key", key=f"k{n}")
                barrier.wait()
                pushed.append(queue.push("id", id=ids[n]))
                barrier.wait()
                queue.push("replaced", key="r", on_duplicate="replace")
            return pushed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [ids] * 4
    expected = {"key": rounds, "id": rounds, "replaced": 1}
    for queue in QUEUES:
        assert {payload: raw.count_documents({"q": queue, "payload": payload}) for payload in expected} == expected


def no_transaction_is_open(client: MongoClient[Any]) -> bool:
    return client.admin.command("serverStatus")["transactions"]["currentOpen"] == 0


@pytest.mark.parametrize("kind", ["aio", "motor"])
async def test_a_cancelled_push_happens_in_all_queues_or_in_none(
    uri: str, database: str, raw: Any, client: MongoClient[Any], kind: str
) -> None:
    async with opened(kind, uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        await broker.bind("orders", *QUEUES)
        queue = broker.queue("orders")
        await queue.push("warm")

        async def work(n: int) -> None:
            if n % 3 == 0:
                await queue.push_many([n])
            else:
                await queue.push(n, key=str(n) if n % 3 == 1 else None)

        for n in range(45):
            task = asyncio.create_task(work(n))
            await asyncio.sleep(0.0004 * (n // 3))
            task.cancel()
            await asyncio.wait([task])
    assert set(map(tuple, there(raw).values())) == {QUEUES}
    until(lambda: no_transaction_is_open(client))


def test_an_interrupt_leaves_no_transaction_open(uri: str, database: str, raw: Any, client: MongoClient[Any]) -> None:
    """The signal comes when the copies are inserted, and before their transaction is committed."""
    with listened_to(uri, database) as (broker, commands):
        broker.bind("orders", *QUEUES)
        orders = broker.queue("orders")
        orders.push("first")

        def interrupt(name: str, _: Mapping[str, Any]) -> None:
            if name == "insert":
                raise KeyboardInterrupt

        commands.after = interrupt
        with pytest.raises(KeyboardInterrupt):
            orders.push("x")
        commands.after = None
        until(lambda: no_transaction_is_open(client))
    assert there(raw) == {"first": BOTH}


DIES = """
import sys, mongoq
with mongoq.connect(sys.argv[1], database=sys.argv[2]) as broker:
    queue, n = broker.queue("orders"), 0
    while True:
        queue.push(n)
        queue.push_many([n + 1, n + 2])
        queue.push(n + 3, key=str(n))
        print(n + 4, flush=True)
        n += 4
"""


def test_a_producer_that_is_killed_leaves_all_copies_or_none(
    uri: str, orders: mongoq.Queue[Any], raw: Any, client: MongoClient[Any], database: str
) -> None:
    limit = {"setParameter": 1, "transactionLifetimeLimitSeconds": 1}
    before = client.admin.command(limit)["was"]
    try:
        for _ in range(2):
            raw.delete_many({"q": {"$in": list(QUEUES)}})
            command = [sys.executable, "-c", DIES, uri, database]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
            assert process.stdout is not None
            acknowledged = process.stdout.readline() + process.stdout.readline()
            process.kill()
            acknowledged += process.communicate()[0]
            published = there(raw)
            assert set(map(tuple, published.values())) == {QUEUES}
            assert len(published) >= int(acknowledged.split()[-1]), "what was acknowledged is there"
    finally:
        until(lambda: no_transaction_is_open(client))
        client.admin.command({**limit, "transactionLifetimeLimitSeconds": before})


# --- beside ordinary pushes ----------------------------------------------------------------------------


async def test_ordinary_pushes_go_on_sharing_commands(uri: str, database: str, raw: Any) -> None:
    commands = Commands()
    own: AsyncMongoClient[Any] = AsyncMongoClient(uri, event_listeners=[commands])
    async with own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        await broker.bind("orders", *QUEUES)
        topic, plain = broker.queue("orders"), broker.queue("plain")
        await asyncio.gather(topic.push(0), plain.push(0))
        commands.sent.clear()
        await asyncio.gather(*(queue.push(n) for n in range(1, 40) for queue in (topic, plain)))
        inserts = [command for command in commands.sent if next(iter(command)) == "insert"]
    within = [command for command in inserts if "autocommit" in command]
    assert len(within) == 39
    assert len(inserts) - len(within) < 39
    assert sum(len(command["documents"]) for command in inserts) == 39 * 3
    assert {tuple(queues) for queues in there(raw).values()} == {("billing", "plain", "shipping")}


@pytest.mark.parametrize("publisher", ["here", "elsewhere"])
def test_who_waits_in_a_bound_queue_is_woken(
    uri: str, database: str, orders: mongoq.Queue[Any], publisher: str
) -> None:
    with listened_to(uri, database) as (broker, commands), ThreadPoolExecutor() as pool:
        pushing = broker.queue("orders") if publisher == "here" else orders
        waiting = [pool.submit(broker.queue(queue).reserve, wait=2 * PATIENCE) for queue in QUEUES]
        until(lambda: "getMore" in commands.names())
        pushing.push_many([1])
        items = [future.result(timeout=PATIENCE) for future in waiting]
    assert [item and item.payload for item in items] == [1, 1]


def test_what_one_transaction_cannot_carry_is_refused_with_its_size(orders: mongoq.Queue[Any], raw: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=r"^payloads: 15,001 for 2 queues are .* and 30,000 is the limit"):
        orders.push_many(range(15_001))
    assert raw.count_documents({"q": {"$exists": True}}) == 0


def test_the_largest_payload_goes_to_two_queues(memory: Path) -> None:
    """On a server of its own with a larger cache: what fills a small one may roll each further transaction back."""
    payload = b"0" * (16 * 1024 * 1024 - 70_000)
    roomy = EmbeddedServer(memory / "large", cache_mb=1024)
    with roomy as server, mongoq.connect(server.uri, database="large") as broker:
        broker.bind("orders", *QUEUES)
        broker.queue("orders").push(payload)
        for queue in QUEUES:
            item = broker.queue(queue).pop()
            assert item is not None
            assert item.payload == payload
        broker.bind("orders", "third")
        with pytest.raises(mongoq.PayloadTooLarge, match="^payload for 3 queues: .* is the limit"):
            broker.queue("orders").push(payload)
