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

PROCESS_ROLES = ("produce", "hop", "hop", "finish", "finish")
SEED = int(os.environ.get("MONGOQ_SEED", random.randrange(2**32)))
KILLS, CRASHES = 150, 8
"""Of processes, and of the server; `tests/crash` has fewer of both for `make test`."""


class ProcessGroup:
    """The processes, and for each role a log of what was acknowledged to it."""

    def __init__(self, server: EmbeddedServer, database: str, logs: Path, fork_server: ForkServer) -> None:
        self._arguments = {"uri": server.uri, "database": database}
        self._logs, self._fork_server = logs, fork_server
        self._chance = random.Random(SEED)
        self._processes = [self._start(role) for role in PROCESS_ROLES]

    def _start(self, role: str) -> tuple[str, int]:
        log = str(self._logs / role)
        return role, self._fork_server.start(role, log=log, seed=self._chance.random(), **self._arguments)

    def kill_one(self) -> None:
        """Let them work for a moment, kill one, and start another in its place."""
        time.sleep(self._chance.uniform(0.1, 0.5))
        place = self._chance.randrange(len(self._processes))
        role, pid = self._processes[place]
        self._fork_server.kill(pid)
        self._processes[place] = self._start(role)

    def end(self) -> None:
        for _, pid in self._processes:
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
        ForkServer(tmp_path / "processes.log", roles="tests.integration.station") as fork_server,
    ):
        processes = ProcessGroup(server, "killed", tmp_path, fork_server)
        for kill in range(KILLS):
            processes.kill_one()
            if kill % (KILLS // CRASHES) == KILLS // CRASHES // 2:
                processes = _crash(server, processes, tmp_path, fork_server)
        until(lambda: len(processes.acknowledged("produce")) > 20 and len(processes.acknowledged("finish")) > 5)
        processes.end()
        with MongoClient[Any](server.uri, tz_aware=True) as client:
            _prove(client["killed"]["mongoq"], processes)


def _crash(server: EmbeddedServer, processes: ProcessGroup, logs: Path, fork_server: ForkServer) -> ProcessGroup:
    """Kill mongod, and start it again on the same data with new processes, since its port is another one."""
    assert server.pid is not None
    os.kill(server.pid, 9)
    processes.end()
    while server.pid is not None:  # it is still dying, and start() would take it for alive
        time.sleep(0.01)
    server.start()
    return ProcessGroup(server, "killed", logs, fork_server)


def _prove(raw: Any, processes: ProcessGroup) -> None:
    pushed, moved, finished = (processes.acknowledged(role) for role in ("produce", "hop", "finish"))
    items = raw.find({"q": {"$exists": True}, "payload": {"$exists": True}})
    by_id = {str(document["_id"]): document for document in items}
    assert set(pushed) <= set(by_id), "an acknowledged push is gone"
    assert max(Counter(moved).values()) == 1, "an item moved on twice"
    assert max(Counter(finished).values()) == 1, "an item was finished twice"
    for id in moved:
        assert by_id[id]["q"] == "b", "an acknowledged move did not last"
    for id in finished:
        assert "processed" in by_id[id], "an acknowledged commit did not last"
    for document in by_id.values():
        assert document["payload"]["hops"] == (document["q"] == "b"), "an item was moved other than once"
    _drain(raw, len(by_id))


def _drain(raw: Any, everything: int) -> None:
    """What is left is not stuck: each lease ends, and each item can be brought to its end."""
    with mongoq.Broker(raw) as broker:
        first, second = (broker.queue(name, history=3600, max_retries=None) for name in ("a", "b"))
        while (item := first.reserve(wait=1)) is not None:
            first.move(item, "b")
        while (item := second.reserve(wait=1)) is not None:
            second.commit(item)
        assert raw.count_documents({"q": "b", "processed": {"$exists": True}}) == everything
