"""What people see: the pipeline, progress while it runs, then tables. In a log, a line every few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import mongoq
from examples.flights.letters import Cause
from examples.flights.proof import Proof
from examples.flights.report import Delays, Report
from examples.flights.running import Line

__all__ = ["fix", "letters", "picture", "proof", "report", "stages", "trail", "watch"]

REFRESH = 0.5
LINE_EVERY = 10.0
COUNTS = ("moved", "done", "dead", "retried")


def picture(console: Console, pipeline: mongoq.Pipeline) -> None:
    """Print the pipeline as a flowchart for Mermaid."""
    console.print(pipeline.to_mermaid(), markup=False, highlight=False, soft_wrap=True)


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
        TextColumn("{task.fields[rate]:>7,.0f}/s {task.fields[dead]:>7,} dead"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = {name: progress.add_task(name, total=total, rate=0.0, dead=0) for name in line.progress().stages}
        ended = False
        while not ended:
            ended = line.wait(REFRESH)
            for name, stage in line.progress().stages.items():
                progress.update(tasks[name], completed=stage.settled, rate=stage.per_second, dead=stage.dead)


def _watch_lines(console: Console, line: Line, total: int) -> None:
    began = time.monotonic()
    while not line.wait(LINE_EVERY):
        stages = line.progress().stages.values()
        parts = ", ".join(f"{stage.stage} {stage.settled:,}" for stage in stages)
        loaded = f"loaded {line.loaded:,} of {total:,}" if line.loaded else f"{total:,} in all"
        console.print(f"{time.monotonic() - began:5.0f} s  {parts}; {loaded}", highlight=False, soft_wrap=True)


def stages(console: Console, found: mongoq.Progress) -> None:
    """Print what each stage did, and how fast."""
    table = _table("stages", "stage", *COUNTS, "seconds", "per second")
    for stage in found.stages.values():
        counts = [_count(getattr(stage, name)) for name in COUNTS]
        table.add_row(stage.stage, *counts, f"{stage.seconds:.1f}", f"{stage.per_second:,.0f}")
    console.print(table)


def letters(console: Console, found: Counter[Cause]) -> None:
    """Print which stages have given up how many flights, and why."""
    table = _table("dead letters", "stage", "reason", "last error", "flights")
    for column in table.columns[:-1]:
        column.justify = "left"
    for cause, number in found.most_common():
        table.add_row(cause.stage, cause.reason, cause.error, _count(number))
    console.print(table)


def fix(console: Console, differences: Iterable[mongoq.Difference], replayed: int) -> None:
    """Print what is different in the mended pipeline, and how much goes through it once more."""
    for difference in differences:
        console.print(f"the fix: {difference}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{replayed:,} dead letters of stage enrich are replayed", highlight=False)


def trail(console: Console, id: object, hops: Sequence[mongoq.Hop]) -> None:
    """Print where an item was, and what each stage has cost it: from its claim to its settlement."""
    table = _table(f"the way of flight {id}", "queue", "stage", "runs", "cost", "ended", "in")
    for place in (1, 4, 5):
        table.columns[place].justify = "left"
    for hop in hops:
        cost = (hop.settled - hop.taken) / timedelta(milliseconds=1)
        table.add_row(hop.queue, hop.stage, f"{hop.attempts}", f"{cost:,.0f} ms", hop.ended, hop.to or "history")
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
