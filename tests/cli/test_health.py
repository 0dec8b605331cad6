"""``mongoq health``: exit codes and reasons for exec probes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mongoq
from mongoq.cli.main import main

NOWHERE = "mongodb://user:hunter2@127.0.0.1:1/?directConnection=true"


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["health", *arguments], env=env)


@pytest.mark.parametrize("options", [(), ("--timeout", "1")])
def test_a_server_that_can_be_used_is_healthy(uri: str, database: str, broker: mongoq.Broker, options: Any) -> None:
    broker.queue("orders").push(1)
    result = run(*options, MONGOQ_URI=uri, MONGOQ_DATABASE=database)
    assert (result.exit_code, result.stdout) == (0, "healthy\n")


def test_json_has_one_document(uri: str, database: str) -> None:
    result = run("--json", MONGOQ_URI=uri, MONGOQ_DATABASE=database)
    assert json.loads(result.stdout) == {"healthy": True, "reasons": [], "notes": []}


def test_no_server_is_a_reason_without_the_password() -> None:
    result = run("--timeout", "0.2", MONGOQ_URI=NOWHERE)
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stdout
    assert "hunter2" not in result.output


def test_an_unsuitable_collection_is_a_reason(uri: str, database: str, raw: Any) -> None:
    raw.insert_one({"_id": "schema:mongoq", "version": 99, "oldest_reader": 99})
    result = run("--json", MONGOQ_URI=uri, MONGOQ_DATABASE=database)
    assert result.exit_code == 1
    assert "99" in json.loads(result.stdout)["reasons"][0]


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_time_limit_is_a_positive_number(seconds: str) -> None:
    assert run("--timeout", seconds, MONGOQ_URI=NOWHERE).exit_code == 2


@pytest.mark.prove
def test_the_command_imports_no_server_of_probes() -> None:
    code = "import sys, mongoq.cli.main, mongoq.cli.checks.health; print('mongoq.monitoring' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
