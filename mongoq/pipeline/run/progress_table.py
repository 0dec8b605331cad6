"""Table of a run's progress on the terminal, updated while it runs."""

from __future__ import annotations

from typing import Any

from mongoq.pipeline.run.progress import Progress
from mongoq.pipeline.run.run import AsyncRun, Run

__all__ = ["show_progress", "show_progress_async", "table"]

OFTEN = 0.25
"""Seconds between two updates."""
COLUMNS = ("stage", "waiting", "running", "settled", "a second", "retried", "errors")


def show_progress(title: str, run: Run) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        ended = False
        while not ended:
            ended = run.wait(OFTEN)
            live.update(table(title, run.progress()))


async def show_progress_async(title: str, run: AsyncRun) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        ended = False
        while not ended:
            ended = await run.wait(OFTEN)
            live.update(table(title, await run.progress()))


def _live() -> Any:
    try:
        # Optional package, imported only for progress=True.
        from rich.live import Live
    except ModuleNotFoundError as error:
        hint = "progress=True needs rich: install mongoq-driver[progress] (pip install '.[progress]')"
        raise ModuleNotFoundError(hint, name="rich") from error
    return Live(refresh_per_second=4)


def table(title: str, progress: Progress) -> Any:
    """Return a table with a row for each source and each stage."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=escape(title))
    for place, column in enumerate(COLUMNS):
        shown.add_column(column, justify="right" if place else "left")
    for source in progress.sources.values():
        state = " (stopped)" if source.stopped else " (ended)" if source.ended else ""
        shown.add_row(escape(source.source) + state, "", "", f"{source.pushed:,}", "", "", "")
    for stage in progress.stages.values():
        # Reserved items include the running ones, which have a column of their own.
        waiting = stage.waiting + stage.scheduled + stage.reserved - stage.running
        numbers = max(waiting, 0), stage.running, stage.settled, round(stage.per_second), stage.retried, stage.dead
        shown.add_row(
            escape(stage.stage) + (" (stopped)" if stage.stopped else ""), *(f"{number:,}" for number in numbers)
        )
    return shown
