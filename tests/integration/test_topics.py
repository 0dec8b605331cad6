"""Topics against a server that refuses, conflicts and loses replies, and among producers that know more or less."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandListener

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.protocol.base import retry, topics
from mongoq.protocol.push import publish
from tests.clients import opened
from tests.proxy import Kind, Proxy

ROOT = Path(__file__).parents[2]
QUEUES = ("billing", "shipping")


@pytest.fixture
def orders(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    """A topic with two queues."""
    broker.bind("orders", *QUEUES)
    return broker.queue("orders")


@pytest.fixture
def failing(client: MongoClient[Any]) -> Iterator[Callable[..., None]]:
    """Sets a fail point, and clears it in the end."""

    def fail(command: str, times: int = 1, **how: Any) -> None:
        client.admin.command(
            "configureFailPoint", "failCommand", mode={"times": times}, data={"failCommands": [command], **how}
        )

    yield fail
    client.admin.command("configureFailPoint", "failCommand", mode="off")


def there(raw: Any) -> dict[Any, list[str]]:
    """The queues that hold each payload."""
    queues = defaultdict(list)
    for document in raw.find({"q": {"$exists": True}}, sort=[("q", 1)]):
        queues[document["payload"]].append(document["q"])
    return dict(queues)


class Listener(CommandListener):
    """The commands that a client sends, and what they carry."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: Any) -> None:
        if event.command_name not in ("endSessions", "hello"):
            self.commands.append(dict(event.command))

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass

    def names(self) -> list[str]:
        names = [next(iter(command)) for command in self.commands]
        self.commands.clear()
        return names


@pytest.fixture
def listened(uri: str, database: str) -> Iterator[tuple[mongoq.Broker, Listener]]:
    listener = Listener()
    with MongoClient[Any](uri, event_listeners=[listener]) as client:
        yield mongoq.Broker(client[database]["mongoq"]), listener


# --- where there are no transactions -------------------------------------------------------------------


@pytest.fixture(scope="module")
def standalone() -> Iterator[str]:
    with EmbeddedServer(replica_set=None) as server:
        yield server.uri


def test_a_standalone_server_is_refused_before_anything_is_written(standalone: str) -> None:
    with MongoClient[Any](standalone) as client:
        broker = mongoq.Broker(client["one"]["mongoq"])
        with pytest.raises(mongoq.TransactionsUnavailable, match=r"standalone server at 127.*rs\.initiate"):
            broker.bind("orders", "billing")
        assert client["one"].list_collection_names() == []


def test_and_so_is_a_push_there_to_a_topic_of_several_queues(standalone: str) -> None:
    with MongoClient[Any](standalone) as client:
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


def test_what_a_push_to_a_topic_sends(listened: tuple[mongoq.Broker, Listener]) -> None:
    broker, listener = listened
    queue, id = broker.queue("orders"), ObjectId()
    broker.bind("orders", *QUEUES)
    queue.push(0)
    listener.names()
    queue.push(1)
    assert listener.names() == ["insert", "commitTransaction"]
    queue.push(1, id=id)
    assert listener.names() == ["update", "commitTransaction"]
    queue.push(1, key="k")
    assert listener.names() == ["findAndModify", "findAndModify", "commitTransaction"]
    queue.push_many(range(10))
    assert listener.names() == ["insert", "commitTransaction"]
    broker.unbind("orders", "billing")
    listener.names()
    queue.push(1)
    assert listener.names() == ["insert"]


def test_bindings_are_read_once_a_second_at_most_whatever_is_pushed_where(
    listened: tuple[mongoq.Broker, Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, listener = listened
    monkeypatch.setattr(topics, "CHECK_PAUSE_SECONDS", 0.0)
    broker.queue("orders").push(0)
    assert "find" in listener.names()
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 3600.0)
    for n in range(20):
        broker.queue(f"orders {n}").push(n)
        broker.queue(f"orders {n}").push_many([n])
    assert set(listener.names()) == {"insert"}
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 0.0)
    broker.queue("orders").push(0)
    assert listener.names() == ["find", "insert"]


# --- producers that know more or less ------------------------------------------------------------------


@pytest.mark.parametrize("group_commit", [False, True])
def test_another_process_goes_by_a_binding_that_is_a_second_old(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch, group_commit: bool
) -> None:
    producer = mongoq.Broker(raw, group_commit=group_commit).queue("orders")
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 3600.0)
    producer.push("before")
    broker.bind("orders", *QUEUES)
    producer.push("unknown")
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 0.05)
    time.sleep(0.1)
    producer.push("known")
    broker.unbind("orders", "billing")
    time.sleep(0.1)
    producer.push_many(["later"])
    assert there(raw) == {
        "before": ["orders"],
        "unknown": ["orders"],
        "known": ["billing", "shipping"],
        "later": ["shipping"],
    }


