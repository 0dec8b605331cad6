"""Progress of a long command on stderr, for a person at the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import click

from mongoq.cli.base.output import Output, printable

REDRAW_SECONDS = 0.1
"""Seconds from one drawing of a progress line to the next, at least."""

DELETION_INTERRUPTED = "what was deleted by now is gone, and the rest is still there; run the command again to go on"
"""Sentence after Ctrl-C during a deletion: one command of the server deletes all, and may go on."""


@contextmanager
def explain_interruption(output: Output, explain: Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C in the block how far the command came; the exit code follows from the error, which goes on."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"stopped; {explain()}")
        raise


class Meter:
    """Line on stderr with the progress so far; it is shown only at a terminal, and erased at the end.

    Args:
        prints: the command prints results meanwhile: the line would mix with them if they go to a terminal too.
    """

    def __init__(self, *, prints: bool = False) -> None:
        self._is_shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self._drawn_at = float("-inf")
        self._width = 0

    def __enter__(self) -> Self:
        """Return the meter itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erase the line."""
        self.clear()

    def clear(self) -> None:
        """Erase the line: the command is about to print."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
            self._width = 0

    def count(self, what: str) -> Callable[[int], None]:
        """Return a function that shows a number of items with what was done to them, such as ``searched``."""
        return lambda number: self.show(f"{number:,} items {what}")

    def show(self, text: str) -> None:
        """Draw the line anew, unless it was drawn a moment ago."""
        now = time.monotonic()
        if not self._is_shown or now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at, line = now, printable(text, keep="")
        click.echo("\r" + line.ljust(self._width), nl=False, err=True)
        self._width = max(self._width, len(line))
