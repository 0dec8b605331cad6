"""The roles that ``mongoq role`` prints: users who have them can do their work, and nothing that other roles do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from bson import ObjectId
from click import Group
from click.testing import CliRunner, Result
from pymongo.errors import OperationFailure

import mongoq
from tests.cli.sites import Site
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
ROLES = ("producer", "worker", "viewer")
Run = Callable[..., Result]
# One process runs them all, on one server; the campaigns have processes of their own.
pytestmark = pytest.mark.xdist_group("cli/test_role")


# --- the command -----------------------------------------------------------------------------------


@pytest.fixture
def run(command_line: Group) -> Run:
    """Runs a command that needs no server."""

    def invoke(*arguments: str, **environment: str) -> Result:
        place = {"MONGOQ_URI": "", "MONGOQ_DATABASE": "", "MONGOQ_COLLECTION": "", **environment}
        return CliRunner().invoke(command_line, arguments, env=place)

    return invoke


def test_the_script_creates_the_role_of_the_command_document(run: Run) -> None:
    for role in ROLES:
        place = ("--database", "shöp", "--collection", 'jobs"\x1b\n')
        document = json.loads(run("role", role, *place, "--json").stdout)
        script = run("role", role, *place).stdout
        assert script.isascii()
        assert "\x1b" not in script
        head, _, rest = script.partition("createRole(")
        assert head == 'db.getSiblingDB("sh\\u00f6p").'
        # As JSON: with quotes around the names of fields, and without commas behind the last ones.
        argument = re.sub(r",(?=\s*[\]}])", "", re.sub(r"(\w+): ", r'"\1": ', rest.partition(")\n//")[0]))
        assert json.loads(argument) == {"role": document.pop("createRole"), **document}


def test_the_names_are_those_of_a_connection(run: Run) -> None:
    uri, other = "mongodb+srv://me:secret@nowhere.invalid/shop", "mongodb://nowhere.invalid/shop"
    named: list[tuple[list[str], dict[str, str], str, str]] = [
        ([], {}, "mongoq", "mongoq"),
        ([], {"MONGOQ_URI": uri}, "shop", "mongoq"),
        (["--uri", other, "--database", "app"], {"MONGOQ_COLLECTION": "jobs"}, "app", "jobs"),
    ]
    for options, environment, database, collection in named:
        result = run("role", "viewer", "--json", *options, **environment)
        assert (result.exit_code, result.stderr) == (0, "")
        command = json.loads(result.stdout)
        assert command["createRole"] == f"{collection}-viewer"
        assert command["privileges"][0]["resource"] == {"db": database, "collection": collection}


def test_bad_input_prints_no_role(run: Run) -> None:
    for arguments, message in (
        (["worker", "--database", "a/b"], "cannot contain the character '/'"),
        (["worker", "--collection", "system.jobs"], "keeps for itself"),
        (["worker", "--uri", "mongodb://me:secret@h/app"], "MONGOQ_URI"),
        (["owner"], "is not one of 'producer', 'worker', 'viewer'"),
    ):
        result = run("role", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert "secret" not in result.stderr


# --- what the roles may do -------------------------------------------------------------------------


def produce(environment: dict[str, str]) -> None:
    """Push in all ways, with settings in code."""
    with mongoq.connect(environment["MONGOQ_URI"], database=environment["MONGOQ_DATABASE"]) as broker:
        bills = broker.queue("bills", history=60)
        id = bills.push(0)
        assert bills.push(0, id=id) == id
        for n in range(2):
            bills.push(n, key="k", on_duplicate="replace")
        with pytest.raises(mongoq.DuplicateItem):
            bills.push(2, key="k", on_duplicate="raise")
        ids = bills.push_many([1, 2, 3])
        assert bills.push_many([1, 2, 3], ids=ids) == ids
        with broker.transaction() as transaction:
            bills.push("bound", session=transaction.session)
        broker.queue("news").push("published")
        broker.queue("news").push_many(["published"] * 2)


def work(environment: dict[str, str]) -> None:
    """Make the collection, and do what workers and consumers do."""
    uri, database = environment["MONGOQ_URI"], environment["MONGOQ_DATABASE"]
    with mongoq.connect(uri, database=database) as broker:
        broker.ensure_indexes()
        produce(environment)
        broker.bind("news", "orders", "mails")
        orders = broker.queue("orders", max_retries=1)
        orders.push_many(range(9))
        orders.commit(orders.extend(take(orders)))
        orders.release(take(orders))
        orders.rollback(take(orders))
        orders.bury(take(orders), reason="tests")
        orders.move(take(orders), "mails")
        orders.commit_many(orders.reserve_many(2))
        orders.pop()
        with broker.transaction() as transaction:
            orders.commit(take(orders), session=transaction.session)
            broker.queue("mails").push("with it", session=transaction.session)
        assert orders.dead.replay().pushed == 1
        worker = mongoq.Worker(broker)
        worker.consumer("orders")(fail_once())
        worker.consumer("mails")(lambda payload: None)
        worker.run(drain=True, signals=False)
        waiting, items = begin_to_wait(broker)
        until(lambda: broker.health().notes == ())  # the change stream is open
        broker.queue("late").push(1)
        waiting.join()
        assert items[0].payload == 1
        orders.purge()
        broker.drop_queue("mails")


def fail_once() -> Callable[[Any], None]:
    calls = iter([RuntimeError("first")])

    def handle(_: Any) -> None:
        for error in calls:
            raise error

    return handle


def take(queue: Any) -> Any:
    return queue.reserve() or pytest.fail("nothing")


def begin_to_wait(broker: mongoq.Broker) -> tuple[Thread, list[Any]]:
    """Wait for an item in a thread, and return the thread and a list for the item."""
    items: list[Any] = []
    waiting = Thread(target=lambda: items.append(broker.queue("late").reserve(wait=PATIENCE)))
    waiting.start()
    return waiting, items


VIEWS = (
    ["queues"],
    ["queues", "orders"],
    ["peek", "orders"],
    ["show", "ID"],
    ["history", "orders", "--where", '{"n": {"$gte": 0}}', "--since", "1h"],
    ["workers"],
    ["bindings"],
    ["stats"],
    ["settings", "orders"],
    ["limits", "orders"],
    ["dead", "list", "orders"],
    ["dead", "show", "orders"],
    ["export", "orders"],
    ["health"],
)
"""Commands that inspect."""


def examine(site: Site, environment: dict[str, str], *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code of the doctor, and its findings by check."""
    result = CliRunner().invoke(site.command_line, ["doctor", "--json", *options], env=environment)
    return result.exit_code, {finding["check"]: finding for finding in map(json.loads, result.stdout.splitlines())}


