"""Output: times, durations, and text of users that a terminal might obey."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from bson import ObjectId
from rich.cells import cell_len
from rich.console import Console

from mongoq.cli.base.output import cell, make_table, printable
from mongoq.model.encoding.extended_json import duration_text, time_text


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


def draw(width: int, columns: list[str], rows: list[dict[str, Any]], **options: Any) -> list[str]:
    """Lines of a table in a terminal of a width."""
    console = Console(file=StringIO(), width=width)
    console.print(make_table(columns, rows, width=width, **options))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return lines


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_shortened_column_takes_what_the_terminal_has_left(width: int) -> None:
    rows = [{"id": "a" * 24, "n": n, "payload": "漢字" * 50, "key": None} for n in range(3)]
    header, _, *lines = draw(width, ["id", "n", "key", "payload"], rows, optional=["key"], shortened=["payload"])
    assert header.split() == ["id", "n", "payload"]
    assert [line.rstrip()[-1] for line in lines] == ["…"] * 3
    assert [width - 4 <= cell_len(line) <= width for line in lines] == [True] * 3


def test_only_texts_are_folded() -> None:
    rows = [{"queue": "x" * 100, "ready": 1_000_000, "at": ObjectId("b" * 24)}]
    text = "\n".join(draw(60, ["queue", "ready", "at"], rows))
    assert "1,000,000  " + "b" * 24 in text
    assert text.count("x") == 100


LETTER = {
    "id": ObjectId("65f0c0ffee65f0c0ffee0001"),
    "died": datetime(2026, 11, 26, 14, 30, tzinfo=UTC),
    "queue": "orders.of.partners",
    "reason": "retries exhausted",
    "error": "app.errors.NoCity",
    "message": "the city of the order is unknown: " + "Paris " * 50,
}
QUEUE = {"queue": "secrets.dead", "ready": "1,234,567", "oldest": timedelta(seconds=932), "rate": "12,345", "dead": "9"}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_ids_names_and_numbers_are_whole_in_a_narrow_terminal(width: int) -> None:
    letters = draw(width, list(LETTER), [LETTER, LETTER], shortened=["message"])
    queues = draw(width, list(QUEUE), [QUEUE] * 2, right=list(QUEUE)[1:])
    for text in "65f0c0ffee65f0c0ffee0001", "2026-11-26T14:30:00Z":
        assert sum(text in line for line in letters) == 2
    for text in "1,234,567", "15m 32s", "12,345":
        assert sum(text in line for line in queues) == 2
    for text, lines in ("orders.of.partners", letters), ("app.errors.NoCity", letters), ("secrets.dead", queues):
        assert folded(text, lines) or sum(text in line for line in lines) == 2


def folded(text: str, lines: list[str]) -> bool:
    """Return whether a column has a text in two rows, on several lines each."""
    start = next((line.find(text[:8]) for line in lines if text[:8] in line), -1)
    column = "".join(re.split(r" {2,}", line[start:] + "  ")[0] for line in lines)
    return start >= 0 and column.count(text) == 2


def test_a_message_that_is_cut_says_so_and_an_empty_column_is_left_out() -> None:
    lines = draw(140, ["id", "stage", "message"], [LETTER], optional=["stage"], shortened=["message"])
    assert lines[0].split() == ["id", "message"]
    assert lines[2].endswith("…")


def test_a_table_that_is_too_wide_has_a_block_of_lines_for_each_row() -> None:
    rows = [{"id": ObjectId("a" * 24), "ready": 1_000_000, "key": None}, {"id": ObjectId("b" * 24), "ready": 2}]
    assert [line.rstrip() for line in draw(32, ["id", "ready", "key"], rows)] == [
        "id     " + "a" * 24,
        "ready  1,000,000",
        "",
        "id     " + "b" * 24,
        "ready  2",
    ]
