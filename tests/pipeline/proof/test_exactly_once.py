"""Exactly once, whenever a process dies: it is killed before and after each of its commands in turn.

Another process brings the graph to its end, and what has come of it is what comes of it when nobody dies.
``MONGOQ_CRASH_SEED`` brings the sample back that is tried when not all are.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mongoq.embedded import EmbeddedServer
from tests.crash.fork_server import ForkServer
from tests.pipeline.conftest import counted
from tests.pipeline.proof.catalogue import GRAPHS, ROWS
from tests.pipeline.proof.trial import Laboratory, Place, payloads, write_rows
from tests.servers import spare_the_journal

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
ENGINES = ["threads", "asyncio"]
SAMPLE = 3
"""Kills of a sample, at most."""
LONG = {"fork-loop"}
"""Graphs whose parts are in others, and whose commands are many."""


@pytest.fixture(scope="module")
def laboratory(memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    notes = tmp_path_factory.mktemp("proof")
    parameters = {"enableTestCommands": 1, "transactionLifetimeLimitSeconds": 1}
    rows = notes / "rows"
    write_rows(rows, "source")
    with (
        EmbeddedServer(memory / "proof", parameters=parameters) as server,
        MongoClient[Any](server.uri, tz_aware=True) as client,
        ForkServer(notes / "log", roles="tests.pipeline.proof.roles", environment={ROWS: str(rows)}) as fork_server,
    ):
        spare_the_journal(server)
        yield Laboratory(server.uri, client, fork_server, notes)


def proven(laboratory: Laboratory, graph: str, engine: str, *, most: int | None) -> None:
    """Kill in all places, or in so many of them, and compare."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    commands, clean = laboratory.clean(graph, engine)
    expected = {queue: counted(coming) for queue, coming in GRAPHS[graph].comes.items()}
    assert {queue: payloads(items) for queue, items in clean.items()} == expected
    places: Sequence[Place] = [(place, side) for place in range(len(commands)) for side in ("before", "after")]
    if most is not None:
        step = -(-len(places) // most) | 1  # odd, so that both sides have their turns
        places = places[random.Random(SEED).randrange(step) :: step]
    trials = laboratory.killed(graph, engine, places)
    wrong = {place: items for place, _, items in trials if items != clean}
    assert not wrong, f"{len(wrong)} of {len(trials)} differ, such as {next(iter(wrong.items()))}, not {clean}"
    died = sum(killed for _, killed, _ in trials)
    print(f"{graph}, {engine}: {died} of {len(trials)} died; {Counter(commands)}")
    assert died > len(trials) / 2 if most is None else died


@pytest.mark.prove
@pytest.mark.parametrize(("graph", "engine"), list(zip(GRAPHS, cycle(ENGINES), strict=False)))
def test_a_kill_at_some_command_changes_nothing_about_what_comes_out(
    laboratory: Laboratory, graph: str, engine: str
) -> None:
    proven(laboratory, graph, engine, most=SAMPLE)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in GRAPHS])
def test_a_kill_at_any_command_changes_nothing_about_what_comes_out(
    laboratory: Laboratory, graph: str, engine: str
) -> None:
    proven(laboratory, graph, engine, most=None)
