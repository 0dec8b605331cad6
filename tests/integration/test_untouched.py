"""Claims of items that nobody has had: what is handed out is what is stored, whatever happens between the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq
from mongoq.protocol.coordination import streams
from mongoq.protocol.state import prefetch
from mongoq.protocol.state.batcher import CONCURRENT_CALLERS
from mongoq.protocol.state.prefetch import BATCHES_PER_READ, MIN_PREFETCH_BATCH
from tests.clients import opened
from tests.integration.concurrent_callers import gathered
from tests.integration.test_plans import Plan

CALLERS = 20
WAYS = ["reserve", "reserve_many"]
FIELDS = ("payload", "headers", "attempts", "priority", "by", "error", "origin")


class Meddler(CommandListener):
    """Notes the commands, and does something just before a claim is sent."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.commands: dict[str, Any] = {}
        self.meddle: Callable[[], Any] | None = None

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in ("find", "update", "delete", "findAndModify", "aggregate"):
            self.names.append(event.command_name)
            self.commands[event.command_name] = dict(event.command)
        claims = event.command_name == "update" and event.command["updates"][0]["multi"]
        if claims and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@dataclass
class Place:
    """A queue of many callers, and another broker of the same queues, which works at once."""

    broker: Any
    queue: Any
    other_broker: mongoq.Broker
    raw: Any
    meddler: Meddler = field(default_factory=Meddler)

    async def reserved(self, number: int = CALLERS, way: str = "reserve") -> list[Any]:
        """Reserve by so many callers at once, or by one call; each item is as it is stored."""
        if way == "reserve_many":
            items = await self.queue.reserve_many(number)
        else:
            items = [item for item in await gathered([self.queue.reserve] * number) if item is not None]
        for item in items:
            assert isinstance(item, mongoq.Item), item
            document = self.raw.find_one({"_id": item.id, "token": item.token})
            assert {name: item.stored(name) for name in FIELDS} == {name: document.get(name) for name in FIELDS}
            assert item.lease_until == document["when"].replace(tzinfo=UTC)
        assert len({repr(item.id) for item in items}) == len(items)
        return items


@pytest.fixture
def other_broker(client: Any, database: str) -> Iterator[mongoq.Broker]:
    with mongoq.Broker(client[database]["mongoq"]) as broker:
        yield broker


@pytest.fixture
async def place(uri: str, database: str, other_broker: mongoq.Broker, raw: Any) -> AsyncIterator[Place]:
    meddler = Meddler()
    async with (
        opened("aio", uri, event_listeners=[meddler]) as client,
        mongoq.AsyncBroker(client[database]["mongoq"]) as broker,
    ):
        await broker.ensure_indexes()
        yield Place(broker, broker.queue("orders"), other_broker, raw, meddler)


@pytest.mark.parametrize("way", WAYS)
async def test_they_are_not_read_back(place: Place, way: str) -> None:
    await place.queue.push_many(range(CALLERS))
    await place.queue.peek()
    place.meddler.names.clear()
    items = await place.reserved(way=way)
    assert [item.payload for item in items] == list(range(CALLERS))
    assert place.meddler.names.count("update") == 1
    assert place.meddler.names.count("find") <= 3  # the settings may be read, and the next batches
    assert place.meddler.commands["find"]["limit"] >= CALLERS
    assert "token" not in place.meddler.commands["find"]["filter"]


async def test_a_few_that_somebody_has_had_are_read_back_with_the_others(place: Place) -> None:
    await place.queue.push_many(range(CALLERS))
    for _ in range(2):
        await place.queue.rollback(await place.queue.reserve(), error="again")
    await place.queue.push_many(range(CALLERS))
    items = await place.reserved(2 * CALLERS)
    assert sorted(item.attempts for item in items) == [1] * (2 * CALLERS - 2) + [2] * 2
    assert not place.queue._context.state.prefetch.closed_until > 0


