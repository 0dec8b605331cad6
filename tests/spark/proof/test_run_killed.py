"""Pipelines on a cluster of Spark, whose executors and drivers are killed: what comes out is as if nobody had been.

``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.pipeline.conftest import counted
from tests.pipeline.graphs import ERRORS, OUT, RAW, inputs, outputs
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.trial import outcome
from tests.spark.proof.cluster import Cluster

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
ROOT = Path(__file__).parents[3]
ITEMS = 1_000
"""Fed before each kill, to the graph of everything."""
COPIES = 40
"""How often a graph of the catalogue is fed before each kill."""
PATIENCE = 240.0
SHORT = {"transactionLifetimeLimitSeconds": 1}
"""What dead processes were about to do is given up soon."""
ALIVE = 0.0, 3.0
"""Seconds from the first item that has left the queue to the kill."""


@dataclass(frozen=True)
class Work:
    """A graph, by its name: what it is fed before each kill, and what comes of that, by queue."""

    graph: str
    fed: Mapping[str, Sequence[Any]]
    comes: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, graph: str) -> Self:
        if graph == "everything":
            out, errors = outputs(ITEMS)
            return cls(graph, {RAW: inputs(ITEMS)}, {OUT: out, ERRORS: errors})
        catalogued = GRAPHS[graph]
        fed = {queue: [*payloads] * COPIES for queue, payloads in catalogued.pushed.items()}
        return cls(graph, fed, {queue: [*payloads] * COPIES for queue, payloads in catalogued.comes.items()})


class Site:
    """A cluster with a driver, and the queues that it works on."""

    def __init__(
        self, work: Work, cluster: Cluster, collection: Any, *, uri: str, folder: Path, environment: dict[str, str]
    ) -> None:
        self._work = work
        self._folder = folder
        self._environment = environment
        self._cluster = cluster
        self._collection = collection
        database = collection.database.name
        self._place = json.dumps({"uri": uri, "database": database, "collection": collection.name})
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self, *, whole: bool = False) -> None:
        """Start the driver, if there is none."""
        if self._driver is None:
            with (self._folder / "driver.log").open("ab") as log:
                self._driver = subprocess.Popen(
                    [sys.executable, "-m", "tests.spark.proof.driver", self._cluster.url, self._place, self._work.graph]
                    + ["WHOLE"] * whole,
                    cwd=ROOT, env={**os.environ, **self._environment}, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip

    def kill_driver(self) -> None:
        """Kill it, with its JVM; the cluster ends its executors by itself."""
        if self._driver is not None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
            self._driver = None

    def wait_for_work(self) -> None:
        """Wait until executors have worked on something that is fed from now on."""
        before, deadline = self._left(), time.monotonic() + PATIENCE
        while self._left() >= before:
            assert self._driver is not None
            assert self._driver.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.05)

    def _left(self) -> int:
        return int(self._collection.count_documents({"q": {"$in": [*self._work.fed]}}))

    def end(self) -> None:
        """Let a driver bring all to its end."""
        self.kill_driver()
        self.start(whole=True)
        assert self._driver is not None
        assert self._driver.wait(PATIENCE) == 0, self.log_text()

    def log_text(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-6000:]


def fought(
    graph: str, environment: dict[str, str], memory: Path, folder: Path, *, strikes: list[str], chance: random.Random
) -> None:
    """Feed before each strike, then kill an executor or the driver; in the end count."""
    work = Work.of(graph)
    with (
        EmbeddedServer(memory / f"run-on-spark-{graph}", parameters=SHORT) as server,
        MongoClient[Any](server.uri, tz_aware=True) as client,
        Cluster(folder, environment) as cluster,
    ):
        collection = client["app"]["mongoq"]
        site = Site(work, cluster, collection, uri=server.uri, folder=folder, environment=environment)
        with mongoq.Broker(collection) as broker:
            try:
                for strike in strikes:
                    for queue, payloads in work.fed.items():
                        broker.queue(queue).push_many(payloads)
                    site.start()
                    site.wait_for_work()
                    time.sleep(chance.uniform(*ALIVE))
                    if strike == "driver":
                        site.kill_driver()
                    else:
                        cluster.kill_executor(chance.randrange(2))
                site.end()
            finally:
                site.kill_driver()
            assert outcome(broker) == {
                queue: counted([*payloads] * len(strikes)) for queue, payloads in work.comes.items()
            }


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "graph", ["everything", *(pytest.param(name, marks=pytest.mark.long) for name in ("fork-join", "fork-loop"))]
)
def test_nothing_is_lost_or_doubled_when_executors_and_drivers_are_killed(
    graph: str, spark_environment: dict[str, str], memory: Path, tmp_path: Path
) -> None:
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    strikes = chance.sample(["executor", "driver"], 2)
    fought(graph, spark_environment, memory, tmp_path, strikes=strikes, chance=chance)
