"""Ctrl-C during a change: the command says what has been done so far, and how to go on."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import AtCommand, Run

NUMBER = 700
"""Items, more than one page of them."""


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def orders(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    return broker.queue("orders", history=3600)


@pytest.fixture
def letters(orders: mongoq.Queue[Any], raw: Any) -> mongoq.DeadQueue:
    orders.push(1)
    orders.bury(orders.reserve() or pytest.fail("nothing"))
    letter = raw.find_one({"q": "orders.dead"})
    raw.insert_many({**letter, "_id": ObjectId()} for _ in range(NUMBER - 1))
    return orders.dead


@pytest.mark.parametrize("options", [["replay"], ["move", "--to=repair"]], ids=str)
def test_a_replay_of_letters_says_how_many_were_sent(
    run: Run, letters: mongoq.DeadQueue, at_command: AtCommand, options: list[str]
) -> None:
    command, *more = options
    at_command("before", "update", press_ctrl_c, skip=1)
    result = run("dead", command, "orders", *more, "--yes")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "stopped; 500 letters sent, and maybe up to 500 more; the others are still in orders.dead" in result.stderr
    assert letters.size() == NUMBER - 500
    assert run("dead", command, "orders", *more, "--yes").exit_code == 0
    assert letters.size() == 0


@pytest.mark.parametrize("command", [["dead", "drop"], ["purge"]], ids=str)
def test_a_deletion_says_that_a_part_is_gone(
    run: Run, orders: mongoq.Queue[Any], letters: mongoq.DeadQueue, at_command: AtCommand, command: list[str]
) -> None:
    orders.push("waits")
    at_command("after", "delete", press_ctrl_c, skip=1)  # the first one is for blocked items
    result = run(*command, "orders", "--yes")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "stopped; what was deleted by now is gone, and the rest is still there; run the command" in result.stderr
    assert 0 in (orders.size(), letters.size())


def test_a_replay_of_history_says_how_many_copies_were_pushed(
    run: Run, orders: mongoq.Queue[Any], broker: mongoq.Broker, at_command: AtCommand
) -> None:
    orders.push_many(range(NUMBER))
    orders.commit_many(orders.reserve_many(NUMBER))
    at_command("before", "insert", press_ctrl_c, skip=1)
    result = run("replay", "orders", "--to=again", "--yes")
    assert (result.exit_code, result.stdout) == (130, "")
    number = broker.queue("again").size()
    assert 0 < number < NUMBER
    sentence = f"stopped; {number} items pushed, and maybe a batch under way; the same command goes on"
    assert sentence in result.stderr
    assert f"pushed {NUMBER - number} of {NUMBER}" in run("replay", "orders", "--to=again", "--yes").stdout
