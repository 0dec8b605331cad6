"""The command ``watch``: at a terminal, for other programs, and while the server does not answer."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from click.testing import Result
from pymongo.errors import AutoReconnect, OperationFailure
from rich.console import Console

import mongoq
from mongoq.cli.base.output import Output
from mongoq.cli.inspect import watch
from mongoq.protocol.insight import QueueInsight
from tests.waiting import until

COMMAND = [sys.executable, "-m", "mongoq", "watch", "--interval", "0.2"]
SHOW_CURSOR = b"\x1b[?25h"
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


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


def test_a_closed_pipe_ends_it_quietly(broker: mongoq.Broker, environment: dict[str, str]) -> None:
    broker.queue("orders").push(1)
    env = {**os.environ, **environment}
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert (child.stderr.read(), child.wait()) == (b"", 0)


def test_an_unknown_queue_ends_it(broker: mongoq.Broker, run: Callable[..., Result]) -> None:
    broker.queue("orders").push(1)
    result = run("watch", "ordres")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'orders'" in result.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "soon"])
def test_an_interval_that_is_none_is_a_usage_error(run: Callable[..., Result], interval: str) -> None:
    assert run("watch", "--interval", interval).exit_code == 2


# --- while the server does not answer ------------------------------------------------------


class Answers:
    """Reads that fail or succeed in turn; at their end, Ctrl-C."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def __call__(self) -> list[QueueInsight]:
        if not self._answers:
            raise KeyboardInterrupt
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)


def test_snapshots_go_on_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    read = Answers(AutoReconnect("connection closed"), QueueInsight("orders", NOON))
    with pytest.raises(KeyboardInterrupt):
        watch._print_snapshots(read, 1, Output(as_json=True))
    printed = capsys.readouterr()
    assert json.loads(printed.out)["queues"][0]["queue"] == "orders"
    assert printed.err == "mongoq: AutoReconnect: connection closed\n"


def test_the_table_stays_and_says_since_when_the_server_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    read = Answers(QueueInsight("orders", NOON), AutoReconnect("connection \x1b[31mclosed"))
    with pytest.raises(KeyboardInterrupt):
        watch._show_table(read, 1, Output(), empty="")
    last = capsys.readouterr().out
    assert "orders" in last
    assert "no answer: AutoReconnect: connection \\x1b[31mclosed" in last
    assert "shown as of 2026-11-26T12:00:00.000Z" in last


def test_a_missing_right_ends_it() -> None:
    with pytest.raises(OperationFailure):
        watch._print_snapshots(Answers(OperationFailure("not authorized", 13)), 1, Output())


# --- rates ---------------------------------------------------------------------------------


def read_at(seconds: float, **events: int) -> list[QueueInsight]:
    return [QueueInsight("orders", NOON + timedelta(seconds=seconds), events=events)]


def test_a_rate_is_what_left_the_queue_a_minute() -> None:
    rates = watch.Rates()
    rates.add(read_at(0, commit=100, put=7))
    assert rates.per_minute("orders") == ""
    rates.add(read_at(30, commit=110, get=5, move=3, dead=2, put=1000))
    assert rates.per_minute("orders") == "40"
    assert rates.per_minute("mails") == ""


def test_a_rate_is_measured_over_the_last_minute() -> None:
    rates = watch.Rates()
    for seconds in range(0, 121, 10):
        rates.add(read_at(seconds, commit=1000 if seconds < 30 else 1000 + seconds))
    assert rates.per_minute("orders") == "60"


def test_counters_that_start_again_give_no_negative_rate() -> None:
    rates = watch.Rates()
    rates.add(read_at(0, commit=100))
    rates.add(read_at(60, commit=1))
    assert rates.per_minute("orders") == "0"


@pytest.mark.parametrize("width", [50, 80, 160])
def test_what_a_narrow_terminal_shows_has_room_in_it(width: int) -> None:
    at = NOON
    queues = [QueueInsight(f"orders.of.partner.{n}", at, oldest_due=at - timedelta(seconds=932)) for n in range(50)]
    console = Console(file=StringIO(), width=width, height=24)
    console.print(watch._render(queues, watch.Rates(), console, problem="", empty=""))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= console.height
    assert "15m 32s" in "\n".join(lines)
    assert "more; name the queues to watch" in lines[-2]
    assert "Ctrl-C ends" in lines[-1]
