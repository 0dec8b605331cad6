"""Two processes on a graph, of threads and of asyncio, killed at random moments, and the primary under them as well.

Several graphs are at work on one server or replica set, each in a collection of its own with two processes of its own.
``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient, ReadPreference

import mongoq
from tests.crash.fork_server import ForkServer
from tests.crash.replica_set import ReplicaSet
from tests.pipeline.conftest import counted
from tests.pipeline.proof.catalogue import GRAPHS, ROWS
from tests.pipeline.proof.roles import DATABASE
from tests.pipeline.proof.trial import PATIENCE, fed, outcome, write_rows
from tests.waiting import until

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
AT_WORK = ("fork-loop", "join", "fork-join", "source")
ENGINES_AT_WORK = ("threads", "asyncio")
PAUSE = 0.1, 0.9
"""Seconds from one kill in a graph to the next."""
DOWN = 0.2, 1.5
"""Seconds that a server is away."""


class Site:
    """A collection, and the processes that work on its graph."""

    def __init__(self, graph: str, client: MongoClient[Any], fork_server: ForkServer, uri: str) -> None:
        self.broker = mongoq.Broker(client[DATABASE][graph])
        self._watched = client[DATABASE].get_collection(graph, read_preference=ReadPreference.SECONDARY_PREFERRED)
        self._comes = GRAPHS[graph].comes
        self._fork_server = fork_server
        self._arguments = {"uri": uri, "collection": graph, "graph": graph}
        self._processes = [self._started(engine) for engine in ENGINES_AT_WORK]

    def is_busy(self) -> bool:
        """Return whether there are items on their way; somebody knows that while there is no primary as well."""
        return bool(self._watched.find_one({"_id": {"$type": "objectId"}, "q": {"$nin": list(self._comes)}}))

    def is_done(self, rounds: int) -> bool:
        """Return whether all has come that comes of so many rounds."""
        number = rounds * sum(map(len, self._comes.values()))
        return self._watched.count_documents({"q": {"$in": list(self._comes)}}) >= number

    def kill(self, place: int) -> None:
        """Kill one of the processes, and start another in its place."""
        self._fork_server.kill(self._processes[place])
        self._processes[place] = self._started(ENGINES_AT_WORK[place])

    def end(self) -> int:
        """Kill them all; start another process that brings the graph to its end, and return its id."""
        for pid in self._processes:
            self._fork_server.kill(pid)
        return self._fork_server.start("drain", engine="threads", **self._arguments)

    def _started(self, engine: str) -> int:
        return self._fork_server.start("work", engine=engine, **self._arguments)


def fought(
    client: MongoClient[Any],
    uri: str,
    notes: Path,
    *,
    kills: int,
    crashes: int = 0,
    servers: ReplicaSet | None = None,
) -> None:
    """Feed each graph before each kill in it: of one of its processes or, so many times, of the primary of all.

    A graph that is done before it was seen at work is fed again, so that each is struck at work once at least.
    """
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    turns = [graph for _ in range(kills) for graph in AT_WORK]
    striking = chance.sample(range(len(turns)), crashes)
    struck: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    rows = notes / "rows"
    rows.touch()
    with ForkServer(notes / "log", roles="tests.pipeline.proof.roles", environment={ROWS: str(rows)}) as fork_server:
        sites = {graph: Site(graph, client, fork_server, uri) for graph in AT_WORK}
        for turn, graph in enumerate(turns):
            site, pause = sites[graph], chance.uniform(*PAUSE) / len(AT_WORK)
            while True:
                fed(site.broker, graph)
                write_rows(rows, graph)
                rounds[graph] += 1
                time.sleep(pause)
                if not struck[graph]:
                    until(lambda site=site, number=rounds[graph]: site.is_busy() or site.is_done(number))
                struck[graph] += site.is_busy()
                if struck[graph]:
                    break
                pause /= 2
            if servers and turn in striking:
                servers.wait_until_whole()
                servers.kill_primary()
                time.sleep(chance.uniform(*DOWN))
                servers.restore()
            else:
                site.kill(chance.randrange(len(ENGINES_AT_WORK)))
        if servers:
            servers.wait_until_whole()
        for pid in [site.end() for site in sites.values()]:
            assert fork_server.wait(pid, PATIENCE) == 0, fork_server.log.read_text()
    outcomes = {graph: outcome(site.broker) for graph, site in sites.items()}
    for site in sites.values():
        site.broker.close()
    print(f"of {kills} kills in each graph, so many struck something under way: {dict(struck)}")
    # the partners in a join are alike in all rounds, so it does not matter of which round a partner is
    assert outcomes == {
        graph: {queue: counted([*coming] * rounds[graph]) for queue, coming in GRAPHS[graph].comes.items()}
        for graph in AT_WORK
    }


@pytest.fixture
def forgetful(client: MongoClient[Any]) -> Iterator[MongoClient[Any]]:
    """The server drops the transactions of the dead soon: who takes over waits for that."""
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=1)
    yield client
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)
    client.drop_database(DATABASE)


@pytest.mark.prove
def test_a_few_kills_of_two_processes_change_nothing(forgetful: MongoClient[Any], uri: str, tmp_path: Path) -> None:
    fought(forgetful, uri, tmp_path, kills=2)


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_fifty_kills_of_two_processes_and_their_primary_change_nothing(memory: Path, tmp_path: Path) -> None:
    with (
        ReplicaSet(memory, members=3, parameters={"transactionLifetimeLimitSeconds": 1}) as servers,
        MongoClient[Any](servers.uri, tz_aware=True) as client,
    ):
        fought(client, servers.uri, tmp_path, kills=50, crashes=5, servers=servers)
