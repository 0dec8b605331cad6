"""Two processes on one graph, of threads and of asyncio, killed at random moments, and the primary under them as well.

``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.crash.nursery import Nursery
from tests.crash.replica_set import ReplicaSet
from tests.pipeline.conftest import counted
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.roles import DATABASE
from tests.pipeline.proof.trial import PATIENCE, fed, left, payloads

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
GRAPH, COLLECTION = "fork-loop", "crowd"
CREW = ("threads", "asyncio")
PAUSE = 0.1, 0.9
"""Seconds from one kill to the next."""
DOWN = 0.2, 1.5
"""Seconds that a server is away."""


def fought(memory: Path, notes: Path, *, kills: int, crashes: int) -> None:
    """Let the crew work on what is pushed before each kill; so many of the kills are of the primary."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    striking = chance.sample(range(kills), crashes)
    with (
        ReplicaSet(memory, members=3, parameters={"transactionLifetimeLimitSeconds": 1}) as servers,
        MongoClient[Any](servers.uri, tz_aware=True) as client,
        Nursery(notes / "log", roles="tests.pipeline.proof.roles") as nursery,
    ):
        broker = mongoq.Broker(client[DATABASE][COLLECTION])
        told = {"uri": servers.uri, "collection": COLLECTION, "graph": GRAPH}
        crew = [nursery.start("work", engine=engine, **told) for engine in CREW]
        for kill in range(kills):
            fed(broker, GRAPH)
            time.sleep(chance.uniform(*PAUSE))
            if kill in striking:
                servers.wait_until_whole()
                servers.kill_primary()
                time.sleep(chance.uniform(*DOWN))
                servers.restore()
            else:
                place = chance.randrange(len(CREW))
                nursery.kill(crew[place])
                crew[place] = nursery.start("work", engine=CREW[place], **told)
        servers.wait_until_whole()
        for pid in crew:
            nursery.kill(pid)
        assert nursery.wait(nursery.start("drain", engine="threads", **told), PATIENCE) == 0
        found = {queue: payloads(counts) for queue, counts in left(broker).items()}
    assert found == {queue: counted([*coming] * kills) for queue, coming in GRAPHS[GRAPH].comes.items()}


def test_two_processes_and_their_primary_are_killed_and_nothing_changes_about_what_comes_out(
    memory: Path, tmp_path: Path
) -> None:
    fought(memory, tmp_path, kills=14, crashes=2)


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_a_hundred_kills_of_two_processes_and_their_primary_change_nothing(memory: Path, tmp_path: Path) -> None:
    fought(memory, tmp_path, kills=100, crashes=10)
