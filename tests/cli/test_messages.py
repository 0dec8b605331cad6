"""Errors of commands: one line with one prefix each, and exit codes that tell mistakes from failures."""

from __future__ import annotations

import logging
import socket
import warnings

import pytest

import mongoq
from tests.cli.conftest import Run


def test_an_error_is_one_line_with_the_name_of_the_command(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    mistakes: list[tuple[list[str], int, str]] = [
        (["--wrong"], 2, "No such option"),
        (["wrong"], 2, "No such command"),
        (["dead", "wrong"], 2, "No such command"),
        (["push"], 2, "Missing argument 'QUEUE'; see main push --help"),
        (["push", "orders", "1", "--priority", "500"], 2, "-100<=x<=100"),
        (["purge", "orders"], 2, "this would delete 1 item of orders; add --yes to do it, or --dry-run to see it"),
        (["configure", "orders", "--lease", "0s", "--yes"], 2, "lease: "),
        (["peek", "oders"], 1, "there is no queue 'oders' in "),
        (["doctor", "--max-age", "soon"], 2, "'soon' is no duration"),
    ]
    for arguments, code, message in mistakes:
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("mongoq: ")
        assert result.stderr.count("\n") == 1
        assert message in result.stderr
        assert not result.stderr.startswith("mongoq: queue: ")


def test_a_group_without_a_command_prints_its_help(run: Run) -> None:
    for arguments in ([], ["dead"]):
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


def test_a_time_for_the_doctor_has_a_unit(run: Run, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    orders.push(1)
    orders.pause()
    assert "problem  oldest item" in run("doctor", "--max-age", "0.001ms").stdout
    assert "problem  oldest item" not in run("doctor", "--max-age", "15m").stdout
