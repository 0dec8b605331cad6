"""Errors of commands: one line with one prefix each, and exit codes that tell mistakes from failures."""

from __future__ import annotations

import logging
import socket
import warnings
from typing import Any
from unittest.mock import Mock

import click
import pytest

import mongoq
from mongoq.cli.base.confirmation import Confirmation
from mongoq.cli.base.output import Output
from mongoq.cli.change import push, transfer
from tests.cli.conftest import Run


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


@pytest.mark.parametrize(("answer", "code"), [("n", 1), (EOFError, 1), (KeyboardInterrupt, 130)], ids=str)
def test_a_person_who_does_not_agree_reads_that_nothing_was_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, code: int
) -> None:
    def read(_question: str) -> str:
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr("click.termui.visible_prompt_func", read)
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    with pytest.raises(click.exceptions.Exit) as ended:
        Confirmation(yes=False, dry_run=False).allows(Output(), "delete 1 item of orders", count=1)
    assert ended.value.exit_code == code
    assert capsys.readouterr().err.splitlines()[-1] == "nothing was changed"


@pytest.mark.parametrize(
    ("module", "command", "message"),
    [
        (push, ["push", "orders", "-"], "stopped: nothing was pushed\n"),
        (transfer, ["import", "orders"], "stopped: nothing was imported\n"),
    ],
    ids=["push", "import"],
)
def test_ctrl_c_before_any_line_says_that_nothing_was_done(
    run: Run, monkeypatch: pytest.MonkeyPatch, module: Any, command: list[str], message: str
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
