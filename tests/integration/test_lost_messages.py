"""Requests and replies that the network loses: what a call then says is what was done.

A proxy loses them for a number of times in a row, the driver's own retries among them. A call that returns has done
once what it does without the fault; one that raises cannot tell, and has done it once or not at all.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pymongo.common
import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect

import mongoq
from tests.proxy import Kind, Proxy
from tests.shells import Awaited

Arrange = Callable[[Any], Awaitable[Any]]

START = datetime(2100, 1, 1, tzinfo=UTC)
"""In the future, so that the server's TTL monitor deletes nothing under the tests."""
FIRST, SECOND, NEW = {"n": 1, "tags": ["a"]}, {"n": 2}, {"n": 3}
ID = ObjectId()
PATCH = {"$inc": {"n": 1}, "$push": {"tags": "b"}}
KEPT, ONCE = {"history": 60}, {"max_retries": 0}
COMPARED = {name for name, value in vars(mongoq.Item).items() if isinstance(value, property)} - {"due", "by"}
"""Of an item that a call returns; a claim whose reply is lost cannot tell since when the item was due."""


async def pushed(queue: Any, **options: Any) -> Any:
    id = await queue.push(FIRST, **options)
    await queue.push(SECOND, priority=1)
    return id


async def remembered(queue: Any) -> Any:
    return await pushed(queue, id=ID, once=timedelta(days=7))


async def among_remembered(queue: Any) -> Any:
    await queue.push(FIRST)
    return await queue.push(SECOND, id=ID, once=timedelta(days=7), priority=1)


def reserving(arrange: Arrange = pushed, lease: float = 60) -> Arrange:
    async def arranged(queue: Any) -> Any:
        await arrange(queue)
        return await queue.reserve(lease=lease)

    return arranged


reserved, expired, reserved_by_id = reserving(), reserving(lease=0.5), reserving(remembered)


async def block(queue: Any, _: Any) -> None:
    async with queue.reserved():
        pass


@dataclass(frozen=True)
class Case:
    """An operation, what must be there for it, and the commands of it that are lost.

    ``requests`` and ``replies``: so many losses of each command in a row, and the call still returns.
    ``most``: with more of them, what took two commands may be half done (the table in ``docs/envelope.md``).
    """

    name: str
    arrange: Arrange
    act: Callable[[Any, Any], Awaitable[Any]]
    commands: str
    requests: int
    replies: int
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int = 4


