"""Keys under contention, and the plan of the lookup."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mongoq
from tests.integration.commands import explain, listened_to

PAGE = Path(__file__).parents[2] / "docs" / "envelope.md"
KEPT = {"by", "hops", "missed", "once", "into", "parked"}
"""Fields that a replacing push does not touch: who had it, its rounds in a pipeline, and what is remembered."""


def test_of_many_that_push_one_key_at_once_one_item_comes(broker: mongoq.Broker, raw: Any) -> None:
    queue, ways = broker.queue("orders"), ("keep", "replace", "raise")
    queue.push("warm up")

    def push(n: int) -> Any:
        try:
            return queue.push(n, key=f"k{n % 10}", on_duplicate=ways[n % 3])  # type: ignore[arg-type]
        except mongoq.DuplicateItem as error:
            return error.item_id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(push, range(120)))
    live = {item["key"]: item["_id"] for item in raw.find({"q": "orders", "key": {"$exists": True}})}
    assert len(live) == raw.count_documents({"key": {"$exists": True}}) == 10
    assert ids == [live[f"k{n % 10}"] for n in range(120)]


def test_a_key_is_pushed_and_consumed_at_once_and_no_push_is_lost(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=60)

    def push(n: int) -> Any:
        return queue.push(n, key="k")

    def consume(_: int) -> Any:
        item = queue.reserve()
        return item and queue.commit(item)

    with ThreadPoolExecutor(6) as pool:
        pushes = [pool.submit(push, n) for n in range(60)]
        for settled in [pool.submit(consume, n) for n in range(60)]:
            settled.result()
        returned = {pushed.result() for pushed in pushes}
    there = {item.id for item in queue.history()} | {item.id for item in queue.peek(5, state=None)}
    assert returned == there


def test_the_live_item_of_a_key_is_one_look_into_its_index(uri: str, database: str, raw: Any) -> None:
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders", history=3600)
        for n in range(10):
            queue.push(n, key="k")
            queue.pop()
            queue.push(n)
        queue.push("live", key="k")
        queue.push("kept", key="k")
    plan = explain(raw, commands.last("findAndModify"))
    assert "IXSCAN" in plan.stages
    assert (plan.keys, plan.documents) == (1, 1)


def test_a_replacing_push_leaves_nothing_that_tells_of_the_item_before(broker: mongoq.Broker, raw: Any) -> None:
    """Every field of a live envelope is there before; a new one has to be removed, or named here."""
    table = PAGE.read_text("utf-8").partition("## Fields\n\n")[2].partition("\n\n")[0]
    fields = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    queue = broker.queue("orders")
    id = queue.push("old", key="k")
    in_no_sequence = {"sequence", "place", "ready_from"}  # of items with a key
    remaining = fields - {"_id", "q", "key", "when", "processed", "expires", "settled"} - in_no_sequence
    raw.update_one({"_id": id}, {"$set": dict.fromkeys(remaining, "old")})
    assert queue.push("new", key="k", on_duplicate="replace") == id
    document = raw.find_one({"_id": id})
    assert document.keys() == {"_id", "q", "key", "when", "payload", "priority", "attempts", "reserved"} | KEPT
    assert {name for name, value in document.items() if value == "old"} == KEPT
