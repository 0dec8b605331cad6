"""Output of the command line: tables for people, JSON lines for scripts, errors in one line with an exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import click
from bson import ObjectId, json_util
from pymongo.errors import OperationFailure, PyMongoError
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from mongoq import ImportResult
from mongoq.data.copies import Replayed
from mongoq.data.encoding.error_text import escape_controls
from mongoq.data.encoding.extended_json import JSON_OPTIONS, duration_text, time_text
from mongoq.drivers.errors import describe_refused_user, is_refused_user
from mongoq.errors import ArgumentInvalid, MongoqError, ServerUnavailable

OPERATION_FAILED = 1
"""Exit code when mongoq refused or failed: an unknown queue, an item that does not exist, an unhealthy check."""
WRONG_USAGE = 2
"""Exit code for arguments that cannot be used; click's own."""
UNAVAILABLE = 3
"""Exit code when no server answered, or the server refused the user."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
STATE_ARGUMENTS = ("queue", "schedule", "host")
"""Arguments whose errors say in a sentence what the command has met: an unknown queue, a port in use."""
PIPE_WIDTH = 1_000
"""Characters in a line of a table that goes to a file or to another program, at most."""
COLUMN_GAP = 2
"""Characters between two columns."""
MIN_WIDTH = 16
"""Characters that a shortened text keeps in a narrow terminal."""
MIN_FOLDED_WIDTH = 8
"""Characters of a column whose texts go on in the next line, at least."""
REDRAW_SECONDS = 0.1
"""Seconds from one drawing of a line of progress to the next, at least."""


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
        **layout: Collection[str],
    ) -> None:
        """Print rows as JSON documents, or as a table of this ``layout``; ``empty`` is said instead of no rows."""
        if self.as_json:
            for row in rows:
                self.document(row)
            return
        listed = list(rows)
        if not listed:
            self.line(empty)
            return
        self.console.print(make_table(columns, listed, width=self.console.width, **layout))

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document in one line."""
        click.echo(json_util.dumps(document, json_options=JSON_OPTIONS))

    def line(self, text: str, *, keep: str = "") -> None:
        """Print a sentence; with ``--json`` it goes to stderr, so that stdout holds JSON alone.

        ``keep`` are the control characters that are printed as they are: a name of a queue with a line break must not
        look like a sentence of its own.
        """
        click.echo(printable(text, keep=keep), file=sys.stderr if self.as_json else sys.stdout)

    def result(self, document: Mapping[str, Any], text: str) -> None:
        """Print the result of a command: the document with ``--json``, else the sentence."""
        if self.as_json:
            self.document(document)
        else:
            self.line(text)

    def refusals(self, done: Replayed | ImportResult) -> None:
        """Print the items that were refused, a line each."""
        for id, reason in done.refusals:
            self.line(f"refused {id}: {reason}")
        if done.refused > len(done.refusals):
            self.line(f"refused {done.refused - len(done.refusals):,} more")

    def note(self, text: str) -> None:
        """Print a remark about the result to stderr."""
        click.echo(printable(text, keep=""), err=True)

    @contextmanager
    def explaining(self, explain: Callable[[], str]) -> Iterator[None]:
        """Say after Ctrl-C in the block how far the command came; the exit code follows from the error."""
        try:
            yield
        except KeyboardInterrupt:
            self.note(f"stopped; {explain()}")
            raise


