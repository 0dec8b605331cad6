"""States of queues: what a read of them says, and how little it examines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import mongomock
import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.server_api import ServerApi

import mongoq
from tests.waiting import until
from tests.web.conftest import Api, bury

DEPTH = 3_000
PRIORITIES = (-1, 0, 1)
QUEUES = [f"queue-{number:02}" for number in range(60)]
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)

Open = Callable[..., Api]


def read(api: Api, *names: str, **options: Any) -> dict[str, Any]:
    """Return the states of all queues, or of the named ones, by name."""
    answer = api.get("/api/queues", **({"queue": names} if names else {}), **options)
    assert answer.status_code == 200, answer.text
    found = answer.json()["queues"]
    assert [each["queue"] for each in found] == sorted(each["queue"] for each in found)
    return {each["queue"]: each for each in found}


def numbers(state: dict[str, Any], *names: str) -> list[int | str]:
    """Return counts of a queue; one that ended at its limit as a text."""
    return [f"{state[name]} or more" if name in state["at_least"] else state[name] for name in names]


def test_items_are_counted_by_state(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", history=3600)
    orders.push_many(range(5))
    orders.push_many(range(3), delay=3600)
    orders.push("first", priority=-5)
    taken = orders.reserve_many(3)
    orders.commit(taken[0])
    raw.update_one({"_id": taken[1].id}, {"$set": {"when": LONG_AGO}})
    found = read(api)["orders"]
    assert numbers(found, "ready", "scheduled", "reserved", "expired", "recent") == [3, 3, 1, 1, 1]
    # The lease that has run out long ago is due as well.
    assert datetime.fromisoformat(found["oldest_due"]) == LONG_AGO
    age = datetime.fromisoformat(found["at"]) - LONG_AGO
    assert abs(found["oldest_age_seconds"] - age.total_seconds()) < 1


def test_the_oldest_item_is_looked_for_in_every_priority(api: Api, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    old = (datetime.now(UTC) - timedelta(hours=1)).replace(microsecond=0)
    orders.push("new", priority=-5)
    orders.push("old", priority=5, when=old)
    orders.push("later", priority=-7, delay=60)
    assert datetime.fromisoformat(read(api)["orders"]["oldest_due"]) == old


def test_a_queue_without_due_items_has_no_age(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, delay=60)
    assert read(api)["orders"]["oldest_age_seconds"] is None


def test_items_of_history_count_as_recent_for_a_minute(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", history=3600)
    orders.push_many(range(3))
    orders.commit_many(orders.reserve_many(3))
    oldest = raw.find_one({"processed": {"$exists": True}})
    raw.update_one({"_id": oldest["_id"]}, {"$set": {"processed": datetime.now(UTC) - timedelta(minutes=2)}})
    assert read(api)["orders"]["recent"] == 2


def test_recent_items_are_counted_by_queue_up_to_a_limit_for_all(api: Api, broker: mongoq.Broker) -> None:
    for name in ("a", "b", "c"):
        queue = broker.queue(name, history=3600)
        queue.push_many(range(6))
        queue.commit_many(queue.reserve_many(6))
    found = read(api, budget=1)  # ten keys
    assert [numbers(state, "recent")[0] for state in found.values()] == [6, "4 or more", "0 or more"]


def test_a_collection_in_memory_is_read_as_well(open_app: Open) -> None:
    with mongoq.Broker(mongomock.MongoClient()["app"]["mongoq"]) as virtual:
        virtual.queue("orders", history=60).push_many(range(3))
        virtual.queue("orders").pop()
        assert numbers(read(open_app(virtual))["orders"], "ready", "recent") == [2, 1]


def test_reads_work_under_the_strict_stable_api(uri: str, database: str, open_app: Open) -> None:
    api_version = ServerApi("1", strict=True, deprecation_errors=True)
    with MongoClient[Any](uri, server_api=api_version) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders", history=60)
        id = queue.push({"n": 1})
        queue.push({"n": 2})
        queue.pop()
        broker.stats()  # writes the counters
        api = open_app(broker)
        found = read(api)["orders"]
        assert (found["ready"], found["events"]["get"]) == (1, 1)
        assert api.get(f"/api/items/{id}").json()["id"] == str(id)
        assert api.get("/api/settings", queue="orders").json()["history"] == 60
        assert len(api.get("/api/history", queue="orders", where='{"n": 1}').json()["items"]) == 1


def test_pauses_consumers_dead_letters_and_events_are_told(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", dead="broken")
    bury(orders, 0)
    orders.push(1)
    orders.pause()
    for name, seen in (("alive", datetime.now(UTC) + timedelta(minutes=1)), ("gone", LONG_AGO)):
        times = {"started": seen, "seen": seen, "every": 5.0}
        queues = [{"queue": "orders", "held": 0}]
        raw.insert_one({"_id": f"worker:host:1:{name}", "host": "host", "pid": 1, **times, "queues": queues})
    raw.insert_one({"_id": "stream:report", "queue": "orders", "until": datetime(2200, 1, 1, tzinfo=UTC)})
    broker.stats()  # writes the counters
    found = read(api)["orders"]
    assert (found["paused"], found["consumers"], found["dead_queue"], found["dead"]) == (True, 2, "broken", 1)
    assert (found["events"]["put"], found["events"]["dead"]) == (2, 1)
    # The dead queue is read for a named queue, too, and is no row of its own then.
    named = read(api, "orders")
    assert (list(named), named["orders"]["dead"]) == (["orders"], 1)


def test_a_queue_with_a_living_consumer_is_listed(api: Api, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.sink("orders")(print)
    with pipeline.start(broker):
        until(lambda: any(record.alive for record in broker.workers()))
        assert broker.queues() == list(read(api)) == ["orders"]
        broker.queue("orders").push(1)
        until(lambda: broker.queue("orders").size() == 0)
        assert broker.queues() == ["orders"]
    assert broker.queues() == []


def test_many_queues_with_few_items_are_counted_as_any(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    first = broker.queue("a-0")
    first.push_many([1, 2])
    first.push(3, delay=3600)
    first.reserve(lease=1000)
    item = raw.find_one({"q": "a-0", "reserved": False})
    yesterday = (datetime.now(UTC) - timedelta(days=1)).replace(microsecond=0)
    names = [f"a-{number}" for number in range(1, 300)]
    raw.insert_many({**item, "_id": ObjectId(), "q": name, "when": yesterday} for name in names)
    broker.queue("b-0").push_many([1, 2, 3], sequence="one")
    broker.queue("b-1").push_many(range(3_000))
    found = read(api)
    assert len(found) == 302
    for name, expected in (("a-0", [1, 1, 1, 0]), ("a-7", [1, 0, 0, 0]), ("b-0", [1, 0, 0, 2])):
        assert numbers(found[name], "ready", "scheduled", "reserved", "blocked") == expected, name
    assert datetime.fromisoformat(found["a-7"]["oldest_due"]) == yesterday
    assert found["a-0"]["oldest_due"] == read(api, "a-0")["a-0"]["oldest_due"]


def test_empty_queues_with_settings_counters_or_bindings_are_listed(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("with-settings").configure(lease=5)
    broker.queue("with-counters").push(1)
    broker.queue("with-counters").pop()
    broker.bind("topic", "bound")
    broker.stats()
    assert list(read(api)) == ["bound", "with-counters", "with-settings"]


def test_names_and_settings_of_other_programs_do_not_hide_the_rest(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    raw.insert_one({"q": "$where", "when": LONG_AGO})
    raw.insert_one({"q": 7, "when": LONG_AGO})
    raw.insert_one({"_id": "queue:orders", "settings": {"lease": "soon"}})
    assert {name: state["ready"] for name, state in read(api).items()} == {"$where": 1, "orders": 1}


def test_a_count_above_its_limit_says_at_least(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(30))
    found = read(api, budget=1)["orders"]
    # All that was counted was ready.
    assert numbers(found, "ready", "expired", "scheduled") == ["11 or more", "0 or more", 0]


@pytest.mark.parametrize(
    "name, near",
    [("order", "'orders-1'"), ("orders-1.daed", "'orders-1'"), ("orders-2", "'orders-1'"), ("zzz", "no queue in it")],
)
def test_an_unknown_queue_is_an_error_that_names_the_nearest(
    api: Api, broker: mongoq.Broker, name: str, near: str
) -> None:
    broker.queue("orders-1").push(1)
    answer = api.get("/api/queues", queue=name)
    assert answer.status_code == 404
    assert near in answer.json()["detail"]


def test_the_nearest_of_thousands_of_names_is_suggested(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("shop.orders").push(1)
    item = raw.find_one({"q": "shop.orders"})
    raw.insert_many({**item, "_id": ObjectId(), "q": f"shop.of-customer-{number}"} for number in range(3_000))
    for name in ("shop.oders", "shop.ordesr", "shop.Orders", "shop.orders-", "orders"):
        assert "'shop.orders'" in api.get("/api/queues", queue=name).json()["detail"]


def test_a_queue_is_known_by_any_trace_of_it(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("held").push(1)
    broker.queue("remembered").push(1, id=ObjectId())
    broker.queue("remembered").pop()
    broker.queue("configured").configure(lease=5)
    broker.bind("topic", "bound")
    broker.queue("dying", dead="grave").configure(lease=5)
    known = ["held", "held.dead", "remembered", "configured", "bound", "topic", "dying", "grave"]
    assert list(read(api, *known)) == sorted(known)


# --- what it costs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep(client: MongoClient[Any], module_database: str) -> Iterator[mongoq.Broker]:
    """60 queues; one of them has thousands of items in each state and each of three priorities."""
    with mongoq.Broker(client[module_database]["mongoq"]) as broker:
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


@pytest.fixture
def examined(deep: mongoq.Broker, client: MongoClient[Any]) -> Iterator[Any]:
    """Counts the documents and keys that the commands of this test examine, by the profiler of the server."""
    database = client[deep.namespace.partition(".")[0]]
    database.drop_collection("system.profile")
    database.command("profile", 2)

    def count() -> tuple[int, ...]:
        database.command("profile", 0)
        entries = list(database["system.profile"].find({"ns": deep.namespace}))
        assert entries, "nothing was profiled"
        assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
        return tuple(sum(entry.get(f"{what}Examined", 0) for entry in entries) for what in ("docs", "keys"))

    yield count
    database.command("profile", 0)


def test_a_read_of_all_queues_examines_no_more_than_its_budget(
    deep: mongoq.Broker, open_app: Open, examined: Any
) -> None:
    found = read(open_app(deep), budget=2_400)
    assert list(found) == QUEUES
    documents, keys = examined()
    # Beside the counted items there are the control documents of the queues.
    assert documents <= 2_400 + 4 * len(QUEUES)
    assert keys <= 12 * 2_400
    assert numbers(found[QUEUES[0]], "ready") == numbers(found[QUEUES[1]], "ready") == ["20 or more"]


def test_a_read_of_one_queue_examines_no_more_than_its_budget(
    deep: mongoq.Broker, open_app: Open, examined: Any
) -> None:
    found = read(open_app(deep), QUEUES[0], budget=1_000)[QUEUES[0]]
    documents, keys = examined()
    assert documents <= 1_000 + 10 + len(QUEUES)  # the first item of each queue: error queues are found by them
    assert keys <= 12 * 1_000
    assert {"ready", "scheduled"} <= set(found["at_least"])
