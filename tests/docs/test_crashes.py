"""The table of crashes in ``docs/envelope.md``, row by row: what is found after a process died between two commands.

A process that dies is one that sends no more. So each operation runs with a driver that stops for ever after so many
commands, and another broker looks at what is left.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq

PAGE = Path(__file__).parents[2] / "docs" / "envelope.md"
LEASE, DAY = 30, 24 * 3600
ID = ObjectId("65e06e6e0000000000000001")


class Order(BaseModel):
    number: int


class Died(BaseException):
    """The process is gone."""


@dataclass
class Mortal:
    """Sends commands until its time has come, and then none, an undo neither."""

    send: Callable[[Any], Any]
    commands: int = 1_000_000

    def __call__(self, command: Any) -> Any:
        self.commands -= 1
        if self.commands < 0:
            raise Died
        return self.send(command)


@dataclass
class Process:
    """A broker on a clock of its own that can die, and what it leaves to others."""

    broker: mongoq.Broker
    raw: Any
    clock: mongoq.VirtualClock
    mortal: Mortal

    def queue(self, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def dies_after(self, commands: int, operation: Callable[[], Any]) -> bool:
        """Run an operation in a thread of its own, and say whether the process died within it."""
        died = []

        def work() -> None:
            try:
                operation()
            except Died:
                died.append(True)

        self.mortal.commands = commands
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.mortal.commands = 1_000_000
        return bool(died)

    def found(self, id: Any = ID) -> str:
        """Tell where an item is: its queue and its state, or nothing."""
        document = self.raw.find_one({"_id": id})
        if document is None:
            return "nothing"
        if "payload" not in document:
            return "a stub"
        item = mongoq.Broker(self.raw, clock=self.clock).queue(document["q"]).get(id)
        assert item is not None
        return f"{item.queue} {item.state} {item.attempts}"


@pytest.fixture
def process(raw: Any) -> Iterator[Process]:
    clock = mongoq.VirtualClock(datetime.now(UTC))
    broker = mongoq.Broker(raw, clock=clock)
    driver: Any = broker._driver
    mortal = driver._send = Mortal(driver._send)
    broker.ensure_indexes()
    with broker:
        yield Process(broker, raw, clock, mortal)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: its first cell.
        prepare: gets the item there, and returns the operation.
        left: what is found when the process died before the first command, after it, after the second one …
    """

    name: str
    prepare: Callable[[Process], Callable[[], Any]]
    left: list[str]


def _pushed(process: Process, payload: Any = 1, *, remembered: bool = False, **options: Any) -> mongoq.Queue[Any]:
    queue = process.queue(**options)
    process.queue().push(payload, id=ID, once=7 * DAY if remembered else 0.001)
    process.clock.advance(1)
    queue.resume()  # stores what the handle was told, and knows it for the next second
    return queue


def _reserved(process: Process, *, remembered: bool = False, **options: Any) -> tuple[mongoq.Queue[Any], Any]:
    queue = _pushed(process, remembered=remembered, **options)
    return queue, queue.reserve()


def _push(process: Process) -> Callable[[], Any]:
    return lambda: process.queue().push(1, id=ID)


def _pop(payload: Any = 1, **options: Any) -> Callable[[Process], Callable[[], Any]]:
    def prepare(process: Process) -> Callable[[], Any]:
        queue = _pushed(process, payload, **options)
        return lambda: queue.pop()

    return prepare


def _reserve(payload: Any = 1, *, runs: int = 0, **options: Any) -> Callable[[Process], Callable[[], Any]]:
    def prepare(process: Process) -> Callable[[], Any]:
        queue = _pushed(process, payload, **options)
        for _ in range(runs):
            queue.reserve()
            process.clock.advance(LEASE + 1)
        return lambda: queue.reserve()

    return prepare


def _settle(operation: Callable[[Any, Any], Any], **options: Any) -> Callable[[Process], Callable[[], Any]]:
    def prepare(process: Process) -> Callable[[], Any]:
        queue, item = _reserved(process, **options)
        return lambda: operation(queue, item)

    return prepare


