"""Output for people: the source, the report and the proof."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

import mongoq
from examples.punctuality.pipeline import SOURCE
from examples.punctuality.proof import Proof
from examples.punctuality.queues import DEPARTURES, ERRORS
from examples.punctuality.report import Group, Share
from examples.show import format_count, table_of

__all__ = ["proof", "report", "source"]


def source(console: Console, progress: mongoq.Progress, rows: int) -> None:
    """Print how many of the rows this run has read; runs before it have read the others."""
    read = progress.sources[SOURCE].pushed
    before = f", and {rows - read:,} were read before" if read < rows else ""
    console.print(f"the source has read {read:,} rows{before}", highlight=False)


def report(console: Console, groups: Sequence[Group]) -> None:
    """Print the shares of what is late."""
    columns = ("departures", "late", "share", "arrivals", "late", "share")
    table = table_of("late: more than 15 minutes, by weather at departure", "weather", *columns)
    for group in groups:
        cells = [cell for share in (group.departures, group.arrivals) for cell in _cells(share)]
        table.add_row(group.weather, *cells, end_section=group is groups[-2])
    console.print(table)
    whole = groups[-1]
    without = whole.departures.all - whole.arrivals.all
    console.print(f"departures without an arrival, such as those diverted: {without:,}", highlight=False)


def _cells(share: Share) -> tuple[str, str, str]:
    return format_count(share.all), format_count(share.late), str(share)


def proof(console: Console, proof: Proof) -> None:
    """Print the expected and actual contents of each queue, and whether they prove that nothing was lost or doubled."""
    table = table_of("proof", "queue", "by the file", "found", "twice", "wrong", "missing")
    for one in proof.counts:
        numbers = one.expected, one.found, one.twice, one.wrong, one.missing
        table.add_row(one.queue, *map(format_count, numbers))
    console.print(table)
    verdict, style = ("proven", "bold green") if proof.holds else ("NOT PROVEN", "bold red")
    counts = {one.queue: one.found for one in proof.counts}
    late, on_time, dead = counts[DEPARTURES.late], counts[DEPARTURES.on_time], counts[ERRORS]
    sign = "=" if proof.rows == late + on_time + dead else "≠"
    sums = f"{proof.rows:,} rows {sign} {late:,} departed late + {on_time:,} on time + {dead:,} dead"
    console.print(f"{verdict}: {sums}; {proof.elsewhere:,} elsewhere", style=style, highlight=False, soft_wrap=True)
