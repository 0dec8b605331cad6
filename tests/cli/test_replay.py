"""Command ``replay``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Read, Run

Queue = mongoq.Queue[Any]


@pytest.fixture
def orders(broker: mongoq.Broker) -> Queue:
    """A queue with four items in its history, processed at different times."""
    queue = broker.queue("orders", history=3600)
    for n in range(4):
        queue.push({"n": n})
        queue.pop()
    return queue


def test_a_history_is_replayed_once(run: Run, read: Read, orders: Queue) -> None:
    result = run("replay", "orders", "--yes")
    assert (result.exit_code, result.stdout) == (0, "pushed 4 of 4 items of orders to orders\n")
    assert [item.payload["n"] for item in orders.peek(9)] == [0, 1, 2, 3]
    result = run("replay", "orders", "--yes")
    assert result.stdout == "pushed 0 of 4 items of orders to orders; 4 were pushed before\n"
    (again,) = read("replay", "orders", "--label", "once more", "--yes")
    assert (again["found"], again["pushed"], again["already"]) == (4, 4, 0)
    assert orders.size() == 8


def test_items_are_chosen_by_ids_filter_times_and_limit(read: Read, broker: mongoq.Broker, orders: Queue) -> None:
    items = list(orders.history())
    second = items[1].stored("processed")
    for options, chosen in (
        (["--id", str(items[2].id), "--id", str(items[0].id)], [0, 2]),
        (["--where", '{"n": {"$gt": 1}}'], [2, 3]),
        (["--limit", "1"], [0]),
        (["--since", (second + timedelta(milliseconds=1)).isoformat(), "--where", '{"n": 1}'], []),
        (["--until", second.isoformat()], [n for n in range(4) if items[n].stored("processed") < second]),
        (["--since", "1h"], [0, 1, 2, 3]),
        (["--until", "1h"], []),
    ):
        label = "".join(options)[:90]
        (would,) = read("replay", "orders", *options, "--to", "again", "--label", label, "--dry-run")
        assert (would["pushed"], would["dry_run"]) == (len(chosen), True)
        assert broker.queue("again").size() == 0
        (done,) = read("replay", "orders", *options, "--to", "again", "--label", label, "--yes")
        assert (done["pushed"], done["to"], done["dry_run"]) == (len(chosen), "again", False)
        assert [item.payload["n"] for item in broker.queue("again").peek(9)] == chosen
        broker.queue("again").purge()


def test_ids_that_are_not_in_the_history_fail(run: Run, orders: Queue) -> None:
    id = ObjectId()
    result = run("replay", "orders", "--id", str(id), "--yes")
    assert (result.exit_code, f"not in the history: {id}" in result.stdout) == (1, True)
    result = run("replay", "orders", "--id", str(id), "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["missing"]) == (1, [str(id)])


def test_bad_arguments_push_nothing(run: Run, orders: Queue) -> None:
    for options in (
        ["--id", "x"],
        ["--limit", "0"],
        ["--label", "x" * 101],
        ["--id", "0" * 24, "--where", '{"n": 1}'],
        ["--since", "1h", "--until", "2h"],
    ):
        result = run("replay", "orders", *options, "--yes")
        assert (result.exit_code, result.stdout) == (2, "")
    assert orders.size() == 0


def test_a_script_must_say_yes(run: Run, orders: Queue) -> None:
    result = run("replay", "orders", "--limit", "3")
    assert (result.exit_code, orders.size()) == (2, 0)
    assert "push copies of 3 items of orders to orders" in result.stderr


def test_an_unknown_queue_and_letters_are_errors(run: Run, orders: Queue) -> None:
    orders.push(1)
    orders.bury(orders.reserve() or pytest.fail("nothing"))
    result = run("replay", "ordres", "--yes")
    assert (result.exit_code, "'orders'" in result.stderr) == (1, True)
    result = run("replay", "orders.dead", "--yes")
    assert (result.exit_code, "holds dead letters" in result.stderr) == (2, True)


def test_a_queue_without_history_says_how_to_keep_one(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    raw = broker.queue("raw it's", lease=7)
    raw.push(1)
    raw.pop()
    line = """mongoq configure 'raw it'"'"'s' --history 7d"""
    for command in (["history", raw.name], ["replay", raw.name, "--yes"], ["replay", raw.name, "--dry-run"]):
        result = run(*command)
        assert (result.exit_code, "keeps no history" in result.stderr, line in result.stderr) == (0, True, True)
    for command in (["history", orders.name], ["history", orders.name, "--since", "1s", "--where", '{"a": 1}']):
        assert "keeps no history" not in run(*command).stderr
    assert line in run("queues").stderr
    assert run("queues", orders.name).stderr == ""
    raw.configure(history="7d")
    assert run("queues").stderr == ""
