"""The picture of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights import picture
from examples.flights.report import Delays, Report
from examples.flights.timings import StageTimes, Times

pytest.importorskip("matplotlib", reason="mongoq-driver[demo] is not installed")

GROUPS = [Delays("Southwest Airlines Co.", 179, 23.2, 0.33), Delays("unknown", 2, -3.0, 0.0)]
REPORT = Report(
    flights=181,
    carriers=GROUPS,
    hours=[Delays("05", 29, -1.8, 0.034), Delays("20", 152, 25.5, 0.397)],
    weather={"visibility": GROUPS, "rain": GROUPS, "wind": []},
    dead=[("flights.raw", "never departed", 7)],
    stages=[
        StageTimes("validate", 188, 1355.0, None, Times(137.0, 284.0)),
        StageTimes("enrich", 188, None, Times(0.0, 357.0), Times(1.0, 12_000.0)),
    ],
)
NOTHING = Report(0, [], [], {"visibility": [], "rain": [], "wind": []}, [], [])
PNG = b"\x89PNG\r\n"


def inked(path: Path) -> list[float]:
    """Return how dark the four quarters of a picture are."""
    from matplotlib.image import imread

    pixels = 1 - imread(path)[:, :, :3]
    height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
    return [
        float(quarter.mean())
        for rows in (pixels[:height], pixels[height:])
        for quarter in (rows[:, :width], rows[:, width:])
    ]


def test_there_is_something_in_each_of_its_four_panels(tmp_path: Path) -> None:
    full, empty = tmp_path / "full.png", tmp_path / "empty.png"
    picture.draw(REPORT, full)
    picture.draw(NOTHING, empty)
    for with_report, without in zip(inked(full), inked(empty), strict=True):
        assert with_report > without > 0