def test_within_a_transaction_too_though_that_began_to_read_before(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 0.0)
    producer = mongoq.Broker(raw)
    queue = producer.queue("orders")
    with producer.transaction() as tx:
        queue.push("before", session=tx.session)
        broker.bind("orders", *QUEUES)
        queue.push("after", session=tx.session)
    assert there(raw) == {"before": ["orders"], "after": ["billing", "shipping"]}


def test_a_process_in_which_somebody_waits_is_woken_by_the_stream(
    broker: mongoq.Broker, listened: tuple[mongoq.Broker, Listener], raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 3600.0)
    producer, _ = listened
    producer.queue("orders").push("before")
    ended = threading.Event()

    def wait() -> None:
        while not ended.is_set():
            producer.queue("nothing").reserve(wait=1)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        until = time.monotonic() + 60
        broker.bind("orders", *QUEUES)
        n = 0
        while len(there(raw).get(n, "?")) < 2 and time.monotonic() < until:
            n += 1
            producer.queue("orders").push(n)
            time.sleep(0.02)
            if n % 50 == 0:  # the stream may have been opened since
                broker.bind("orders", f"more {n}")
        ended.set()
        waiting.result()
        producer.close()
    more = {queue for queue in there(raw)[n] if queue.startswith("more")}
    assert set(there(raw)[n]) - more == set(QUEUES)


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
            for n in range(50):
                if n % 10 == 0:
                    raw.delete_one({"_id": "topics:mongoq"})  # the first of all is an insert
                jobs = [(broker_a, f"{n}a", f"{n}b"), (broker_b, f"{n}b", f"{n}c")]
                outcomes.append(sorted(future.result() for future in [pool.submit(bind, *job) for job in jobs]))
        assert outcomes == [[False, True]] * 50


