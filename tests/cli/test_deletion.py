"""Commands ``purge``, ``remove`` and ``drop-queue``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.cli.conftest import Read, Run

Queue = mongoq.Queue[Any]


@pytest.fixture
def orders(broker: mongoq.Broker) -> Queue:
    """A queue with three ready items, one scheduled, one reserved, and two in its history."""
    queue = broker.queue("orders", history=3600)
    queue.push_many([{"n": n} for n in range(3)])
    queue.push({"n": 3}, delay=3600)
    for _ in range(2):
        queue.push({"n": -1}, priority=-5)
        queue.pop()
    queue.push({"n": 4}, priority=-5)
    queue.reserve()
    return queue


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ([], 4),
        (["--state", "reserved"], 1),
        (["--state", "processed", "--limit", "9"], 2),
        (["--where", '{"n": {"$gte": 2}}'], 2),
        (["--where", '{"n": 4}'], 0),
        (["--limit", "2"], 2),
    ],
    ids=str,
)
def test_items_are_counted_and_purged(run: Run, read: Read, orders: Queue, options: list[str], number: int) -> None:
    total = orders.size() + orders.size("processed")
    (would,) = read("purge", "orders", *options, "--dry-run")
    assert (would["count"], would["exact"]) == (number, True)
    if number:
        assert run("purge", "orders", *options).exit_code == 2
    assert orders.size() + orders.size("processed") == total
    (done,) = read("purge", "orders", *options, "--yes")
    assert done["deleted"] == number
    assert orders.size() + orders.size("processed") == total - number


def test_one_item_is_removed(run: Run, read: Read, orders: Queue) -> None:
    (item,) = orders.peek()
    assert "would delete the ready item" in run("remove", "orders", str(item.id), "--dry-run").stdout
    assert run("remove", "orders", str(item.id)).exit_code == 2
    assert read("remove", "orders", str(item.id), "--yes") == [{"queue": "orders", "id": str(item.id), "deleted": 1}]
    assert orders.get(item.id) is None
    (done,) = orders.peek(1, state="processed")
    assert run("remove", "orders", str(done.id), "--yes").stdout == f"deleted item {done.id} of orders\n"


def test_what_cannot_be_removed_is_an_error(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    (held,) = orders.peek(1, state="reserved")
    result = run("remove", "orders", str(held.id), "--yes")
    assert (result.exit_code, "is reserved until" in result.stderr) == (1, True)
    other = broker.queue("others").push(1)
    for id in (other, ObjectId()):
        result = run("remove", "orders", str(id), "--yes")
        assert (result.exit_code, f"has no item {id}" in result.stderr) == (1, True)
    assert run("remove", "orders", "x", "--yes").exit_code == 2
    assert (orders.size(), broker.queue("others").size()) == (5, 1)


def test_an_item_that_cannot_be_decoded_is_removed(run: Run, orders: Queue, raw: Any) -> None:
    id = ObjectId()
    fields = {"_id": id, "q": "orders", "payload": "XX", "when": datetime(2020, 1, 1), "priority": 0}
    raw.insert_one(RawBSONDocument(bson.encode(fields).replace(b"XX", b"\xff\xff")))
    assert run("remove", "orders", str(id), "--yes").exit_code == 0
    assert orders.size() == 5


def test_a_queue_is_dropped_with_all_that_is_stored(run: Run, read: Read, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("done", history=3600)
    queue.push(1)
    queue.pop()
    (would,) = read("drop-queue", "done", "--dry-run")
    assert would == {"would": "delete done with 0 live items and 1 item of its history", "count": 1, "exact": True}
    assert run("drop-queue", "done").exit_code == 2
    assert queue.size("processed") == 1
    assert read("drop-queue", "done", "--yes") == [{"queue": "done", "deleted": 0}]
    assert raw.count_documents({"$or": [{"q": "done"}, {"_id": {"$in": ["queue:done", "stats:done"]}}]}) == 0


def test_live_items_are_dropped_only_by_force(run: Run, orders: Queue) -> None:
    for extra in (["--yes"], ["--dry-run"]):
        result = run("drop-queue", "orders", *extra)
        assert (result.exit_code, "holds 5 live items; --force" in result.stderr) == (1, True)
    assert orders.size() == 5
    result = run("drop-queue", "orders", "--force", "--dry-run")
    assert result.stdout == "would delete orders with 5 live items and 2 items of its history\n"
    result = run("drop-queue", "orders", "--force", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted orders with 5 live items\n")
    assert orders.size() + orders.size("processed") == 0


def test_an_unknown_queue_is_an_error_with_the_nearest_names(run: Run, orders: Queue) -> None:
    for command, *rest in (["purge"], ["remove", "0" * 24], ["drop-queue", "--force"]):
        result = run(command, "ordres", *rest, "--yes")
        assert (result.exit_code, result.stdout, "'orders'" in result.stderr) == (1, "", True)
