"""``python -m examples.outbox``: what it prints, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mongoq.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
OUTPUT = """\
ordered, in one commit   orders: Ada ordered; items: 1
rolled back, unpaid      orders: Ada ordered; items: 1
not shipped, no printer  orders: Ada ordered; items: 1
shipped, in one commit   orders: Ada shipped; items: 0
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.outbox", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_it_tells_what_happens_in_one_commit_and_what_does_not() -> None:
    completed = run()
    assert (completed.stdout, completed.stderr, completed.returncode) == (OUTPUT, "", 0)


@pytest.mark.prove
def test_it_says_what_a_standalone_server_lacks() -> None:
    with EmbeddedServer(replica_set=None) as standalone:
        completed = run("--uri", standalone.uri)
    assert (completed.stdout, completed.returncode) == ("", 2)
    assert "transactions need a replica set" in completed.stderr
