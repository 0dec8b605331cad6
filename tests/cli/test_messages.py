"""Errors of commands: one line with one prefix each, and exit codes that tell mistakes from failures."""

from __future__ import annotations

import logging
import os
import pty
import signal
import socket
import subprocess
import sys
import warnings
from typing import Any

import pytest

import mongoq
from mongoq.cli.change import push, transfer
from tests.cli.conftest import Run
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--wrong"], 2, "No such option"),
        (["wrong"], 2, "No such command"),
        (["queues", "--wrong"], 2, "No such option"),
        (["dead", "wrong"], 2, "No such command"),
        (["push"], 2, "Missing argument 'QUEUE'; see main push --help"),
        (["push", "orders", "1", "--priority", "500"], 2, "-100<=x<=100"),
        (["push", "orders", "{"], 2, "the item is not valid JSON"),
        (["purge", "orders"], 2, "this would delete 1 item of orders; add --yes to do it, or --dry-run to see it"),
        (["configure", "orders", "--lease", "0s", "--yes"], 2, "lease: "),
        (["peek", "oders"], 1, "there is no queue 'oders' in "),
        (["doctor", "--max-age", "soon"], 2, "'soon' is no duration"),
    ],
    ids=str,
)
def test_an_error_is_one_line_with_the_name_of_the_command(
    run: Run, broker: mongoq.Broker, arguments: list[str], code: int, message: str
) -> None:
    broker.queue("orders").push(1)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("mongoq: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not result.stderr.startswith("mongoq: queue: ")


@pytest.mark.parametrize("arguments", [[], ["dead"]], ids=str)
def test_a_group_without_a_command_prints_its_help(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert "Commands:" in result.output
    assert "mongoq: " not in result.output


def test_a_bad_uri_is_a_mistake_in_the_arguments(run: Run, environment: dict[str, str]) -> None:
    environment["MONGOQ_URI"] = "foo"
    for command in ["queues"], ["exporter", "--http", "127.0.0.1:0"], ["push", "orders", "1"]:
        result = run(*command)
        assert result.exit_code == 2
        assert "a connection string begins with mongodb://" in result.stderr


def test_a_port_in_use_is_named(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("exporter", "--http", address)
    assert result.exit_code == 1
    assert f"mongoq: this process cannot listen on {address}" in result.stderr


def test_an_unknown_option_of_the_uri_is_named(
    run: Run, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    environment["MONGOQ_URI"] += "&foo=secret" if "?" in environment["MONGOQ_URI"] else "/?foo=secret"
    with caplog.at_level(logging.WARNING), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run("queues").exit_code == 0
    assert caplog.messages == ["the URI has an unknown option 'foo', which is left out"]
    assert not [warning for warning in caught if "option" in str(warning.message)]


@pytest.mark.parametrize(("text", "code"), [("n\n", 1), ("\x04", 1), ("\x03", 130)], ids=["no", "end", "Ctrl-C"])
def test_a_person_who_does_not_agree_reads_that_nothing_was_changed(
    environment: dict[str, str], broker: mongoq.Broker, text: str, code: int
) -> None:
    broker.queue("orders").push(1)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "mongoq", "purge", "orders"]
    env = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=env, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            part = process.stderr.read(1)
            assert part, asked
            asked += part
        if text == "\x03":
            process.send_signal(signal.SIGINT)
        else:
            os.write(terminal, text.encode())
        assert process.wait(PATIENCE) == code
        assert process.stderr.read().decode().split("\n")[-2:] == ["nothing was changed", ""]
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream and stream.close()
        os.close(end)
        os.close(terminal)
    assert broker.queue("orders").size() == 1


@pytest.mark.parametrize(
    ("module", "command", "message"),
    [
        (push, ["push", "orders", "-"], "stopped: nothing was pushed\n"),
        (transfer, ["import", "orders"], "stopped: nothing was imported\n"),
    ],
    ids=["push", "import"],
)
def test_ctrl_c_before_any_line_says_that_nothing_was_done(
    run: Run, broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch, module: Any, command: list[str], message: str
) -> None:
    def interrupt(_stream: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "read_lines", interrupt)
    result = run(*command, input="")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == message


def test_a_time_for_the_doctor_has_a_unit(run: Run, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    orders.push(1)
    orders.pause()
    assert "problem  oldest item" in run("doctor", "--max-age", "0.001ms").stdout
    assert "problem  oldest item" not in run("doctor", "--max-age", "15m").stdout
