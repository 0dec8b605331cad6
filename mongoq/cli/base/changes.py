"""Changes: ``--dry-run`` says what a command would change, ``--yes`` does not ask, and else a person agrees to it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from mongoq import BoundedCount
from mongoq.cli.base.connection import with_broker, with_options
from mongoq.cli.base.output import INTERRUPTED, OPERATION_FAILED, Output, printable, progress
from mongoq.sync import Broker
from mongoq.sync.contents import ItemSelection

F = TypeVar("F", bound=Callable[..., Any])

COUNT_LIMIT = 1_000_000
"""Items that a command examines, at most, to say how many it would change."""
CLOCK_MARGIN = timedelta(seconds=0.25)
"""What two processes may differ in the server's time: what came so shortly before a question stays."""


def with_change(function: F) -> F:
    """Add the options of the connection, ``--yes`` and ``--dry-run`` to a command, as its argument ``change``."""

    @functools.wraps(function)
    def command(*args: Any, broker: Broker, output: Output, yes: bool, dry_run: bool, **options: Any) -> Any:
        return function(*args, change=Change(broker, output, yes=yes, dry_run=dry_run), **options)

    added = with_options(
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing."),
    )
    return added(with_broker(command))  # type: ignore[return-value]


class Change:
    """A change that a person agrees to: the items are counted first, and no others are changed.

    Attributes:
        broker: broker of the command.
        output: output of the command.
        dry_run: True if nothing is to change.
        counted: number of the items that the change concerns; set by ``count``.
        as_of: time of that count; ``None`` with ``--yes``, which agrees to items that come later too.
    """

    def __init__(self, broker: Broker, output: Output, *, yes: bool, dry_run: bool) -> None:
        self.broker = broker
        self.output = output
        self.dry_run = dry_run
        self.counted = BoundedCount()
        self.as_of: datetime | None = None
        self._yes = yes
        self._limit: int | None = None

    def count(
        self, selection: ItemSelection[Any], *, limit: int | None = None, free: bool = False, timed: bool = True
    ) -> BoundedCount:
        """Count the items of a change, and show the progress; ``limit`` is the one that the user gave.

        ``timed`` is false for items that are named one by one: no later ones can join them.
        """
        if timed:
            self.note_time()
        counted = count_items(selection, free=free)
        self._limit = limit
        self.counted = BoundedCount(limit) if limit is not None and counted.number >= limit else counted
        return self.counted

    def note_time(self) -> datetime | None:
        """Note and return the server's time, which a person agrees to; ``None`` with ``--yes``."""
        self.as_of = None if self._yes else self.broker.inspect().now() - CLOCK_MARGIN
        return self.as_of

    @property
    def limit(self) -> int | None:
        """Limit of the change: no more than was counted, whatever the clocks say."""
        if self.as_of is None or not self.counted.exact:
            return self._limit
        return self.counted.number if self._limit is None else min(self._limit, self.counted.number)

    @property
    def is_empty(self) -> bool:
        """True if the change may go on, and yet has to leave everything as it is.

        Nobody has agreed to a change of the items that have come since they were counted.
        """
        return self.counted == BoundedCount() and not self._yes

    def allows_counted(self, sentence: str) -> bool:
        """Return whether to go on with a change of the counted items; without items there is no question."""
        if self.counted == BoundedCount() and not self.dry_run:
            return True
        return self.allows(sentence, self.counted)

    def allows(self, sentence: str, counted: BoundedCount | int = 1) -> bool:
        """Return whether to carry out a change; ``sentence`` says what, such as "delete 3 items".

        Raises:
            click.UsageError: neither ``--yes`` was given nor is there a terminal to ask at.
            click.exceptions.Exit: the person said no, or pressed Ctrl-C.
        """
        counted = BoundedCount(counted) if isinstance(counted, int) else counted
        if self.dry_run:
            would = {"would": sentence, "count": counted.number, "exact": counted.exact}
            self.output.result(would, f"would {sentence}")
            return False
        if self._yes:
            return True
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"this would {printable(sentence, keep='')}; add --yes to do it, or --dry-run to see it"
            )
        code = OPERATION_FAILED
        try:
            if click.confirm(printable(f"{sentence[:1].upper()}{sentence[1:]}?", keep=""), err=True):
                return True
        except click.Abort as abort:
            click.echo(err=True)  # the question stands there without a line break
            if isinstance(abort.__context__, KeyboardInterrupt):  # click raises the same error at the end of the input
                code = INTERRUPTED
        self.output.note("nothing was changed")
        raise click.exceptions.Exit(code)


def count_items(selection: ItemSelection[Any], limit: int = COUNT_LIMIT, *, free: bool = False) -> BoundedCount:
    """Count items, and show the progress."""
    with progress() as show:
        return selection.count(limit, free=free, progress=show)


def amount(counted: BoundedCount | int, noun: str = "item") -> str:
    """Return a number with its noun: "1 item", "3 items", "more than 1,000,000 items"."""
    if isinstance(counted, int):
        counted = BoundedCount(counted)
    if counted.exact:
        return f"{counted.number:,} {noun if counted.number == 1 else f'{noun}s'}"
    if counted.number > COUNT_LIMIT:
        return f"more than {COUNT_LIMIT:,} {noun}s"
    # Behind the limit nothing is known of the items that a filter selects.
    return f"at least {counted.number:,} {noun}s"
