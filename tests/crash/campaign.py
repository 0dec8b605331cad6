"""A campaign: a line at work, its processes and its servers killed by a schedule, and the evidence afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymongo import MongoClient

import mongoq
from tests.crash import stations, trail
from tests.crash.evidence import Evidence
from tests.crash.fork_server import ForkServer
from tests.crash.process_group import ProcessGroup
from tests.crash.replica_set import ReplicaSet
from tests.crash.schedule import WORKERS, Act, schedule
from tests.crash.worker import Engine
from tests.waiting import until

__all__ = ["LOG", "Campaign"]

DATABASE = "crash"
LOG = "processes.log"
"""The errors of the processes."""
ALONE = 0.4
"""Seconds that a primary is without a majority before it is killed: what it acknowledges for itself alone is lost."""
ROUNDS = 20
"""How often a campaign goes on when too little was done: a busy machine does less in one round of kills."""


@dataclass(frozen=True)
class Campaign:
    """So many kills, some of them of servers.

    Attributes:
        nodes: how many servers form the set; of one it is the only server that is killed, of three the primary.
        engine: how the workers work.
        kills: how many processes are killed.
        crashes: how many of them are servers.
        seed: what the schedule is drawn from.
        enough: figures of the evidence, each with the least that the campaign must come to; until then it goes on with
            further rounds of kills.
    """

    nodes: int
    engine: Engine
    kills: int
    crashes: int
    seed: int
    enough: Mapping[str, int] = field(default_factory=dict, hash=False)

    def run(self, memory: Path, notes: Path) -> Evidence:
        """Go through with it, with the servers' data somewhere in one directory, and ledger and log in the other."""
        ledger = notes / "ledger"
        with (
            ReplicaSet(memory, members=self.nodes) as servers,
            MongoClient[Any](servers.uri) as client,
            ForkServer(notes / LOG) as fork_server,
        ):
            collection = client[DATABASE]["mongoq"]
            with mongoq.Broker(collection) as broker:
                stations.prepare(broker)
            start = trail.begin(collection)
            processes = ProcessGroup(
                fork_server, uri=servers.uri, database=DATABASE, ledger=str(ledger), engine=self.engine, seed=self.seed
            )
            self._strike(processes, servers, lambda: Evidence.gather(client[DATABASE], ledger, start))
            _finish(processes, servers, collection)
            return Evidence.gather(client[DATABASE], ledger, start)

    def _strike(self, processes: ProcessGroup, servers: ReplicaSet, gather: Callable[[], Evidence]) -> None:
        """Go through the schedule, and through further ones until enough was done."""
        for number in range(ROUNDS):
            for act in schedule(self.seed + number, kills=self.kills, crashes=self.crashes):
                _perform(act, processes, servers)
            if not self.enough:
                return
            servers.restore()
            servers.wait_until_whole()
            figures = gather().figures()
            if all(figures[name] >= least for name, least in self.enough.items()):
                return
            print(f"round {number} was not enough: {figures}")
        raise AssertionError(f"too little was done in {ROUNDS} rounds")


def _perform(act: Act, processes: ProcessGroup, servers: ReplicaSet) -> None:
    time.sleep(act.pause)
    match act.what:
        case "kill" | "freeze" | "thaw":
            assert act.place is not None
            getattr(processes, act.what)(act.place)
        case "restore":
            servers.restore()
        case _:
            _strike(act, servers)


def _strike(act: Act, servers: ReplicaSet) -> None:
    """Do something to the primary of a set that is whole, so that there is a majority without it."""
    servers.restore()
    servers.wait_until_whole()
    if act.what == "stall":
        servers.stall_primary()
        return
    if act.what == "crash alone":
        servers.leave_primary_alone()
        time.sleep(ALONE)
    servers.kill_primary()
    servers.follow()


def _finish(processes: ProcessGroup, servers: ReplicaSet, collection: Any) -> None:
    """Let the workers bring to its end what is there."""
    servers.restore()
    servers.wait_until_whole()
    processes.end("produce")
    for place in WORKERS:
        processes.thaw(place)
    live = {"q": {"$in": [stations.FIRST, stations.SECOND]}, "_id": {"$type": "objectId"}, "when": {"$exists": True}}
    until(lambda: not collection.count_documents(live))
    processes.end("work")
