"""How many functions of ours a call enters: each costs some microseconds where caches are cold, and none is noticed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mongoq

OURS = str(Path(mongoq.__file__).parent) + os.sep
MOST = {"push": 39, "pop": 53, "reserve": 62, "commit": 51, "rollback": 51, "release": 46, "extend": 48, "move": 71}
"""Counts with Python 3.11, and one or two more."""


@pytest.fixture
def queue(uri: str, database: str) -> Iterator[mongoq.Queue[Any]]:
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders", lease=60)
        for n in range(30):
            queue.push({"n": n})
        yield queue


def steps(call: Callable[[], Any]) -> int:
    """Count the functions of ours that a call enters, and generators each time that they go on."""
    entered = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call" and frame.f_code.co_filename.startswith(OURS)

    former = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(former)
    return entered


def calls(queue: mongoq.Queue[Any]) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return by operation what prepares its next call."""

    def settling(settle: Callable[[mongoq.Item[Any]], Any]) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            item = queue.reserve()
            assert item is not None
            return lambda: settle(item)

        return prepare

    return {
        "push": lambda: lambda: queue.push({"n": 1}),
        "pop": lambda: queue.pop,
        "reserve": lambda: queue.reserve,
        "commit": settling(queue.commit),
        "rollback": settling(queue.rollback),
        "release": settling(queue.release),
        "extend": settling(queue.extend),
        "move": settling(lambda item: queue.move(item, "next")),
    }


@pytest.mark.parametrize("operation", MOST)
def test_a_call_takes_few_steps(queue: mongoq.Queue[Any], operation: str) -> None:
    """The least of several calls: now and then one looks at the settings, the clock or the topology."""
    prepare = calls(queue)[operation]
    counted = [steps(prepare()) for _ in range(5)]
    assert 10 < min(counted) <= MOST[operation], counted