@contextmanager
def progress(*, prints: bool = False) -> Iterator[Callable[[int | None], None]]:
    """Return a function that shows a number of items on stderr, if a person looks at the terminal; ``None`` erases it.

    The line is erased at the end. ``prints`` says that the command prints results meanwhile: the line would mix with
    them if they go to a terminal too.
    """
    is_shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
    drawn_at, width = float("-inf"), 0

    def show(number: int | None) -> None:
        nonlocal drawn_at, width
        line, now = "" if number is None else f"{number:,} items", time.monotonic()
        if is_shown and (width if number is None else now - drawn_at >= REDRAW_SECONDS):
            click.echo("\r" + line.ljust(width) + ("" if line else "\r"), nl=False, err=True)
            drawn_at, width = now, len(line)

    try:
        yield show
    finally:
        show(None)


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
    optional: Collection[str] = (),
    shortened: Collection[str] = (),
    width: int = PIPE_WIDTH,
) -> Table:
    """Return a table of rows for a terminal of a width.

    Columns of numbers, and those in ``right``, are aligned to the right; ``optional`` ones are left out if they are
    empty. In a narrow terminal texts of the columns ``shortened`` end with "…", and other texts go on in the next line.
    If that is not enough, each row is a block of lines: numbers, ids and times are never cut.
    """
    columns = [column for column in columns if column not in optional or any(row.get(column) for row in rows)]
    texts = {column: [cell(row.get(column)) for row in rows] for column in columns}
    numeric = {
        column
        for column in columns
        if column in right or all(type(row.get(column)) in (int, float, type(None)) for row in rows)
    }
    whole = {column for column in columns if any(isinstance(row.get(column), ObjectId | datetime) for row in rows)}
    widths = {column: max(map(cell_len, (column, *cells))) for column, cells in texts.items()}
    rest = width - COLUMN_GAP * (len(columns) - 1)
    _narrow(widths, dict.fromkeys(set(shortened) & set(columns), MIN_WIDTH), rest)
    for column in shortened:
        limit = widths.get(column, 0)
        texts[column] = [
            text if cell_len(text) <= limit else set_cell_size(text, limit - 1).rstrip() + "…"
            for text in texts.get(column, ())
        ]
    _narrow(widths, dict.fromkeys(set(columns) - numeric - whole - set(shortened), MIN_FOLDED_WIDTH), rest)
    if sum(widths.values()) > rest:
        return _make_blocks(columns, rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, COLUMN_GAP - 1, 0, 0))
    for column in columns:
        justify: JustifyMethod = "right" if column in numeric else "left"
        table.add_column(_title(column), justify=justify, overflow="fold", width=widths[column])
    for column_texts in zip(*(texts[column] for column in columns), strict=True):
        table.add_row(*map(Text, column_texts))
    return table


def _narrow(widths: dict[str, int], floors: Mapping[str, int], width: int) -> None:
    """Narrow columns until all fit into a width, the widest one first, but none of them below its floor."""
    for column in floors:
        widths[column] = min(widths[column], max(width, floors[column]))
    while sum(widths.values()) > width:
        widest = max(floors, key=lambda column: widths[column] - floors[column], default=None)
        if widest is None or widths[widest] <= floors[widest]:
            return
        widths[widest] -= 1


def _make_blocks(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as blocks of lines with a name and a value each; empty values are left out."""
    table = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            table.add_row()
        for column in columns:
            if text := cell(row.get(column)):
                table.add_row(_title(column), Text(text))
    return table


def _title(column: str) -> Text:
    return Text(column.replace("_", " "), style="bold")


def cell(value: Any) -> str:
    """Return a value as one line of text, without control characters that would move the cursor of a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return time_text(value, "seconds")
    if isinstance(value, timedelta):
        return duration_text(value)
    return printable(value if isinstance(value, str) else str(value), keep="")


def printable(text: str, *, keep: str = "\n\t", indent: str = "") -> str:
    """Replace control characters by their codes, and indent what follows a line break that is kept."""
    return escape_controls(text, keep).replace("\n", f"\n{indent}")


# --- errors ----------------------------------------------------------------------------------------


def explain(error: Exception) -> tuple[str, int] | None:
    """Return an error in one line, and its exit code; ``None`` for an error that is a fault of the program."""
    if isinstance(error, ServerUnavailable):
        return str(error), UNAVAILABLE
    if isinstance(error, ArgumentInvalid):
        is_state = error.argument in STATE_ARGUMENTS
        return (error.problem, OPERATION_FAILED) if is_state else (str(error), WRONG_USAGE)
    if isinstance(error, MongoqError):
        return str(error), OPERATION_FAILED
    if isinstance(error, PyMongoError):
        return describe_driver_error(error), UNAVAILABLE
    if not isinstance(error, click.ClickException):
        return None
    message = error.format_message()
    if isinstance(error, click.UsageError) and type(error) is not click.UsageError and error.ctx is not None:
        # An error of click's parser: the help page says more.
        message = f"{message.rstrip('.')}; see {error.ctx.command_path} --help"
    return message, error.exit_code


def describe_driver_error(error: PyMongoError) -> str:
    """Return an error of the driver in one line, without its topology dump and without values of documents."""
    if isinstance(error, OperationFailure):
        if is_refused_user(error):
            return f"MongoDB {describe_refused_user(error)}"
        return f"MongoDB refused the command: code {error.code}"
    return f"{type(error).__name__}: {str(error).partition(', Timeout:')[0]}"