async def test_what_waits_and_what_is_done_costs_their_claims_nothing(place: Place) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    place.other_broker.queue("orders").push_many(range(2000), priority=-5, when=later)
    await place.queue.push_many(range(CALLERS))
    await place.queue.peek()
    items = await place.reserved()
    find, update = place.meddler.commands["find"], place.meddler.commands["update"]
    for item in items:
        await place.queue.release(item)
    read = {name: find[name] for name in ("find", "filter", "sort", "limit")}
    claim = {name: update[name] for name in ("update", "updates")}
    for command, most in ((read, CALLERS + 2), (claim, 2 * CALLERS + 1)):
        plan = Plan(place.raw.database.command("explain", command, verbosity="executionStats"))
        assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
        assert plan.keys <= most


@pytest.mark.parametrize("way", WAYS)
async def test_what_somebody_has_had_is_read_back(place: Place, way: str) -> None:
    await place.queue.push_many(range(CALLERS))
    for item in await place.reserved(way=way):
        await place.queue.rollback(item, error="again")
    items = await place.reserved(way=way)
    assert {(item.attempts, item.error.message) for item in items} == {(2, "again")}
    assert len(items) == CALLERS


async def test_a_batch_is_all_there_when_one_reply_does_not_hold_it(place: Place) -> None:
    number = 20
    await place.queue.push_many([[n, "x" * 1_000_000] for n in range(number)])
    items = await place.reserved(number, "reserve_many")
    assert [item.payload[0] for item in items] == list(range(number))
    assert place.queue._context.state.prefetch.closed_until > 0, "large items are read by their ids for a while"


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


def released(other_broker: mongoq.Broker) -> None:
    queue = other_broker.queue("orders")
    item = queue.reserve()
    assert item is not None
    queue.release(item)


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
        (released, CALLERS),
        (removed, CALLERS - 1),
        (claimed, CALLERS - 1),
    ],
)
async def test_what_changes_between_the_read_and_the_claim_is_handed_out_as_it_is_then(
    place: Place, meddle: Callable[[mongoq.Broker], None], remaining: int, way: str
) -> None:
    await place.queue.push_many(range(CALLERS))

    def meanwhile() -> None:
        meddle(place.other_broker)
        # its clock may be behind, and then the item is as eligible as it was
        place.raw.update_many({"q": "orders", "reserved": False}, {"$set": {"when": datetime(2024, 1, 1, tzinfo=UTC)}})

    place.meddler.meddle = meanwhile
    items = await place.reserved(way=way)
    assert place.meddler.meddle is None
    assert len(items) == remaining
    if meddle in (moved_there_and_back, replaced_under_a_key):
        assert [item.payload for item in items].count("changed") == 1


def test_an_item_that_a_filter_sends_elsewhere_bears_who_did_it(other_broker: mongoq.Broker, raw: Any) -> None:
    pipeline = mongoq.Pipeline("screens", outputs=["done", "rest"])
    elsewhere = mongoq.Move("rest", headers={"changed": True})
    pipeline.stage("orders", to=["done", "rest"], where={"n": 1}, otherwise=elsewhere)(lambda _: mongoq.Move("done"))
    other_broker.queue("orders").push({"n": 2})
    pipeline.drain(other_broker)
    (moved,) = raw.find({"q": "rest"})
    assert (moved["headers"], moved["by"]) == ({"changed": True}, str(other_broker._context.identity))


async def reading_ahead(place: Place) -> None:
    """Claim twice in a row, so that what comes next is read ahead."""
    await place.queue.push_many(range(MIN_PREFETCH_BATCH * BATCHES_PER_READ * 2))
    for _ in range(2):
        await gathered([place.queue.reserve] * MIN_PREFETCH_BATCH)


async def pushed(place: Place) -> None:
    await place.queue.push("first", priority=-1)


async def pushed_late(place: Place) -> None:
    await place.queue.push("first", when=datetime.now(UTC) - timedelta(seconds=60))


async def pushed_with_others(place: Place) -> None:
    await place.queue.push_many(["first", "second"], priority=-1)


async def published(place: Place) -> None:
    await place.broker.bind("news", "orders")
    await place.broker.queue("news").push("first", priority=-1)


async def moved(place: Place) -> None:
    source = place.broker.queue("source")
    await source.push("first")
    await source.move(await source.reserve(), "orders", priority=-1)


async def moved_with_others(place: Place) -> None:
    source = place.broker.queue("source")
    await source.push_many(["first", "second"], priority=-1)
    await source.move_many([(item, mongoq.Move("orders")) for item in await source.reserve_many(2)])


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


