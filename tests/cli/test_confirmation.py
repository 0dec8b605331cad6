"""Confirmation of changes, by a person at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Run

HOSTILE = "orders\x1b[31m"


def purge_at_a_terminal(environment: dict[str, str], answer: str) -> subprocess.CompletedProcess[str]:
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
