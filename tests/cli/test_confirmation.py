"""Confirmation of changes, by a person at a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

import mongoq


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