def view(site: Site, environment: dict[str, str], id: ObjectId) -> None:
    """Run all commands that inspect, and the doctor."""
    for command in VIEWS:
        arguments = [str(id) if part == "ID" else part for part in command]
        result = CliRunner().invoke(site.command_line, arguments, env=environment)
        assert result.exit_code == 0, (command, result.output)
    _, findings = examine(site, environment, "--role=viewer")
    unknown = {name: finding["detail"] for name, finding in findings.items() if finding["state"] == "unknown"}
    # No right on a database shows the whole server.
    if unknown.keys() != {"write concern", "history window", "cache"}:
        pytest.fail(str(unknown))
    assert findings["rights"]["state"] == "ok"


def test_a_producer_pushes_in_all_ways(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    owner = site.set_up()
    produce(site.environment("producer"))
    put = {name: stats.put for name, stats in owner.stats().items() if stats.put}
    assert put == {"orders": 7, "mails": 3, "bills": 6, "orders.dead": 1}
    stored = site.client[site.name]["mongoq"].find_one({"_id": "queue:bills"}, {"_id": 0})
    assert stored == {"settings": {"history": 60}}
    assert not caplog.text


def test_a_worker_makes_the_collection_and_does_all_operations(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    work(site.environment("worker"))
    assert not re.search("not authorized|may not run|code 13", caplog.text)


def test_a_viewer_runs_all_commands_that_inspect(site: Site) -> None:
    dead = site.set_up().queue("orders").dead.peek()[0]
    environment = site.environment("viewer")
    view(site, environment, dead.id)
    # And who monitors the cluster can make all checks.
    site.client[site.name].command("grantRolesToUser", "viewer", roles=[{"role": "clusterMonitor", "db": "admin"}])
    _, findings = examine(site, environment, "--role=viewer")
    assert "unknown" not in {finding["state"] for finding in findings.values()}, findings


@pytest.mark.parametrize("role", ["producer", "viewer"])
def test_an_operation_beyond_a_role_names_the_missing_right(site: Site, role: str) -> None:
    owner = site.set_up()
    owner.queue("mails").push(1)
    first = owner.queue("orders").peek()[0].id
    stored = site.client[site.name]["mongoq"]
    before = stored.distinct("_id", {"payload": {"$exists": True}})
    beyond: list[tuple[str, Callable[[Any], Any]]] = [
        ("remove", lambda broker: broker.queue("orders").remove(first)),
        ("remove", lambda broker: broker.queue("orders").purge()),
        ("remove", lambda broker: broker.queue("mails").pop()),
        ("remove", lambda broker: broker.drop_queue("orders", force=True)),
    ]
    if role == "viewer":
        beyond += [
            ("insert", lambda broker: broker.queue("orders").push(1)),
            ("insert", lambda broker: broker.queue("news").push(1)),
            ("update", lambda broker: broker.queue("orders").reserve()),
            ("update", lambda broker: broker.queue("orders").pause()),
            ("update", lambda broker: broker.bind("news", "bills")),
        ]
    place = re.escape(f"{site.name}.mongoq")
    with site.connect(role) as broker:
        for action, operation in beyond:
            with pytest.raises(OperationFailure) as refused:
                operation(broker)
            granted = rf"grant the actions? [^,;]*'{action}'[^,;]* on {place}, or the role 'readWrite'"
            also = rf"grant the action 'update' on {place}.*needs '{action}' too"
            assert re.search(f"{granted}|{also}", str(refused.value)), str(refused.value)
    assert stored.distinct("_id", {"payload": {"$exists": True}}) == before


def test_only_a_worker_begins_a_collection_and_no_role_reaches_another_one(site: Site) -> None:
    for role in ("producer", "viewer"):
        with pytest.raises(mongoq.AuthenticationFailed, match="start a worker first, or call broker.ensure_indexes"):
            site.connect(role)
    uri = site.environment("worker")["MONGOQ_URI"]
    with pytest.raises(mongoq.AuthenticationFailed, match=r"grant the action 'find' on \w+\.jobs"):
        mongoq.connect(uri, database=site.name, collection="jobs")


# --- what the doctor says of rights ----------------------------------------------------------------


def test_a_user_with_the_rights_of_a_worker_may_not_see_all_of_the_server(site: Site) -> None:
    site.set_up().queue("orders").purge()
    code, findings = examine(site, site.create_user("readWrite"))
    assert code == 0, findings
    assert findings["rights"]["detail"] == "user 'readWrite' may read, write and wait"
    unknown = {name for name, finding in findings.items() if finding["state"] == "unknown"}
    assert unknown == {"write concern", "history window", "cache"}
    assert "clusterMonitor" in findings["cache"]["detail"]


def test_missing_rights_are_named(site: Site) -> None:
    site.set_up()
    environment = site.create_user("read")
    code, findings = examine(site, environment)
    assert code == 1
    assert findings["rights"]["detail"] == "user 'read' lacks 'insert', 'update', 'remove'"
    assert f"or the role 'readWrite' on the database '{site.name}'" in findings["rights"]["advice"]
    assert "'mongoq role worker' prints" in findings["rights"]["advice"]
    for role, lacks in (("producer", "lacks 'insert', 'update'"), ("viewer", "may read")):
        _, findings = examine(site, environment, f"--role={role}")
        assert findings["rights"]["detail"] == f"user 'read' {lacks}"


# --- campaigns -------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", [pytest.param(role, marks=pytest.mark.xdist_group(role)) for role in ROLES])
def test_the_conformance_suite_needs_no_more_than_a_role(role: str) -> None:
    command = [sys.executable, "-m", "pytest", "tests/conformance", "--role", role, "-q", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-4000:]
    assert " passed" in completed.stdout


@pytest.mark.prove
@pytest.mark.parametrize("action", ["find", "insert", "update"])
def test_a_producer_needs_each_of_its_rights(site: Site, action: str) -> None:
    site.set_up()
    with pytest.raises((OperationFailure, mongoq.AuthenticationFailed)) as refused:
        produce(site.environment("producer", without=action))
    assert f"'{action}'" in str(refused.value)


@pytest.mark.prove
@pytest.mark.parametrize("action", ["find", "insert", "update", "remove", "createIndex", "listCollections"])
def test_a_worker_needs_each_of_its_rights(site: Site, action: str) -> None:
    with pytest.raises((OperationFailure, mongoq.AuthenticationFailed)) as refused:
        work(site.environment("worker", without=action))
    assert f"'{action}'" in str(refused.value)


@pytest.mark.prove
def test_a_worker_without_a_change_stream_is_told_that_it_looks_now_and_then(site: Site) -> None:
    environment = site.environment("worker", without="changeStream")
    with mongoq.connect(environment["MONGOQ_URI"], database=site.name) as broker:
        waiting, items = begin_to_wait(broker)
        until(lambda: "the user no right to it" in str(broker.health().notes))
        broker.queue("late").push(1)
        waiting.join()
        assert items[0].payload == 1


@pytest.mark.prove
@pytest.mark.parametrize("action", ["find", "listIndexes"])
def test_a_viewer_needs_each_of_its_rights(site: Site, action: str) -> None:
    dead = site.set_up().queue("orders").dead.peek()[0]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"'{action}'"):
        view(site, site.environment("viewer", without=action), dead.id)
