"""Handlers that fork: a child that comes back from its handler ends, and its parent knows nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE
from tests.worker.forking import CODE

ROOT = Path(__file__).parents[2]
NUMBER = 4
CODES = {"exit": CODE, "raise": 1, "return": 0, "process": CODE, "wait": 1}


def run(uri: str, database: str, kind: str, way: str) -> tuple[list[list[str]], str]:
    """Return the lines that the program has printed, by words, and what it has complained of."""
    command = [sys.executable, "-m", "tests.worker.forking", uri, database, kind, way]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert completed.returncode == 0, completed.stderr
    return [line.split() for line in completed.stdout.splitlines()], completed.stderr


@pytest.mark.parametrize(
    ("kind", "way"),
    [("threads", "return"), ("threads", "raise"), ("threads", "process"), ("plain", "exit"), ("tasks", "wait")],
)
def test_a_child_that_a_handler_forked_ends_and_settles_nothing(
    uri: str, database: str, queue: mongoq.Queue[Any], kind: str, way: str
) -> None:
    queue.configure(history=3600)
    queue.push_many(list(range(NUMBER)))
    lines, complaints = run(uri, database, kind, way)
    *events, (_, worker) = lines
    assert [words for words in events if words[0] == "child"] == [["child", str(CODES[way])]] * NUMBER
    assert sorted(words[1:] for words in events if words[0] == "began") == [[str(n), worker] for n in range(NUMBER)]
    assert [item.attempts for item in queue.history()] == [1] * NUMBER
    assert queue.dead.size() == 0
    assert ("a child's" in complaints) == (way == "raise")


def test_a_child_that_a_source_forked_ends_and_pushes_nothing(uri: str, database: str, broker: mongoq.Broker) -> None:
    lines, _ = run(uri, database, "source", "return")
    *events, (_, process) = lines
    assert [words for words in events if words[0] == "child"] == [["child", "0"]] * NUMBER
    assert [words[1:] for words in events if words[0] == "began"] == [[str(n), process] for n in range(NUMBER)]
    assert [item.payload for item in broker.queue("made").peek(100)] == list(range(NUMBER))
