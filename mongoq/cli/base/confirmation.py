"""Confirmation of changes: ``--dry-run`` shows how many items a change would touch, ``--yes`` does not ask."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mongoq.cli.base.errors import INTERRUPTED, OPERATION_FAILED
from mongoq.cli.base.output import Output, printable

F = TypeVar("F", bound=Callable[..., Any])


def with_confirmation(function: F) -> F:
    """Add the options ``--yes`` and ``--dry-run`` to a command, as its argument ``confirmation``."""

    @functools.wraps(function)
    def command(*args: Any, yes: bool, dry_run: bool, **options: Any) -> Any:
        return function(*args, confirmation=Confirmation(yes=yes, dry_run=dry_run), **options)

    command = click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")(command)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)  # type: ignore[return-value]


class Confirmation:
    """Decides whether a command goes on: it asks a person at a terminal, and wants ``--yes`` from a script."""

    def __init__(self, *, yes: bool, dry_run: bool) -> None:
        self.yes = yes
        self.dry_run = dry_run

    def allows(self, output: Output, change: str, *, count: int, exact: bool = True) -> bool:
        """Return whether to carry out a change of ``count`` items; ``change`` is a sentence such as "delete 3 items".

        ``exact`` is false if items were counted up to a limit: then there are at least that many.

        Raises:
            click.UsageError: neither ``--yes`` was given nor is there a terminal to ask at.
            click.exceptions.Exit: the person said no, or pressed Ctrl-C.
        """
        if self.dry_run:
            if output.as_json:
                output.document({"would": change, "count": count, "exact": exact})
            else:
                output.line(f"would {change}")
            return False
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"this would {printable(change, keep='')}; add --yes to do it, or --dry-run to see it"
            )
        code = _ask(printable(f"{change[:1].upper()}{change[1:]}?", keep=""))
        if code:
            output.note("nothing was changed")
            raise click.exceptions.Exit(code)
        return True


def _ask(question: str) -> int:
    """Ask a question, and return the exit code of the command: 0 if the person agrees."""
    try:
        return 0 if click.confirm(question, err=True) else OPERATION_FAILED
    except click.Abort as abort:
        click.echo(err=True)  # the question stands there without a line break
        # click raises the same error at the end of the input.
        return INTERRUPTED if isinstance(abort.__context__, KeyboardInterrupt) else OPERATION_FAILED
