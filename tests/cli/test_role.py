"""The roles that ``mongoq role`` prints: users who have them can do their work, and nothing that other roles do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from bson import ObjectId
from click.testing import CliRunner, Result
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import mongoq
from mongoq.cli.checks.role import ROLES, create_role_command
from mongoq.cli.main import main
from mongoq.embedded import EmbeddedServer
from mongoq.spark.scan import Scan
from tests.clients import opened
from tests.restricted import create_user, drop_users, mark_operations, restrict, uri_of
from tests.servers import drop, spare_the_journal
from tests.shells import Awaited
from tests.waiting import until

ROOT = Path(__file__).parents[2]
# One process runs them all, on one server; the campaigns have processes of their own.
pytestmark = pytest.mark.xdist_group("cli/test_role")

# --- the command -----------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> Result:
    place = {"MONGOQ_URI": "", "MONGOQ_DATABASE": "", "MONGOQ_COLLECTION": "", **environment}
    return CliRunner().invoke(main, arguments, env=place)


@pytest.mark.parametrize("role", ROLES)
def test_the_script_creates_the_role_of_the_command_document(role: str) -> None:
    place = ("--database", "shöp", "--collection", 'jobs"\x1b\n')
    document = json.loads(run("role", role, *place, "--json").stdout)
    assert document == create_role_command(role, "shöp", 'jobs"\x1b\n')
    script = run("role", role, *place).stdout
    assert script.isascii()
    assert "\x1b" not in script
    head, _, rest = script.partition("createRole(")
    assert head == 'db.getSiblingDB("sh\\u00f6p").'
    # As JSON: with quotes around the names of fields, and without commas behind the last ones.
    argument = re.sub(r",(?=\s*[\]}])", "", re.sub(r"(\w+): ", r'"\1": ', rest.partition(")\n//")[0]))
    assert json.loads(argument) == {"role": document.pop("createRole"), **document}


@pytest.mark.parametrize(
    ("options", "environment", "database", "collection"),
    [
        ([], {}, "mongoq", "mongoq"),
        ([], {"MONGOQ_URI": "mongodb+srv://me:secret@nowhere.invalid/shop"}, "shop", "mongoq"),
        (
            ["--uri", "mongodb://nowhere.invalid/shop", "--database", "app"],
            {"MONGOQ_COLLECTION": "jobs"},
            "app",
            "jobs",
        ),
        (["--collection", "jobs"], {"MONGOQ_DATABASE": "app"}, "app", "jobs"),
    ],
)
def test_the_names_are_those_of_a_connection(
    options: list[str], environment: dict[str, str], database: str, collection: str
) -> None:
    result = run("role", "viewer", "--json", *options, **environment)
    assert (result.exit_code, result.stderr) == (0, "")
    command = json.loads(result.stdout)
    assert command["createRole"] == f"{collection}-viewer"
    assert command["privileges"][0]["resource"] == {"db": database, "collection": collection}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["worker", "--database", "a/b"], 2, "cannot contain the character '/'"),
        (["worker", "--collection", "system.jobs"], 2, "keeps for itself"),
        (["worker", "--uri", "mongodb://me:secret@h/app"], 2, "MONGOQ_URI"),
        (["owner"], 2, "is not one of 'producer', 'worker', 'viewer'"),
        ([], 2, "Missing argument"),
    ],
)
def test_bad_input_prints_no_role(arguments: list[str], code: int, message: str) -> None:
    result = run("role", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert "secret" not in result.stderr


# --- the rights ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(memory: Path) -> Iterator[EmbeddedServer]:
    """A server on which each user needs rights."""
    with EmbeddedServer(memory / "roles", auth=("keeper", "keeper")) as running:
        spare_the_journal(running)
        yield running


@dataclass(frozen=True)
class Site:
    """A database of a test, and its owner's client."""

    server: EmbeddedServer
    client: MongoClient[Any]
    name: str

    def environment(self, role: str, *, without: str | None = None) -> dict[str, str]:
        """Create a user with a role, but for an action, and return the variables that name it."""
        user = create_user(self.client, self.name, role, without=without)
        return {"MONGOQ_URI": uri_of(self.server, self.name, user), "MONGOQ_DATABASE": self.name}

    def connect(self, role: str) -> mongoq.Broker:
        """Connect as a new user with a role."""
        environment = self.environment(role)
        return mongoq.connect(environment["MONGOQ_URI"], database=self.name)

    def set_up(self) -> mongoq.Broker:
        """Make the collection, with items in all states, and return the owner's broker."""
        broker = mongoq.Broker(self.client[self.name]["mongoq"])
        orders = broker.queue("orders", history=600)
        broker.bind("news", "orders", "mails")
        orders.push_many([{"n": n} for n in range(4)])
        orders.commit(orders.reserve() or pytest.fail("nothing"))
        orders.bury(orders.reserve() or pytest.fail("nothing"), reason="tests")
        return broker


