"""Insight: what the reads of queues say, and how little they examine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import mongomock
import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.server_api import ServerApi

import mongoq
from mongoq.protocol import insight
from mongoq.protocol.coordination import heartbeats
from mongoq.protocol.history.pages import history_range
from mongoq.protocol.history.search import read_slice
from mongoq.protocol.insight import BoundedCount, QueueInsight, read_queues
from tests.integration.commands import Commands
from tests.waiting import until

DEPTH = 3_000
PRIORITIES = (-1, 0, 1)
QUEUES = [f"queue-{number:02}" for number in range(60)]


def read(broker: mongoq.Broker, *names: str, **options: Any) -> dict[str, QueueInsight]:
    found = broker._run(read_queues, names or None, **options)
    assert [queue.name for queue in found] == sorted(queue.name for queue in found)
    return {queue.name: queue for queue in found}


def test_items_are_counted_by_state(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", history=3600)
    orders.push_many(range(5))
    orders.push_many(range(3), delay=3600)
    orders.push("first", priority=-5)
    taken = orders.reserve_many(3)
    orders.commit(taken[0])
    raw.update_one({"_id": taken[1].id}, {"$set": {"when": datetime(2026, 1, 1, tzinfo=UTC)}})
    found = read(broker)["orders"]
    counts = [found.ready, found.scheduled, found.reserved, found.expired, found.recent]
    assert counts == [BoundedCount(number) for number in (3, 3, 1, 1, 1)]
    assert found.live == BoundedCount(8)
    # The lease that has run out long ago is due as well.
    assert found.oldest_due == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.oldest_age == found.read_at - found.oldest_due


def test_the_oldest_item_is_looked_for_in_every_priority(broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    old = datetime.now(UTC) - timedelta(hours=1)
    orders.push("new", priority=-5)
    orders.push("old", priority=5, when=old)
    orders.push("later", priority=-7, delay=60)
    found = read(broker)["orders"].oldest_due
    assert found == old.replace(microsecond=old.microsecond // 1000 * 1000)


def test_a_queue_without_due_items_has_no_age(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, delay=60)
    assert read(broker)["orders"].oldest_age is None


def test_items_of_history_count_as_recent_for_a_minute(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", history=3600)
    orders.push_many(range(3))
    for _ in range(3):
        orders.pop()
    oldest = raw.find_one({"processed": {"$exists": True}})
    raw.update_one({"_id": oldest["_id"]}, {"$set": {"processed": datetime.now(UTC) - timedelta(minutes=2)}})
    assert read(broker)["orders"].recent == BoundedCount(2)


def test_recent_items_are_counted_by_queue_up_to_a_limit_for_all(broker: mongoq.Broker) -> None:
    for name in ("a", "b", "c"):
        queue = broker.queue(name, history=3600)
        queue.push_many(range(6))
        queue.commit_many(queue.reserve_many(6))
    found = read(broker, budget=1)  # ten keys
    assert [str(queue.recent) for queue in found.values()] == ["6", "> 3", "?"]


def test_a_virtual_broker_is_read_as_well() -> None:
    with mongoq.Broker(mongomock.MongoClient()["app"]["mongoq"]) as virtual:
        virtual.queue("orders", history=60).push_many(range(3))
        virtual.queue("orders").pop()
        found = read(virtual)["orders"]
        assert (found.ready, found.recent, found.keeps_history) == (BoundedCount(2), BoundedCount(1), True)


def test_a_read_works_under_the_strict_stable_api(uri: str, database: str) -> None:
    api = ServerApi("1", strict=True, deprecation_errors=True)
    with MongoClient[Any](uri, server_api=api) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders", history=60)
        id = queue.push({"n": 1})
        queue.push({"n": 2})
        queue.pop()
        assert read(broker)["orders"].ready == BoundedCount(1)
        assert broker._run(insight.find_item, id) is not None
        broker.stats()  # writes the counters
        assert broker._run(insight.read_events)["orders"]["get"] == 1
        assert broker._run(insight.read_settings, "orders").settings.history is not None
        wanted = history_range(queue._context, since=None, until=None, where={"n": 1}, state="processed", page=9)
        assert len(broker._run_flow(read_slice(queue._context, wanted)).documents) == 1


def test_pauses_consumers_dead_letters_and_events_are_told(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", dead="broken")
    orders.push_many(range(2))
    orders.bury(orders.reserve() or pytest.fail("nothing reserved"), reason="tests")
    orders.pause()
    every = timedelta(seconds=60)
    for name, started in (("host:1:aaaa", broker._context.clock.now()), ("host:2:bbbb", None)):
        at = started or broker._context.clock.now()
        broker._run(heartbeats.beat, name, started=at, every=every, queues={"orders": 1})
    raw.update_one({"_id": "worker:host:2:bbbb"}, {"$set": {"seen": datetime(2026, 1, 1, tzinfo=UTC)}})
    raw.insert_one({"_id": "stream:report", "queue": "orders", "until": datetime(2200, 1, 1, tzinfo=UTC)})
    broker.stats()  # writes the counters
    found = read(broker)["orders"]
    assert (found.paused, found.consumers, found.dead_queue, found.dead) == (True, 2, "broken", BoundedCount(1))
    assert (found.events["put"], found.events["dead"]) == (2, 1)
    # The dead queue is read for a named queue, too, and is no row of its own then.
    assert read(broker, "orders")["orders"].dead == BoundedCount(1)
    assert list(read(broker, "orders")) == ["orders"]


def test_a_queue_with_a_living_consumer_is_listed(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.sink("orders")(print)
    with pipeline.start(broker):
        until(lambda: any(record.alive for record in broker.workers()))
        assert broker.queues() == list(read(broker)) == ["orders"]
        broker.queue("orders").push(1)
        until(lambda: broker.queue("orders").size() == 0)
        assert broker.queues() == ["orders"]
    assert broker.queues() == []


def test_empty_queues_with_settings_counters_or_bindings_are_listed(broker: mongoq.Broker) -> None:
    broker.queue("with-settings").configure(lease=5)
    broker.queue("with-counters").push(1)
    broker.queue("with-counters").pop()
    broker.bind("topic", "bound")
    broker.stats()
    assert list(read(broker)) == ["bound", "with-counters", "with-settings"]


def test_names_and_settings_of_other_programs_do_not_hide_the_rest(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    raw.insert_one({"q": "$where", "when": datetime(2026, 1, 1, tzinfo=UTC)})
    raw.insert_one({"q": 7, "when": datetime(2026, 1, 1, tzinfo=UTC)})
    raw.insert_one({"_id": "queue:orders", "settings": {"lease": "soon"}})
    found = read(broker)
    assert {name: queue.ready.number for name, queue in found.items()} == {"$where": 1, "orders": 1}


def test_a_count_above_its_limit_says_more_than(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(30))
    found = read(broker, budget=1)["orders"]
    assert (found.ready, str(found.ready)) == (BoundedCount(11, exact=False), "> 10")
    assert str(found.expired) == "?"  # all that was counted was ready
    assert (found.scheduled, str(found.scheduled)) == (BoundedCount(0), "0")
    assert not found.live.exact


@pytest.mark.parametrize("name, near", [("order", "'orders'"), ("orders.daed", "'orders'"), ("zzz", "no queue in it")])
def test_an_unknown_queue_is_an_error_that_names_the_nearest(broker: mongoq.Broker, name: str, near: str) -> None:
    broker.queue("orders").push(1)
    with pytest.raises(mongoq.QueueUnknown, match=near):
        read(broker, name)


def test_a_name_that_differs_in_a_number_is_suggested(broker: mongoq.Broker) -> None:
    broker.queue("orders-1").push(1)
    with pytest.raises(mongoq.QueueUnknown, match="'orders-1'"):
        read(broker, "orders-2")


def test_the_nearest_of_thousands_of_names_is_suggested(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("shop.orders").push(1)
    item = raw.find_one({"q": "shop.orders"})
    raw.insert_many({**item, "_id": ObjectId(), "q": f"shop.of-customer-{number}"} for number in range(3_000))
    for name in ("shop.oders", "shop.ordesr", "shop.Orders", "shop.orders-", "orders"):
        with pytest.raises(mongoq.QueueUnknown, match=r"'shop\.orders'"):
            read(broker, name)


def test_many_queues_with_few_items_are_read_by_few_commands(
    broker: mongoq.Broker, uri: str, database: str, raw: Any
) -> None:
    first = broker.queue("a-0")
    first.push_many([1, 2])
    first.push(3, delay=3600)
    first.reserve(lease=1000)
    item = raw.find_one({"q": "a-0", "reserved": False})
    yesterday = datetime.now(UTC) - timedelta(days=1)
    names = [f"a-{number}" for number in range(1, 300)]
    raw.insert_many({**item, "_id": ObjectId(), "q": name, "when": yesterday} for name in names)
    broker.queue("b-0").push_many([1, 2, 3], sequence="one")
    broker.queue("b-1").push_many(range(3_000))
    commands = Commands()
    with (
        MongoClient[Any](uri, event_listeners=[commands]) as client,
        mongoq.Broker(client[database]["mongoq"]) as other,
    ):
        found = read(other)
        assert len(found) == 302
        assert commands.names().count("aggregate") < 15
    for name, numbers in (("a-0", [1, 1, 1, 0]), ("a-7", [1, 0, 0, 0]), ("b-0", [1, 0, 0, 2])):
        queue = found[name]
        counts = [queue.ready, queue.scheduled, queue.reserved, queue.blocked]
        assert [count.number for count in counts] == numbers, name
    waits = found["a-7"].oldest_due
    assert waits is not None
    assert abs(waits - yesterday) < timedelta(seconds=1)
    assert (found["a-0"].oldest_due, found["b-1"].ready.number > 100) == (read(broker, "a-0")["a-0"].oldest_due, True)


def test_a_queue_is_known_by_any_trace_of_it(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("held").push(1)
    broker.queue("remembered").push(1, id=ObjectId())
    broker.queue("remembered").pop()
    broker.queue("configured").configure(lease=5)
    broker.bind("topic", "bound")
    broker.queue("dying", dead="grave").configure(lease=5)
    known = ["held", "held.dead", "remembered", "configured", "bound", "topic", "dying", "grave"]
    assert list(read(broker, *known)) == sorted(known)


# --- what it costs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep(client: MongoClient[Any]) -> Iterator[mongoq.Broker]:
    """60 queues; one of them has thousands of items in each state and each of three priorities."""
    name = f"test_insight_{ObjectId()}"
    collection = client[name]["mongoq"]
    with mongoq.Broker(collection) as broker:
        deep = broker.queue(QUEUES[0], history=3600)
        for priority in PRIORITIES:
            deep.push_many(range(DEPTH), priority=priority)
            deep.push_many(range(DEPTH), priority=priority, delay=3600)
        for _ in range(3):
            deep.commit_many(deep.reserve_many(1_000))
        deep.reserve_many(1_000)
        for other in QUEUES[1:]:
            broker.queue(other).push_many(range(20))
        broker.stats()
        yield broker
    client.drop_database(name)


@pytest.fixture
def profile(deep: mongoq.Broker, client: MongoClient[Any]) -> Iterator[Any]:
    """Counts the documents and keys that the commands of this test examine, by the profiler of the server."""
    database = client[deep.namespace.partition(".")[0]]
    database.drop_collection("system.profile")
    database.command("profile", 2)

    def examined() -> tuple[int, int]:
        entries = list(database["system.profile"].find({"ns": deep.namespace}))
        assert entries, "nothing was profiled"
        assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
        return tuple(sum(entry.get(f"{what}Examined", 0) for entry in entries) for what in ("docs", "keys"))  # type: ignore[return-value]

    yield examined
    database.command("profile", 0)


def test_a_read_of_all_queues_examines_no_more_than_its_budget(deep: mongoq.Broker, profile: Any) -> None:
    found = read(deep, budget=2_400)
    assert list(found) == QUEUES
    documents, keys = profile()
    # Beside the counted items there are the control documents of the queues.
    assert documents <= 2_400 + 4 * len(QUEUES)
    assert keys <= 12 * 2_400
    assert str(found[QUEUES[0]].ready) == "> 19"
    assert found[QUEUES[1]].ready == BoundedCount(20, exact=False)


def test_a_read_of_one_queue_examines_no_more_than_its_budget(deep: mongoq.Broker, profile: Any) -> None:
    found = read(deep, QUEUES[0], budget=1_000)[QUEUES[0]]
    documents, keys = profile()
    assert documents <= 1_000 + 10 + len(QUEUES)  # the first item of each queue: error queues are found by them
    assert keys <= 12 * 1_000
    assert not found.ready.exact
    assert not found.scheduled.exact


@pytest.mark.parametrize("part", ["due", "later", "first"])
def test_each_part_is_read_from_an_index_up_to_its_limit(
    deep: mongoq.Broker, client: MongoClient[Any], part: str
) -> None:
    limit = 50
    parts = {
        pipeline[-1]["$set"]["part"]["$literal"]: pipeline
        for pipeline in insight._parts(QUEUES[0], 0, deep._context.clock.now(), limit, is_ordered=True)
    }
    database, collection = deep.namespace.split(".")
    command = {"aggregate": collection, "pipeline": parts[part], "cursor": {}}
    answer = client[database].command("explain", command, verbosity="executionStats")
    told = answer if "executionStats" in answer else answer["stages"][0]["$cursor"]
    stats, plan = told["executionStats"], str(told["queryPlanner"]["winningPlan"])
    items = 0 if part == "first" else limit + 1
    assert stats["totalDocsExamined"] <= items
    assert stats["totalKeysExamined"] <= items + 2 * len(PRIORITIES) + 1
    assert ("DISTINCT_SCAN" if part == "first" else "IXSCAN") in plan
