"""Command ``mongoq``: the list of its commands, and the exit code of each kind of error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

import mongoq
from mongoq.cli.base.output import INTERRUPTED, OPERATION_FAILED, discard_stdout, explain, printable

MODULES: Mapping[str, str] = {
    "processes.worker": "worker",
    "inspect.queues": "queues workers stats settings limits bindings",
    "inspect.watch": "watch",
    "inspect.items": "peek show history",
    "change.schedules": "schedules",
    "change.push": "push",
    "change.replay": "replay",
    "change.dead": "dead",
    "change.queue": "pause resume configure repair-sequences purge remove drop-queue",
    "processes.pipeline": "pipeline",
    "change.transfer": "export import",
    "checks.doctor": "doctor health",
    "checks.role": "role",
    "processes.dashboard": "dashboard",
    "processes.exporter": "exporter",
}
"""Commands of each module, in the order of the help page; the function of a command has ``_`` for ``-`` in its name.

The function of a command whose name is a keyword of Python ends with ``_``.
"""
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands.split()}
"""Module of each command."""

HELP_ERRORS = tuple(
    kind for kind in (getattr(click.exceptions, "NoArgsIsHelpError", None),) if kind is not None
)  # since click 8.2
"""Errors that print a help page: a group without the name of a command."""


class CommandGroup(click.Group):
    """Group that imports the module of a command only when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; ``None`` if there is none with this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"mongoq.cli.{COMMANDS[cmd_name]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if iskeyword(name) else name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the name of the command."""
        with _errors_explained(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _errors_explained(ctx):
            return super().invoke(ctx)


@contextmanager
def _errors_explained(ctx: click.Context) -> Iterator[None]:
    """Turn the errors of a block into one line on stderr and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has ended; Python would complain once more while it flushes at exit.
        discard_stdout()
        ctx.exit(0)
    except HELP_ERRORS:
        raise
    except OSError as error:
        # A full disk behind stdout; Python would complain once more while it flushes at exit.
        discard_stdout()
        place = f"{error.filename}: " if error.filename else ""
        fail(ctx, f"{place}{error.strerror or error}", OPERATION_FAILED)
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        fail(ctx, *explained)


def fail(ctx: click.Context, message: str, code: int) -> None:
    """Print an error to stderr, and exit with this code."""
    click.echo(f"mongoq: {printable(message, indent='  ')}", err=True)
    ctx.exit(code)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=CommandGroup, context_settings=CONTEXT)
@click.version_option(mongoq.__version__, prog_name="mongoq")
def main() -> None:
    """Start workers, look into queues, and repair them.

    The server is named by --uri, by MONGOQ_URI, or by uri in [tool.mongoq] of pyproject.toml. Each command explains
    itself: mongoq COMMAND --help.
    """