@pytest.fixture
def site(guarded: EmbeddedServer) -> Iterator[Site]:
    name = f"roles_{uuid4().hex[:8]}"
    with MongoClient[Any](guarded.uri) as client:
        yield Site(guarded, client, name)
        drop_users(client, name)
        drop(client, name)


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
        wait_for_an_item(broker)
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


def wait_for_an_item(broker: mongoq.Broker) -> None:
    """Wait until the change stream is open, and push then."""
    items: list[Any] = []
    waiting = Thread(target=lambda: items.append(broker.queue("late").reserve(wait=30)))
    waiting.start()
    registry = broker._context.registry
    until(lambda: registry.cursor is not None or registry.deaf)
    broker.queue("late").push(1)
    waiting.join()
    assert items[0].payload == 1
    assert broker.health().notes == ()


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


def view(environment: dict[str, str], id: ObjectId) -> None:
    """Run all commands that inspect, and the doctor."""
    for command in VIEWS:
        arguments = [str(id) if part == "ID" else part for part in command]
        result = CliRunner().invoke(main, arguments, env=environment)
        assert result.exit_code == 0, (command, result.output)
    result = CliRunner().invoke(main, ["doctor", "--role=viewer", "--json"], env=environment)
    findings = {finding["check"]: finding for finding in map(json.loads, result.stdout.splitlines())}
    unknown = {name: finding["detail"] for name, finding in findings.items() if finding["state"] == "unknown"}
    # No right on a database shows the whole server.
    if unknown.keys() != {"write concern", "history window", "cache"}:
        pytest.fail(str(unknown))
    assert findings["rights"]["state"] == "ok"


def test_a_producer_pushes_in_all_ways(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    owner = site.set_up()
    produce(site.environment("producer"))
    assert {name: stats.put for name, stats in owner.stats().items() if stats.put} == {
        "orders": 7,
        "mails": 3,
        "bills": 6,
    }
    assert site.client[site.name]["mongoq"].find_one({"_id": "queue:bills"}, {"_id": 0}) == {
        "settings": {"history": 60}
    }
    assert not caplog.text


def test_a_worker_makes_the_collection_and_does_all_operations(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    work(site.environment("worker"))
    assert not re.search("not authorized|may not run|code 13", caplog.text)


def test_a_viewer_runs_all_commands_that_inspect(site: Site) -> None:
    dead = site.set_up().queue("orders").dead.peek()[0]
    view(site.environment("viewer"), dead.id)


def test_a_viewer_may_do_all_reads_of_spark(site: Site) -> None:
    site.set_up()
    user = site.environment("viewer")
    with Scan(user["MONGOQ_URI"], site.name, "mongoq") as scan:
        assert scan.now() is not None
        assert scan.index(["_id"]) == "_id_"
        assert scan.size() > 4
        assert scan.count({"q": "orders"}, None) == 3
        assert len(scan.boundaries({"q": "orders"}, None, count=3, parts=2)) == 1
        assert sum(map(len, scan.batches({"q": "orders"}, None, hint=None, rows=9))) == 3


def test_a_viewer_who_monitors_the_cluster_can_make_all_checks(site: Site) -> None:
    site.set_up()
    environment = site.environment("viewer")
    site.client[site.name].command("grantRolesToUser", "viewer", roles=[{"role": "clusterMonitor", "db": "admin"}])
    result = CliRunner().invoke(main, ["doctor", "--role=viewer", "--json"], env=environment)
    assert "unknown" not in {json.loads(line)["state"] for line in result.stdout.splitlines()}, result.stdout


BEYOND_PRODUCER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "remove": ("remove", lambda broker: broker.queue("orders").remove(broker.queue("orders").peek()[0].id)),
    "purge": ("remove", lambda broker: broker.queue("orders").purge()),
    "pop without history": ("remove", lambda broker: broker.queue("mails").pop()),
    "drop a queue": ("remove", lambda broker: broker.drop_queue("orders", force=True)),
}
CONSUME: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "commit without history": ("remove", lambda broker: broker.queue("mails").commit(take(broker.queue("mails")))),
}
"""Operation that a producer may begin: a right to update cannot tell a claim from a replaced item."""
BEYOND_VIEWER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "push": ("insert", lambda broker: broker.queue("orders").push(1)),
    "push with a key": ("insert", lambda broker: broker.queue("orders").push(1, key="k")),
    "push many": ("insert", lambda broker: broker.queue("orders").push_many([1, 2])),
    "publish": ("insert", lambda broker: broker.queue("news").push(1)),
    "reserve": ("update", lambda broker: broker.queue("orders").reserve()),
    "reserve many": ("update", lambda broker: broker.queue("orders").reserve_many(2)),
    "pause": ("update", lambda broker: broker.queue("orders").pause()),
    "configure": ("update", lambda broker: broker.queue("orders").configure(lease=5)),
    "bind": ("update", lambda broker: broker.bind("news", "bills")),
    **BEYOND_PRODUCER,
}


