"""Processes that die between two writes, and what others find then.

A process that dies is one that writes no more. So each operation runs with a client that refuses all writes after so
many of them, and others look at what is left. What a process has read makes no difference to others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.monitoring import CommandListener

import mongoq

PAGE = Path(__file__).parents[2] / "docs" / "envelope.md"
LEASE, DAY = 30, 24 * 3600
EPOCH = "65e06e6e"
WRITES = {"insert", "update", "delete", "findAndModify", "bulkWrite", "create", "createIndexes", "commitTransaction"}


def number_of(id: ObjectId) -> int:
    return int(str(id)[len(EPOCH) :], 16)


def id_of(number: int) -> ObjectId:
    return ObjectId(f"{EPOCH}{number:016x}")


ID = id_of(1)
Operation = Callable[[], Any]
Prepare = Callable[["Process"], Operation]
Live = Callable[[], AbstractContextManager["Process"]]


class Died(BaseException):
    """The process is gone. The driver lets what is no ``Exception`` through from a listener."""


class Mortal(CommandListener):
    """Lets the writes of a client pass until its time has come, and then none, an undo neither."""

    def __init__(self) -> None:
        self.remaining = math.inf
        self.died = False
        self.sessions: list[Any] = []

    def lives_for(self, writes: float) -> None:
        self.remaining, self.died = writes, False

    def started(self, event: Any) -> None:
        if event.command.get("startTransaction"):
            self.sessions.append(event.command["lsid"])
        if self.died and event.command_name == "abortTransaction":
            raise Died
        if event.command_name not in WRITES or _writes_counters(event.command):
            return
        if self.remaining <= 0:
            self.died = True
            raise Died
        self.remaining -= 1

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


def _writes_counters(command: Mapping[str, Any]) -> bool:
    """Return whether these are the counters of ``stats``, which are written beside the operations."""
    updates = command.get("updates", ())
    return bool(updates) and all(str(update["q"].get("_id", "")).startswith("stats:") for update in updates)


@dataclass
class Process:
    """A broker on a clock of its own that can die, and what it leaves to others.

    Attributes:
        own: the collection through the client that can die.
        raw: the collection of others.
    """

    broker: mongoq.Broker
    own: Any
    raw: Any
    clock: mongoq.VirtualClock
    mortal: Mortal

    def queue(self, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def dies_after(self, writes: int, operation: Operation) -> bool:
        """Run an operation, and say whether the process died within it; then it lives again."""
        self.mortal.lives_for(writes)
        try:
            operation()
        except Died:
            pass
        died = self.mortal.died
        self.mortal.lives_for(math.inf)
        return died

    def end_transactions(self) -> None:
        """End what transactions are left, as the server does after a minute."""
        if self.mortal.sessions:
            self.raw.database.client.admin.command("killSessions", self.mortal.sessions)
            self.mortal.sessions = []

    def starts_anew(self) -> None:
        """Let the process begin with a new broker, which knows nothing."""
        self.broker = mongoq.Broker(self.own, clock=self.clock)

    def another(self) -> mongoq.Broker:
        """Return the broker of a process that lives."""
        return mongoq.Broker(self.raw, clock=self.clock)

    def document(self, id: ObjectId = ID) -> Mapping[str, Any]:
        document = self.raw.find_one({"_id": id})
        return {} if document is None else dict(document)

    def found(self) -> str:
        """Tell where the item is: its queue, its state and its attempts, or nothing."""
        document = self.document()
        return self.describe(document) if document else "nothing"

    def found_many(self) -> str:
        """Tell where all items are, by their numbers in the order of claims; what is settled comes last."""
        documents = sorted(self.raw.find({"q": {"$exists": True}}), key=_place)
        groups = groupby(documents, lambda document: (_is_copy(document), self.describe(document)))
        return "; ".join(_names(list(group), copies=copies) + state for (copies, state), group in groups) or "nothing"

    def found_copies(self) -> str:
        """Tell how many copies of what was pushed to a topic each queue holds."""
        counts = Counter(document["q"] for document in self.raw.find({"q": {"$exists": True}}))
        return ", ".join(f"{queue} {number}" for queue, number in sorted(counts.items())) or "nothing"

    def describe(self, document: Mapping[str, Any]) -> str:
        if "payload" not in document:
            return "a stub"
        return f"{document['q']} {_state_of(document, self.clock.now())} {document['attempts']}"


def _state_of(document: Mapping[str, Any], now: datetime) -> str:
    """Return the state that the fields mean, as the page says."""
    if document.get("processed") is not None:
        return "processed"
    if document.get("reserved"):
        return "expired" if document["when"] <= now else "reserved"
    return "ready" if document["when"] <= now else "scheduled"


def _place(document: Mapping[str, Any]) -> tuple[Any, ...]:
    settled = "processed" in document
    return settled, document["processed"] if settled else document["when"], document["_id"]


def _is_copy(document: Mapping[str, Any]) -> bool:
    return "replayed" in document


def _names(documents: list[Mapping[str, Any]], *, copies: bool) -> str:
    """Return the numbers of some items, of copies those of their originals."""
    numbers = [number_of(document["origin"]["id"] if copies else document["_id"]) for document in documents]
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)
    return f"{'copies of ' if copies else ''}{ranges} "


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: its first cell.
        prepare: gets the items there, and returns the operation.
        expected: what is found, one after the other, when the process died before the first write, after it, after
            the second one …; the last when it lives.
        look: tells what is found.
    """

    name: str
    prepare: Prepare
    expected: list[str]
    look: Callable[[Process], str] = Process.found


def deaths(live: Live, prepare: Prepare) -> Iterator[tuple[Process, Operation]]:
    """Let a process die before each of its writes, and last of all live; return it and its operation."""
    for writes in count():
        with live() as process:
            operation = prepare(process)
            died = process.dies_after(writes, operation)
            yield process, operation
        if not died:
            return


def check(live: Live, table: str, rows: list[Row]) -> None:
    """Check that the page has these rows and no others, and that each of them holds.

    A process dies before each of its writes, and others look; what did not change is named once.
    """
    assert _names_of(table) == [row.name for row in rows]
    wrong = {}
    for row in rows:
        found = [row.look(process) for process, _ in deaths(live, row.prepare)]
        states = [state for state, _ in groupby(found)]
        if states != row.expected:
            wrong[row.name] = {"found": states, "expected": row.expected}
    assert not wrong


def _names_of(table: str) -> list[str]:
    """Return the first cells of a table of the page, given what it is about."""
    section = PAGE.read_text().partition("## What survives a crash")[2].partition("\n## ")[0]
    rows = section.partition(f"| operation on {table} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]+) \| (?!-)", rows, re.MULTILINE)
