"""The report as one picture: delays by carrier, by hour and by weather, and the time in each stage."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.report import Delays, Report
from examples.flights.timings import StageTimes, Times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "what_is_missing"]

SIZE = 12.8, 9.6
INK, MUTED = "#333333", "#8a8a8a"
BARS = "#3b6ea8"
GROUPS = BARS, "#c2783c", "#4f8f5b"
WAITING, RUNNING = "#c2783c", "#3b6ea8"
SHORTEST = 0.5
"""Milliseconds; trails know no shorter times, and the scale of the picture has no zero."""


def what_is_missing() -> str | None:
    """Return a line that says what to install for pictures, or ``None`` when all is there."""
    if find_spec("matplotlib") is None:
        return "matplotlib is not installed: run pip install 'mongoq-driver[demo]', or make setup"
    return None


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG. A file of that name is replaced when the new one is whole; raises ``OSError``."""
    # Without pyplot: no display is looked for, and nothing is kept.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{report.flights:,} departures from New York in 2013, and the pipeline that took them", color=INK)
    (carriers, hours), (weather, stages) = figure.subplots(2, 2)
    _carriers(carriers, report.carriers)
    _hours(hours, report.hours)
    _weather(weather, report.weather)
    _stages(stages, report.stages)
    part = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(part, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _carriers(axes: Axes, carriers: list[Delays]) -> None:
    _set_titles(axes, "late departures by carrier")
    _bars(axes, carriers, [BARS] * len(carriers))


def _hours(axes: Axes, hours: list[Delays]) -> None:
    _set_titles(axes, "late departures by scheduled hour")
    axes.bar([each.group for each in hours], [each.late * 100 for each in hours], color=BARS)
    axes.set_xlabel("hour of the day in New York", color=MUTED)
    axes.set_ylabel("% late", color=MUTED)
    axes.grid(axis="y", alpha=0.3)


def _weather(axes: Axes, weather: dict[str, list[Delays]]) -> None:
    """Draw the classes of one kind of weather in one colour."""
    _set_titles(axes, "late departures by weather")
    rows = [
        (color, replace(each, group=f"{kind}: {each.group}"))
        for color, (kind, classes) in zip(GROUPS, weather.items(), strict=True)
        for each in classes
    ]
    _bars(axes, [each for _, each in rows], [color for color, _ in rows])


def _bars(axes: Axes, groups: list[Delays], colors: list[str]) -> None:
    """Draw a bar for the share of each group that was late, the first on top, and write how many there are."""
    names = [each.group for each in groups]
    shares = [each.late * 100 for each in groups]
    bars = axes.barh(range(len(groups)), shares, color=colors)
    axes.bar_label(bars, [f"{each.flights:,}" for each in groups], padding=3, fontsize=8, color=MUTED)
    axes.set_yticks(range(len(groups)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("% late, and how many flights", color=MUTED)
    axes.grid(axis="x", alpha=0.3)


def _stages(axes: Axes, stages: list[StageTimes]) -> None:
    """Draw a line from the median to the 95th percentile of the time that items waited, and ran."""
    _set_titles(axes, "time in a stage: median to 95th percentile")
    names = list[str]()
    for stage in stages:
        for times, what, color in (stage.waiting, "waiting", WAITING), (stage.running, "running", RUNNING):
            if times is not None:
                _span(axes, len(names), times, color)
                names.append(f"{stage.stage}: {what}")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("milliseconds", color=MUTED)
    axes.grid(axis="x", alpha=0.3)
    _logarithmic(axes)


def _logarithmic(axes: Axes) -> None:
    """Scale the times, which may lie far apart, and write them as plain numbers: fewer where there are many."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < low * 100 else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _span(axes: Axes, row: int, times: Times, color: str) -> None:
    low, high = max(times.median, SHORTEST), max(times.most, SHORTEST)
    axes.plot([low, high], [row, row], color=color, linewidth=5, alpha=0.5, solid_capstyle="round")
    axes.plot([low], [row], marker="o", color=color)
    label = f"{times.median:,.0f} to {times.most:,.0f}"
    axes.annotate(label, (high, row), (8, 0), textcoords="offset points", va="center", fontsize=8, color=MUTED)


def _set_titles(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
