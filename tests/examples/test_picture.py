"""The picture of the report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import cli, picture
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


@pytest.fixture
def console() -> Console:
    return Console(width=200, record=True)


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


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "flights.any"
    path.write_text("before")
    picture.draw(REPORT, path)
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_drawn_in_the_working_folder_unless_a_path_is_given(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli._draw(console, REPORT, None)
    assert cli._draw(console, REPORT, tmp_path / "other.png")
    lines = [f"the report as a picture: {tmp_path / name}" for name in ("flights.png", "other.png")]
    assert console.export_text().splitlines() == lines
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in ("flights.png", "other.png"))


@pytest.mark.parametrize("asked, expected", [(False, True), (True, False)])
def test_without_matplotlib_a_line_says_what_to_install(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, expected: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli._draw(console, REPORT, tmp_path / "flights.png" if asked else None) == expected
    [line] = console.export_text().splitlines()
    assert line.startswith("no picture, since matplotlib is not installed: run pip install 'mongoq-driver[demo]'")
    assert not list(tmp_path.iterdir())


@pytest.mark.prove
@pytest.mark.parametrize("asked, expected", [(False, True), (True, False)])
def test_what_cannot_be_written_is_reported_and_fails_only_where_it_was_asked_for(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, expected: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.png").mkdir()
    assert cli._draw(console, REPORT, Path("flights.png") if asked else None) == expected
    [line] = console.export_text().splitlines()
    assert line == "no picture, since flights.png cannot be written: Is a directory"
    assert [path.name for path in tmp_path.iterdir()] == ["flights.png"]
