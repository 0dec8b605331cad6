"""Commands for a user that the server refuses: they end with one line and code 3, and are not started again."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, RunHere, Start
from tests.cli.sites import Site

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


def with_a_wrong_password(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "MONGOQ_URI": environment["MONGOQ_URI"].replace(":viewer@", ":wrong@")}


def test_a_wrong_password_is_code_3_and_is_not_repeated(site: Site, run: Run, program_here: RunHere) -> None:
    site.set_up()
    place = with_a_wrong_password(site.environment("viewer"))
    for command in (["queues"], ["exporter", "--http", ":0"]):
        result = run(*command, env=place)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "refused the user" in result.stderr
        assert ":wrong@" not in result.stderr
    ended = program_here("worker", "app:make_short", "--drain", more=SHORT, **place)
    assert ended.code == 3
    assert ended.logged("refused the user: check user, password")


@pytest.mark.parametrize("target", ["make_short", pytest.param("make_async", marks=pytest.mark.prove), "pipeline"])
def test_a_worker_whose_user_lacks_a_right_ends_and_names_it(site: Site, program_here: RunHere, target: str) -> None:
    site.set_up()
    place = site.environment("worker", without="update")
    ended = program_here("worker", f"app:{target}", "--drain", more=SHORT, **place)
    assert ended.code == 3
    assert ended.log[-1].startswith("mongoq: MongoDB knows the user, who may not run ")
    assert "'update'" in ended.log[-1]


@pytest.mark.parametrize("target", ["make_short", "make_async", "pipeline"])
def test_a_worker_with_the_rights_of_a_producer_runs_no_handler(site: Site, program_here: RunHere, target: str) -> None:
    site.set_up().queue("orders").push_many(range(3))
    ended = program_here("worker", f"app:{target}", "--drain", more=SHORT, **site.environment("producer"))
    assert (ended.code, ended.lines) == (3, [])
    place, advice = f"{site.name}.mongoq", "'mongoq role producer|worker|viewer' prints roles with no more than they "
    assert ended.log[-1] == (
        f"mongoq: MongoDB knows the user, who may not run 'delete' on {place}: grant the action 'remove' on {place}, "
        f"or the role 'readWrite' on the database '{site.name}'; {advice}need"
    )
    assert not ended.logged("Traceback")


def test_a_refusal_in_the_module_is_one_line_with_the_line_of_the_user(site: Site, program_here: RunHere) -> None:
    site.set_up()
    push = "with connect() as broker:\n    broker.queue('orders').push(1)\n"
    ended = program_here("worker", "app:worker", more=push, **site.environment("viewer"))
    assert ended.code == 3
    (line,) = ended.log
    assert "app.py:" in line
    assert f"who may not run 'insert' on {site.name}.mongoq" in line


def test_a_supervisor_does_not_start_a_worker_again_whose_user_lacks_a_right(site: Site, program: Start) -> None:
    site.set_up()
    place = site.environment("worker", without="update")
    command = program("worker", "app:make_short", "--processes=2", more=SHORT, **place)
    assert command.end() == 3
    assert command.logged("and would fail in the same way again; all workers stop")
    assert not command.logged("starts again in")


@pytest.mark.prove
def test_a_supervisor_does_not_start_a_worker_again_whose_password_is_wrong(site: Site, program: Start) -> None:
    site.set_up()
    place = with_a_wrong_password(site.environment("viewer"))
    command = program("worker", "app:worker", "--processes=2", more="worker = make(connect())", **place)
    assert command.end() == 3
    assert command.logged("refused the user: check user, password")
    assert not command.logged("starts again in")
