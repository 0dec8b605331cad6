"""The page of the command line: its transcript is run, and its commands and options exist."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

import mongoq
from tests.docs import transcript
from tests.docs.commands import command_line

PAGE = "docs/command-line.md"
PAGES = ((PAGE, 10), ("docs/running-workers.md", 7), ("docs/repairing-queues.md", 15))
"""Pages, and how many options at least each of them names."""
FOLDER = "/home/ada/shop"
URI = "mongodb://localhost:27017/shop"
NAMESPACE = "shop.mongoq"
OTHER_OPTIONS = {"--help", "--init", "--no-cache-dir", "--no-deps", "--wheel-dir"}
"""Options of pip and Docker, and the one that click adds."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a shell in which ``mongoq`` is installed, and no server is named."""
    script = tmp_path / "bin" / "mongoq"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m mongoq "$@"\n')
    script.chmod(0o755)
    own = {name: value for name, value in os.environ.items() if not name.startswith("MONGOQ_")}
    own["PATH"] = f"{script.parent}:{own['PATH']}"
    return {**own, "PYTHONPATH": str(transcript.ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.mark.prove
def test_the_transcript_is_what_the_terminals_show(
    tmp_path: Path, environment: dict[str, str], uri: str, database: str, broker: mongoq.Broker
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    # Ids that one terminal has shown appear in another one.
    place = urlsplit(uri)._replace(path=f"/{database}").geturl()
    replacements = {FOLDER: str(folder), URI: place, NAMESPACE: broker.namespace}
    terminals: dict[str, transcript.Terminal] = {}
    kinds = []
    try:
        for kind, title, text in transcript.blocks(PAGE):
            kinds.append(kind)
            if kind == "python":
                (folder / title).write_text(text)
            elif kind == "diff":
                transcript.apply_diff(folder / title, text)
            else:
                if title not in terminals:
                    terminals[title] = transcript.Terminal(folder, environment, replacements)
                terminals[title].run(text)
        assert terminals["Terminal 1"].interrupt() == 0
    finally:
        for terminal in terminals.values():
            terminal.close()
    assert kinds.count("text") >= 6
    assert {"python", "diff", "text"} == set(kinds)
    assert broker.queue("orders").counts() == broker.queue("orders").dead.counts() == mongoq.Counts()


def commands() -> Iterator[tuple[str, click.Command]]:
    """Return all commands by name, also those of groups."""
    main = command_line()
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from command.commands.items()


def test_the_table_has_all_commands() -> None:
    table = (transcript.ROOT / PAGE).read_text().partition("## All commands")[2].partition("\n## ")[0]
    main = command_line()
    for name in main.list_commands(click.Context(main)):
        assert f"mongoq {name}" in table, name


def test_commands_and_options_of_the_pages_exist() -> None:
    names = {name for name, _ in commands()}
    known = {option for _, command in commands() for param in command.params for option in param.opts}
    for page, least in PAGES:
        text = (transcript.ROOT / page).read_text()
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        assert len(named & known) >= least, page
        assert named <= known | OTHER_OPTIONS, page
        assert set(re.findall(r"\bmongoq ([a-z][a-z-]*)", text)) <= names | {"has", "in", "is"}, page


def test_the_table_of_options_has_all_options_of_the_worker() -> None:
    text = (transcript.ROOT / "docs/running-workers.md").read_text()
    command = dict(commands())["worker"]
    own = {param.opts[0] for param in command.params if isinstance(param, click.Option) and not param.hidden}
    for option in own - {"--uri", "--database", "--collection"}:
        assert f"| `{option}" in text, option
