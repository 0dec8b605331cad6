"""Commands that only read need no more than the role ``read``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from click.testing import CliRunner
from pymongo import MongoClient

import mongoq
from mongoq.cli.main import main
from mongoq.embedded import EmbeddedServer

PASSWORD = "geheim"


@pytest.fixture(scope="module")
def guarded(memory: Path) -> Iterator[tuple[dict[str, str], ObjectId]]:
    """A server that demands a password; the variables that name it with a user who may only read, and an item's id."""
    with EmbeddedServer(memory / "guarded", auth=("root", "root")) as server, MongoClient[Any](server.uri) as client:
        with mongoq.Broker(client["app"]["mongoq"]) as broker:
            orders = broker.queue("orders", history=3600)
            id = orders.push({"n": 1})
            orders.push({"n": 2})
            orders.commit(orders.reserve() or pytest.fail("nothing"))
            broker.bind("topic", "orders")
        client["app"].command("createUser", "viewer", pwd=PASSWORD, roles=["read"])
        uri = f"mongodb://viewer:{PASSWORD}@127.0.0.1:{server.port}/app?authSource=app&directConnection=true"
        yield {"MONGOQ_URI": uri}, id


@pytest.mark.parametrize(
    "command",
    [
        ["queues"],
        ["queues", "orders"],
        ["peek", "orders"],
        ["history", "orders", "--where", '{"n": 1}', "--since", "1h"],
        ["workers"],
        ["bindings"],
        ["stats"],
        ["settings", "orders"],
        ["limits", "orders"],
        ["show"],
    ],
)
def test_a_user_who_may_only_read_can_look(guarded: tuple[dict[str, str], ObjectId], command: list[str]) -> None:
    environment, id = guarded
    arguments = [*command, str(id)] if command == ["show"] else command
    result = CliRunner().invoke(main, arguments, env=environment)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_wrong_password_is_code_3_and_is_not_repeated(guarded: tuple[dict[str, str], ObjectId]) -> None:
    environment, _ = guarded
    wrong = {"MONGOQ_URI": environment["MONGOQ_URI"].replace(PASSWORD, "verkehrt")}
    result = CliRunner().invoke(main, ["queues"], env=wrong)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "refused the user" in result.stderr
    assert "verkehrt" not in result.stderr
