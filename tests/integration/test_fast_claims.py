"""Claims that go by lower bounds: what is put before the place where they begin is found all the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from bson.max_key import MaxKey
from pymongo import MongoClient, WriteConcern

import mongoq
from tests.integration.commands import Commands, explain, listened_to
from tests.waiting import until

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Watched:
    """The queue, as one process has it, and what that sends."""

    broker: mongoq.Broker
    commands: Commands

    @property
    def queue(self) -> Any:
        return self.broker.queue("orders", max_retries=None)

    def goes_by_bounds(self) -> bool:
        """Make a claim, and tell whether it began at lower bounds."""
        item = self.queue.reserve()
        if item is not None:
            self.queue.release(item)
        return "$gte" in str(self.commands.last("findAndModify")["query"])


@pytest.fixture
def open_queue(uri: str, database: str) -> Iterator[Callable[[], Watched]]:
    """Opens the queue, as one more process would."""
    with ExitStack() as stack:
        yield lambda: Watched(*stack.enter_context(listened_to(uri, database)))


@pytest.fixture
def fast(open_queue: Callable[[], Watched], claims_go_by_bounds: None) -> Watched:
    """An empty queue whose claims go by lower bounds by now."""
    watched = open_queue()
    watched.queue.push("first")
    until(watched.goes_by_bounds)
    watched.queue.pop()
    return watched


TAKE: dict[str, Callable[[Any], Any]] = {
    "reserve": lambda queue: queue.reserve(),
    "pop": lambda queue: queue.pop(),
    "reserve_many": lambda queue: next(iter(queue.reserve_many(5)), None),
}


def back_dated(watched: Watched) -> Any:
    return watched.queue.push("x", when=datetime.now(UTC) - HOUR)


def of_a_new_priority(watched: Watched) -> Any:
    return watched.queue.push("x", priority=-9)


def of_a_new_priority_behind(watched: Watched) -> Any:
    return watched.queue.push("x", priority=9)


def several_back_dated(watched: Watched) -> Any:
    (id,) = watched.queue.push_many(["x"], when=datetime.now(UTC) - HOUR)
    return id


def moved(watched: Watched) -> Any:
    source = watched.broker.queue("source")
    id = source.push("x", priority=-8)
    source.move(source.reserve(), "orders")
    return id


def replayed(watched: Watched) -> Any:
    source = watched.broker.queue("source", history=3600)
    source.push("x", priority=-7)
    source.pop()
    source.replay(to="orders", limit=1)
    return None


def test_what_this_process_puts_before_the_bounds_is_found_at_once(fast: Watched) -> None:
    queue = fast.queue
    ways = (back_dated, several_back_dated, of_a_new_priority, of_a_new_priority_behind, moved, replayed)
    for put, take in [*((put, "reserve") for put in ways), (back_dated, "pop"), (back_dated, "reserve_many")]:
        queue.reserve()  # the bounds have just been refreshed
        id = put(fast)
        item = TAKE[take](queue)
        assert item is not None, (put, take)
        assert id in (item.id, None)
        if take == "pop":
            continue
        queue.release(item)
        (again,) = queue.reserve_many(1)
        queue.release_many([again])
        queue.commit(queue.reserve())


def test_what_another_client_puts_before_the_bounds_is_found_by_a_later_claim(
    fast: Watched, open_queue: Callable[[], Watched]
) -> None:
    queue, other = fast.queue, open_queue()
    for put, take in ((back_dated, "reserve"), (of_a_new_priority, "pop"), (of_a_new_priority_behind, "reserve_many")):
        id = put(other)
        item = until(partial(TAKE[take], queue))
        assert item.id == id, (put, take)
        if take != "pop":
            queue.commit(item)
    id = other.queue.push("now")  # is found at once, whoever made it
    item = queue.reserve()
    assert item.id == id
    queue.commit(item)
    id = other.queue.push("left behind")
    assert other.queue.reserve(lease=0.05) is not None
    lapsed = until(queue.reserve)
    assert (lapsed.id, lapsed.attempts) == (id, 2)
    queue.commit(lapsed)
    urgent = other.queue.push("urgent", priority=-5)

    def is_found_while_others_keep_coming() -> bool:
        queue.push("x")
        return bool(queue.reserve().id == urgent)

    until(is_found_while_others_keep_coming)


def test_claims_keep_the_order_without_sorting_and_the_end_of_a_priority_is_no_item(fast: Watched, raw: Any) -> None:
    queue, hour_ago, wanted = fast.queue, datetime.now(UTC) - HOUR, []
    for priority in (-1, 0, 1):
        wanted += [queue.push("x", priority=priority, when=hour_ago) for _ in range(3)]
        wanted += queue.push_many(["x"] * 3, priority=priority, when=hour_ago + timedelta(minutes=1))
    got = [queue.reserve().id for _ in range(4)]
    plans = [explain(raw, fast.commands.last("findAndModify"))]
    fast.commands.sent.clear()
    got += [item.id for item in queue.reserve_many(6)]
    plans += [explain(raw, command) for command in fast.commands.sent if "find" in command and "sort" in command]
    assert [plan.stages for plan in plans if {"SORT", "COLLSCAN"} & set(plan.stages)] == []
    got += [queue.pop().id for _ in range(5)]
    got += [item.id for item in queue.reserve_many(9)]
    assert got == wanted
    raw.delete_many({"q": "orders", "token": {"$exists": True}})
    end = {"_id": "end:0:orders", "q": "orders", "priority": 0, "when": MaxKey()}
    assert raw.find_one({"_id": "end:0:orders"}) == end
    assert queue.peek(5) == queue.reserve_many(5) == list(queue.history(state=None)) == []
    assert (queue.pop(), queue.next_when(), queue.size(), queue.counts().total) == (None, None, 0, 0)
    assert fast.broker.queues() == []
    assert queue.purge() == 0
    assert fast.broker.stats()["orders"].counts.total == 0


def test_nothing_is_lost_or_doubled_by_several_processes(
    open_queue: Callable[[], Watched], claims_go_by_bounds: None
) -> None:
    """Each goes by bounds and in batches or not, while pushes of all priorities and dates come in."""
    consumers, producer = [open_queue() for _ in range(3)], open_queue().queue
    pushed = [producer.push("first")]
    ready, over = threading.Barrier(4), threading.Event()

    def consume(watched: Watched, batch: int) -> list[Any]:
        queue, done = watched.queue, []
        until(watched.goes_by_bounds)
        ready.wait()
        while True:
            is_over = over.is_set()
            items = queue.reserve_many(batch) if batch else [item for item in [queue.pop()] if item is not None]
            if batch:
                queue.commit_many(items)
            done += [item.id for item in items]
            if is_over and not queue.size():
                return done

    with ThreadPoolExecutor(3) as threads:
        consuming = [threads.submit(consume, *each) for each in zip(consumers, (0, 5, 20), strict=True)]
        ready.wait()
        for n in range(20):
            when = datetime.now(UTC) - timedelta(seconds=(n % 7) * 10)
            pushed += producer.push_many(range(10), priority=(n * 7) % 13 - 6, when=when)
        over.set()
        assert Counter(id for future in consuming for id in future.result()) == Counter(pushed)


@pytest.mark.prove  # a measurement decides, and needs a machine that does little else
def test_a_queue_whose_index_is_full_of_deleted_entries_goes_by_bounds(
    open_queue: Callable[[], Watched], raw: Any, client: MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    window = "minSnapshotHistoryWindowInSeconds"
    before = client.admin.command("getParameter", 1, **{window: 1})[window]
    watched = open_queue()
    watched.queue.push("first")  # in an empty queue both ways to look for an item are slow
    hasty = raw.with_options(write_concern=WriteConcern(w=1))
    deleted = {"q": "orders", "when": datetime.now(UTC) - HOUR, "priority": 0, "attempts": 0, "reserved": False}

    def is_slow_to_walk() -> bool:
        """Leave deleted entries, again if a checkpoint came: the server skips pages that it has written so."""
        hasty.insert_many([{**deleted, "payload": "gone"} for _ in range(50_000)], ordered=False)
        hasty.delete_many({"payload": "gone"})
        return any(watched.goes_by_bounds() for _ in range(1_000))

    client.admin.command("setParameter", 1, **{window: 300})  # the server keeps the entries of deleted items
    try:
        until(is_slow_to_walk)
    finally:
        client.admin.command("setParameter", 1, **{window: before})
