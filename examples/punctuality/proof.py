"""The proof that nothing was lost or doubled, and that flights were joined to their own weather.

It works out from the files once more where every row has to be, in plain Python, and asks the bare driver where it is.
It shares no code with the pipeline but the names of the queues and the choice of the rows.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo.collection import Collection

from examples.flights.data import raw_rows
from examples.flights.model import RawRow
from examples.punctuality.queues import ARRIVALS, DEPARTURES, ERRORS, OUTPUTS

__all__ = ["Count", "Facts", "Proof", "facts_of", "prove"]

Fact = tuple[int | None, bool | None]
"""The delay, and whether it rained; of what is dead, neither."""
Facts = dict[str, dict[int, Fact]]
"""What has to be where: by queue and number of the row."""
Document = dict[str, Any]

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
JOINS = {"_id": {"$regex": "^join:"}}
FIELDS = ("q", "processed", "payload.number", "payload.delay", "payload.rain")
TOO_LATE = 16


@dataclass(frozen=True, slots=True)
class Count:
    """The contents of a queue.

    Attributes:
        queue: its name.
        expected: how many rows have to be there.
        found: how many documents are there.
        twice: those among them whose row is there already.
        wrong: those whose row has no place there, or another delay or weather.
        missing: rows that are not there.
    """

    queue: str
    expected: int
    found: int
    twice: int
    wrong: int
    missing: int

    @property
    def holds(self) -> bool:
        """Whether the queue holds exactly the expected rows, each once."""
        return self.found == self.expected and not (self.twice or self.wrong or self.missing)


@dataclass(frozen=True, slots=True)
class Proof:
    """The places of all rows.

    Attributes:
        rows: how many there are in the file.
        counts: of each queue where items end.
        elsewhere: documents of other queues, in history, or of joins that wait.
    """

    rows: int
    counts: tuple[Count, ...]
    elsewhere: int

    @property
    def holds(self) -> bool:
        """Whether every row is where it has to be, and nothing is anywhere else."""
        return not self.elsewhere and all(count.holds for count in self.counts)


def prove(collection: Collection[Document], facts: Facts) -> Proof:
    """Compare what a collection holds with what the files say."""
    counts: dict[str, Counter[int]] = {queue: Counter() for queue in facts}
    wrong, elsewhere = Counter[str](), collection.count_documents(JOINS)
    for item in collection.find(ITEMS, dict.fromkeys(FIELDS, 1)):
        queue, number, fact = _read_item(item)
        if queue not in facts:
            elsewhere += 1
            continue
        counts[queue][number] += 1
        wrong[queue] += facts[queue].get(number) != fact
    rows = sum(len(facts[queue]) for queue in (*DEPARTURES, ERRORS))
    return Proof(rows, tuple(_count(queue, facts[queue], counts[queue], wrong[queue]) for queue in facts), elsewhere)


def _read_item(item: Document) -> tuple[str, int, Fact]:
    """Return the queue of an item, the number of its row, and its delay and rain."""
    payload = item["payload"] if isinstance(item["payload"], dict) else {}  # a pair of a join is a list
    queue = "history" if "processed" in item else item["q"]
    return queue, payload.get("number", 0), (payload.get("delay"), payload.get("rain"))


def _count(queue: str, facts: dict[int, Fact], counts: Counter[int], wrong: int) -> Count:
    return Count(
        queue,
        expected=len(facts),
        found=counts.total(),
        twice=counts.total() - len(counts),
        wrong=wrong,
        missing=len(facts.keys() - counts.keys()),
    )


# --- what the files say -------------------------------------------------------------------------


def facts_of(folder: Path, rows: int) -> Facts:
    """Read from the files in a folder what has to come of so many rows."""
    facts: Facts = {queue: {} for queue in (*OUTPUTS, ERRORS)}
    rain = _rain(folder)
    for number, row in enumerate(raw_rows(folder, rows), start=1):
        for queue, delay in _places(row):
            wet = rain.get((row["origin"], row["time_hour"]))
            facts[queue][number] = (None, None) if delay is None else (delay, wet)
    return facts


def _places(row: RawRow) -> Iterator[tuple[str, int | None]]:
    """Yield the queues where a row must end, with the delay there. A row without a time never departed."""
    if row["dep_time"] == "NA":
        yield ERRORS, None
        return
    for delay, queues in (row["dep_delay"], DEPARTURES), (row["arr_delay"], ARRIVALS):
        if delay != "NA":
            yield queues.late if int(delay) >= TOO_LATE else queues.on_time, int(delay)


def _rain(folder: Path) -> dict[tuple[str, str], bool]:
    """Return whether it rained, by airport and hour as the flights name it."""
    with (folder / "weather.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["origin"], row["time_hour"]): float(row["precip"]) > 0
            for row in csv.DictReader(file)
            if row["precip"] != "NA"
        }
