"""Callers that go away in the middle of a call: nothing stays reserved for them, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure

import mongoq
from tests.integration.commands import Commands, failing, listened_to
from tests.integration.waiters import rest
from tests.proxy import Proxy
from tests.waiting import PATIENCE

EARLY = datetime(2020, 1, 1, tzinfo=UTC)
ITEMS = 20
MOMENTS = list(itertools.product(["before", "after"], [1, 2, 3], [0, 1, 3]))
"""When a caller is cancelled: so many turns of the loop after its first, second or third command is sent or done."""


@pytest.fixture(params=["aio"])
async def own(request: pytest.FixtureRequest, uri: str) -> AsyncIterator[tuple[Any, Commands]]:
    """A client on asyncio, and its commands."""
    from tests.clients import opened

    commands = Commands()
    async with opened(request.param, uri, event_listeners=[commands]) as client:
        yield client, commands


def later(call: Callable[[], Any], turns: int) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(later, call, turns - 1)
    else:
        call()


async def cancelled_at(commands: Commands, moment: tuple[str, int, int], call: Any) -> Any:
    """Call, and cancel the caller at a moment, if it is still there; ``None`` if it has gone."""
    when, number, turns = moment
    loop, task = asyncio.get_running_loop(), asyncio.create_task(call)
    countdown = itertools.count(1 - number)
    hook = lambda *_: next(countdown) == 0 and loop.call_soon_threadsafe(later, task.cancel, turns)  # noqa: E731
    setattr(commands, when, hook)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        commands.before = commands.after = None


CLAIMS: dict[str, Callable[[Any], Any]] = {
    "reserve": lambda queue: queue.reserve(),
    "reserve alone": lambda queue: queue.reserve(),
    "reserve and wait": lambda queue: queue.reserve(wait=PATIENCE),
    "pop": lambda queue: queue.pop(),
    "pop with history": lambda queue: queue.pop(),
}


@pytest.mark.parametrize(
    ("own", "operation"), [("motor", "reserve"), *(("aio", name) for name in CLAIMS)], indirect=["own"]
)
async def test_cancelled_claims_leave_nothing_reserved_and_lose_nothing(
    own: tuple[Any, Commands], database: str, raw: Any, operation: str
) -> None:
    client, commands = own
    async with mongoq.AsyncBroker(client[database]["mongoq"], group_commit="alone" not in operation) as broker:
        queue = broker.queue("orders", history=3600 if "history" in operation else None, max_retries=None)
        await queue.push_many(range(ITEMS))
        popped: set[int] = set()
        for moment in MOMENTS:
            item = await cancelled_at(commands, moment, CLAIMS[operation](queue))
            if item is not None and operation.startswith("pop"):
                popped.add(item.payload)
            elif item is not None:
                await queue.release(item)
    left = list(raw.find({"q": "orders", "when": {"$exists": True}}))
    assert [document for document in left if document["reserved"] or document["attempts"]] == []
    remaining = {document["payload"] for document in left}
    assert popped | remaining == set(range(ITEMS))
    assert not popped & remaining


POPS: dict[str, dict[str, Any]] = {
    "in a sequence": {"sequence": "s"},
    "remembered, and to start in time": {"once": 300, "expires": 300},
}


@pytest.mark.parametrize("options", POPS.values(), ids=POPS)
async def test_a_cancelled_pop_by_two_commands_leaves_nothing_reserved(
    own: tuple[Any, Commands], database: str, raw: Any, options: dict[str, Any]
) -> None:
    """What its commit has settled by then is in the history; everything else is as it was."""
    client, commands = own
    async with mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders", history=3600)
        for moment in itertools.product(["before", "after"], range(1, 8), [0, 1]):
            ids = {"id": ObjectId()} if "once" in options else {}
            await queue.push(1, **options, **ids)
            await cancelled_at(commands, moment, queue.pop())
    stored = list(raw.find({"q": "orders"}))  # one whose turn in a sequence has not come has no `when`
    assert len(stored) == 28
    live = [document for document in stored if "processed" not in document]
    assert [document for document in live if document["reserved"] or document["attempts"]] == []


async def test_a_cancelled_pop_brings_nothing_back_that_another_consumer_has_done(
    own: tuple[Any, Commands], uri: str, database: str, raw: Any
) -> None:
    client, commands = own
    with mongoq.Broker(raw) as other:
        async with mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
            queue = broker.queue("orders", lease=0.3)
            await queue.push("remembered", id=ObjectId())
            await queue.pop()  # from here on, pops are claims and commits
            await queue.push("once")

            def do_meanwhile(name: str, _: Any) -> None:
                if name == "delete":
                    commands.before = None
                    item = other.queue("orders").reserve(wait=PATIENCE)
                    assert item is not None
                    other.queue("orders").commit(item)
                    pop.cancel()

            commands.before = do_meanwhile
            pop = asyncio.create_task(queue.pop())
            with pytest.raises(asyncio.CancelledError):
                await pop
    assert commands.before is None
    assert raw.count_documents({"payload": "once"}) == 0


@pytest.mark.parametrize("suspects", [0, 5])
async def test_cancelled_batches_leave_nothing_reserved_and_lose_nothing(
    own: tuple[Any, Commands], database: str, raw: Any, suspects: int
) -> None:
    client, commands = own
    async with mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders", max_retries=2)
        await queue.push_many(range(ITEMS))
        marker = raw.find_one({"q": "orders"})["_id"]
        spent = {"attempts": 3, "batch": marker, "token": marker}
        raw.update_many({"q": "orders", "payload": {"$lt": suspects}}, {"$set": spent})
        attempts = {document["payload"]: document["attempts"] for document in raw.find({"q": "orders"})}
        for moment in MOMENTS:
            items = await cancelled_at(commands, moment, queue.reserve_many(ITEMS // 2))
            await queue.release_many(items or [])
    documents = list(raw.find({"q": "orders"}))
    # what only was put behind the others keeps the marks of its last run
    assert [document for document in documents if document["when"] > datetime.now(UTC)] == []
    assert {document["payload"]: document["attempts"] for document in documents} == attempts


async def test_cancelled_batches_with_items_that_expire_leave_nothing_reserved(
    own: tuple[Any, Commands], database: str, raw: Any
) -> None:
    client, commands = own
    async with mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        for moment in MOMENTS:
            await queue.push_many(range(3))
            await queue.push("dated", expires=600)
            items = await cancelled_at(commands, moment, queue.reserve_many(ITEMS))
            await queue.release_many(items or [])
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 4 * len(MOMENTS)


async def test_a_cancelled_settlement_that_is_under_way_runs_to_its_end(
    own: tuple[Any, Commands], database: str, raw: Any
) -> None:
    client, commands = own
    async with mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(4))
        released, committed, *rest = await queue.reserve_many(4)
        for call in (queue.release(released), queue.commit(committed), queue.commit_many(rest)):
            await cancelled_at(commands, ("before", 1, 0), call)
    (left,) = raw.find({"q": "orders"})
    assert (left["payload"], left["reserved"]) == (released.payload, False)


async def test_a_cancelled_wait_takes_nothing_that_comes_later(listened: tuple[mongoq.AsyncBroker, Commands]) -> None:
    broker, commands = listened
    queue = broker.queue("orders")
    waiting = [asyncio.create_task(queue.reserve(wait=PATIENCE)) for _ in range(20)]
    while "findAndModify" not in commands.names():
        await asyncio.sleep(0.005)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await queue.push("late")
    item = await queue.reserve()
    assert item is not None
    assert item.attempts == 1


@pytest.mark.parametrize("attempt", range(4))
async def test_a_waiter_that_is_cancelled_when_it_is_woken_wakes_the_next_one(
    listened: tuple[mongoq.AsyncBroker, Commands], attempt: int
) -> None:
    """Most attempts cancel it before it asks for the item, the last one while it does."""
    broker, commands = listened
    queue = broker.queue("orders")
    first, second = [asyncio.create_task(queue.reserve(wait=2 * PATIENCE)) for _ in range(2)]
    while commands.names().count("getMore") < 2:  # they sleep by now: the stream has nothing to tell
        await asyncio.sleep(0.005)
    await queue.push("a")
    later(first.cancel, attempt // 3)
    await asyncio.wait([first])
    if not first.cancelled():  # it was faster
        second.cancel()
        return
    item = await asyncio.wait_for(second, PATIENCE)
    assert item is not None
    assert item.attempts == 1


async def test_a_cancelled_block_releases_its_item(listened: tuple[mongoq.AsyncBroker, Commands], raw: Any) -> None:
    broker, entered = listened[0], asyncio.Event()
    await broker.queue("orders").push("a")

    async def work() -> None:
        async with broker.queue("orders").reserved():
            entered.set()
            await asyncio.sleep(PATIENCE)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    document = raw.find_one({"q": "orders"})
    assert (document["reserved"], document["attempts"]) == (False, 0)


def push_from_outside(raw: Any) -> None:
    raw.insert_one({"q": "orders", "payload": 1, "when": EARLY, "priority": 0, "attempts": 0, "reserved": False})


async def test_a_closed_broker_hands_nothing_to_those_who_wait(
    listened: tuple[mongoq.AsyncBroker, Commands], raw: Any
) -> None:
    broker, commands = listened
    answered = asyncio.Event()  # a claim under way would rightly take what is pushed
    loop = asyncio.get_running_loop()
    commands.after = lambda name, _: name == "findAndModify" and loop.call_soon_threadsafe(answered.set)
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=PATIENCE))
    await answered.wait()
    await broker.close()
    push_from_outside(raw)
    with pytest.raises(mongoq.BrokerClosed):
        await waiting
    assert raw.count_documents({"reserved": True}) == 0


def test_a_closed_broker_hands_nothing_to_threads_that_wait(uri: str, database: str, raw: Any) -> None:
    taken: list[Any] = []
    errors: list[BaseException] = []
    with listened_to(uri, database) as (broker, commands):

        def wait() -> None:
            try:
                taken.append(broker.queue("orders").reserve(wait=PATIENCE))
            except mongoq.BrokerClosed as error:
                errors.append(error)

        answered = threading.Event()
        commands.after = lambda name, _: name == "findAndModify" and answered.set()
        thread = threading.Thread(target=wait)
        thread.start()
        assert answered.wait(PATIENCE)
        rest(commands)
        broker.close()
        is_claiming = commands.is_under_way("findAndModify")  # it takes what is pushed, by right
        push_from_outside(raw)
        thread.join(PATIENCE)
    assert len(errors) == 1 or (is_claiming and taken)
    assert raw.count_documents({"reserved": True}) == len(taken)


@pytest.mark.parametrize("operation", ["pop", "reserve"])
def test_a_broker_that_is_closed_at_the_end_of_the_loop_gives_back_what_was_under_way(
    uri: str, database: str, raw: Any, operation: str
) -> None:
    """The main function ends, or is interrupted, in the middle of somebody's claim."""

    async def main(when: str) -> None:
        commands, reached = Commands(), asyncio.Event()
        async with (
            AsyncMongoClient[Any](uri, event_listeners=[commands]) as client,
            mongoq.AsyncBroker(client[database]["mongoq"]) as broker,
        ):
            queue = broker.queue("orders")
            await queue.push("b")
            setattr(commands, when, lambda *_: reached.set())
            claim = asyncio.create_task(getattr(queue, operation)())
            await reached.wait()
            claim.cancel()

    for when in ("before", "after"):
        asyncio.run(main(when))
        assert raw.count_documents({"q": "orders", "reserved": False}) == 1, when
        raw.delete_many({"q": "orders"})


