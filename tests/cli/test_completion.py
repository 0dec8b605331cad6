"""Completion of the shell: names of commands, and names of queues where the server answers in time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pymongo
import pytest
from click.shell_completion import ShellComplete

import mongoq
from mongoq.cli.base import arguments
from mongoq.cli.main import main

PROGRAM = "import sys; sys.argv = ['mongoq']; from mongoq.cli import run; run()"


def complete(*typed: str) -> list[str]:
    """Return the suggestions for the last word."""
    *words, last = typed
    return [item.value for item in ShellComplete(main, {}, "mongoq", "_MONGOQ_COMPLETE").get_completions(words, last)]


@pytest.fixture
def _named(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_commands_are_completed_without_a_server() -> None:
    assert complete("his") == ["history"]


@pytest.mark.usefixtures("_named")
def test_names_of_queues_are_completed(broker: mongoq.Broker) -> None:
    for name in ("orders", "orders.dead", "mails", "or\x1b[31m"):
        broker.queue(name).push(1)
    assert complete("peek", "or") == ["orders", "orders.dead"]
    assert complete("queues", "mails", "o") == ["orders", "orders.dead"]
    assert complete("settings", "") == ["mails", "orders", "orders.dead"]


@pytest.mark.usefixtures("_named")
def test_names_come_from_the_database_that_the_line_names(client: Any, database: str) -> None:
    with mongoq.Broker(client[database]["others"]) as broker:
        broker.queue("other").push(1)
    assert complete("peek", "--collection", "others", "") == ["other"]
    assert complete("peek", "") == []


@pytest.mark.parametrize("uri", ["mongodb://127.0.0.1:1", "nonsense", "", "mongodb://a:b@c:d@127.0.0.1:1"])
def test_a_failure_completes_nothing_and_says_nothing(
    uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "COMPLETION_SECONDS", 0.1)
    monkeypatch.setenv("MONGOQ_URI", uri)
    assert complete("peek", "o") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("_named")
def test_a_shell_waits_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def connect(**_: Any) -> Any:
        limits.append(pymongo._csot.remaining())
        raise TimeoutError

    monkeypatch.setattr(arguments, "connect", connect)
    assert complete("peek", "o") == []
    assert [1 < limit <= 2 for limit in limits] == [True]


@pytest.mark.prove
def test_bash_gets_the_names(broker: mongoq.Broker, environment: dict[str, str]) -> None:
    broker.queue("orders").push(1)
    shell = {"_MONGOQ_COMPLETE": "bash_complete", "COMP_WORDS": "mongoq peek ord", "COMP_CWORD": "2"}
    env = {**os.environ, **environment, **shell}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr) == ("plain,orders\n", "")
