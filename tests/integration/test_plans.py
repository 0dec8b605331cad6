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

CROWD = 100_000
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
        sent = {key: value for key, value in self.recorder.commands[name].items() if key not in IGNORED}
        sent.pop("new", None) if sent.get("remove") else None
        return Plan(self.collection.database.command("explain", sent, verbosity="executionStats"))


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
def crowded(uri: str, client: MongoClient[Any]) -> Iterator[Watched]:
    """A queue with 100,000 scheduled and 100,000 processed items of ten priorities, and one ready item."""
    watched = Watched(uri, "test_plans")
    watched.broker.ensure_indexes()
    fast = watched.collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    for state in ("scheduled", "processed"):
        for start in range(0, CROWD, 20_000):
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


def test_reserve_examines_one_key_for_each_priority_in_use(crowded: Watched) -> None:
    """Nothing is ready behind the priority that holds the item, so its first key is the one."""
    crowded.queue.push("first", priority=-5)
    item = crowded.queue.reserve()
    assert item is not None
    crowded.queue.release(item)
    plan = crowded.plan("findAndModify")
    assert plan.stages == ["UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert (plan.keys, plan.documents) == (1, 1)
    crowded.queue.remove(item.id)


def test_reserve_passes_one_key_of_each_priority_that_only_waits(crowded: Watched) -> None:
    id = crowded.queue.push("last", priority=4)
    item = crowded.queue.reserve()
    assert item is not None
    assert item.id == id
    crowded.queue.release(item)
    plan = crowded.plan("findAndModify")
    assert plan.stages == ["UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 1
    crowded.queue.remove(id)


@pytest.mark.parametrize("history", [None, 60])
def test_pop_examines_one_key(crowded: Watched, history: float | None) -> None:
    queue = crowded.broker.queue("orders")
    queue.configure(history=history)
    queue.push("first", priority=-5)
    queue.push("second", priority=-5)
    popped = queue.pop()
    assert popped is not None
    queue.remove(popped.id)
    plan = crowded.plan("findAndModify")
    assert plan.stages == ["DELETE" if history is None else "UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert (plan.keys, plan.documents) == (1, 1)
    queue.purge(state="ready")


def test_an_empty_claim_examines_a_key_for_each_priority(crowded: Watched) -> None:
    assert crowded.queue.reserve() is None
    plan = crowded.plan("findAndModify")
    assert "SORT" not in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0


@pytest.mark.parametrize("state", ["ready", "scheduled", "processed"])
def test_peek_reads_no_more_than_it_returns(crowded: Watched, state: Any) -> None:
    for n in range(3):
        crowded.queue.push(n)
    assert crowded.queue.peek(3, state=state)
    plan = crowded.plan("find")
    assert plan.stages == ["LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= 3 + len(PRIORITIES) + 1
    crowded.queue.purge(state="ready")


def test_history_reads_a_page_from_wherever_it_goes_on(crowded: Watched) -> None:
    pages = crowded.queue.history(page=50)
    for _ in range(1000):
        next(pages)
    plan = crowded.plan("find")
    assert plan.stages == ["LIMIT", "FETCH", "IXSCAN"]
    assert plan.keys <= 52


def test_next_when_looks_at_one_key_for_each_priority(crowded: Watched) -> None:
    assert crowded.queue.next_when() is not None
    plan = crowded.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0


def test_naming_the_queues_looks_at_one_key_for_each(crowded: Watched) -> None:
    assert crowded.broker.queues() == ["orders"]
    plan = crowded.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= 2


def test_counting_live_items_leaves_history_alone(crowded: Watched) -> None:
    assert crowded.queue.counts().scheduled == CROWD
    plan = crowded.plan("aggregate")
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= CROWD + 1


def test_settling_goes_by_the_id(crowded: Watched) -> None:
    crowded.queue.push("first", priority=-5)
    item = crowded.queue.reserve()
    assert item is not None
    crowded.queue.rollback(item)
    sent = crowded.recorder.commands["update"]
    plan = Plan(
        crowded.collection.database.command(
            "explain", {"update": "mongoq", "updates": sent["updates"]}, verbosity="executionStats"
        )
    )
    assert plan.stages[:2] == ["UPDATE", "IDHACK"] or plan.keys <= 1
    crowded.queue.purge(state="ready")
