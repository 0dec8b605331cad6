"""A query from queue to queues whose driver is killed at random, whose tasks fail, under a primary that steps down.

What comes out is what a clean run brings out, each item once, and nothing stays reserved. ``MONGOQ_CRASH_SEED``
brings a schedule back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.spark.proof.flow import MOVED, PUSHED, SOURCE, expected

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
ROOT = Path(__file__).parents[3]
ITEMS = 240
"""Fed before each kill: four batches."""
PATIENCE = 240.0
ALIVE = 0.0, 6.0
"""Seconds from the first batch of a driver to its death."""
DOWN = 1
"""Seconds for which a primary that steps down stays away."""


class Driver:
    """A process with Spark and the query."""

    def __init__(self, place: dict[str, str], folder: Path, environment: dict[str, str], *, whole: bool) -> None:
        self._log = (folder / "log").open("ab")
        command = [sys.executable, "-m", "tests.spark.proof.flow", json.dumps(place), str(folder / "checkpoint")]
        self._process = subprocess.Popen(
            [*command, str(folder / "attempts"), *(["whole"] if whole else [])],
            cwd=ROOT, env={**os.environ, **environment}, start_new_session=True,
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def wait(self) -> int:
        """Return how it ended."""
        return self._process.wait(PATIENCE)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it, with its JVM and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def fought(spark_environment: dict[str, str], memory: Path, folder: Path, *, kills: int, falls: int) -> None:
    """Kill drivers, and let the primary step down under some of them; then bring all to its end, and count."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    (folder / "attempts").touch()
    with EmbeddedServer(memory / "streams") as server, MongoClient[Any](server.uri, tz_aware=True) as client:
        collection = client["app"]["mongoq"]
        place = {"uri": server.uri, "database": "app", "collection": "mongoq"}
        falling = set(chance.sample(range(kills), falls))
        with mongoq.Broker(collection) as broker:
            for turn in range(kills):
                broker.queue(SOURCE).push_many([{"n": turn * ITEMS + n} for n in range(ITEMS)])
                driver = Driver(place, folder, spark_environment, whole=False)
                try:
                    _at_work(driver, collection)
                    assert not driver.ended, (folder / "log").read_text(errors="replace")[-4000:]
                    if turn in falling:
                        _step_down(client)
                    time.sleep(chance.uniform(*ALIVE))
                finally:
                    driver.kill()
            final = Driver(place, folder, spark_environment, whole=True)
            try:
                assert final.wait() == 0, (folder / "log").read_text(errors="replace")[-4000:]
            finally:
                final.kill()
        assert _counted(collection) == expected(kills * ITEMS)
        assert collection.count_documents({"reserved": True}) == 0
        assert collection.count_documents({"q": {"$nin": [MOVED, PUSHED, None]}, "when": {"$exists": True}}) == 0
        assert int((folder / "attempts").read_text()) > 10


def _left(collection: Any) -> int:
    return int(collection.count_documents({"q": SOURCE}))


def _counted(collection: Any) -> dict[str, Counter[tuple[int, int]]]:
    documents = collection.find({"q": {"$in": [MOVED, PUSHED]}, "when": {"$exists": True}})
    counted: dict[str, Counter[tuple[int, int]]] = {MOVED: Counter(), PUSHED: Counter()}
    for each in documents:
        counted[each["q"]][each["payload"]["n"], each["payload"]["part"]] += 1
    return counted


def _step_down(client: MongoClient[Any]) -> None:
    """Let the primary step down; with one node it is itself that comes back."""
    try:
        client.admin.command("replSetStepDown", DOWN, force=True)
    except PyMongoError:
        pass  # it closes connections as it goes


def _at_work(driver: Driver, collection: Any) -> None:
    """Wait until some items have left their queue, or the driver has ended."""
    before, deadline = _left(collection), time.monotonic() + PATIENCE
    while _left(collection) >= before and not driver.ended:
        assert time.monotonic() < deadline, "nothing left the queue"
        time.sleep(0.1)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kills", "falls"), [(2, 1), pytest.param(5, 2, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_drivers_are_killed(
    spark_environment: dict[str, str], memory: Path, tmp_path: Path, kills: int, falls: int
) -> None:
    fought(spark_environment, memory, tmp_path, kills=kills, falls=falls)