@pytest.mark.parametrize("operation", ["reserve", "pop", "reserve_many"])
def test_an_interrupted_claim_gives_back_what_it_took(uri: str, database: str, raw: Any, operation: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders", max_retries=None)
        queue.push_many(range(ITEMS))
        interrupted = 0
        for when, number in itertools.product(["before", "after"], [1, 2, 3]):
            countdown = itertools.count(1 - number)
            hook = lambda *_, left=countdown: next(left) == 0 and signal.raise_signal(signal.SIGINT)  # noqa: E731
            setattr(commands, when, hook)
            try:
                taken = queue.reserve_many(5) if operation == "reserve_many" else [getattr(queue, operation)()]
                if operation == "pop":
                    queue.push_many([item.payload for item in taken])
                else:
                    queue.release_many(taken)
            except KeyboardInterrupt:
                interrupted += 1
            commands.before = commands.after = None
        assert interrupted >= 2
        free = raw.find({"q": "orders", "reserved": False, "attempts": 0})
        assert {document["payload"] for document in free} == set(range(ITEMS))


def test_an_item_whose_commit_fails_in_a_pop_is_given_back(
    client: MongoClient[Any], uri: str, database: str, raw: Any
) -> None:
    with listened_to(uri, database, appname=database) as (broker, _):
        queue = broker.queue("orders", max_retries=0)
        queue.push(1, sequence="s")
        with (
            failing(client, "delete", appName=database, errorCode=13),
            pytest.raises(OperationFailure, match="failCommand"),
        ):
            queue.pop()
        [document] = raw.find({"q": "orders"})
        assert (document["reserved"], document["attempts"]) == (False, 0)
        assert queue.pop() is not None


def test_an_item_that_may_have_been_killed_by_a_neighbour_stays_one_after_a_failed_pop(
    client: MongoClient[Any], uri: str, database: str, raw: Any
) -> None:
    """The reply to its claim is lost, and its commit is refused: it still has its run alone."""
    with (
        Proxy(uri) as proxy,
        MongoClient[Any](proxy.uri_with(serverMonitoringMode="poll", appname=database)) as own,
        mongoq.Broker(own[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders", max_retries=0)
        queue.push("remembered", id=ObjectId())
        queue.pop()  # from here on, pops are claims and commits
        queue.push("suspect")
        dead = {"attempts": 1, "reserved": True, "token": ObjectId(), "batch": ObjectId(), "when": EARLY}
        raw.update_one({"payload": "suspect"}, {"$set": dead})
        proxy.lose("reply", "findAndModify")
        with (
            failing(client, "delete", appName=database, errorCode=13),
            pytest.raises(OperationFailure, match="failCommand"),
        ):
            queue.pop()
        assert proxy.lost == 1
        document = raw.find_one({"payload": "suspect"})
        assert (document["reserved"], document["attempts"], document["batch"]) == (False, 1, dead["batch"])
        assert queue.pop() is not None


def test_a_batch_whose_reading_fails_is_given_back(client: MongoClient[Any], uri: str, database: str, raw: Any) -> None:
    with listened_to(uri, database, appname=database) as (broker, commands):
        queue = broker.queue("orders")
        queue.push_many(range(3))
        queue.release_many(queue.reserve_many(3))  # what was claimed before is read again after the claim
        due = {document["payload"]: document["when"] for document in raw.find({"q": "orders"})}
        refusal = {"failCommands": ["find"], "errorCode": 13, "appName": database}
        commands.after = lambda name, _: (
            name == "update"
            and client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=refusal)
        )
        with pytest.raises(OperationFailure, match="failCommand"):
            queue.reserve_many(3)
        documents = list(raw.find({"q": "orders"}))
        assert {(document["reserved"], document["attempts"]) for document in documents} == {(False, 0)}
        assert {document["payload"]: document["when"] for document in documents} == due


def test_of_a_batch_with_one_that_is_raised_the_others_are_given_back(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push_many([1, "bad", 3])
    with pytest.raises(mongoq.PayloadInvalid) as caught:
        broker.queue("orders", model=int).reserve_many(3, on_invalid="raise")
    (reserved,) = raw.find({"q": "orders", "reserved": True})
    assert reserved["_id"] == caught.value.item.id
    assert {document["attempts"] for document in raw.find({"q": "orders", "reserved": False})} == {0}
