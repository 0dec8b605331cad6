"""The command ``watch``: at a terminal, and for other programs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mongoq
from tests.cli.conftest import Run
from tests.waiting import until

COMMAND = [sys.executable, "-m", "mongoq", "watch", "--interval", "0.2"]
SHOW_CURSOR = b"\x1b[?25h"


class Terminal:
    """A command at a terminal, and what it has written there."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._reader, inner = pty.openpty()
        self.settings = termios.tcgetattr(self._reader)
        env = {**os.environ, **environment, "TERM": "xterm", "LINES": "12"}
        self.child = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=env)
        os.close(inner)
        self.written = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._reader, 65_536)
            except OSError:  # the other end is closed
                return
            if not found:
                return
            self.written += found

    def end(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.child.send_signal(number)
        code = self.child.wait(60)
        self._thread.join(60)
        return code

    def current_settings(self) -> list[Any]:
        return termios.tcgetattr(self._reader)


@contextmanager
def terminal(environment: dict[str, str], *options: str) -> Iterator[Terminal]:
    opened = Terminal([*COMMAND, *options], environment)
    try:
        yield opened
    finally:
        if opened.child.poll() is None:
            opened.child.kill()
            opened.child.wait()
        opened._thread.join(60)
        os.close(opened._reader)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)])
def test_the_table_follows_the_queues_and_leaves_the_terminal_as_it_was(
    broker: mongoq.Broker, environment: dict[str, str], number: signal.Signals
) -> None:
    broker.queue("orders").push_many(range(3))
    with terminal(environment) as shown:
        until(lambda: b"orders" in shown.written and b"Ctrl-C ends" in shown.written)
        broker.queue("mails").push_many(range(4321))
        until(lambda: b"mails" in shown.written and b"4,321" in shown.written)
        assert shown.end(number) == 0
        assert shown.written.rstrip().endswith(SHOW_CURSOR)
        assert b"Traceback" not in shown.written
        assert shown.current_settings() == shown.settings


def test_more_queues_than_lines_are_counted(broker: mongoq.Broker, environment: dict[str, str]) -> None:
    for number in range(20):
        broker.queue(f"queue-{number:02}").push(1)
    with terminal(environment) as shown:
        until(lambda: b"and 14 more" in shown.written)
        assert b"queue-06" not in shown.written
        assert shown.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("options", [[], pytest.param(["--json"], marks=pytest.mark.prove)])
def test_for_other_programs_each_time_is_a_line_of_json(
    broker: mongoq.Broker, environment: dict[str, str], options: list[str]
) -> None:
    broker.queue("orders").push_many(range(3))
    broker.queue("mails").push(1)
    command, env = [*COMMAND, *options, "orders"], {**os.environ, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        first, second = (json.loads(child.stdout.readline()) for _ in range(2))
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
        assert (child.stderr.read(), child.wait()) == (b"", 0)
    assert [queue["queue"] for queue in first["queues"]] == ["orders"]
    assert first["queues"][0]["ready"] == 3
    assert first["at"] < second["at"]
    assert all(json.loads(line) for line in rest.splitlines())


def test_what_cannot_be_watched_ends_it(broker: mongoq.Broker, run: Run) -> None:
    broker.queue("orders").push(1)
    result = run("watch", "ordres")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'orders'" in result.stderr
    for interval in ("0", "-1", "soon"):
        assert run("watch", "--interval", interval).exit_code == 2
