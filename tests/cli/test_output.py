"""Output: times, durations, and text of users that a terminal might obey."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from mongoq.cli.base.output import cell, duration_text, make_table, printable
from mongoq.model.encoding.extended_json import time_text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (0.25, "0.25s"),
        (59.9, "59s"),
        (60, "1m"),
        (7_500, "2h 5m"),
        (86_400, "1d"),
        (90_061, "1d 1h"),
        (86_460, "1d"),
        (-90, "-1m 30s"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(timedelta(seconds=seconds)) == text


def test_a_time_is_utc_to_the_millisecond() -> None:
    at = datetime(2026, 11, 26, 16, 30, 0, 123_456, timezone(timedelta(hours=2)))
    assert time_text(at) == "2026-11-26T14:30:00.123Z"
    assert time_text(datetime(7, 1, 1, tzinfo=UTC)) == "0007-01-01T00:00:00.000Z"


def test_control_characters_are_shown_by_their_codes() -> None:
    assert printable("a\x1b[31mb\x9bc\u202ed\U000e0001\n\té") == "a\\x1b[31mb\\x9bc\\u202ed\\U000e0001\n\té"
    assert cell("two\nlines\r") == "two\\x0alines\\x0d"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_shortened_column_takes_what_the_terminal_has_left(width: int) -> None:
    rows = [{"id": "a" * 24, "n": n, "payload": "漢字" * 50, "key": None} for n in range(3)]
    table = make_table(["id", "n", "key", "payload"], rows, optional=["key"], shortened="payload", width=width)
    console = Console(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    header, _, *lines = console.file.getvalue().splitlines()
    assert header.split() == ["id", "n", "payload"]
    assert [line.rstrip()[-1] for line in lines] == ["…"] * 3
    assert [width - 4 <= cell_len(line) <= width for line in lines] == [True] * 3


def test_only_long_texts_are_folded() -> None:
    rows = [{"queue": "x" * 100, "ready": 1_000_000, "at": "b" * 24}]
    console = Console(file=StringIO(), width=60)
    console.print(make_table(["queue", "ready", "at"], rows, width=60))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "1,000,000  " + "b" * 24 in text
    assert text.count("x") == 100
