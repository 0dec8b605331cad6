"""Owners of embedded servers, as processes of their own, and a look at what they leave behind."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]

PRELUDE = """
import json, os, signal, sys, threading, time
import psutil, pymongo
from mongoq.embedded import EmbeddedServer
from mongoq.errors import EmbeddedServerUnavailable

def tell(server=None, **facts):
    if server is not None:
        facts |= {"pid": server.pid, "watchdog": psutil.Process(server.pid).ppid()}
        facts |= {"path": str(server.path), "port": server.port, "uri": server.uri}
    print(json.dumps(facts), flush=True)
"""


class Owner:
    """A Python process that runs ``body``; its calls of ``tell`` come back as :attr:`facts`."""

    def __init__(self, body: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.facts: dict[str, Any] = {}
        self.seen: list[psutil.Process] = []

    def listen(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the owner ended without a word"
        self.facts |= json.loads(line)
        for name in ("pid", "watchdog", "child"):
            with contextlib.suppress(KeyError, psutil.NoSuchProcess):  # not told of, or gone by now
                self.seen.append(psutil.Process(self.facts[name]))
        return self.facts

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        if "child" in self.facts:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self.facts["child"]).kill()
        # The watchdog tidies up after the owner; what is killed here, only a failed test has left.
        for process in psutil.wait_procs(self.seen, timeout=PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def owner() -> Iterator[Callable[[str], Owner]]:
    """Start an owner and wait for its first facts."""
    owners: list[Owner] = []

    def start(body: str) -> Owner:
        owners.append(Owner(body))
        owners[-1].listen()
        return owners[-1]

    yield start
    for each in owners:
        each.close()


@pytest.fixture
def nothing_left() -> Callable[..., None]:
    """Wait until mongod and watchdog of an owner are gone, and the temporary directory with them."""

    def wait(facts: dict[str, Any], *, temporary: bool = True) -> None:
        until(lambda: not alive(facts["pid"]) and not alive(facts["watchdog"]))
        assert Path(facts["path"]).exists() is not temporary

    return wait


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return alive
