"""``mongoq worker`` for a user that the server refuses: it ends with one line and code 3, and is not started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.cli.programs import Ended, Program
from tests.restricted import create_user, uri_of

Start = Callable[..., Program]
Run = Callable[..., Ended]

SHORT = """
def work(payload):
    say("done", payload)

def make_short(broker: mongoq.Broker):
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(work)
    return worker

async def work_async(payload):
    say("done", payload)

def make_async(broker: mongoq.AsyncBroker):
    worker = mongoq.AsyncWorker(broker)
    worker.consumer("orders")(work_async)
    return worker

pipeline = mongoq.Pipeline("flights")
pipeline.sink("orders")(work)
"""
CONNECTED = "worker = make(connect())"


@pytest.fixture(scope="module")
def guarded(memory: Path) -> Iterator[EmbeddedServer]:
    """A server that demands a password, with an item in the queue ``orders`` of the database ``app``."""
    with EmbeddedServer(memory / "refusing", auth=("keeper", "keeper")) as server:
        with MongoClient[Any](server.uri) as client:
            with mongoq.Broker(client["app"]["mongoq"]) as broker:
                broker.queue("orders").push("Paris")
            create_user(client, "app", "viewer")
            create_user(client, "app", "worker", without="update")
            create_user(client, "app", "worker", without="remove")
        yield server


def place(server: EmbeddedServer, user: str, password: str | None = None) -> dict[str, str]:
    uri = uri_of(server, "app", user)
    return {"MONGOQ_URI": uri.replace(f":{user}@", f":{password or user}@"), "MONGOQ_DATABASE": "app"}


@pytest.mark.prove
@pytest.mark.parametrize("target", ["make_short", "make_async", "pipeline"])
@pytest.mark.parametrize(
    ("user", "action"), [("viewer", ""), ("worker-without-update", "'update'"), ("worker-without-remove", "'remove'")]
)
def test_a_worker_whose_user_lacks_a_right_ends_and_names_it(
    guarded: EmbeddedServer, program_here: Run, target: str, user: str, action: str
) -> None:
    ended = program_here("worker", f"app:{target}", "--drain", more=SHORT, **place(guarded, user))
    assert ended.code == 3
    assert ended.log[-1].startswith("mongoq: MongoDB knows the user, who may not run ")
    assert action in ended.log[-1]


@pytest.mark.prove
@pytest.mark.parametrize("more", [SHORT, CONNECTED], ids=["broker of the command", "broker of the module"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_with_a_wrong_password_ends_and_is_not_started_again(
    guarded: EmbeddedServer, program: Start, more: str, processes: int
) -> None:
    target = "app:make_short" if more == SHORT else "app:worker"
    command = program(
        "worker", target, "--drain", f"--processes={processes}", more=more, **place(guarded, "viewer", "wrong")
    )
    assert command.end() == 3
    assert command.logged("refused the user: check user, password")
    assert not command.logged("starts again in")
    assert not [line for line in command.log if ":wrong@" in line]


def test_a_refusal_in_the_module_is_one_line_with_the_line_of_the_user(guarded: EmbeddedServer, program: Start) -> None:
    push = "with connect() as broker:\n    broker.queue('orders').push(1)\n"
    command = program("worker", "app:worker", more=push, **place(guarded, "viewer"))
    assert command.end() == 3
    (line,) = command.log
    assert "app.py:" in line
    assert "who may not run 'insert' on app.mongoq" in line


def test_a_supervisor_does_not_start_a_worker_again_whose_user_lacks_a_right(
    guarded: EmbeddedServer, program: Start
) -> None:
    command = program(
        "worker", "app:make_short", "--processes=2", more=SHORT, **place(guarded, "worker-without-update")
    )
    assert command.end() == 3
    assert command.logged("and would fail in the same way again; all workers stop")
    assert not command.logged("starts again in")
