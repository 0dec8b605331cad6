"""Output of the command line: tables for people, JSON lines for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
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


class Output:
    """Prints the result of a command, as text or as JSON.

    Attributes:
        as_json: True if each result is one line of relaxed extended JSON.
        console: rich console on stdout; text of users is printed by ``Text``, never as rich markup.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
        """Print rows, one JSON document each or one line of a table each; ``empty`` is said instead of no rows."""
        if self.as_json:
            for row in rows:
                self.document(row)
            return
        listed = list(rows)
        if not listed:
            self.line(empty)
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in columns:
            numeric = all(isinstance(row.get(column), int | float | None) for row in listed)
            table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
        for row in listed:
            table.add_row(*(Text(cell(row.get(column))) for column in columns))
        self.console.print(table)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document in one line."""
        click.echo(json_util.dumps(document, json_options=JSON_OPTIONS))

    def line(self, text: str) -> None:
        """Print a sentence; with ``--json`` it goes to stderr, so that stdout holds JSON alone."""
        click.echo(printable(text), file=sys.stderr if self.as_json else sys.stdout)


def cell(value: Any) -> str:
    """Return a value as text of a table, without control characters that would move the cursor of a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(value if isinstance(value, str) else str(value))


def printable(text: str) -> str:
    """Replace control characters, such as the escape that begins a command of the terminal, by their codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
