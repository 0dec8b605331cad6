"""Commands ``pause``, ``resume`` and ``configure``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.cli.conftest import Read, Run

Queue = mongoq.Queue[Any]


@pytest.fixture
def orders(broker: mongoq.Broker) -> Queue:
    queue = broker.queue("orders", lease=60)
    queue.push_many(range(3))
    return queue


UNLIMITED = {"max_running": None, "rate": None, "burst": None}


def test_a_queue_is_paused_and_resumed(run: Run, read: Read, orders: Queue) -> None:
    assert read("pause", "orders", "--dry-run")[0]["count"] == 3
    assert not orders.is_paused()
    result = run("pause", "orders", "--yes")
    assert (result.exit_code, result.stdout, orders.is_paused()) == (0, "orders is now paused\n", True)
    assert run("pause", "orders").stdout == "orders was paused\n"
    assert read("resume", "orders", "--yes") == [{"queue": "orders", "paused": False, "was_paused": True}]
    assert not orders.is_paused()
    assert run("resume", "orders").stdout == "orders was not paused\n"


def test_settings_are_changed_and_shown_before_and_after(run: Run, read: Read, orders: Queue) -> None:
    options = ["--history", "7d", "--max-retries", "3", "--dead", "graves"]
    change = "change orders: history none -> 7d, max-retries 10 -> 3, dead orders.dead -> graves"
    assert read("configure", "orders", *options, "--dry-run")[0]["would"] == change
    orders.is_paused()
    assert orders.settings.history is None
    (done,) = read("configure", "orders", *options, "--yes")
    same = {"lease": 60.0, "max_in_sequence": 1, "on_expired": "history", "on_dead": "continue", **UNLIMITED}
    before = {**same, "history": None, "max_retries": 10, "dead": "orders.dead"}
    after = {**same, "history": 604_800.0, "max_retries": 3, "dead": "graves"}
    assert done == {"queue": "orders", "before": before, "after": after}
    orders.is_paused()
    settings = orders.settings
    assert (settings.history, settings.dead) == (timedelta(days=7), "graves")
    lines = run("configure", "orders", "--dead", "none", "--history", "none", "--lease", "1.5s", "--yes").stdout
    rows = [line.split() for line in lines.splitlines() if line.strip(" ─")]
    assert rows == [
        ["setting", "before", "after"],
        ["lease", "1m", "1500ms"],
        ["history", "7d", "none"],
        ["max-retries", "3", "none"],
        ["dead", "graves", "none"],
        *([name, "none", "none"] for name in ("max-running", "rate", "burst")),
        ["max-in-sequence", "1", "1"],
        ["on-expired", "history", "history"],
        ["on-dead", "continue", "continue"],
    ]
    assert run("configure", "orders", "--max-in-sequence", "3", "--yes").exit_code == 0
    orders.is_paused()
    assert orders.settings.max_in_sequence == 3


def test_limits_are_changed(run: Run, read: Read, orders: Queue) -> None:
    result = run("configure", "orders", "--burst", "2", "--yes")
    assert (result.exit_code, "burst" in result.stderr) == (2, True)
    assert run("configure", "orders", "--rate", "5/x", "--yes").exit_code == 2
    for option in ("--max-running", "--burst"):
        result = run("configure", "orders", option, "0", "--yes")
        assert (result.exit_code, "'0' is no whole number from 1 up, and not none" in result.stderr) == (2, True)
    assert run("configure", "orders", "--max-retries", "0", "--yes").exit_code == 0
    (done,) = read("configure", "orders", "--rate", "100/m", "--burst", "2", "--max-running", "8", "--yes")
    assert {name: done["after"][name] for name in UNLIMITED} == {"max_running": 8, "rate": "100/m", "burst": 2}
    assert {name: read("settings", "orders")[0][name] for name in UNLIMITED} == {
        "max_running": 8,
        "rate": "100/m",
        "burst": 2,
    }
    (done,) = read("configure", "orders", "--rate", "none", "--max-running", "none", "--burst", "none", "--yes")
    assert {name: done["after"][name] for name in UNLIMITED} == UNLIMITED


def test_a_history_is_changed_for_kept_items_too(read: Read, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("kept", history=3600)
    queue.push(1)
    queue.pop()
    processed = raw.find_one({"q": "kept"})["processed"]
    (would,) = read("configure", "kept", "--history", "2h", "--existing", "--dry-run")
    assert (would["count"], "the history of 1 item with it" in would["would"]) == (1, True)
    assert raw.find_one({"q": "kept"})["expires"] == processed + timedelta(hours=1)
    read("configure", "kept", "--history", "2h", "--existing", "--yes")
    assert raw.find_one({"q": "kept"})["expires"] == processed + timedelta(hours=2)


def test_a_new_queue_is_configured_on_request(run: Run, broker: mongoq.Broker) -> None:
    assert run("configure", "later", "--history", "1h", "--yes").exit_code == 1
    assert run("configure", "later", "--history", "1h", "--yes", "--new").exit_code == 0
    queue = broker.queue("later")
    queue.is_paused()
    assert queue.settings.history == timedelta(hours=1)


def test_a_queue_can_be_paused_before_its_first_item(run: Run, read: Read, broker: mongoq.Broker) -> None:
    for command, is_hinted in (("pause", True), ("resume", False)):
        result = run(command, "later", "--yes")
        assert (result.exit_code, "--new" in result.stderr) == (1, is_hinted)
    assert read("pause", "later", "--yes", "--new") == [{"queue": "later", "paused": True, "was_paused": False}]
    broker.queue("later").push(1)
    assert broker.queue("later").reserve() is None
    assert run("resume", "later", "--yes").stdout == "later is now not paused\n"


def test_bad_settings_change_nothing(run: Run, orders: Queue) -> None:
    before = orders.settings
    for options in (
        [],
        ["--lease", "none"],
        ["--lease", "soon"],
        ["--max-retries", "-1"],
        ["--existing", "--lease", "5s"],
        ["--lease", "0s"],
        ["--history", "99999d"],
        ["--dead", "orders"],
        ["--dead", "none", "--max-retries", "3"],
        ["--on-expired", "nowhere"],
        ["--on-dead", "stop"],
    ):
        for extra in ("--yes", "--dry-run"):
            result = run("configure", "orders", *options, extra)
            assert (result.exit_code, result.stdout) == (2, ""), options
    orders.is_paused()
    assert orders.settings == before


def test_a_change_needs_a_known_queue_and_a_yes(run: Run, orders: Queue) -> None:
    for arguments in (["pause"], ["configure", "--lease", "5s"]):
        result = run(arguments[0], "orders", *arguments[1:])
        assert (result.exit_code, "--yes" in result.stderr) == (2, True)
        result = run(arguments[0], "ordres", *arguments[1:], "--yes")
        assert (result.exit_code, "'orders'" in result.stderr) == (1, True)
    orders.is_paused()
    assert (orders.is_paused(), orders.settings.lease) == (False, timedelta(seconds=60))


def test_where_items_go_is_a_setting(run: Run, read: Read, orders: Queue) -> None:
    for name, before, after in (("on-expired", "history", "dead"), ("on-dead", "continue", "hold")):
        change = f"change orders: {name} {before} -> {after}"
        assert read("configure", "orders", f"--{name}", after, "--dry-run")[0]["would"] == change
        assert run("configure", "orders", f"--{name}", after, "--yes").exit_code == 0
        assert name in run("settings", "orders").stdout
    orders.is_paused()
    assert (orders.settings.on_expired, orders.settings.on_dead) == ("dead", "hold")


def test_sequences_are_repaired(run: Run, read: Read, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders")
    first, second, _ = orders.push_many(range(3), sequence="a")
    assert run("repair-sequences", "orders").stdout == "the sequences of orders are in order\n"
    raw.delete_one({"_id": first})
    assert run("repair-sequences", "orders").stdout == "1 item of orders may be claimed now, or must wait again\n"
    assert [item.id for item in orders.peek()] == [second]
    raw.delete_one({"_id": second})
    assert read("repair-sequences", "orders") == [{"queue": "orders", "promoted": 1}]
    assert run("repair-sequences", "oders").exit_code == 1