async def given_back_by_a_stream(place: Place) -> None:
    await pushed(place)
    run = await place.broker._driver.run(
        streams.open_run(place.broker._context, "etl", "orders", timedelta(seconds=60))
    )
    claim = await place.broker._driver.run(streams.next_claim(place.queue._context, run, 1, None, after=0))
    assert len(claim.ids) == 1
    await reading_ahead(place)
    assert await place.broker.release_claims("etl") == 1


PUT = [pushed, pushed_late, pushed_with_others, published, moved, moved_with_others, sent_back, given_back]


@pytest.mark.parametrize("put_first", [*PUT, given_back_by_a_stream])
async def test_what_this_process_puts_first_is_not_overtaken_by_what_was_read_ahead(
    place: Place, put_first: Callable[[Place], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_ITEM_SECONDS", 60.0)  # however slow the machine
    await reading_ahead(place)
    ahead = place.queue._context.state.prefetch
    assert ahead.is_filled
    await put_first(place)
    assert "first" in [item.payload for item in await place.reserved(MIN_PREFETCH_BATCH)]


async def test_an_id_that_was_removed_and_is_pushed_again_is_another_item(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_ITEM_SECONDS", 60.0)
    ids = await place.queue.push_many(range(MIN_PREFETCH_BATCH * BATCHES_PER_READ * 2))
    for _ in range(2):
        await place.reserved(MIN_PREFETCH_BATCH)
    for id in ids[2 * MIN_PREFETCH_BATCH : 4 * MIN_PREFETCH_BATCH]:
        place.other_broker.queue("orders").remove(id)
        place.other_broker.queue("orders").push("other", id=id)
    payloads = [item.payload for _ in range(8) for item in await place.reserved(MIN_PREFETCH_BATCH)]
    assert payloads.count("other") == 2 * MIN_PREFETCH_BATCH


@pytest.mark.parametrize("way", ["reserve", "pop", "reserve_many"])
async def test_what_this_process_claims_in_another_way_is_no_longer_there(
    place: Place, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_ITEM_SECONDS", 60.0)
    state, claim = place.queue._context.state, getattr(place.queue, way)
    for _ in range(3):
        await reading_ahead(place)
        await claim(*([MIN_PREFETCH_BATCH // 2] if way == "reserve_many" else []))
        assert state.prefetch.is_filled
        await place.reserved(MIN_PREFETCH_BATCH)
        assert not state.prefetch.closed_until > 0, "it was met again"


async def test_what_was_removed_since_it_was_read_is_not_taken_for_contention(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_ITEM_SECONDS", 60.0)
    state = place.queue._context.state
    for _ in range(4):
        await reading_ahead(place)
        place.other_broker.queue("orders").purge(state="ready")
        place.other_broker.queue("orders").push_many(range(3 * MIN_PREFETCH_BATCH))
        assert [item.payload for _ in range(3) for item in await place.reserved(MIN_PREFETCH_BATCH)] == list(
            range(3 * MIN_PREFETCH_BATCH)
        )
        assert state.contention.width == 1
        state.prefetch.closed_until = 0.0


async def test_nor_is_what_it_pushes_while_that_is_being_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_ITEM_SECONDS", 60.0)
    await reading_ahead(place)
    pushed = asyncio.create_task(place.queue.push("first", priority=-1))
    await place.reserved(MIN_PREFETCH_BATCH)
    await pushed
    payloads = [item.payload for item in await place.reserved(MIN_PREFETCH_BATCH)]
    assert "first" in payloads or place.raw.find_one({"payload": "first"})["reserved"]


async def test_that_of_another_process_waits_for_a_moment_at_most(place: Place) -> None:
    await reading_ahead(place)
    place.other_broker.queue("orders").push("first", priority=-1)
    await asyncio.sleep(prefetch.PREFETCHED_ITEM_SECONDS)
    assert "first" in [item.payload for item in await place.reserved(MIN_PREFETCH_BATCH)]


async def test_many_callers_that_come_and_go_get_each_item_once(place: Place, raw: Any) -> None:
    number = 6 * CONCURRENT_CALLERS
    await place.queue.push_many(range(number))
    payloads: list[Any] = []

    async def worker(place_in_line: int) -> None:
        while (item := await place.queue.reserve()) is not None:
            if place_in_line % 5 == 0 and item.attempts == 1:
                await place.queue.rollback(item)
                continue
            payloads.append(item.payload)
            await place.queue.commit(item)

    await asyncio.gather(*(worker(index) for index in range(2 * CONCURRENT_CALLERS)))
    while (item := await place.queue.reserve()) is not None:  # what was rolled back as the others looked
        payloads.append(item.payload)
        await place.queue.commit(item)
    assert sorted(payloads) == list(range(number))
    assert raw.count_documents({"q": "orders"}) == 0


@pytest.mark.parametrize(
    "foreign",
    [
        {"when": "soon"},
        {"attempts": "many"},
        {"attempts": 0.0},
        {"priority": "high"},
        {"by": None, "key": None},
        {"_id": "text"},
        {"_id": {"a": 1}},
    ],
    ids=str,
)
async def test_what_other_programs_wrote_keeps_nobody_from_the_rest(
    place: Place, raw: Any, foreign: dict[str, Any]
) -> None:
    await place.queue.push_many(range(CALLERS))
    past = datetime.now(UTC) - timedelta(hours=1)
    envelope = {"_id": ObjectId(), "q": "orders", "payload": "foreign", "when": past, "priority": -1, "attempts": 0}
    raw.insert_one({**envelope, "reserved": False, **foreign})
    payloads = {item.payload for _ in range(2) for item in await place.reserved(CALLERS + 1)}
    assert payloads >= set(range(CALLERS))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["as it is pushed", "another"])
async def test_what_nobody_can_decode_is_found_as_it_is_opened(place: Place, raw: Any, form: str, way: str) -> None:
    """It looks like an item that nobody has had, and is claimed with the others before anybody looks into it."""
    await place.queue.push_many([*range(CALLERS), "ABC"])
    pushed = raw.find_one_and_delete({"payload": "ABC"}) | ({"n": 1} if form == "another" else {})
    unreadable = bson.encode(pushed, codec_options=raw.codec_options).replace(b"ABC", b"\xff\xfe\xfd")
    raw.insert_one(RawBSONDocument(unreadable))
    items = [item for _ in range(2) for item in await place.reserved(CALLERS + 1, way)]
    assert {item.payload for item in items} == {*range(CALLERS)}
    assert await place.queue.dead.size() == 1


async def test_a_single_claim_beside_those_of_many_callers_is_not_taken_for_somebody_else(place: Place) -> None:
    """Nobody knows which item it takes, until it has it."""
    await place.queue.push_many(range(8 * CONCURRENT_CALLERS))
    state = place.queue._context.state

    async def worker() -> None:
        while (item := await place.queue.reserve()) is not None:
            await place.queue.commit(item)

    await asyncio.gather(*(worker() for _ in range(CONCURRENT_CALLERS)))
    assert not state.prefetch.closed_until > 0
    assert not state.prefetch.claimed_keys
    assert (len(state.prefetch.singles), state.contention.width) == (0, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("headers", [None, {"trace": "1", "nested": {"a": [1]}}])
async def test_what_is_handed_out_without_being_read_again_is_what_is_stored(
    place: Place, raw: Any, headers: Any, way: str
) -> None:
    for payload in ({"n": [1, {"a": None}]}, "text", 7, None, [1], b"x", ObjectId(), 1.5):
        await place.queue.push_many([payload] * 3, headers=headers, priority=5)
    items = await place.reserved(24, way)
    assert len(items) == 24
    for item in items:
        assert item._document == raw.find_one({"_id": item.id})


async def test_what_nobody_can_decode_is_buried_and_the_rest_is_claimed(place: Place, raw: Any) -> None:
    await place.queue.push_many(range(CALLERS))
    unreadable = RawBSONDocument(bson.encode({"text": "xx"}).replace(b"xx", b"\xff\xfe"))
    raw.update_one({"payload": 3}, {"$set": {"payload": unreadable}})
    items = [item for _ in range(2) for item in await place.reserved(CALLERS)]
    assert {item.payload for item in items} == {*range(CALLERS)} - {3}
    assert await place.queue.dead.size() == 1
