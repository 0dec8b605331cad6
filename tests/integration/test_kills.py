"""Producers and workers killed with SIGKILL at random moments; what holds is proven from the database alone."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.crash.fork_server import ForkServer
from tests.waiting import until

CREW = ("produce", "hop", "hop", "finish", "finish")
SEED = int(os.environ.get("MONGOQ_SEED", random.randrange(2**32)))
KILLS, CRASHES = 150, 8
"""Of processes, and of the server; `tests/crash` has fewer of both for `make test`."""


class Crew:
    """The processes, each with a log of what was acknowledged to it."""

    def __init__(self, server: EmbeddedServer, database: str, logs: Path, fork_server: ForkServer) -> None:
        self._told = {"uri": server.uri, "database": database}
        self._logs, self._fork_server = logs, fork_server
        self._chance = random.Random(SEED)
        self._members = [self._start(role) for role in CREW]

    def _start(self, role: str) -> tuple[str, int]:
        log = str(self._logs / role)
        return role, self._fork_server.start(role, log=log, seed=self._chance.random(), **self._told)

    def kill_one(self) -> None:
        """Let them work for a moment, kill one, and start another in its place."""
        time.sleep(self._chance.uniform(0.1, 0.5))
        place = self._chance.randrange(len(self._members))
        role, pid = self._members[place]
        self._fork_server.kill(pid)
        self._members[place] = self._start(role)

    def end(self) -> None:
        for _, pid in self._members:
            self._fork_server.kill(pid)

    def acknowledged(self, role: str) -> list[str]:
        log = self._logs / role
        # a process may die in the middle of its last line
        return [line for line in log.read_text().splitlines() if len(line) == 24] if log.exists() else []


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_killed_processes_and_servers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    print(f"MONGOQ_SEED={SEED}")
    with (
        EmbeddedServer(tmp_path / "data") as server,
        ForkServer(tmp_path / "fork_server.log", roles="tests.integration.station") as fork_server,
    ):
        crew = Crew(server, "killed", tmp_path, fork_server)
        for kill in range(KILLS):
            crew.kill_one()
            if kill % (KILLS // CRASHES) == KILLS // CRASHES // 2:
                crew = _crash(server, crew, tmp_path, fork_server)
        until(lambda: len(crew.acknowledged("produce")) > 20 and len(crew.acknowledged("finish")) > 5)
        crew.end()
        with MongoClient[Any](server.uri, tz_aware=True) as client:
            _prove(client["killed"]["mongoq"], crew)


def _crash(server: EmbeddedServer, crew: Crew, logs: Path, fork_server: ForkServer) -> Crew:
    """Kill mongod, and start it again on the same data with a new crew, since its port is another one."""
    assert server.pid is not None
    os.kill(server.pid, 9)
    crew.end()
    while server.pid is not None:  # it is still dying, and start() would take it for alive
        time.sleep(0.01)
    server.start()
    return Crew(server, "killed", logs, fork_server)


def _prove(raw: Any, crew: Crew) -> None:
    pushed, moved, finished = (crew.acknowledged(role) for role in ("produce", "hop", "finish"))
    items = raw.find({"q": {"$exists": True}, "payload": {"$exists": True}})
    stored = {str(document["_id"]): document for document in items}
    assert set(pushed) <= set(stored), "an acknowledged push is gone"
    assert max(Counter(moved).values()) == 1, "an item moved on twice"
    assert max(Counter(finished).values()) == 1, "an item was finished twice"
    for id in moved:
        assert stored[id]["q"] == "b", "an acknowledged move did not last"
    for id in finished:
        assert "processed" in stored[id], "an acknowledged commit did not last"
    for document in stored.values():
        assert document["payload"]["hops"] == (document["q"] == "b"), "an item was moved other than once"
    _drain(raw, len(stored))


def _drain(raw: Any, everything: int) -> None:
    """What is left is not stuck: each lease ends, and each item can be brought to its end."""
    with mongoq.Broker(raw) as broker:
        first, second = (broker.queue(name, history=3600, max_retries=None) for name in ("a", "b"))
        while (item := first.reserve(wait=1)) is not None:
            first.move(item, "b")
        while (item := second.reserve(wait=1)) is not None:
            second.commit(item)
        assert raw.count_documents({"q": "b", "processed": {"$exists": True}}) == everything