@pytest.mark.parametrize(
    ("role", "action", "operation"),
    [
        pytest.param(role, action, operation, id=f"{role}-{name}")
        for role, operations in (("producer", BEYOND_PRODUCER | CONSUME), ("viewer", BEYOND_VIEWER))
        for name, (action, operation) in operations.items()
    ],
)
def test_an_operation_beyond_a_role_names_the_missing_right(
    site: Site, role: str, action: str, operation: Callable[[Any], Any]
) -> None:
    owner = site.set_up()
    owner.queue("mails").push(1)
    items = {"payload": {"$exists": True}}
    before = site.client[site.name]["mongoq"].distinct("_id", items)
    place = re.escape(f"{site.name}.mongoq")
    with site.connect(role) as broker, pytest.raises(OperationFailure) as refused:
        operation(broker)
    granted = rf"grant the actions? [^,;]*'{action}'[^,;]* on {place}, or the role 'readWrite'"
    also = rf"grant the action 'update' on {place}.*needs '{action}' too"
    assert re.search(f"{granted}|{also}", str(refused.value)), str(refused.value)
    assert site.client[site.name]["mongoq"].distinct("_id", items) == before


@pytest.mark.parametrize("role", ["producer", "viewer"])
def test_only_a_worker_begins_a_new_collection(site: Site, role: str) -> None:
    with pytest.raises(mongoq.AuthenticationFailed, match="start a worker first, or call broker.ensure_indexes"):
        site.connect(role)


def test_no_role_reaches_another_collection(site: Site) -> None:
    environment = site.environment("worker")
    with pytest.raises(mongoq.AuthenticationFailed, match=r"grant the action 'find' on \w+\.jobs"):
        mongoq.connect(environment["MONGOQ_URI"], database=site.name, collection="jobs")


@pytest.mark.parametrize("kind", ["sync", "aio", "motor"])
async def test_the_suite_of_a_role_sends_its_operations_as_its_user(
    kind: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the campaign would send all as the owner, and find nothing."""
    site.set_up().close()
    user = site.environment("viewer")["MONGOQ_URI"]
    mark_operations(monkeypatch, {"push", "push_many", "history"})
    async with AsyncExitStack() as stack:
        broker: Any
        if kind == "sync":
            own = stack.enter_context(mongoq.Broker(site.client[site.name]["mongoq"]))
            restrict(own, stack.enter_context(MongoClient[Any](user))[site.name]["mongoq"])
            broker = Awaited(own)
        else:
            client = await stack.enter_async_context(opened(kind, site.server.uri))
            restricted = await stack.enter_async_context(opened(kind, user))
            broker = await stack.enter_async_context(mongoq.AsyncBroker(client[site.name]["mongoq"]))
            restrict(broker, restricted[site.name]["mongoq"])
        orders = broker.queue("orders")
        await orders.pause()
        assert len([item async for item in orders.history()]) == 1
        for push in (lambda: orders.push(1), lambda: orders.push_many([1, 2])):
            with pytest.raises(OperationFailure, match="'insert'"):
                await push()


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


# --- each right ------------------------------------------------------------------------------------


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
    with mongoq.connect(environment["MONGOQ_URI"], database=site.name) as broker, pytest.raises(AssertionError):
        wait_for_an_item(broker)
    assert "the user no right to it" in broker.health().notes[0]


@pytest.mark.prove
@pytest.mark.parametrize("action", ["find", "listIndexes"])
def test_a_viewer_needs_each_of_its_rights(site: Site, action: str) -> None:
    dead = site.set_up().queue("orders").dead.peek()[0]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"'{action}'"):
        view(site.environment("viewer", without=action), dead.id)