ROWS = [
    Row("`push`", _push, ["nothing", "orders ready 0"]),
    Row("`pop`", _pop(), ["orders ready 0", "nothing"]),
    Row("`pop` with history", _pop(history=DAY), ["orders ready 0", "orders processed 1"]),
    Row("`pop` of a remembered id", _pop(remembered=True), ["orders ready 0", "nothing", "a stub"]),
    Row(
        "`pop` with history of an id remembered for longer",
        _pop(remembered=True, history=DAY),
        ["orders ready 0", "orders processed 1", "orders processed 1"],
    ),
    Row(
        "`pop` of a payload that does not fit",
        _pop("bad", model=Order),
        ["orders ready 0", "nothing", "orders.dead ready 0"],
    ),
    Row(
        "`pop` with history of a payload that does not fit",
        _pop("bad", model=Order, history=DAY),
        ["orders ready 0", "orders processed 1", "orders.dead ready 0"],
    ),
    Row("`reserve`", _reserve(), ["orders ready 0", "orders reserved 1"]),
    Row(
        "`reserve` that finds retries exhausted",
        _reserve(runs=1, max_retries=0),
        ["orders expired 1", "orders reserved 2", "orders.dead ready 0"],
    ),
    Row(
        "`reserve` of a payload that does not fit",
        _reserve("bad", model=Order),
        ["orders ready 0", "orders reserved 1", "orders.dead ready 0"],
    ),
    Row("`commit`", _settle(lambda queue, item: queue.commit(item)), ["orders reserved 1", "nothing"]),
    Row(
        "`commit` with history",
        _settle(lambda queue, item: queue.commit(item), history=DAY),
        ["orders reserved 1", "orders processed 1"],
    ),
    Row(
        "`commit` of a remembered id",
        _settle(lambda queue, item: queue.commit(item), remembered=True),
        ["orders reserved 1", "a stub"],
    ),
    Row("`rollback`", _settle(lambda queue, item: queue.rollback(item)), ["orders reserved 1", "orders ready 1"]),
    Row(
        "`rollback` beyond the retries",
        _settle(lambda queue, item: queue.rollback(item), max_retries=0),
        ["orders reserved 1", "orders.dead ready 0"],
    ),
    Row("`release`", _settle(lambda queue, item: queue.release(item)), ["orders reserved 1", "orders ready 0"]),
    Row(
        "`extend`",
        _settle(lambda queue, item: queue.extend(item, lease=DAY)),
        ["orders reserved 1", "orders reserved 1"],
    ),
    Row("`move`", _settle(lambda queue, item: queue.move(item, "next")), ["orders reserved 1", "next ready 0"]),
    Row("`bury`", _settle(lambda queue, item: queue.bury(item)), ["orders reserved 1", "orders.dead ready 0"]),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace("`", ""))
def test_what_a_crash_leaves_is_what_the_page_says(process: Process, row: Row) -> None:
    for commands, left in enumerate(row.left):
        operation = row.prepare(process)
        died = process.dies_after(commands, operation)
        assert process.found() == left, f"killed after {commands} commands"
        assert died or commands >= len(row.left) - 1
        process.raw.delete_many({"_id": ID})


def test_the_page_has_these_rows_and_no_others() -> None:
    table = PAGE.read_text().partition("## What survives a crash")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [cell for cell in cells if cell != "the first write"] == [row.name for row in ROWS]


@pytest.mark.parametrize("commands", range(6))
def test_a_first_write_that_was_killed_is_completed_by_the_next_process(raw: Any, commands: int) -> None:
    broker = mongoq.Broker(raw, clock=mongoq.VirtualClock(datetime.now(UTC)))
    driver: Any = broker._driver
    mortal = driver._send = Mortal(driver._send)
    process = Process(broker, raw, mongoq.VirtualClock(), mortal)
    process.dies_after(commands, lambda: broker.queue("orders").push(1, id=ID))
    mongoq.Broker(raw).queue("orders").push(2)
    assert set(raw.index_information()) == {
        "_id_",
        *(f"mongoq1_{name}" for name in ("claim", "key", "history", "expires")),
    }
    assert raw.count_documents({"_id": "schema:mongoq"}) == 1


@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_burial_that_was_killed_is_done_by_the_next_claim(process: Process, max_retries: int) -> None:
    queue = _pushed(process, max_retries=max_retries)
    for _ in range(max_retries + 1):
        assert queue.reserve() is not None
        process.clock.advance(LEASE + 1)
    assert process.dies_after(1, lambda: queue.reserve())
    assert queue.reserve() is None
    process.clock.advance(LEASE + 1)
    assert queue.reserve() is None
    (dead,) = queue.dead.peek()
    assert dead.origin is not None
    assert dead.origin.attempts == max_retries + 1


def test_a_pop_that_was_killed_before_its_stub_forgets_the_id(process: Process) -> None:
    queue = _pushed(process, remembered=True)
    assert process.dies_after(1, lambda: queue.pop())
    queue.push(1, id=ID)
    assert queue.size() == 1
