"""``mongoq health``: exit codes and reasons for exec probes."""

from __future__ import annotations

import json
from typing import Any

import mongoq
from tests.cli.conftest import Read, Run


def test_a_server_that_can_be_used_is_healthy(run: Run, read: Read, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    result = run("health", "--timeout", "60")
    assert (result.exit_code, result.stdout) == (0, "healthy\n")
    assert read("health") == [{"healthy": True, "reasons": [], "notes": []}]


def test_no_server_is_a_reason_without_the_password(run: Run, environment: dict[str, str]) -> None:
    environment["MONGOQ_URI"] = "mongodb://user:hunter2@127.0.0.1:1/?directConnection=true"
    result = run("health", "--timeout", "0.2")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stdout
    assert "hunter2" not in result.output
    for seconds in ("0", "-1", "soon"):
        assert run("health", "--timeout", seconds).exit_code == 2


def test_an_unsuitable_collection_is_a_reason(run: Run, raw: Any) -> None:
    raw.insert_one({"_id": "schema:mongoq", "version": 99, "oldest_reader": 99})
    result = run("health", "--json")
    assert result.exit_code == 1
    assert "99" in json.loads(result.stdout)["reasons"][0]
