"""Claims of items that nobody has had: what is handed out is what is stored, whatever happens between the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

import mongoq
from tests.integration.commands import Commands, explain

CALLERS = 20
MANY = 128
"""Items of which a queue with many callers reads some ahead."""
WAYS = ["reserve", "reserve_many"]
FIELDS = ("payload", "headers", "attempts", "priority", "by", "error", "origin")


@dataclass
class Place:
    """A queue of many callers, and another broker of the same queues, which works at once."""

    broker: mongoq.AsyncBroker
    queue: Any
    other_broker: mongoq.Broker
    raw: Any
    commands: Commands = field(default_factory=Commands)

    async def reserved(self, number: int = CALLERS, way: str = "reserve") -> list[Any]:
        """Reserve by so many callers at once, or by one call; each item is as it is stored."""
        if way == "reserve_many":
            items = await self.queue.reserve_many(number)
        else:
            taken = await asyncio.gather(*(self.queue.reserve() for _ in range(number)))
            items = [item for item in taken if item is not None]
        for item in items:
            document = self.raw.find_one({"_id": item.id, "token": item.token})
            assert {name: item.stored(name) for name in FIELDS} == {name: document.get(name) for name in FIELDS}
            assert item.lease_until == document["when"].replace(tzinfo=UTC)
        assert len({repr(item.id) for item in items}) == len(items)
        return items


@pytest.fixture
async def place(uri: str, database: str, broker: mongoq.Broker, raw: Any) -> AsyncIterator[Place]:
    commands = Commands()
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri, event_listeners=[commands])
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as own:
        await own.ensure_indexes()
        yield Place(own, own.queue("orders"), broker, raw, commands)


@pytest.mark.parametrize("way", WAYS)
async def test_a_claim_costs_what_it_takes(place: Place, way: str) -> None:
    """What waits costs it nothing, and what nobody has had is not read back."""
    later = datetime.now(UTC) + timedelta(hours=1)
    place.other_broker.queue("orders").push_many(range(500), priority=-5, when=later)
    await place.queue.push_many(range(CALLERS))
    await place.queue.peek()
    place.commands.sent.clear()
    items = await place.reserved(way=way)
    assert [item.payload for item in items] == list(range(CALLERS))
    assert place.commands.names().count("update") == 1
    assert "token" not in place.commands.last("find")["filter"]
    find, update = place.commands.last("find"), place.commands.last("update")
    await place.queue.release_many(items)
    read = {name: find[name] for name in ("find", "filter", "sort", "limit")}
    claim = {name: update[name] for name in ("update", "updates")}
    for command, most in ((read, CALLERS + 2), (claim, 2 * CALLERS + 1)):
        plan = explain(place.raw, command)
        assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
        assert plan.keys <= most


@pytest.mark.parametrize("way", WAYS)
async def test_what_somebody_has_had_is_handed_out_as_it_is(place: Place, way: str) -> None:
    await place.queue.push_many(range(CALLERS))
    for item in await place.reserved(way=way):
        await place.queue.rollback(item, error="again")
    items = await place.reserved(way=way)
    assert {(item.attempts, item.error.message) for item in items} == {(2, "again")}
    assert len(items) == CALLERS


async def test_a_batch_is_all_there_when_one_reply_does_not_hold_it(place: Place) -> None:
    await place.queue.push_many([[n, "x" * 4_000_000] for n in range(5)])
    items = await place.reserved(5, "reserve_many")
    assert [item.payload[0] for item in items] == list(range(5))


def rolled_back(other_broker: mongoq.Broker) -> None:
    queue = other_broker.queue("orders")
    item = queue.reserve()
    assert item is not None
    queue.rollback(item, error="meanwhile")


def moved_there_and_back(other_broker: mongoq.Broker) -> None:
    queue, elsewhere = other_broker.queue("orders"), other_broker.queue("elsewhere")
    item = queue.reserve()
    assert item is not None
    queue.move(item, "elsewhere", payload="changed", headers={"changed": True})
    item = elsewhere.reserve()
    assert item is not None
    elsewhere.move(item, "orders", priority=3)


def replaced_under_a_key(other_broker: mongoq.Broker) -> None:
    """It gets a key, another payload by that key, and loses the key again, and nobody holds it in the end."""
    queue, dead = other_broker.queue("orders"), other_broker.queue("orders").dead
    item = queue.reserve()
    assert item is not None
    queue.move(item, dead.name, key="k")
    assert dead.push("changed", key="k", on_duplicate="replace") == item.id
    assert dead.replay(to="orders").pushed == 1


def buried_by_a_pop_and_sent_back(other_broker: mongoq.Broker) -> None:
    typed = other_broker.queue("orders", model=dict)
    assert typed.pop() is None
    assert typed.dead.replay().pushed == CALLERS


def removed(other_broker: mongoq.Broker) -> None:
    queue = other_broker.queue("orders")
    assert queue.remove(queue.peek()[0].id)


def claimed(other_broker: mongoq.Broker) -> None:
    assert other_broker.queue("orders").reserve() is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("meddle", "remaining"),
    [
        (rolled_back, CALLERS),
        (moved_there_and_back, CALLERS),
        (replaced_under_a_key, CALLERS),
        (buried_by_a_pop_and_sent_back, CALLERS),
        (removed, CALLERS - 1),
        (claimed, CALLERS - 1),
    ],
)
async def test_what_changes_between_the_read_and_the_claim_is_handed_out_as_it_is_then(
    place: Place, meddle: Callable[[mongoq.Broker], None], remaining: int, way: str
) -> None:
    await place.queue.push_many(range(CALLERS))

    def meanwhile(name: str, body: Mapping[str, Any]) -> None:
        if name == "update" and body["updates"][0]["multi"]:
            place.commands.before = None
            meddle(place.other_broker)
            # its clock may be behind, and then the item is as eligible as it was
            past = {"when": datetime(2024, 1, 1, tzinfo=UTC)}
            place.raw.update_many({"q": "orders", "reserved": False}, {"$set": past})

    place.commands.before = meanwhile
    items = await place.reserved(way=way)
    assert place.commands.before is None
    assert len(items) == remaining
    if meddle in (moved_there_and_back, replaced_under_a_key):
        assert [item.payload for item in items].count("changed") == 1


def test_an_item_that_a_filter_sends_elsewhere_bears_who_did_it(broker: mongoq.Broker, raw: Any) -> None:
    pipeline = mongoq.Pipeline("screens", outputs=["done", "rest"])
    elsewhere = mongoq.Move("rest", headers={"changed": True})
    pipeline.stage("orders", to=["done", "rest"], where={"n": 1}, otherwise=elsewhere)(lambda _: mongoq.Move("done"))
    queue = broker.queue("orders")
    queue.push({"n": 2})
    pipeline.drain(broker)
    queue.push("beside")
    item = queue.reserve()
    assert item is not None
    (moved,) = raw.find({"q": "rest"})
    assert (moved["headers"], moved["by"]) == ({"changed": True}, raw.find_one({"_id": item.id})["by"])


async def reading_ahead(place: Place) -> None:
    """Claim twice in a row, so that what comes next is read ahead."""
    await place.queue.push_many(range(MANY))
    for _ in range(2):
        await asyncio.gather(*(place.queue.reserve() for _ in range(16)))


async def pushed(place: Place) -> None:
    await place.queue.push("first", priority=-1)


async def published(place: Place) -> None:
    await place.broker.bind("news", "orders")
    await place.broker.queue("news").push("first", priority=-1)


async def moved(place: Place) -> None:
    source = place.broker.queue("source")
    await source.push("first")
    await source.move(await source.reserve(), "orders", priority=-1)


async def sent_back(place: Place) -> None:
    source = place.broker.queue("source")
    await source.push("first", priority=-1)
    await source.bury(await source.reserve())
    await source.dead.replay(to="orders")


async def given_back(place: Place) -> None:
    await pushed(place)
    item = await place.queue.reserve()
    assert item.payload == "first"
    await reading_ahead(place)
    await place.queue.rollback(item)


@pytest.mark.parametrize("put_first", [pushed, published, moved, sent_back, given_back])
async def test_what_this_process_puts_first_is_not_overtaken_by_what_was_read_ahead(
    place: Place, put_first: Callable[[Place], Awaitable[None]]
) -> None:
    await reading_ahead(place)
    await put_first(place)
    assert "first" in [item.payload for item in await place.reserved(16)]


async def test_an_id_that_was_removed_and_is_pushed_again_is_another_item(place: Place) -> None:
    ids = await place.queue.push_many(range(MANY))
    for _ in range(2):
        await place.reserved(16)
    queue = place.other_broker.queue("orders")
    for id in ids[32:48]:
        queue.remove(id)
    queue.push_many(["other"] * 16, ids=ids[32:48])
    payloads = [item.payload for _ in range(8) for item in await place.reserved(16)]
    assert payloads.count("other") == 16


async def test_many_callers_that_come_and_go_get_each_item_once(place: Place, raw: Any) -> None:
    number = 200
    await place.queue.push_many(range(number))
    payloads: list[Any] = []

    async def worker(place_in_line: int) -> None:
        while (item := await place.queue.reserve()) is not None:
            if place_in_line % 5 == 0 and item.attempts == 1:
                await place.queue.rollback(item)
                continue
            payloads.append(item.payload)
            await place.queue.commit(item)

    await asyncio.gather(*(worker(index) for index in range(96)))
    await worker(1)  # what was rolled back as the others looked
    assert sorted(payloads) == list(range(number))
    assert raw.count_documents({"q": "orders"}) == 0


async def test_what_other_programs_wrote_keeps_nobody_from_the_rest(place: Place, raw: Any) -> None:
    odd: list[dict[str, Any]] = [
        {"when": "soon"},
        {"attempts": "many"},
        {"attempts": 0.0},
        {"priority": "high"},
        {"by": None, "key": None},
        {"_id": "text"},
        {"_id": {"a": 1}},
    ]
    await place.queue.push_many(range(CALLERS))
    past = datetime.now(UTC) - timedelta(hours=1)
    envelope = {"q": "orders", "payload": "foreign", "when": past, "priority": -1, "attempts": 0, "reserved": False}
    raw.insert_many([{"_id": ObjectId(), **envelope, **foreign} for foreign in odd])
    payloads = {item.payload for _ in range(3) for item in await place.reserved(CALLERS + len(odd))}
    assert payloads >= set(range(CALLERS))


@pytest.mark.parametrize("way", WAYS)
async def test_what_nobody_can_decode_is_buried_and_the_rest_is_claimed(place: Place, raw: Any, way: str) -> None:
    """It looks like an item that nobody has had, and is claimed with the others before anybody looks into it."""
    await place.queue.push_many([*range(CALLERS), "ABC"])
    document = raw.find_one_and_delete({"payload": "ABC"})
    unreadable = bson.encode(document, codec_options=raw.codec_options).replace(b"ABC", b"\xff\xfe\xfd")
    raw.insert_one(RawBSONDocument(unreadable))
    items = [item for _ in range(2) for item in await place.reserved(CALLERS + 1, way)]
    assert {item.payload for item in items} == {*range(CALLERS)}
    assert await place.queue.dead.size() == 1


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_handed_out_without_being_read_again_is_what_is_stored(place: Place, way: str) -> None:
    payloads = [{"n": [1, {"a": None}]}, "text", 7, None, [1], b"x", ObjectId(), 1.5]
    for headers in (None, {"trace": "1", "nested": {"a": [1]}}):
        for payload in payloads:
            await place.queue.push(payload, headers=headers, priority=5)
    items = await place.reserved(16, way)
    assert [item.payload for item in items] == payloads * 2
    assert [item.headers for item in items[8:]] == [{"trace": "1", "nested": {"a": [1]}}] * 8
