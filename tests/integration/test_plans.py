"""The plans of the commands that the product really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent
from pymongo.write_concern import WriteConcern

import mongoq

DEPTH = 100_000
PRIORITIES = range(-5, 5)


class Recorder(CommandListener):
    """Keeps the last command of each name."""

    def __init__(self) -> None:
        self.commands: dict[str, Any] = {}

    def started(self, event: CommandStartedEvent) -> None:
        self.commands[event.command_name] = dict(event.command)

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


class Watched:
    """A queue whose commands can be explained."""

    def __init__(self, uri: str, database: str) -> None:
        self.recorder = Recorder()
        self.client: MongoClient[Any] = MongoClient(uri, event_listeners=[self.recorder], tz_aware=True)
        self.collection = self.client[database]["mongoq"]
        self.broker = mongoq.Broker(self.collection)
        self.queue = self.broker.queue("orders")

    def plan(self, name: str) -> Plan:
        command = {key: value for key, value in self.recorder.commands[name].items() if key not in IGNORED}
        command.pop("new", None) if command.get("remove") else None
        return Plan(self.collection.database.command("explain", command, verbosity="executionStats"))


IGNORED = {"lsid", "txnNumber", "$clusterTime", "$db", "writeConcern", "readConcern", "autocommit"}


class Plan:
    """What ``explain`` says: the stages in order, and what was looked at."""

    def __init__(self, answer: Any) -> None:
        stats = answer.get("executionStats") or answer["stages"][0]["$cursor"]["executionStats"]
        self.keys = stats["totalKeysExamined"]
        self.documents = stats["totalDocsExamined"]
        self.stages = list(_stages(stats["executionStages"]))


def _stages(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("stage"), str):
            yield node["stage"]
        for part in node.values():
            yield from _stages(part)
    elif isinstance(node, list):
        for part in node:
            yield from _stages(part)


@pytest.fixture(scope="module")
def deep(uri: str, client: MongoClient[Any]) -> Iterator[Watched]:
    """A queue with 100,000 scheduled and 100,000 processed items of ten priorities, and one ready item."""
    watched = Watched(uri, "test_plans")
    watched.broker.ensure_indexes()
    fast = watched.collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    for state in ("scheduled", "processed"):
        for start in range(0, DEPTH, 20_000):
            fast.insert_many([_envelope(state, n, now) for n in range(start, start + 20_000)], ordered=False)
    yield watched
    watched.client.drop_database("test_plans")
    watched.client.close()


def _envelope(state: str, n: int, now: datetime) -> dict[str, Any]:
    document = {"_id": ObjectId(), "q": "orders", "payload": n, "priority": PRIORITIES[n % 10], "attempts": 0}
    document["reserved"] = False
    if state == "scheduled":
        document["when"] = now + timedelta(hours=1, milliseconds=n)
    else:
        document |= {"processed": now - timedelta(milliseconds=n), "expires": now + timedelta(days=1)}
    return document


def test_reserve_examines_one_key_for_each_priority_in_use(deep: Watched) -> None:
    """Nothing is ready behind the priority that holds the item, so its first key is the one."""
    deep.queue.push("first", priority=-5)
    item = deep.queue.reserve()
    assert item is not None
    deep.queue.release(item)
    plan = deep.plan("findAndModify")
    assert plan.stages == ["UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert (plan.keys, plan.documents) == (1, 1)
    deep.queue.remove(item.id)


def test_reserve_passes_one_key_of_each_priority_that_only_waits(deep: Watched) -> None:
    id = deep.queue.push("last", priority=4)
    item = deep.queue.reserve()
    assert item is not None
    assert item.id == id
    deep.queue.release(item)
    plan = deep.plan("findAndModify")
    assert plan.stages == ["UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 1
    deep.queue.remove(id)


@pytest.mark.parametrize("history", [None, 60])
def test_pop_examines_one_key(deep: Watched, history: float | None) -> None:
    queue = deep.broker.queue("orders")
    queue.configure(history=history)
    queue.push("first", priority=-5)
    queue.push("second", priority=-5)
    popped = queue.pop()
    assert popped is not None
    queue.remove(popped.id)
    plan = deep.plan("findAndModify")
    assert plan.stages == ["DELETE" if history is None else "UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert (plan.keys, plan.documents) == (1, 1)
    queue.purge(state="ready")


def test_an_empty_claim_examines_a_key_for_each_priority(deep: Watched) -> None:
    assert deep.queue.reserve() is None
    plan = deep.plan("findAndModify")
    assert "SORT" not in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0


@pytest.mark.parametrize("state", ["ready", "scheduled", "processed"])
def test_peek_reads_no_more_than_it_returns(deep: Watched, state: Any) -> None:
    for n in range(3):
        deep.queue.push(n)
    assert deep.queue.peek(3, state=state)
    plan = deep.plan("find")
    assert plan.stages == ["LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= 3 + len(PRIORITIES) + 1
    deep.queue.purge(state="ready")


def test_history_reads_a_page_from_wherever_it_goes_on(deep: Watched) -> None:
    pages = deep.queue.history(page=50)
    for _ in range(1000):
        next(pages)
    plan = deep.plan("find")
    assert plan.stages == ["LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= 52


def test_next_when_looks_at_one_key_for_each_priority(deep: Watched) -> None:
    assert deep.queue.next_when() is not None
    plan = deep.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0


def test_naming_the_queues_looks_at_one_key_for_each(deep: Watched) -> None:
    assert deep.broker.queues() == ["orders"]
    plan = deep.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= 2


def test_counting_live_items_leaves_history_alone(deep: Watched) -> None:
    assert deep.queue.counts().scheduled == DEPTH
    plan = deep.plan("aggregate")
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= DEPTH + 1


def test_settling_goes_by_the_id(deep: Watched) -> None:
    deep.queue.push("first", priority=-5)
    item = deep.queue.reserve()
    assert item is not None
    deep.queue.rollback(item)
    command = deep.recorder.commands["update"]
    plan = Plan(
        deep.collection.database.command(
            "explain", {"update": "mongoq", "updates": command["updates"]}, verbosity="executionStats"
        )
    )
    assert plan.stages[:2] == ["UPDATE", "IDHACK"] or plan.keys <= 1
    deep.queue.purge(state="ready")
