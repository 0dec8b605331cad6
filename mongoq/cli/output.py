"""Output of the command line: tables for people, JSON lines for scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from bson import json_util
from bson.binary import UuidRepresentation
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

JSON_OPTIONS = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, tz_aware=True, uuid_representation=UuidRepresentation.STANDARD
)
PIPE_WIDTH = 1_000
"""Characters in a line of a table that goes to a file or to another program, at most."""


class Output:
    """Prints the result of a command, as text or as JSON.

    Attributes:
        as_json: True if each result is one line of relaxed extended JSON.
        console: rich console on stdout; text of users is printed by ``Text``, never as rich markup.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # A pipe has no width: its tables are not folded, so that each row stays one line for other programs.
        self.console = _Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Mapping[str, Any]],
        *,
        empty: str,
        right: Collection[str] = (),
        shortened: str | None = None,
    ) -> None:
        """Print rows, one JSON document each or one line of a table each; ``empty`` is said instead of no rows.

        Columns of numbers, and those in ``right``, are aligned to the right. Text of the column ``shortened`` is cut at
        the edge of the terminal.
        """
        if self.as_json:
            for row in rows:
                self.document(row)
            return
        listed = list(rows)
        if not listed:
            self.line(empty)
            return
        self.console.print(make_table(columns, listed, right=right, shortened=shortened))

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document in one line."""
        click.echo(json_util.dumps(document, json_options=JSON_OPTIONS))

    def line(self, text: str) -> None:
        """Print a sentence; with ``--json`` it goes to stderr, so that stdout holds JSON alone."""
        click.echo(printable(text), file=sys.stderr if self.as_json else sys.stdout)

    def note(self, text: str) -> None:
        """Print a remark about the result to stderr."""
        click.echo(printable(text), err=True)

    def progress(self, text: str) -> AbstractContextManager[Any]:
        """Return a block that shows a text with a spinner while it lasts, if a person looks at the terminal."""
        return Console(stderr=True).status(Text(text)) if sys.stderr.isatty() else nullcontext()


def discard_stdout() -> None:
    """Discard what stdout still holds, and all further output to it."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        # A stream of a test, which has no file.
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class _Console(Console):
    """Console that raises ``BrokenPipeError`` where rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_table(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    right: Collection[str] = (),
    shortened: str | None = None,
) -> Table:
    """Return a table of rows, as ``Output.table`` prints it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = column in right or all(isinstance(row.get(column), int | float | None) for row in rows)
        cut = column == shortened
        table.add_column(
            Text(column.replace("_", " ")),
            justify="right" if numeric else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=cut,
        )
    for row in rows:
        table.add_row(*(Text(cell(row.get(column))) for column in columns))
    return table


def cell(value: Any) -> str:
    """Return a value as one line of text, without control characters that would move the cursor of a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, timedelta):
        return duration_text(value)
    return printable(value if isinstance(value, str) else str(value), keep="")


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Replace control characters, such as the escape that begins a command of the terminal, by their codes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _code(c) for c in text)


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def time_text(at: datetime) -> str:
    """Return a time in ISO 8601, in UTC and to the millisecond; ``--since`` and ``--until`` read it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
"""Units of durations, with their seconds."""


def duration_text(length: timedelta) -> str:
    """Return a duration in its two largest units, such as ``2h 5m``."""
    seconds = length.total_seconds()
    if seconds < 0:
        return "-" + duration_text(-length)
    if seconds and seconds < 1:
        return f"{seconds:.3g}s"
    rest, parts = int(seconds), []
    for unit, size in UNITS:
        number, rest = divmod(rest, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return " ".join(filter(None, parts[:2])) or "0s"
