"""Commands ``mongoq …`` of pages and configurations: parsed as the command line parses them, and not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import click

__all__ = ["check_command", "command_line", "commands_in"]

BLOCK = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`(mongoq [^`]+)`")
PROMPT = re.compile(r"^(?:\$ )?(?=mongoq\s)")
REST = re.compile(r"\s(?:\||>|<|&&|#)\s?.*", re.DOTALL)
"""What a shell would not hand over to the command."""


def commands_in(text: str) -> Iterator[str]:
    """Return the commands of a page: lines of blocks that begin with ``mongoq``, and code within sentences."""
    for block in BLOCK.finditer(text):
        for line in block["text"].replace("\\\n", " ").splitlines():
            if PROMPT.match(line):
                yield PROMPT.sub("", line)
    for match in CODE.finditer(BLOCK.sub("", text)):
        yield " ".join(match[1].split())


def command_line() -> click.Group:
    """Return the command ``mongoq``: click tells its commands and options, and parses without running."""
    from mongoq.cli.main import main

    return main


def check_command(arguments: str | Sequence[str]) -> None:
    """Parse the arguments of a command, given with its name.

    Raises:
        click.UsageError: there is no such command or option, or an argument is missing or of another kind.
    """
    words = shlex.split(REST.sub("", arguments)) if isinstance(arguments, str) else list(arguments)
    assert words[0] == "mongoq", words
    command: click.Command = command_line()
    parent: click.Context | None = None
    rest = words[1:]
    while isinstance(command, click.Group):
        parent = click.Context(command, info_name=command.name, parent=parent)
        _, found, rest = command.resolve_command(parent, rest)
        assert found is not None
        command = found
    command.make_context(command.name, list(rest), parent=parent)
