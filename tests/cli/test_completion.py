"""Completion of the shell: names of commands, and names of queues where the server answers in time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from click import Group
from click.shell_completion import ShellComplete

import mongoq

Complete = Callable[..., list[str]]
PROGRAM = "import sys; sys.argv = ['mongoq']; from mongoq.cli import run; run()"


@pytest.fixture
def complete(command_line: Group, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Returns the suggestions for the last word."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shell = ShellComplete(command_line, {}, "mongoq", "_MONGOQ_COMPLETE")

    def suggest(*typed: str) -> list[str]:
        *words, last = typed
        return [item.value for item in shell.get_completions(words, last)]

    return suggest


def test_names_of_commands_and_queues_are_completed(complete: Complete, broker: mongoq.Broker) -> None:
    assert complete("his") == ["history"]
    for name in ("orders", "orders.dead", "mails", "or\x1b[31m"):
        broker.queue(name).push(1)
    assert complete("peek", "or") == ["orders", "orders.dead"]
    assert complete("queues", "mails", "o") == ["orders", "orders.dead"]
    assert complete("settings", "") == ["mails", "orders", "orders.dead"]


def test_a_name_that_a_shell_would_execute_is_not_completed(complete: Complete, broker: mongoq.Broker) -> None:
    for name in ("orders/eu-1", "(reboot)", "orders$(reboot)", "orders;ls", "-x", "orders`ls`", "a b"):
        broker.queue(name).push(1)
    assert complete("peek", "") == ["orders/eu-1"]


def test_names_come_from_the_database_that_the_line_names(complete: Complete, client: Any, database: str) -> None:
    with mongoq.Broker(client[database]["others"]) as broker:
        broker.queue("other").push(1)
    assert complete("peek", "--collection", "others", "") == ["other"]
    assert complete("peek", "") == []


def test_a_failure_completes_nothing_and_says_nothing(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for uri in ("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", "nonsense", "", "mongodb://a:b@c:d@127.0.0.1:1"):
        monkeypatch.setenv("MONGOQ_URI", uri)
        assert complete("peek", "o") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.prove
def test_bash_gets_the_names(broker: mongoq.Broker, environment: dict[str, str]) -> None:
    broker.queue("orders").push(1)
    shell = {"_MONGOQ_COMPLETE": "bash_complete", "COMP_WORDS": "mongoq peek ord", "COMP_CWORD": "2"}
    env = {**os.environ, **environment, **shell}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr) == ("plain,orders\n", "")
