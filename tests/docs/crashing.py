"""Processes that die between two commands, and what others find then.

A process that dies is one that sends no more. So each operation runs with a driver that stops for ever after so many
commands, and another broker looks at what is left.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.errors import PyMongoError

import mongoq
from mongoq.model.item import state_of
from mongoq.protocol.flow import Begun

PAGE = Path(__file__).parents[2] / "docs" / "envelope.md"
LEASE, DAY = 30, 24 * 3600
EPOCH = "65e06e6e"


def number_of(id: ObjectId) -> int:
    return int(str(id)[len(EPOCH) :], 16)


def id_of(number: int) -> ObjectId:
    return ObjectId(f"{EPOCH}{number:016x}")


ID = id_of(1)
Operation = Callable[[], Any]
Prepare = Callable[["Process"], Operation]


class Died(BaseException):
    """The process is gone."""


class Mortal:
    """Sends the commands of one thread until its time has come, and then none, an undo neither."""

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self._send = send
        self._remaining = math.inf
        self._thread: threading.Thread | None = None

    def lives_for(self, commands: float, thread: threading.Thread) -> None:
        self._remaining, self._thread = commands, thread

    def __call__(self, command: Any) -> Any:
        if threading.current_thread() is not self._thread:
            return self._send(command)
        if self._remaining < 0:
            raise Died
        parts = _commands_of(command)
        remaining, self._remaining = int(min(self._remaining, len(parts))), self._remaining - len(parts)
        if self._remaining >= 0:
            return self._send(command)
        for part in parts[:remaining]:
            self._send(part)
        raise Died


def _commands_of(command: Any) -> list[Any]:
    """Return what the driver sends: of a session only the end of its transaction, and a bulk's updates first."""
    if command.target == "sessions":
        return [command] if command.method == "commit" else []
    if command.method != "bulk_write":
        return [command]
    requests = command.arguments["requests"]
    parts = ([request for request in requests if request[0].startswith(kind)] for kind in ("Update", "Delete"))
    return [replace(command, arguments={**command.arguments, "requests": part}) for part in parts if part]


@dataclass
class Process:
    """A broker on a clock of its own that can die, and what it leaves to others."""

    broker: mongoq.Broker
    raw: Any
    clock: mongoq.VirtualClock
    mortal: Mortal = field(init=False)
    sessions: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.becomes_mortal()

    def queue(self, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def dies_after(self, commands: int, operation: Operation) -> bool:
        """Run an operation in a thread of its own, and say whether the process died within it."""
        died = []

        def work() -> None:
            try:
                operation()
            except Died:
                died.append(True)

        for state in self.broker._context.states.values():
            state.read_at = math.inf  # known for as long as this machine takes
        self.broker._context.topics.read_at = math.inf
        thread = threading.Thread(target=work)
        self.mortal.lives_for(commands, thread)
        thread.start()
        thread.join()
        return bool(died)

    def becomes_mortal(self) -> None:
        driver: Any = self.broker._driver
        self.mortal = driver._sender.send = Mortal(driver._sender.send)
        driver._performer._begin_command = self._sent_at_once
        driver.sessions.start = partial(self._started, driver.sessions.start)

    def _started(self, start: Callable[[], Any]) -> Any:
        self.sessions.append(start())
        return self.sessions[-1]

    def _sent_at_once(self, command: Any) -> Begun:
        """Let what would go on beside the operation happen in its thread, where it is counted."""
        reply: Future[Any] = Future()
        try:
            reply.set_result(self.mortal(command))
        except PyMongoError as error:
            reply.set_exception(error)
        return Begun(command, reply)

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
        return f"{document['q']} {state_of(document, self.clock.now())} {document['attempts']}"


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


@contextmanager
def living(raw: Any) -> Iterator[Process]:
    """Make a process in an empty collection."""
    raw.delete_many({})
    clock = mongoq.VirtualClock(datetime.now(UTC))
    with mongoq.Broker(raw, clock=clock) as broker:
        broker.ensure_indexes()
        process = Process(broker, raw, clock)
        try:
            yield process
        finally:
            for session in process.sessions:  # the server does so after a minute
                if session.in_transaction:
                    session.abort_transaction()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: its first cell.
        prepare: gets the items there, and returns the operation.
        expected: what is found when the process died before the first command, after it, after the second one …; the
            last when it has sent them all, and lives.
        look: tells what is found.
    """

    name: str
    prepare: Prepare
    expected: list[str]
    look: Callable[[Process], str] = Process.found


def check(raw: Any, row: Row) -> None:
    """Let a process die at each of its commands, and look; it must send no more of them than the row has."""
    for commands, expected in enumerate(row.expected):
        with living(raw) as process:
            died = process.dies_after(commands, row.prepare(process))
            assert row.look(process) == expected, f"killed after {commands} commands"
            assert died == (commands < len(row.expected) - 1), f"killed after {commands} commands"


def rows_of(table: str) -> list[str]:
    """Return the first cells of a table of the page, given what it is about."""
    section = PAGE.read_text().partition("## What survives a crash")[2].partition("\n## ")[0]
    rows = section.partition(f"| operation on {table} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]+) \| (?!-)", rows, re.MULTILINE)


def named(row: Row) -> str:
    """Return a name for a test."""
    return row.name.replace("`", "")
