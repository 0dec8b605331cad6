"""Trials: a graph is fed, drained by processes that die, and what has come of it is looked at."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pymongo import MongoClient

import mongoq
from tests.crash.fork_server import ForkServer
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.death import Side
from tests.pipeline.proof.roles import DATABASE

__all__ = ["PATIENCE", "Laboratory", "Place", "fed", "outcome", "payloads", "remaining", "write_rows"]

BENCHES = min(10, -(-12 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
"""Trials at a time: most of the time each waits, for a lease to end or a transaction to be given up.

12 in all processes of pytest together keep two cores busy; 24 take twice as long, since commands that take a good part
of a lease run into its being extended.
"""
PATIENCE = 60.0

Place = tuple[int, Side]
Passed = tuple[str, int]
"""A payload, and how many stages it has passed."""
Remaining = dict[str, Counter[Passed]]
"""What is in each queue."""


@dataclass(frozen=True)
class Laboratory:
    """Where trials are made.

    Attributes:
        uri: of a server that gives up the transactions of the dead soon.
        client: one of our own to that server.
        fork_server: starts the processes.
        notes: a directory.
    """

    uri: str
    client: MongoClient[Any]
    fork_server: ForkServer
    notes: Path

    def clean(self, graph: str, engine: str) -> tuple[list[str], Remaining]:
        """Run a graph that nobody kills; return the commands that it takes, and what comes of it."""
        report = self.notes / f"{graph}-{engine}.json"
        with self._fed(graph, "clean") as broker:
            assert self._drained(graph, engine, "clean", report=str(report)) == 0
            return json.loads(report.read_text()), remaining(broker)

    def killed(self, graph: str, engine: str, places: Iterable[Place]) -> list[tuple[Place, bool, Remaining]]:
        """Kill in each place, and drain the rest; tell whether a process was killed there, and what has come of it."""
        free: SimpleQueue[str] = SimpleQueue()
        for bench in range(BENCHES):
            free.put(f"bench{bench}")

        def trial(place: Place) -> tuple[Place, bool, Remaining]:
            bench = free.get()
            try:
                with self._fed(graph, bench) as broker:
                    code = self._drained(graph, engine, bench, place=place[0], side=place[1])
                    assert code in (0, -signal.SIGKILL), f"{place}: {code}\n{self.fork_server.log.read_text()}"
                    assert self._drained(graph, engine, bench) == 0
                    return place, code != 0, remaining(broker)
            finally:
                free.put(bench)

        with ThreadPoolExecutor(BENCHES) as trials:
            return list(trials.map(trial, places))

    @contextmanager
    def _fed(self, graph: str, bench: str) -> Iterator[mongoq.Broker]:
        collection = self.client[DATABASE][bench]
        collection.delete_many({})
        with mongoq.Broker(collection) as broker:
            fed(broker, graph)
            yield broker

    def _drained(self, graph: str, engine: str, bench: str, **arguments: Any) -> int:
        """Let a process drain it, and return how that ends."""
        pid = self.fork_server.start("drain", uri=self.uri, graph=graph, engine=engine, collection=bench, **arguments)
        return self.fork_server.wait(pid, PATIENCE)


def fed(broker: mongoq.Broker, graph: str) -> None:
    """Push what a graph is fed with."""
    for queue, payloads in GRAPHS[graph].pushed.items():
        broker.queue(queue).push_many(payloads)


def write_rows(rows: Path, graph: str) -> None:
    """Write what the source of a graph is to read, behind what is there."""
    with rows.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in GRAPHS[graph].rows)


def remaining(broker: mongoq.Broker) -> Remaining:
    """Return all that is left, and make sure that nobody holds any of it."""
    database, collection = broker.namespace.split(".")
    with broker.transaction() as tx:
        raw = tx.session.client[database][collection]
        live = list(raw.find({"_id": {"$type": "objectId"}}, session=tx.session))
    claimed = [item for item in live if item["reserved"] or "token" in item or "when" not in item]
    assert not claimed, claimed
    queues = sorted({item["q"] for item in live})
    assert set(queues) <= set(broker.queues())  # and those of killed processes, whose records look alive
    return {
        queue: Counter((repr(item["payload"]), item.get("hops", 0)) for item in live if item["q"] == queue)
        for queue in queues
    }


def outcome(broker: mongoq.Broker) -> dict[str, Counter[str]]:
    """Return the payloads of all that is left, by queue."""
    return {queue: payloads(items) for queue, items in remaining(broker).items()}


def payloads(items: Counter[Passed]) -> Counter[str]:
    """Return the payloads alone."""
    counts: Counter[str] = Counter()
    for (payload, _), number in items.items():
        counts[payload] += number
    return counts
