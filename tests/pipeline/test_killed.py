"""A graph at work in processes that are killed at random moments: the same outputs and errors, each once.

``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import counted
from tests.pipeline.graphs import ERRORS, OUT, RAW, graph, inputs, outputs
from tests.pipeline.working import LEASE

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("working.py")
SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
CREW = 3


def fought(uri: str, database: str, broker: mongoq.Broker, engine: str, *, kills: int, items: int) -> None:
    """Let a crew work, kill one after the other, and let the graph come to its end."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    pushing = inputs(items)
    crew = [started(uri, database, engine) for _ in range(CREW)]
    try:
        for kill in range(kills):
            share = slice(items * kill // kills, items * (kill + 1) // kills)
            broker.queue(RAW).push_many(pushing[share])
            time.sleep(chance.uniform(0.05, 0.6))
            place = chance.randrange(CREW)
            ended(crew[place])
            crew[place] = started(uri, database, engine)
    finally:
        for process in crew:
            ended(process)
    graph(lease=LEASE).drain(broker)
    out, errors = outputs(items)
    found = broker.queue(OUT).peek(10_000)
    assert counted([item.payload for item in found]) == counted(out)
    assert counted([item.payload for item in broker.queue(ERRORS).peek(10_000)]) == counted(errors)
    assert broker.queues() == sorted([OUT, ERRORS])


def started(uri: str, database: str, engine: str) -> subprocess.Popen[Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), uri, database, engine]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def ended(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize("engine", ["threads", "asyncio"])
def test_killed_workers_change_nothing_about_what_comes_out(
    uri: str, database: str, broker: mongoq.Broker, engine: str
) -> None:
    fought(uri, database, broker, engine, kills=12, items=600)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["threads", "asyncio"])
def test_a_hundred_kills_change_nothing_about_what_comes_out(
    uri: str, database: str, broker: mongoq.Broker, engine: str
) -> None:
    fought(uri, database, broker, engine, kills=100, items=5_000)
