"""The program: two days, of which the second meets a faulty version; the fix, the replay, and what that has changed."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from rich.console import Console

import mongoq
from examples import program
from examples.flights.data import data_folder, raw_rows, reference
from examples.flights.model import RawRow
from examples.flights.spark import SharedSession, SparkFailed, shared_session, what_is_missing
from examples.flights_replay.pipeline import KENNEDY, build, push
from examples.flights_replay.place import COLLECTION, DEPARTURES, Place, open_place
from examples.flights_replay.replay import Period, send_back, wrong_weather
from examples.show import format_count, table_of

__all__ = ["main"]

DAY = date(2013, 7, 22)
ALL_OF_THE_YEAR = 10**9


@dataclass(frozen=True, slots=True)
class Sent:
    """The counts of what Spark sent back.

    Attributes:
        picked: flights that it has found wrong.
        pushed: those that were in the queue after a first time, more after a second, and more after a third, when the
            first were done.
    """

    picked: int
    pushed: tuple[int, int, int]

    @property
    def once(self) -> bool:
        """Whether each item was pushed once."""
        return self.pushed == (self.picked, 0, 0)


@dataclass(frozen=True, slots=True)
class Found:
    """The stored departures by airport: all, and the wrong ones before and after the replay."""

    flights: Counter[str]
    before: Counter[str]
    after: Counter[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example, and return its exit code.

    0: each flight that Spark picked was replayed once, and all are right. 1: it is not so. 2: it could not start, or
    there is no Spark. 130: interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights_replay",
        description="A faulty version of a stage gives a day's flights the weather of the wrong airport. After the fix "
        "Spark reads the history of that day, picks what is wrong, and sends it through the stage again, each once.",
    )
    parser.add_argument("--day", type=_read_day, default=DAY, help=f"of 2013, as YYYY-MM-DD ({DAY})")
    parser.add_argument("--rows", type=program.positive, help="at most so many flights of a day (all)")
    named = f"with collections {COLLECTION!r} and {DEPARTURES!r}, which must not be there yet"
    parser.add_argument("--uri", help=f"a MongoDB to use, {named} (default: a private one)")
    parser.set_defaults(keep=None)
    return program.run_program(_run, parser.parse_args(arguments))


def _read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a day as YYYY-MM-DD, not {text!r}") from None


def _run(console: Console, uri: str, options: argparse.Namespace) -> bool:
    if missing := what_is_missing():
        raise program.CannotStart(missing)
    folder = data_folder()
    before, day = _two_days(folder, options.day, options.rows)
    tables = reference(folder)
    with shared_session() as spark, open_place(uri) as place:
        mended, faulty = (build(tables, place.departures, broken=broken) for broken in (False, True))
        earlier = _through(place, mended, before)
        since = place.now()
        flights = _through(place, faulty, day)
        period = Period(since, place.now())
        console.print(f"{earlier:,} flights of the day before, {flights:,} of {options.day}", highlight=False)
        _show_fix(console, faulty, mended)
        wrong = place.wrong(tables)
        sent = _send_back(console, spark, place, mended, period, label=f"weather of {options.day}")
        if sent is None:
            return False
        found = Found(place.flights(), wrong, place.wrong(tables))
        _show_found(console, found, sent)
        return found.flights.total() == earlier + flights and not found.after and sent.once


def _two_days(folder: Path, day: date, most: int | None) -> tuple[list[RawRow], list[RawRow]]:
    """Return the flights of the day before, which may be none, and of the day."""
    days: dict[date, list[RawRow]] = {day - timedelta(days=1): [], day: []}
    for row in raw_rows(folder, ALL_OF_THE_YEAR):
        rows = days.get(date(int(row["year"]), int(row["month"]), int(row["day"])))
        if rows is not None and len(rows) != most:
            rows.append(row)
    before, after = days.values()
    if not after:
        raise program.CannotStart(f"no flight departed on {day}: the data are those of 2013")
    return before, after


def _through(place: Place, pipeline: mongoq.Pipeline, rows: Sequence[RawRow]) -> int:
    """Take flights through a version of the pipeline, and return how many there are."""
    pushed = push(place.broker, rows)
    pipeline.drain(place.broker)
    return pushed


def _send_back(
    console: Console, spark: SharedSession, place: Place, mended: mongoq.Pipeline, period: Period, *, label: str
) -> Sent | None:
    """Send back what is wrong, twice, run it, and send it a third time; ``None`` if Spark has failed."""
    try:
        with console.status("Spark reads the day …"), spark.asked() as session:
            flights = wrong_weather(session, place.options, period)
            picked = flights.count()
            send_back(flights, place.options, label=label)
            first = place.waiting()
            send_back(flights, place.options, label=label)
            second = place.waiting() - first
            mended.drain(place.broker)
            send_back(flights, place.options, label=label)
            return Sent(picked, (first, second, place.waiting()))
    except SparkFailed as failed:
        console.print(f"Spark failed: {failed}", style="red", markup=False, highlight=False)
        return None


def _show_fix(console: Console, faulty: mongoq.Pipeline, mended: mongoq.Pipeline) -> None:
    for difference in faulty.compare(mended):
        console.print(f"the fix: {difference}", markup=False, highlight=False, soft_wrap=True)


def _show_found(console: Console, found: Found, sent: Sent) -> None:
    table = table_of("weather of another airport", "from", "flights", "before", "after")
    for origin, number in sorted(found.flights.items()):
        table.add_row(
            origin, format_count(number), format_count(found.before[origin]), format_count(found.after[origin])
        )
    console.print(table)
    console.print(f"Spark picked {sent.picked:,} flights: those of the day, but not from {KENNEDY}", highlight=False)
    first, second, third = sent.pushed
    message = f"sent back: {first:,} pushed; sent again: {second:,}; sent again when they were done: {third:,}"
    console.print(message, highlight=False)
    flights, before, after = (counts.total() for counts in (found.flights, found.before, found.after))
    console.print(f"{before:,} wrong before, {after:,} after, of {flights:,} departures", style="bold", highlight=False)
