"""A graph at work in processes that are killed at random moments: the same outputs and errors, each once.

``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import mongoq
from tests.crash.fork_server import ForkServer
from tests.pipeline.conftest import counted
from tests.pipeline.graphs import ERRORS, OUT, RAW, graph, inputs, outputs
from tests.pipeline.working import LEASE

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
PROCESSES = 3


def fought(uri: str, database: str, broker: mongoq.Broker, engine: str, notes: Path, *, kills: int, items: int) -> None:
    """Let processes work, kill one after the other, and let the graph come to its end."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    pushing = inputs(items)
    with ForkServer(notes / "log", roles="tests.pipeline.working") as fork_server:

        def started() -> int:
            return fork_server.start("work", uri=uri, database=database, engine=engine)

        processes = [started() for _ in range(PROCESSES)]
        for kill in range(kills):
            share = slice(items * kill // kills, items * (kill + 1) // kills)
            broker.queue(RAW).push_many(pushing[share])
            time.sleep(chance.uniform(0.05, 0.6))
            place = chance.randrange(PROCESSES)
            fork_server.kill(processes[place])
            processes[place] = started()
    graph(lease=LEASE).drain(broker)
    out, errors = outputs(items)
    results = broker.queue(OUT).peek(10_000)
    assert counted([item.payload for item in results]) == counted(out)
    assert counted([item.payload for item in broker.queue(ERRORS).peek(10_000)]) == counted(errors)
    # Others are listed while the records of the killed processes look alive.
    assert {name for name in broker.queues() if broker.queue(name).size()} == {OUT, ERRORS}


def test_killed_workers_change_nothing_about_what_comes_out(
    uri: str, database: str, broker: mongoq.Broker, tmp_path: Path
) -> None:
    fought(uri, database, broker, "asyncio", tmp_path, kills=4, items=200)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["threads", pytest.param("asyncio", marks=pytest.mark.long)])
def test_a_hundred_kills_change_nothing_about_what_comes_out(
    uri: str, database: str, broker: mongoq.Broker, engine: str, tmp_path: Path
) -> None:
    fought(uri, database, broker, engine, tmp_path, kills=100, items=5_000)
