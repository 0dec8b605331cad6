"""Confirmation of changes, by a person at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Run
from tests.waiting import CLOCKS, until

HOSTILE = "orders\x1b[31m"


def let_clocks_agree() -> None:
    """Wait until what is there is older than clocks may differ: what came right before a question stays."""
    asked = datetime.now(UTC)
    until(lambda: datetime.now(UTC) > asked + CLOCKS)


def purge_at_a_terminal(environment: dict[str, str], answer: str) -> subprocess.CompletedProcess[str]:
    let_clocks_agree()
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [sys.executable, "-m", "mongoq", "purge", HOSTILE, "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, text=True, stdin=end, capture_output=True, check=False
    )
    os.close(end)
    os.close(terminal)
    assert "Delete 2 items of orders\\x1b[31m? [y/N]" in done.stderr
    return done


def answer_at_a_terminal(environment: dict[str, str], command: str, meanwhile: Callable[[], object]) -> tuple[int, str]:
    """Answer the question of a command by yes, after something has happened; return the exit code and the question."""
    let_clocks_agree()
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "mongoq", *command.split()]
    with subprocess.Popen(line, env={**os.environ, **environment}, stdin=end, stdout=-1, stderr=-1, text=True) as asked:
        assert asked.stderr is not None
        question = ""
        while not question.endswith("[y/N]: "):
            question += asked.stderr.read(1) or pytest.fail(question)
        meanwhile()
        os.write(terminal, b"y\n")
        asked.communicate()
    os.close(end)
    os.close(terminal)
    return asked.returncode, question


def test_a_person_is_asked(environment: dict[str, str], broker: mongoq.Broker) -> None:
    queue = broker.queue(HOSTILE)
    queue.push_many(range(2))
    declined = purge_at_a_terminal(environment, "")
    assert (declined.returncode, declined.stdout, queue.size()) == (1, "", 2)
    assert declined.stderr.endswith("nothing was changed\n")
    agreed = purge_at_a_terminal(environment, "y")
    # Questions go to stderr: stdout holds JSON alone.
    assert json.loads(agreed.stdout) == {"queue": HOSTILE, "state": None, "deleted": 2}
    assert (agreed.returncode, queue.size()) == (0, 0)


@pytest.mark.parametrize("command", ["dead drop", "dead replay", "purge", "purge --state processed", "replay --to new"])
def test_what_comes_while_a_person_thinks_stays(
    environment: dict[str, str], broker: mongoq.Broker, command: str
) -> None:
    queue = broker.queue("orders", history=3600, on_dead="hold")
    verb = command.partition(" ")[0]

    def add(number: int) -> None:
        for each in range(number):
            queue.push(each, sequence=None if verb != "dead" else str(ObjectId()))
        if command != "purge":
            for item in queue.reserve_many(9):
                queue.bury(item, reason="no city") if verb == "dead" else queue.commit(item)

    add(2)
    if command == "dead drop":
        [held] = [item.sequence for item in queue.dead.peek(1)]
        first = queue.push("waits", sequence=held)

    def add_while_a_person_thinks() -> None:
        let_clocks_agree()
        add(3)

    exit_code, question = answer_at_a_terminal(environment, f"{command} orders", add_while_a_person_thinks)
    assert (" 2 " in question, exit_code) == (True, 0)
    if command == "dead drop":
        assert f"; without them go on sequence {held} of orders (1 item, first {first})? " in question
    left = {"dead": queue.dead.size, "purge": queue.size, "replay": broker.queue("new").size}[verb]
    assert (left("processed") if "processed" in command else left()) == (2 if verb == "replay" else 3)


def test_a_queue_that_gets_items_while_a_person_thinks_is_not_dropped(
    environment: dict[str, str], broker: mongoq.Broker
) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push_many([1, 2])
    queue.reserve(lease=60)
    queue.push(3, delay=3600)
    exit_code, question = answer_at_a_terminal(environment, "drop-queue orders --force", lambda: queue.push(4))
    assert ("with 3 live items" in question, exit_code) == (True, 1)
    assert [item.payload for item in queue.peek(9)] == [4]
    assert answer_at_a_terminal(environment, "drop-queue orders --force", lambda: None)[0] == 0
    assert broker.queues() == []


def test_letters_named_by_ids_are_explained_though_none_of_them_can_go(run: Run, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders", max_retries=0)
    orders.push(1)
    orders.rollback(orders.reserve() or pytest.fail("nothing"))
    letter, unknown = orders.dead.reserve() or pytest.fail("nothing"), ObjectId()
    for options in ([], ["--json"]):
        result = run("dead", "replay", "orders", f"--id={letter.id}", f"--id={unknown}", *options)
        assert result.exit_code == 1
        assert str(unknown) in result.stdout
        assert str(letter.id) not in result.stdout
        assert "left out 1 letter: reserved by a caller" in result.stdout or json.loads(result.stdout)["skipped"] == 1
