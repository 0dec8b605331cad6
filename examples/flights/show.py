"""What people see: progress while it runs, then tables. In a log, a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from examples.flights.line import Line, Tally
from examples.flights.proof import Proof
from examples.flights.report import Delays, Report
from examples.flights.stations import Queues
from mongoq import Queue

__all__ = ["proof", "queues", "report", "tallies", "watch"]

REFRESH = 0.2
LINE_EVERY = 10.0


def watch(console: Console, line: Line, total: int) -> None:
    """Show progress until the line has come to its end."""
    if console.is_terminal:
        _watch_bars(console, line, total)
    else:
        _watch_lines(console, line, total)


def _watch_bars(console: Console, line: Line, total: int) -> None:
    columns = (
        TextColumn("{task.description:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>7,.0f}/s"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = [(tally, progress.add_task(tally.name, total=total, rate=0.0)) for tally in line.tallies]
        ended = False
        while not ended:
            ended = line.wait(REFRESH)
            for tally, task in tasks:
                progress.update(task, completed=tally.finished, rate=tally.rate)


def _watch_lines(console: Console, line: Line, total: int) -> None:
    started = time.monotonic()
    while not line.wait(LINE_EVERY):
        parts = ", ".join(f"{tally.name} {tally.finished:,}" for tally in line.tallies)
        console.print(f"{time.monotonic() - started:5.0f} s  {parts} of {total:,}", highlight=False)


def tallies(console: Console, found: Sequence[Tally]) -> None:
    """Print what each station did, and how fast."""
    names = list(dict.fromkeys(ending for tally in found for ending in tally.endings))
    table = _table("stations", "station", *names, "seconds", "per second")
    for tally in found:
        counts = [_count(tally.endings[name]) for name in names]
        table.add_row(tally.name, *counts, f"{tally.seconds:.1f}", f"{tally.rate:,.0f}")
    console.print(table)


def queues(console: Console, handles: Queues) -> None:
    """Print what each queue holds now, as mongoq counts it."""
    table = _table("queues", "queue", "live", "in history", "dead letters")
    each: list[Queue[Any]] = [handles.raw, handles.checked, handles.done]
    for queue in each:
        sizes = queue.counts().total, queue.size(state="processed"), queue.dead.counts().total
        table.add_row(queue.name, *map(_count, sizes))
    console.print(table)


def report(console: Console, found: Report) -> None:
    """Print what Spark found."""
    table = _delay_table("delays by carrier", "carrier")
    for delays in found.carriers:
        _add(table, delays)
    console.print(table)
    table = _delay_table("delays by weather", "weather", "")
    for kind, classes in found.weather.items():
        for place, delays in enumerate(classes):
            _add(table, delays, kind if place == 0 else "", end=delays is classes[-1])
    console.print(table)
    table = _table("dead letters", "queue", "reason", "flights")
    table.columns[1].justify = "left"
    for queue, reason, count in found.dead:
        table.add_row(queue, reason, _count(count))
    console.print(table)


def proof(console: Console, found: Proof) -> None:
    """Print where the rows are, and whether that proves that none was lost."""
    sign, verdict = ("=", "proven") if found.holds else ("≠", "NOT PROVEN")
    sums = f"{found.pushed:,} pushed {sign} {found.done:,} done + {found.dead:,} dead"
    lost = "" if found.holds else f"; {found.elsewhere:,} elsewhere, {found.missing:,} missing"
    style = "bold green" if found.holds else "bold red"
    console.print(f"{verdict}: {sums}{lost}", style=style, highlight=False)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(first, title=title, title_justify="left", title_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _delay_table(title: str, first: str, *labels: str) -> Table:
    table = _table(title, first, *labels, "flights", "mean delay", "late > 15 min")
    for column in table.columns[: 1 + len(labels)]:
        column.justify = "left"
    return table


def _add(table: Table, delays: Delays, *before: str, end: bool = False) -> None:
    numbers = _count(delays.flights), f"{delays.mean:.1f} min", f"{delays.late:.1%}"
    table.add_row(*before, delays.group, *numbers, end_section=end)


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"
