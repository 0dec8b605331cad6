"""A campaign on sequences: producers and consumers at work, they and their servers killed, and the ledger then."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient

import mongoq
from tests.crash.fork_server import ForkServer
from tests.crash.ordered.consumer import WAYS, WORKERS
from tests.crash.ordered.judge import Story
from tests.crash.ordered.line import DEAD, QUEUE, SEQUENCES, prepare
from tests.crash.ordered.notes import Notes
from tests.crash.replica_set import ReplicaSet

__all__ = ["LOG", "Campaign"]

DATABASE = "crash"
LOG = "processes.log"
"""The errors of the processes."""
PAUSE = (0.2, 1.4)
"""Seconds between two kills."""
DOWN = (0.2, 2.0)
"""For how long a server is away."""
PARAMETERS = {"transactionLifetimeLimitSeconds": 2}
"""A consumer that is killed in the middle of a settlement leaves its transaction to the server. For as long as the
server keeps it, 60 seconds by default, no claim gets past the item."""
STUCK = 40.0
"""Seconds in which nothing is settled, though consumers run: many leases."""
REPAIRED = 100.0
"""Seconds in which workers repair what a process has left behind that was killed while it took a letter away."""
CONTROLLER = 0
"""Number of this process in the ledger."""
PLACES = ("produce", "produce", "consume", "consume")
"""The role of the process in each place."""
PLACES_THAT_HOLD = (*PLACES, "decide")
"""The same in a queue whose letters hold their sequences until a process decides about them."""


@dataclass(frozen=True)
class Campaign:
    """So many kills, some of them of servers.

    Attributes:
        nodes: how many servers form the set; the primary is killed.
        seconds: how long processes are killed.
        crash_every: a server is killed once in so many kills.
        seed: what chance is drawn from.
        holds: dead letters hold their sequences.
        sequences: how many there are. Of a few, workers hand the items on, so then all consumers are workers.
    """

    nodes: int
    seconds: float
    crash_every: int
    seed: int
    holds: bool = False
    sequences: int = len(SEQUENCES)

    @property
    def ways(self) -> Sequence[str]:
        """The ways in which consumers work."""
        return [*WAYS, "asyncio"] if self.sequences == len(SEQUENCES) else WORKERS

    @property
    def places(self) -> Sequence[str]:
        """The role of the process in each place."""
        return PLACES_THAT_HOLD if self.holds else PLACES

    def run(self, memory: Path, directory: Path) -> tuple[Story, int]:
        """Go through with it; return the ledger, and how many documents the sequences have left."""
        with (
            ReplicaSet(memory, members=self.nodes, parameters=PARAMETERS) as servers,
            MongoClient[Any](servers.uri) as client,
            ForkServer(directory / LOG, roles="tests.crash.ordered.roles") as fork_server,
        ):
            collection = client[DATABASE]["mongoq"]
            with mongoq.Broker(collection) as broker:
                prepare(broker, holds=self.holds)
            processes = _Processes(self, fork_server, servers.uri, directory / "ledger")
            self._strike(processes, servers)
            servers.restore()
            servers.wait_until_whole()
            processes.end("produce")
            processes.use_all_ways()
            _wait_until_empty(collection, processes, [QUEUE, DEAD] if self.holds else [QUEUE])
            control = {"_id": {"$regex": "^sequence:"}, "queue": QUEUE}
            left = {"$or": [control, {"q": QUEUE, "place": {"$exists": True}}]}
            deadline = time.monotonic() + REPAIRED
            while self.holds and collection.count_documents(left) and time.monotonic() < deadline:
                time.sleep(0.1)
            processes.end("consume")
            processes.end("decide")
            letters = [(each["origin"]["reason"], each["payload"]["serial"]) for each in _letters(collection)]
            dead = [serial for reason, serial in letters if reason != "expired"]
            expired = [serial for reason, serial in letters if reason == "expired"]
            story = Story(processes.notes.read(), dead, expired, holds=self.holds)
            return story, collection.count_documents(left)

    def _strike(self, processes: _Processes, servers: ReplicaSet) -> None:
        chance, end, number = random.Random(self.seed), time.monotonic() + self.seconds, 0
        while time.monotonic() < end:
            time.sleep(chance.uniform(*PAUSE))
            number += 1
            if number % self.crash_every:
                processes.kill(chance.randrange(len(self.places)))
                continue
            with _away(servers, alone=chance.random() < 0.3):
                time.sleep(chance.uniform(*DOWN))
                processes.kill(chance.randrange(len(self.places)))


def _letters(collection: Any) -> Any:
    return collection.find({"q": DEAD, "when": {"$exists": True}, "_id": {"$type": "objectId"}})


def _wait_until_empty(collection: Any, processes: _Processes, queues: list[str]) -> None:
    """Wait until no item is live; it is stuck when there are some, and no consumer has settled one for a while."""
    live = {"q": {"$in": queues}, "_id": {"$type": "objectId"}, "processed": {"$exists": False}}
    patience = STUCK if DEAD not in queues else REPAIRED
    number, deadline = collection.count_documents(live), time.monotonic() + patience
    while number:
        before, number = number, collection.count_documents(live)
        if number < before:
            deadline = time.monotonic() + patience
        elif time.monotonic() > deadline:
            processes.tell()
            raise AssertionError(f"{number} items are stuck, such as {list(collection.find(live).limit(5))}")
        time.sleep(0.1)


@contextmanager
def _away(servers: ReplicaSet, *, alone: bool) -> Iterator[None]:
    """Kill the primary, at once or after it was alone for a moment, and bring it back in the end."""
    servers.wait_until_whole()
    if alone:
        servers.leave_primary_alone()
        time.sleep(0.3)
    servers.kill_primary()
    servers.follow()
    yield
    servers.restore()
    servers.wait_until_whole()


class _Processes:
    """A process in each place, each of which is replaced when it was killed; consumers each time in another way.

    Attributes:
        notes: the ledger.
    """

    def __init__(self, campaign: Campaign, fork_server: ForkServer, uri: str, ledger: Path) -> None:
        self.notes = Notes(ledger, CONTROLLER)
        self._fork_server, self._common = fork_server, {"uri": uri, "database": DATABASE, "ledger": str(ledger)}
        self._number, self._chance = CONTROLLER, random.Random(campaign.seed)
        self._campaign = campaign
        self._ways: list[str] = []
        self._roles = campaign.places
        self._places: list[tuple[int, int] | None] = [self._start(role) for role in self._roles]

    def kill(self, place: int) -> None:
        """Kill the process in a place, and start another."""
        self._end(place)
        self._places[place] = self._start(self._roles[place])

    def end(self, role: str) -> None:
        """Kill all processes in a role; none follows."""
        for place, name in enumerate(self._roles):
            if name == role:
                self._end(place)

    def use_all_ways(self) -> None:
        """Start consumers that settle all items, so that the campaign comes to its end."""
        for place, way in zip((2, 3), ("batches", "threads"), strict=True):
            self._end(place)
            self._places[place] = self._start("consume", way)

    def tell(self) -> None:
        """Let the consumers write to the log where they stand."""
        for place, process in enumerate(self._places):
            if process is not None and self._roles[place] == "consume":
                self._fork_server.signal(process[0], signal.SIGUSR1)
        time.sleep(1)

    def _start(self, role: str, way: str | None = None) -> tuple[int, int]:
        self._number += 1
        arguments: dict[str, Any] = dict(self._common)
        if role == "produce":
            arguments["sequences"] = self._campaign.sequences
        if role == "consume":
            if not self._ways:  # each once before one comes again
                self._ways = list(self._campaign.ways)
                self._chance.shuffle(self._ways)
            arguments["way"] = way or self._ways.pop()
        return self._fork_server.start(role, seed=self._number, **arguments), self._number

    def _end(self, place: int) -> None:
        process, self._places[place] = self._places[place], None
        assert process is not None
        pid, number = process
        self.notes.write_as(number, "killed")
        self._fork_server.kill(pid)