CASES = [
    Case("push", pushed, lambda q, _: q.push(NEW), "insert", 1, 2),
    Case("push and its look", pushed, lambda q, _: q.push(NEW), "insert update", 1, 1),
    Case("push with an id", pushed, lambda q, _: q.push(NEW, id=ID), "insert", 1, 2),
    Case("push of an id again", remembered, lambda q, id: q.push(NEW, id=id), "insert", 2, 2),
    Case("pop", pushed, lambda q, _: q.pop(), "findAndModify", 1, 1),
    Case("pop of a remembered id", remembered, lambda q, _: q.pop(), "findAndModify", 1, 1),
    Case("pop among remembered ids", among_remembered, lambda q, _: q.pop(), "findAndModify", 1, 1, most=1),
    Case("pop that commits", among_remembered, lambda q, _: q.pop(), "delete", 3, 1, most=3),
    Case("pop with history", pushed, lambda q, _: q.pop(), "findAndModify", 1, 1, KEPT),
    Case("pop with history of an id", remembered, lambda q, _: q.pop(), "findAndModify", 1, 1, KEPT),
    Case("reserve", pushed, lambda q, _: q.reserve(), "findAndModify", 1, 3),
    Case("reserve an expired one", expired, lambda q, _: q.reserve(), "findAndModify", 1, 3),
    Case("reserve that buries", expired, lambda q, _: q.reserve(), "update", 3, 3, ONCE, most=3),
    Case("reserved block", pushed, block, "delete", 3, 1, most=3),
    Case("commit", reserved, lambda q, item: q.commit(item), "delete", 3, 1),
    Case("commit and its look", reserved, lambda q, item: q.commit(item), "delete find", 3, 1),
    Case("commit with history", reserved, lambda q, item: q.commit(item), "update", 3, 3, KEPT),
    Case("commit with a payload", reserved, lambda q, item: q.commit(item, payload=NEW), "update", 3, 3, KEPT),
    Case("commit of an id", reserved_by_id, lambda q, item: q.commit(item), "update", 3, 3),
    Case("rollback", reserved, lambda q, item: q.rollback(item, delay=5, error="bad"), "update", 3, 3),
    Case("rollback at the limit", reserved, lambda q, item: q.rollback(item, error="bad"), "update", 3, 3, ONCE),
    Case("release", reserved, lambda q, item: q.release(item), "update", 3, 3),
    Case("extend", reserved, lambda q, item: q.extend(item, lease=90), "update", 3, 3),
    Case("move", reserved, lambda q, item: q.move(item, "next"), "update", 3, 3),
    Case("move and its look", reserved, lambda q, item: q.move(item, "next"), "update find", 3, 1),
    Case("move with a payload", reserved, lambda q, item: q.move(item, "next", payload=NEW), "update", 3, 3),
    Case("move with a patch", reserved, lambda q, item: q.move(item, "next", patch=PATCH), "update", 3, 3),
    Case("bury", reserved, lambda q, item: q.bury(item, reason="bad"), "update", 3, 3),
    Case("get", pushed, lambda q, id: q.get(id), "find", 1, 1),
    Case("remove", pushed, lambda q, id: q.remove(id), "delete", 1, 1),
    Case("purge", pushed, lambda q, _: q.purge(), "delete", 0, 0),
    Case("pause", pushed, lambda q, _: q.pause(), "update", 1, 1),
]
KINDS: tuple[Kind, ...] = ("request", "reply")
SHELLS = {"sync": 2, "sync without retries": 1, "aio": 2}
"""How often the driver sends a command before it gives up."""


@dataclass(frozen=True)
class Fault:
    """So many losses of a kind, and whether the call still has to return."""

    case: Case
    kind: Kind
    times: int
    survived: bool

    def befall(self, proxy: Proxy) -> None:
        for command in self.case.commands.split():
            proxy.lose(self.kind, command, times=self.times)


