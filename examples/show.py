"""Output for people: the pipeline, progress while it runs, then tables. In a log, a line every few seconds."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import mongoq
from examples.letters import Cause
from examples.running import Line

__all__ = ["format_count", "letters", "picture", "stages", "table_of", "watch"]

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


def stages(console: Console, progress: mongoq.Progress) -> None:
    """Print what each stage did, and how fast."""
    table = table_of("stages", "stage", *COUNTS, "seconds", "per second")
    for stage in progress.stages.values():
        counts = [format_count(getattr(stage, name)) for name in COUNTS]
        table.add_row(stage.stage, *counts, f"{stage.seconds:.1f}", f"{stage.per_second:,.0f}")
    console.print(table)


def letters(console: Console, letters: Counter[Cause]) -> None:
    """Print how many flights each stage gave up, and why."""
    table = table_of("dead letters", "stage", "reason", "last error", "flights")
    for column in table.columns[:-1]:
        column.justify = "left"
    for cause, number in letters.most_common():
        table.add_row(cause.stage, cause.reason, cause.error, format_count(number))
    console.print(table)


def table_of(title: str, first: str, *others: str) -> Table:
    """Return a table, its other columns for numbers."""
    table = Table(first, title=title, title_justify="left", title_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def format_count(number: int) -> str:
    """Format a number; zero is a dash."""
    return f"{number:,}" if number else "–"