def test_pushes_go_to_all_of_one_moment_while_bindings_come_and_go(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REFRESH_SECONDS", 0.01)
    ended, failures = threading.Event(), []

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

    threads = [threading.Thread(target=produce, args=(first,)) for first in (0, 10**6, 2 * 10**6)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        time.sleep(0.02)
        broker.bind("orders", "billing", "shipping")
        time.sleep(0.02)
        broker.bind("orders", "audit")
        time.sleep(0.02)
        broker.unbind("orders", "shipping")
        time.sleep(0.02)
        broker.unbind("orders")
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures
    published = there(raw)
    ways = [["orders"], ["billing", "shipping"], ["audit", "billing", "shipping"], ["audit", "billing"]]
    assert [queues for queues in published.values() if queues not in ways] == []
    assert len({len(queues) for queues in published.values()}) == 3, "it saw several of them"
    for first in (0, 10**6, 2 * 10**6):
        own = sorted(n for n in published if first <= n < first + 10**6)
        assert own == list(range(first, first + len(own))), "nothing is lost"


# --- lost replies, conflicts, cancellation, death ------------------------------------------------------


WRITES = ["insert", "update", "commitTransaction", "abortTransaction"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize(
    ("command", "batch"),
    [*((command, batch) for command in WRITES for batch in (False, True)), ("findAndModify", False)],
)
def test_whatever_is_lost_there_is_one_copy_in_each_queue(
    uri: str, database: str, raw: Any, *, times: int, kind: Kind, command: str, batch: bool
) -> None:
    with Proxy(uri) as proxy, mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        broker.bind("orders", *QUEUES)
        queue, id = broker.queue("orders"), ObjectId()
        queue.push("first")
        proxy.lose(kind, command, times=times)
        if command == "abortTransaction":
            proxy.lose("reply", "insert", times=1)
        if batch:
            queue.push_many(["x"], ids=[id] if command == "update" else None)
        elif command == "findAndModify":
            queue.push("x", key="k")
        else:
            queue.push("x", id=id if command == "update" else None)
        assert proxy.lost >= times
        assert there(raw) == {"first": ["billing", "shipping"], "x": ["billing", "shipping"]}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("command", ["insert", "findAndModify"])
@pytest.mark.parametrize("times", [1, 2])
def test_and_in_a_single_queue(uri: str, database: str, raw: Any, *, times: int, kind: Kind, command: str) -> None:
    with Proxy(uri) as proxy, mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        broker.bind("orders", "billing")
        queue = broker.queue("orders")
        queue.push("first")
        proxy.lose(kind, command, times=times)
        id = ObjectId()
        for _ in range(2):  # what was uncertain the first time is certain by its id
            try:
                queue.push("x", id=id, key="k" if command == "findAndModify" else None)
            except mongoq.MongoqError:
                raise
            except Exception:
                assert times == 2
        assert there(raw) == {"first": ["billing"], "x": ["billing"]}


def test_a_conflict_is_run_again_as_a_whole(orders: mongoq.Queue[Any], raw: Any, failing: Any) -> None:
    for command in ("insert", "commitTransaction"):
        failing(command, errorCode=112, errorLabels=["TransientTransactionError"])
        orders.push(command)
        failing(command, 2, errorCode=112, errorLabels=["TransientTransactionError"])
        orders.push_many([f"{command}s"])
    assert list(there(raw).values()) == [["billing", "shipping"]] * 4


def test_a_publication_is_tried_again_in_its_own_session(
    listened: tuple[mongoq.Broker, Listener], failing: Any
) -> None:
    """There the server ends what is left of the first try, even when its abort has not arrived."""
    broker, listener = listened
    broker.bind("orders", *QUEUES)
    broker.queue("orders").push("first")
    listener.commands.clear()
    failing("insert", 2, errorCode=112, errorLabels=["TransientTransactionError"])
    broker.queue("orders").push("x")
    within = [command for command in listener.commands if "autocommit" in command]
    assert len({command["txnNumber"] for command in within}) == 3
    assert len({bytes(command["lsid"]["id"]) for command in within}) == 1


def test_a_commit_whose_result_stays_unknown_says_so_and_can_be_pushed_again(
    orders: mongoq.Queue[Any], raw: Any, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.push("first")
    id = ObjectId()
    monkeypatch.setattr(retry, "RETRY_LIMIT_SECONDS", 0.0)
    failing("commitTransaction", 9, errorCode=64, errorLabels=["UnknownTransactionCommitResult"])
    with pytest.raises(OperationFailure) as caught:
        orders.push("x", id=id)
    assert caught.value.has_error_label("UnknownTransactionCommitResult")
    failing("commitTransaction", 0)
    assert orders.push("x", id=id) == id
    assert there(raw)["x"] == ["billing", "shipping"]


def test_pushes_of_one_key_or_one_id_at_the_same_moment(
    broker: mongoq.Broker, uri: str, database: str, raw: Any
) -> None:
    broker.bind("orders", *QUEUES)
    barrier = threading.Barrier(6)

    def work(_: int) -> list[ObjectId]:
        with mongoq.connect(uri, database=database) as own:
            queue = own.queue("orders")
            own.ping()
            pushed = []
            for n in range(15):
                barrier.wait()
                queue.push("key", key=f"k{n}")
                barrier.wait()
                pushed.append(queue.push("id", id=ids[n]))
                barrier.wait()
                queue.push("replaced", key="r", on_duplicate="replace")
            return pushed

    ids = [ObjectId() for _ in range(15)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [ids] * 6
    expected = {"key": 15, "id": 15, "replaced": 1}
    for queue in QUEUES:
        assert {payload: raw.count_documents({"q": queue, "payload": payload}) for payload in expected} == expected


@pytest.mark.parametrize("kind", ["aio", "motor"])
@pytest.mark.parametrize("how", ["push", "push_many", "keyed"])
async def test_a_cancelled_push_happens_in_all_queues_or_in_none(
    uri: str, database: str, raw: Any, client: MongoClient[Any], *, kind: str, how: str
) -> None:
    async with opened(kind, uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        await broker.bind("orders", *QUEUES)
        queue = broker.queue("orders")
        await queue.push("warm")

        async def work(n: int) -> None:
            if how == "push_many":
                await queue.push_many([n])
            else:
                await queue.push(n, key=str(n) if how == "keyed" else None)

        for n in range(60):
            task = asyncio.create_task(work(n))
            await asyncio.sleep(0.0002 * (n % 30))
            task.cancel()
            await asyncio.wait([task])
    published = there(raw)
    assert [queues for queues in published.values() if queues != ["billing", "shipping"]] == []
    assert len(published) < 61
    assert client.admin.command("serverStatus")["transactions"]["currentOpen"] == 0


def test_an_interrupt_leaves_no_transaction_open(
    broker: mongoq.Broker,
    orders: mongoq.Queue[Any],
    raw: Any,
    client: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders.push("first")
    send = broker._driver._sender.send

    def interrupted(command: Any) -> Any:
        reply = send(command)
        if command.method == "insert_many":
            raise KeyboardInterrupt
        return reply

    monkeypatch.setattr(broker._driver._sender, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        orders.push("x")
    assert client.admin.command("serverStatus")["transactions"]["currentOpen"] == 0
    assert there(raw) == {"first": ["billing", "shipping"]}


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
    orders.push("ready")
    try:
        for n in range(6):
            raw.delete_many({"q": {"$in": list(QUEUES)}})
            command = [sys.executable, "-c", DIES, uri, database]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
            try:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(0.05 + n * 0.0007)
            finally:
                process.kill()
                output, _ = process.communicate()
            published = there(raw)
            assert [queues for queues in published.values() if queues != ["billing", "shipping"]] == []
            assert len(published) >= int((output or b"4").split()[-1]), "what was acknowledged is there"
    finally:
        until = time.monotonic() + 60
        while client.admin.command("serverStatus")["transactions"]["currentOpen"] and time.monotonic() < until:
            time.sleep(0.1)
        client.admin.command({**limit, "transactionLifetimeLimitSeconds": before})


# --- beside ordinary pushes ----------------------------------------------------------------------------


async def test_ordinary_pushes_go_on_sharing_commands(uri: str, database: str, raw: Any) -> None:
    listener = Listener()
    own: Any = AsyncMongoClient(uri, event_listeners=[listener])
    async with mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        await broker.bind("orders", *QUEUES)
        topic, plain = broker.queue("orders"), broker.queue("plain")
        await asyncio.gather(topic.push(0), plain.push(0))
        listener.names()
        await asyncio.gather(*(queue.push(n) for n in range(1, 40) for queue in (topic, plain)))
        inserts = [command for command in listener.commands if next(iter(command)) == "insert"]
    await own.close()
    within = [command for command in inserts if "txnNumber" in command and "autocommit" in command]
    assert len(within) == 39
    assert len(inserts) - len(within) < 10
    assert sum(len(command["documents"]) for command in inserts) == 39 * 3
    assert {tuple(queues) for queues in there(raw).values()} == {("billing", "plain", "shipping")}


@pytest.mark.parametrize("publisher", ["here", "elsewhere"])
@pytest.mark.parametrize("batch", [False, True])
def test_who_waits_in_a_bound_queue_is_woken(
    broker: mongoq.Broker, orders: mongoq.Queue[Any], raw: Any, publisher: str, batch: bool
) -> None:
    pushing = orders if publisher == "here" else mongoq.Broker(raw).queue("orders")
    pushing.push_many([0])
    for queue in QUEUES:
        assert broker.queue(queue).pop() is not None
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(broker.queue(queue).reserve, wait=120) for queue in QUEUES]
        while not all(
            queue in broker._context.registry.wait_queues and broker._context.registry.wait_queues[queue].dry
            for queue in QUEUES
        ):
            time.sleep(0.01)
        pushing.push_many([1]) if batch else pushing.push(1)
        items = [future.result(timeout=60) for future in waiting]
    assert [item and item.payload for item in items] == [1, 1]


@pytest.mark.parametrize("limit", ["MAX_COPIES", "MAX_TRANSACTION_BYTES"])
def test_what_one_transaction_cannot_carry_is_refused_with_its_size(
    orders: mongoq.Queue[Any], raw: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(publish, limit, 200)
    with pytest.raises(mongoq.ArgumentInvalid, match=r"^payloads: 101 for 2 queues are .* and 200 is the limit"):
        orders.push_many(range(101))
    if limit == "MAX_TRANSACTION_BYTES":
        with pytest.raises(mongoq.PayloadTooLarge, match="^payload for 2 queues: .*200 is the limit"):
            orders.push("x" * 100)
    else:
        orders.push_many(range(100))
    assert raw.count_documents({"q": {"$exists": True}}) == (0 if limit == "MAX_TRANSACTION_BYTES" else 200)


def test_the_largest_payload_goes_to_two_queues(memory: Path) -> None:
    """On a server of its own with a larger cache: what fills a small one may roll each further transaction back."""
    payload = b"0" * (16 * 1024 * 1024 - 70_000)
    roomy = EmbeddedServer(memory / "large", cache_mb=1024)
    with roomy as server, mongoq.connect(server.uri, database="large") as broker:
        broker.bind("orders", *QUEUES)
        orders = broker.queue("orders")
        orders.push(payload)
        orders.push(payload, id=ObjectId())
        for queue in QUEUES * 2:
            item = broker.queue(queue).pop()
            assert item is not None
            assert item.payload == payload
