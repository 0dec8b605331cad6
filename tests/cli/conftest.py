"""Fixtures of the tests of the command line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo.monitoring
import pytest
from click import Group
from click.testing import CliRunner, Result
from pymongo.monitoring import CommandListener

from mongoq.embedded import EmbeddedServer
from tests.cli.programs import APP, Ended, Program
from tests.cli.sites import Site, open_site
from tests.servers import spare_the_journal

Run = Callable[..., Result]
Read = Callable[..., list[Any]]
Start = Callable[..., Program]
RunHere = Callable[..., Ended]
AtCommand = Callable[..., None]


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


@pytest.fixture(autouse=True)
def logging_configuration() -> Iterator[None]:
    """Restore the configuration of logging: commands that run here configure it for the whole process."""
    loggers = [logging.getLogger(name) for name in (None, "pymongo", "asyncio")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def command_line() -> Group:
    """The command ``mongoq``, as an object of click: to start a process for each test would take half a second."""
    from mongoq.cli.main import main

    return main


@pytest.fixture
def environment(uri: str, database: str) -> dict[str, str]:
    """Variables of the environment that name the database of this test."""
    return {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, "COLUMNS": "160"}


@pytest.fixture
def run(environment: dict[str, str], command_line: Group) -> Run:
    """Runs a command in this process, and returns its exit code and output."""

    def invoke(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> Result:
        result = CliRunner().invoke(command_line, arguments, env=environment if env is None else env, **options)
        # ``SystemExit`` is the regular end; any other exception would be a traceback at the terminal.
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def read(run: Run) -> Read:
    """Runs a command with ``--json`` and returns the documents that it prints; fails unless its exit code is 0."""

    def invoke(*arguments: str) -> list[Any]:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return invoke


@pytest.fixture
def program(tmp_path: Path, uri: str, database: str) -> Iterator[Start]:
    """Start ``mongoq`` in a folder with an ``app.py``; ``more`` is added to it."""
    started: list[Program] = []

    def start(*arguments: str, more: str = "worker = make(connect())", **environment: Any) -> Program:
        (tmp_path / "app.py").write_text(APP + more)
        place: dict[str, Any] = {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, **environment}  # and a terminal
        started.append(Program(tmp_path, *arguments, **place))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def program_here(
    tmp_path: Path,
    environment: dict[str, str],
    command_line: Group,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> RunHere:
    """Run ``mongoq`` as ``program`` does, but in this process and to its end: to start one takes half a second."""

    def run(*arguments: str, more: str = "", **others: str) -> Ended:
        (tmp_path / "app.py").write_text(APP + more)
        place = {**environment, **others}
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(logging.root, "handlers", [])  # the command replaces them
            capfd.readouterr()
            try:
                result = CliRunner().invoke(command_line, arguments, env=place)
            finally:
                sys.modules.pop("app", None)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ended(capfd.readouterr().out.splitlines(), result.stderr.splitlines(), result.exit_code)

    return run


class Listener(CommandListener):
    """Acts once, before a command of a client or after it."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, str, Callable[[], object]]] = []
        self.skip = 0

    def _meet(self, *place: str) -> None:
        if self.orders and self.orders[0][:2] == place:
            self.skip -= 1
            if self.skip < 0:
                self.orders.pop()[2]()

    def started(self, event: Any) -> None:
        self._meet("before", event.command_name)

    def succeeded(self, event: Any) -> None:
        self._meet("after", event.command_name)

    def failed(self, event: Any) -> None:
        pass


@pytest.fixture
def at_command(monkeypatch: pytest.MonkeyPatch) -> AtCommand:
    """Acts while a command of ``run`` is at work: ``at_command("before", "update", action, skip=1)``."""
    listener = Listener()
    monkeypatch.setattr(pymongo.monitoring, "_LISTENERS", pymongo.monitoring._Listeners([listener], [], [], [], []))

    def order(when: str, command: str, action: Callable[[], object], *, skip: int = 0) -> None:
        listener.orders, listener.skip = [(when, command, action)], skip

    return order


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """File that lets handlers end: ``gate.touch()``."""
    return tmp_path / "gate"


@pytest.fixture(scope="session")
def guarded(memory: Path) -> Iterator[EmbeddedServer]:
    """A server on which each user needs rights."""
    with EmbeddedServer(memory / "guarded", auth=("keeper", "keeper")) as running:
        spare_the_journal(running)
        yield running


@pytest.fixture
def site(guarded: EmbeddedServer, command_line: Group) -> Iterator[Site]:
    """A database on a server on which each user needs rights."""
    with open_site(guarded, command_line) as opened:
        yield opened
