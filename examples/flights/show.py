"""Output for people: the fix, the trail of a flight, the report and the proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

import mongoq
from examples.flights.proof import Proof
from examples.flights.report import Delays, Report
from examples.flights.timings import StageTimes, Times
from examples.show import format_count, table_of

__all__ = ["fix", "picture", "proof", "report", "trail"]


def fix(console: Console, differences: Iterable[mongoq.Difference], replayed: int) -> None:
    """Print the difference of the mended pipeline, and the number of items that go through it again."""
    for difference in differences:
        console.print(f"the fix: {difference}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{replayed:,} dead letters of stage enrich are replayed", highlight=False)


def trail(console: Console, id: object, hops: Sequence[mongoq.Hop]) -> None:
    """Print the trail of an item, with the time in each stage from claim to settlement."""
    table = table_of(f"the way of flight {id}", "queue", "stage", "runs", "cost", "ended", "in")
    for place in (1, 4, 5):
        table.columns[place].justify = "left"
    for hop in hops:
        cost = (hop.settled - hop.taken) / timedelta(milliseconds=1)
        table.add_row(hop.queue, hop.stage, f"{hop.attempts}", f"{cost:,.0f} ms", hop.ended, hop.to or "history")
    console.print(table)


def report(console: Console, report: Report) -> None:
    """Print the report."""
    _delays(console, "carrier", report.carriers)
    _delays(console, "hour", report.hours)
    table = _delay_table("delays by weather", "weather", "")
    for kind, classes in report.weather.items():
        for place, delays in enumerate(classes):
            _add(table, delays, kind if place == 0 else "", end=delays is classes[-1])
    console.print(table)
    table = table_of("dead letters", "queue", "reason", "flights")
    table.columns[1].justify = "left"
    for queue, reason, count in report.dead:
        table.add_row(queue, reason, format_count(count))
    console.print(table)
    _stages(console, report.stages)


def _delays(console: Console, kind: str, groups: Sequence[Delays]) -> None:
    table = _delay_table(f"delays by {kind}", kind)
    for delays in groups:
        _add(table, delays)
    console.print(table)


def _stages(console: Console, times: Sequence[StageTimes]) -> None:
    title = "throughput and latency by the trails: median and 95th percentile"
    table = table_of(title, "stage", "settled", "per second", "waiting", "95 %", "running", "95 %")
    for stage in times:
        rate = "–" if stage.per_second is None else f"{stage.per_second:,.0f}"
        table.add_row(
            stage.stage, format_count(stage.items), rate, *_describe(stage.waiting), *_describe(stage.running)
        )
    console.print(table)


def _describe(times: Times | None) -> tuple[str, str]:
    return ("–", "–") if times is None else (f"{times.median:,.0f} ms", f"{times.most:,.0f} ms")


def picture(console: Console, path: Path) -> None:
    """Print the path of the picture."""
    console.print(f"the report as a picture: {path.absolute()}", markup=False, highlight=False, soft_wrap=True)


def proof(console: Console, proof: Proof) -> None:
    """Print the places of the rows, and whether they prove that none was lost."""
    sign, verdict = ("=", "proven") if proof.holds else ("≠", "NOT PROVEN")
    sums = f"{proof.pushed:,} pushed {sign} {proof.done:,} done + {proof.dead:,} dead"
    lost = "" if proof.holds else f"; {proof.elsewhere:,} elsewhere, {proof.missing:,} missing"
    style = "bold green" if proof.holds else "bold red"
    console.print(f"{verdict}: {sums}{lost}", style=style, highlight=False)


def _delay_table(title: str, first: str, *labels: str) -> Table:
    table = table_of(title, first, *labels, "flights", "mean delay", "late > 15 min")
    for column in table.columns[: 1 + len(labels)]:
        column.justify = "left"
    return table


def _add(table: Table, delays: Delays, *before: str, end: bool = False) -> None:
    numbers = format_count(delays.flights), f"{delays.mean:.1f} min", f"{delays.late:.1%}"
    table.add_row(*before, delays.group, *numbers, end_section=end)
