"""Confirmation of changes, by a person at a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId
from click.testing import Result

import mongoq
from mongoq.cli.change import dead, deletion, replay

Run = Callable[..., Result]


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("", 1, 2)])
def test_a_person_is_asked(
    environment: dict[str, str], broker: mongoq.Broker, answer: str, code: int, left: int
) -> None:
    broker.queue("orders").push_many(range(2))
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [sys.executable, "-m", "mongoq", "purge", "orders", "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, text=True, stdin=end, capture_output=True, check=False
    )
    os.close(end)
    os.close(terminal)
    assert done.returncode == code
    assert "Delete 2 items of orders? [y/N]" in done.stderr
    # Questions go to stderr: stdout holds JSON alone.
    assert done.stdout == ('{"queue": "orders", "state": null, "deleted": 2}\n' if code == 0 else "")
    assert broker.queue("orders").size() == left


CHANGES: list[tuple[Any, list[str]]] = [
    (deletion, ["purge", "orders"]),
    (replay, ["replay", "orders"]),
    (dead, ["dead", "replay", "orders"]),
    (dead, ["dead", "drop", "orders"]),
]


@pytest.mark.parametrize(("module", "arguments"), CHANGES, ids=["purge", "replay", "dead replay", "dead drop"])
@pytest.mark.parametrize("yes", [[], ["--yes"]], ids=["no answer", "yes"])
def test_nobody_has_agreed_to_a_change_of_items_that_come_after_a_count_of_none(
    run: Run,
    broker: mongoq.Broker,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    arguments: list[str],
    yes: list[str],
) -> None:
    orders = broker.queue("orders", history=3600, max_retries=0)
    orders.configure(history=3600)
    count = module.count_items

    def count_before_more_come(*args: Any, **options: Any) -> Any:
        counted = count(*args, **options)
        orders.push_many(["kept", "dead", "waits"])
        orders.pop()
        orders.rollback(orders.reserve() or pytest.fail("nothing"))
        return counted

    monkeypatch.setattr(module, "count_items", count_before_more_come)
    result = run(*arguments, *yes)
    assert result.exit_code == 0
    before = (1, 1, 1)
    after = orders.size(), orders.size("processed"), orders.dead.size()
    assert (after == before) == (not yes), result.stdout
    assert yes or re.search(r"(sent|deleted|pushed) 0 ", result.stdout)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_letters_named_by_ids_are_explained_though_none_of_them_can_go(
    run: Run, broker: mongoq.Broker, options: list[str]
) -> None:
    orders = broker.queue("orders", max_retries=0)
    orders.push(1)
    orders.rollback(orders.reserve() or pytest.fail("nothing"))
    letter, unknown = orders.dead.reserve() or pytest.fail("nothing"), ObjectId()
    result = run("dead", "replay", "orders", f"--id={letter.id}", f"--id={unknown}", *options)
    assert result.exit_code == 1
    assert str(unknown) in result.stdout
    assert str(letter.id) not in result.stdout
    assert "left out 1 letter: reserved by a caller" in result.stdout or json.loads(result.stdout)["skipped"] == 1
