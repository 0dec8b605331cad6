"""The plans of the commands that the product really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandStartedEvent

import mongoq
from tests.integration.commands import Commands, Plan, explain, listened_to

DEPTH = 2_000
PRIORITIES = range(-5, 5)


class Deep:
    """A queue with thousands of scheduled and of processed items of ten priorities, whose commands are explained."""

    def __init__(self, broker: mongoq.Broker, commands: Commands, raw: Any) -> None:
        self.broker, self.queue, self.raw = broker, broker.queue("orders"), raw
        self._commands = commands
        broker.ensure_indexes()
        now = datetime.now(UTC)
        raw.insert_many([envelope(state, n, now) for state in ("scheduled", "processed") for n in range(DEPTH)])

    def plan(self, name: str) -> Plan:
        """Explain the last command of this name."""
        return explain(self.raw, self._commands.last(name))


def envelope(state: str, n: int, now: datetime) -> dict[str, Any]:
    document = {"_id": ObjectId(), "q": "orders", "payload": n, "priority": PRIORITIES[n % 10], "attempts": 0}
    document["reserved"] = False
    if state == "scheduled":
        document["when"] = now + timedelta(hours=1, milliseconds=n)
    else:
        document |= {"processed": now - timedelta(milliseconds=n), "expires": now + timedelta(days=1)}
    return document


@pytest.fixture
def deep(uri: str, database: str, raw: Any) -> Iterator[Deep]:
    with listened_to(uri, database) as (broker, commands):
        yield Deep(broker, commands, raw)


def test_reserve_examines_one_key_for_each_priority_in_use(deep: Deep) -> None:
    """Of each priority that only waits it passes one key, and the first key of the item's priority is the one."""
    for priority, most in ((-5, 1), (4, len(PRIORITIES) + 1)):
        id = deep.queue.push("ready", priority=priority)
        item = deep.queue.reserve()
        assert item is not None
        plan = deep.plan("findAndModify")
        deep.queue.release(item)
        plan = deep.plan("findAndModify")
        assert item.id == id
        assert plan.stages == ["UPDATE", "LIMIT", "FETCH", "IXSCAN"]
        assert plan.keys <= most
        assert plan.documents == 1
        deep.queue.remove(id)
    assert deep.queue.reserve() is None
    plan = deep.plan("findAndModify")
    assert "SORT" not in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0


@pytest.mark.parametrize("history", [None, 60])
def test_pop_examines_one_key(deep: Deep, history: float | None) -> None:
    deep.queue.configure(history=history)
    deep.queue.push_many(["first", "second"], priority=-5)
    assert deep.queue.pop() is not None
    plan = deep.plan("findAndModify")
    assert plan.stages == ["DELETE" if history is None else "UPDATE", "LIMIT", "FETCH", "IXSCAN"]
    assert (plan.keys, plan.documents) == (1, 1)


def test_peek_reads_no_more_than_it_returns(deep: Deep) -> None:
    deep.queue.push_many(range(3))
    for state in ("ready", "scheduled", "processed"):
        assert deep.queue.peek(3, state=state)  # type: ignore[arg-type]
        plan = deep.plan("find")
        assert plan.stages == ["LIMIT", "FETCH", "IXSCAN"]
        assert plan.keys <= 3 + len(PRIORITIES) + 1


def test_next_when_and_queues_look_at_one_key_each_and_counting_leaves_history_alone(deep: Deep) -> None:
    assert deep.queue.next_when() is not None
    plan = deep.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= len(PRIORITIES) + 1
    assert plan.documents == 0
    assert deep.broker.queues() == ["orders"]
    plan = deep.plan("aggregate")
    assert "DISTINCT_SCAN" in plan.stages
    assert plan.keys <= 2
    assert deep.queue.counts().scheduled == DEPTH
    plan = deep.plan("aggregate")
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= DEPTH + 1


def test_settling_goes_by_the_id(deep: Deep) -> None:
    deep.queue.push("first", priority=-5)
    item = deep.queue.reserve()
    assert item is not None
    deep.queue.rollback(item)
    plan = deep.plan("update")
    assert plan.stages[:2] == ["UPDATE", "IDHACK"] or plan.keys <= 1


def test_a_page_of_history_costs_a_page_and_a_replay_what_it_copies(deep: Deep) -> None:
    for where in (None, {"$gte": 0}):
        pages = deep.queue.history(where=where, page=50)
        for _ in range(1000):
            next(pages)
        plan = deep.plan("find")
        assert not {"SORT", "COLLSCAN"} & set(plan.stages)
        assert plan.keys <= 57
        assert plan.documents <= 57
    since = datetime.now(UTC) - timedelta(days=1)
    assert deep.queue.replay(to="copies", since=since, limit=200, page=50).pushed == 200
    plan = deep.plan("find")
    assert not {"SORT", "COLLSCAN"} & set(plan.stages)
    assert plan.keys <= 57
    ids = [item.id for item in deep.queue.peek(20, state="processed")]
    assert deep.queue.replay(to="chosen", ids=ids).pushed == 20
    plan = deep.plan("find")
    assert "IXSCAN" in plan.stages
    assert plan.documents <= 20


def test_a_page_of_live_items_costs_a_page(deep: Deep) -> None:
    deep.queue.push_many(range(1000))
    for state in ("ready", None):
        pages = deep.queue.history(state=state, where={"$gte": 0}, page=50)  # type: ignore[arg-type]
        for _ in range(900):
            next(pages)
        plan = deep.plan("find")
        assert not {"SORT", "COLLSCAN"} & set(plan.stages)
        assert plan.keys <= 140
        assert plan.documents <= 140


def test_depths_come_from_the_index_of_live_items(deep: Deep) -> None:
    assert deep.broker.stats()["orders"].counts.scheduled == DEPTH
    plan = deep.plan("aggregate")
    assert "'indexName': 'mongoq1_claim'" in plan.text
    assert "'indexName': 'mongoq1_sequence'" in plan.text  # of blocked items
    assert "COLLSCAN" not in plan.text


class Recorder(Commands):
    """Keeps the last command of each name, for test_batch_plans and test_fast_claims."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: dict[str, Any] = {}

    def started(self, event: CommandStartedEvent) -> None:
        self.commands[event.command_name] = dict(event.command)


class Watched:
    """A queue whose commands can be explained, for the same."""

    def __init__(self, uri: str, database: str) -> None:
        self.recorder = Recorder()
        self.client: MongoClient[Any] = MongoClient(uri, event_listeners=[self.recorder], tz_aware=True)
        self.collection = self.client[database]["mongoq"]
        self.broker = mongoq.Broker(self.collection)
        self.queue = self.broker.queue("orders")

    def plan(self, name: str) -> Plan:
        return explain(self.collection, self.recorder.commands[name])


_envelope = envelope