def faults(shell: str, case: Case) -> Iterator[Fault]:
    """As many losses of each kind as are survived, and one more."""
    sends = SHELLS[shell]
    for kind in KINDS:
        survived = (case.requests if kind == "request" else case.replies) * sends // 2
        for times in range(1, min(max(survived + 1, 2), case.most * sends // 2) + 1):
            yield Fault(case, kind, times, times <= survived)


@dataclass
class Run:
    """The documents before and after a call, in normal form, and what it returned or raised."""

    before: list[Any]
    after: list[Any]
    result: Any
    error: Exception | None


NOT_COUNTERS = {"_id": {"$not": {"$regex": "^stats:"}}}
"""What failed is not counted, whatever became of it."""


async def run(case: Case, collection: Any, raw: Any, fault: Callable[[], None] = lambda: None) -> Run:
    raw.delete_many({})
    clock = mongoq.VirtualClock(START)
    kind: Any = mongoq.AsyncBroker if isinstance(collection, AsyncCollection) else mongoq.Broker
    broker = kind(collection, clock=clock)
    if kind is mongoq.Broker:
        broker = Awaited(broker)
    queue = broker.queue("orders", **case.options)
    subject = await case.arrange(queue)
    clock.advance(1)
    before = normal(raw.find(NOT_COUNTERS))
    fault()
    try:
        result, error = await case.act(queue, subject), None
    except Exception as raised:
        result, error = None, raised
    await broker.close()
    documents = list(raw.find(NOT_COUNTERS))
    return Run(before, normal(documents), normal([*documents, {"returned": result}]), error)


def normal(documents: Iterable[Any]) -> list[Any]:
    """Put documents in an order, and number their ids and tokens, so that two runs can be compared."""
    numbers: dict[ObjectId, str] = {}
    ordered = sorted(documents, key=lambda document: repr(sorted(relabelled(document, lambda _: "").items())))
    labelled: list[Any] = relabelled(ordered, lambda id: numbers.setdefault(id, f"#{len(numbers)}"))
    return labelled


def relabelled(value: Any, label: Callable[[ObjectId], str]) -> Any:
    if isinstance(value, mongoq.Item):
        return {name: relabelled(getattr(value, name), label) for name in COMPARED}
    if isinstance(value, dict):
        return {key: relabelled(part, label) for key, part in value.items() if key != "by"}
    if isinstance(value, list):
        return [relabelled(part, label) for part in value]
    if isinstance(value, datetime):
        return f"{(value - START).total_seconds():+} s"
    return label(value) if isinstance(value, ObjectId) else value


@pytest.fixture(scope="module")
def database(client: MongoClient[Any]) -> Iterator[str]:
    """One for all, since a collection with its indexes takes longer to make than a test."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    client.drop_database(name)


@pytest.fixture(scope="module")
def proxy(uri: str) -> Iterator[Proxy]:
    with Proxy(uri) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def impatient(client: MongoClient[Any]) -> Iterator[None]:
    """After an error clients look for the server again at once, and not in half a second: all but ``client``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
        yield


@pytest.fixture(scope="module")
async def collections(impatient: None, proxy: Proxy, database: str) -> AsyncIterator[dict[str, Any]]:
    """The collection behind the proxy, for each of the shells."""
    with MongoClient[Any](address(proxy)) as sync, MongoClient[Any](address(proxy, retryWrites="false")) as unretried:
        async with AsyncMongoClient[Any](address(proxy)) as aio:
            clients: tuple[Any, ...] = (sync, unretried, aio)
            yield {shell: each[database]["mongoq"] for shell, each in zip(SHELLS, clients, strict=True)}


def address(proxy: Proxy, **options: str) -> str:
    # a client that streams takes half a second to notice that its look for the server was cut short
    return proxy.uri_with(serverMonitoringMode="poll", **options)


async def check_losses(shell: str, case: Case, collection: Any, proxy: Proxy, raw: Any) -> None:
    good = await run(case, raw, raw)
    for fault in faults(shell, case):
        proxy.calm()
        actual = await run(case, collection, raw, lambda fault=fault: fault.befall(proxy))  # type: ignore[misc]
        assert proxy.lost, fault
        assert (actual.before, good.error) == (good.before, None)
        if actual.error is None:
            assert (actual.after, actual.result) == (good.after, good.result), fault
            continue
        assert not fault.survived, (fault, repr(actual.error))
        assert isinstance(actual.error, AutoReconnect | mongoq.ReservationLost), (fault, repr(actual.error))
        assert not getattr(actual.error, "certain", False)
        assert actual.after in (good.before, good.after), fault


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_call_whose_messages_are_lost_tells_what_it_did(
    collections: dict[str, Any], proxy: Proxy, raw: Any, case: Case
) -> None:
    await check_losses("sync", case, collections["sync"], proxy, raw)


@pytest.mark.prove
@pytest.mark.parametrize("shell", ["sync without retries", "aio"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_and_so_without_the_driver_s_retries_and_on_asyncio(
    collections: dict[str, Any], proxy: Proxy, raw: Any, case: Case, shell: str
) -> None:
    await check_losses(shell, case, collections[shell], proxy, raw)


@pytest.mark.parametrize(("kind", "happened"), [("request", 0), ("reply", 1)])
def test_the_proxy_loses_what_it_is_asked_to_and_leaves_nothing_behind(
    uri: str, raw: Any, kind: Kind, happened: int
) -> None:
    raw.delete_many({})
    with Proxy(uri) as proxy, MongoClient[Any](address(proxy, retryWrites="false")) as client:
        through = client[raw.database.name][raw.name]
        proxy.lose(kind, "insert", times=2, skip=1)
        through.insert_one({})
        for losses in (1, 2):
            with pytest.raises(AutoReconnect):
                through.insert_one({})
            assert (proxy.lost, raw.count_documents({})) == (losses, 1 + losses * happened)
        through.insert_one({})
        host, port = client.address or ("", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))
    assert not any(thread.name == f"proxy {port}" for thread in threading.enumerate())
