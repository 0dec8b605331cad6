"""``mongoq doctor``: what it finds on a real server, and what each check says about others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

import mongoq
from mongoq.cli.checks import server_checks as checks
from mongoq.cli.checks.queue_checks import check_consumers, check_oldest, check_paused, check_workers
from mongoq.cli.main import main
from mongoq.embedded import EmbeddedServer
from mongoq.model.limits import QueueLimits
from mongoq.model.permits import PermitHolder
from mongoq.protocol.coordination.heartbeats import DEAD_WORKER_RETENTION, WorkerRecord
from mongoq.protocol.insight import BoundedCount, QueueInsight
from tests.servers import drop, spare_the_journal

NOW = datetime(2026, 11, 26, tzinfo=UTC)
Examine = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def database(client: MongoClient[Any]) -> Iterator[str]:
    """The name of a database of this test's own: some begin without a collection, or spoil its indexes."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    drop(client, name)


@pytest.fixture
def examine(uri: str, database: str) -> Examine:
    """Run ``mongoq doctor --json``, and return its exit code and the findings by check."""

    def run(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
        place = {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, **environment}
        result = CliRunner().invoke(main, ["doctor", "--json", *arguments], env=place)
        assert isinstance(result.exception, SystemExit | None), result.exception
        findings = [json.loads(line) for line in result.stdout.splitlines()]
        return result.exit_code, {finding["check"]: finding for finding in findings}

    return run


def test_each_check_is_a_line(examine: Examine, broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(3))
    code, findings = examine()
    # The server of the tests acknowledges before the journal, for speed.
    assert [name for name, finding in findings.items() if finding["state"] != "ok"] == ["write concern"]
    assert code == 1
    assert "writeConcernMajorityJournalDefault" in findings["write concern"]["advice"]
    assert list(findings) == [
        "reachable",
        "server version",
        "replica set",
        "write concern",
        "rights",
        "schema version",
        "indexes",
        "use of the index",
        "clock",
        "history window",
        "cache",
        "stored settings",
        "workers",
        "schedules",
        "sequences",
        "held sequences",
        "consumers",
        "paused",
        "oldest item",
    ]
    assert findings["use of the index"]["detail"] == "claims use mongoq1_claim"
    assert findings["indexes"]["detail"] == "all 5"


def test_a_new_collection_has_no_problem_and_stays_as_it_is(
    examine: Examine, client: MongoClient[Any], database: str
) -> None:
    _, findings = examine()
    assert findings["schema version"]["state"] == findings["indexes"]["state"] == "ok"
    assert client[database].list_collection_names() == []


def test_sequences_without_a_first_item_are_a_problem(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders")
    assert examine()[1]["sequences"]["detail"] == "no queue has any"
    first, *_ = orders.push_many(range(3), sequence="a")
    assert examine()[1]["sequences"]["detail"] == "each has its first item"
    raw.delete_one({"_id": first})
    code, findings = examine()
    assert (code, findings["sequences"]["state"]) == (1, "problem")
    assert findings["sequences"]["detail"] == "the first items of sequences are gone in orders (1 sequence)"
    orders.repair_sequences()
    assert examine()[1]["sequences"]["state"] == "ok"


def test_sequences_that_dead_letters_hold_are_named(examine: Examine, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders", on_dead="hold")
    for name in "ab":
        orders.push_many(range(2), sequence=name)
    for number, text in ((1, "1 sequence of orders is"), (2, "2 sequences of orders are")):
        item = orders.reserve()
        assert item is not None
        orders.bury(item)
        _, findings = examine()
        finding = findings["held sequences"]
        assert (finding["state"], finding["detail"]) == ("warning", f"{text} held by dead letters"), number
        assert "mongoq dead replay QUEUE" in finding["advice"]
        assert findings["sequences"]["state"] == "ok"
    orders.dead.replay()
    assert examine()[1]["held sequences"]["state"] == "ok"


def test_the_lines_for_people_say_what_to_do(uri: str, database: str) -> None:
    result = CliRunner().invoke(main, ["doctor"], env={"MONGOQ_URI": uri, "MONGOQ_DATABASE": database})
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok       reachable         ")
    [problem] = [line for line in lines if line.startswith("problem")]
    assert problem.endswith("set writeConcernMajorityJournalDefault to true with rs.reconfig()")
    assert result.exit_code == 1


def test_a_dropped_index_is_a_problem(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    raw.drop_index("mongoq1_claim")
    raw.create_index([("q", 1), ("when", 1)], name="mongoq1_claim")
    code, findings = examine()
    assert code == 1
    assert "lacks mongoq1_claim, or has them in another form" in findings["indexes"]["detail"]
    assert findings["use of the index"]["state"] == "problem"


def test_a_server_that_does_not_answer_is_the_only_finding(examine: Examine) -> None:
    code, findings = examine(MONGOQ_URI="mongodb://ada:secret@127.0.0.1:9/?serverSelectionTimeoutMS=50")
    assert code == 1
    assert list(findings) == ["reachable"]
    assert findings["reachable"]["state"] == "problem"
    assert "secret" not in str(findings)


def test_a_collection_that_cannot_be_used_is_named(examine: Examine, client: MongoClient[Any], database: str) -> None:
    client[database].create_collection("mongoq", capped=True, size=4096)
    code, findings = examine()
    assert code == 1
    assert "capped" in findings["collection"]["detail"]


def test_old_items_and_queues_without_workers_are_named(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    raw.update_one({"q": "orders"}, {"$set": {"when": datetime.now(UTC) - timedelta(hours=2)}})
    code, findings = examine()
    assert code == 1
    assert findings["consumers"]["detail"].startswith("no worker takes the due items of orders (2:00:")
    assert findings["oldest item"]["detail"].startswith("due items wait in orders (2:00:")
    _, findings = examine("--max-age=10000")
    assert findings["oldest item"]["state"] == "ok"


def test_a_standalone_server_is_no_problem(examine: Examine, memory: Path) -> None:
    with EmbeddedServer(memory / "standalone", replica_set=None) as alone:
        code, findings = examine(MONGOQ_URI=alone.uri)
    assert findings["replica set"]["state"] == "warning"
    assert "no transactions" in findings["replica set"]["detail"]
    assert {finding["state"] for finding in findings.values()} == {"ok", "warning", "unknown"}
    assert code == 0


def test_settings_that_cannot_be_used_are_a_problem(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    raw.insert_many([{"_id": "queue:mails", "settings": {"lease": "long"}}, {"_id": "topics:mongoq", "bound": [1]}])
    code, findings = examine()
    assert code == 1
    stored = findings["stored settings"]
    assert stored["state"] == "problem"
    assert "mend 'queue:mails' in it" in stored["detail"]
    assert "mend 'topics:mongoq' in it" in stored["detail"]
    assert findings["oldest item"]["state"] == "ok"


def test_spark_is_checked_on_request(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, findings = examine()
    assert "Spark" not in findings
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    code, findings = examine("--spark")
    assert code == 1
    assert findings["Spark"]["state"] == "problem"
    assert "Java" in findings["Spark"]["detail"]


# --- rights ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(memory: Path) -> Iterator[EmbeddedServer]:
    """A server with users: one reads the database ``app``, and one reads and writes it."""
    with EmbeddedServer(memory / "doctor", auth=("keeper", "keeper")) as running:
        spare_the_journal(running)
        with MongoClient[Any](running.uri) as client:
            for role in ("read", "readWrite"):
                client["app"].command("createUser", role, pwd=role, roles=[{"role": role, "db": "app"}])
            with mongoq.Broker(client["app"]["mongoq"]) as broker:
                broker.queue("orders").push(1)
        yield running


def uri_of(guarded: EmbeddedServer, user: str) -> str:
    return f"mongodb://{user}:{user}@{guarded.uri.rpartition('@')[2].replace('authSource=admin', 'authSource=app')}"


def test_a_user_with_the_rights_of_a_worker_may_not_see_all_of_the_server(
    examine: Examine, guarded: EmbeddedServer
) -> None:
    code, findings = examine(MONGOQ_URI=uri_of(guarded, "readWrite"), MONGOQ_DATABASE="app")
    assert code == 0
    assert findings["rights"]["detail"] == "user 'readWrite' may read, write and wait"
    unknown = {name for name, finding in findings.items() if finding["state"] == "unknown"}
    assert unknown == {"write concern", "history window", "cache"}
    assert "clusterMonitor" in findings["cache"]["detail"]


def test_missing_rights_are_named(examine: Examine, guarded: EmbeddedServer) -> None:
    code, findings = examine(MONGOQ_URI=uri_of(guarded, "read"), MONGOQ_DATABASE="app")
    assert code == 1
    assert findings["rights"]["detail"] == "user 'read' lacks 'insert', 'update', 'remove'"
    assert "or the role 'readWrite' on the database 'app'; 'mongoq role worker' prints" in findings["rights"]["advice"]
    for role, lacks in (("producer", "lacks 'insert', 'update'"), ("viewer", "may read")):
        _, findings = examine(f"--role={role}", MONGOQ_URI=uri_of(guarded, "read"), MONGOQ_DATABASE="app")
        assert findings["rights"]["detail"] == f"user 'read' {lacks}"


# --- other servers ---------------------------------------------------------------------------------


def server(**replies: Any) -> Any:
    """A server that gives the reply of the command's name, without a network."""

    def answer(command: Mapping[str, Any]) -> Any:
        return replies[next(iter(command))]

    return SimpleNamespace(
        hello=replies.get("hello", {}),
        command=answer,
        command_admin=answer,
        find_one=lambda *_: replies.get("found"),
        place="app.mongoq",
        name="mongoq",
        database="app",
        address="db:27017",
    )


@pytest.mark.parametrize(("version", "state"), [("5.0.9", "problem"), ("6.0.5", "ok"), ("10.0.0-rc1", "ok")])
def test_old_servers_are_a_problem(version: str, state: str) -> None:
    assert checks.check_version(server(buildInfo={"version": version})).state == state


@pytest.mark.parametrize(
    ("hello", "state"),
    [({}, "warning"), ({"msg": "isdbgrid"}, "ok"), ({"setName": "rs0", "hosts": ["a", "b", "c"]}, "ok")],
)
def test_a_server_alone_is_a_warning(hello: Any, state: str) -> None:
    assert checks.check_replica_set(server(hello=hello)).state == state


@pytest.mark.parametrize(
    ("hello", "journal", "state"),
    [
        ({}, True, "unknown"),
        ({"setName": "rs0", "hosts": ["a", "b"], "arbiters": ["c"]}, True, "problem"),
        ({"setName": "rs0", "hosts": ["a", "b", "c"]}, False, "problem"),
        ({"setName": "rs0", "hosts": ["a", "b", "c"]}, True, "ok"),
    ],
)
def test_writes_that_may_be_lost_or_block_are_a_problem(hello: Any, journal: bool, state: str) -> None:
    config = {"config": {"writeConcernMajorityJournalDefault": journal}}
    assert checks.check_write_concern(server(hello=hello, replSetGetConfig=config)).state == state


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (5, "problem"), (-5, "problem")])
def test_a_clock_that_differs_is_a_problem(seconds: int, state: str) -> None:
    there = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds)
    finding = checks.check_clock(server(hello={"localTime": there}))
    assert finding.state == state
    assert ("behind" if seconds < 0 else "ahead of") in finding.detail or not seconds


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (300, "ok"), (3600, "problem")])
def test_a_long_history_window_is_a_problem(seconds: int, state: str) -> None:
    reply = {"minSnapshotHistoryWindowInSeconds": seconds}
    assert checks.check_history_window(server(getParameter=reply)).state == state


@pytest.mark.parametrize(("indexes", "state"), [(0, "ok"), (4, "ok"), (6, "problem")])
def test_indexes_beyond_half_of_the_cache_are_a_problem(indexes: int, state: str) -> None:
    status = {"wiredTiger": {"cache": {"maximum bytes configured": 10 * 1024**3}}}
    stats = {"size": 1, "totalIndexSize": indexes * 1024**3}
    assert checks.check_cache(server(collStats=stats, serverStatus=status)).state == state


@pytest.mark.parametrize(("version", "state"), [(1, "ok"), (2, "problem"), ("1", "problem"), (None, "problem")])
def test_a_later_schema_is_a_problem(version: int, state: str) -> None:
    assert checks.check_schema(server(found={"version": version})).state == state


# --- queues and workers ----------------------------------------------------------------------------


def queue(name: str, minutes: float, **options: Any) -> QueueInsight:
    due = NOW - timedelta(minutes=minutes)
    return QueueInsight(name, NOW, ready=BoundedCount(1), oldest_due=due, **options)


def test_queues_with_a_worker_or_a_pause_and_dead_queues_are_not_forgotten() -> None:
    orders = queue("orders", 2, consumers=1, dead_queue="orders.dead")
    quiet = [orders, queue("orders.dead", 900), queue("paused", 2, paused=True), queue("new", 0.5)]
    assert check_consumers(quiet).state == "ok"
    finding = check_consumers([*quiet, queue("mails", 2)])
    assert finding.detail == "no worker takes the due items of mails (0:02:00)"
    assert finding.advice == "start a worker for them, such as mongoq worker app:worker"


def test_items_that_wait_in_a_paused_queue_are_a_warning() -> None:
    empty = QueueInsight("empty", NOW, paused=True, reserved=BoundedCount(1))
    later = QueueInsight("later", NOW, paused=True, scheduled=BoundedCount(4), expired=BoundedCount(1, exact=False))
    assert check_paused([queue("orders", 2), empty]).to_document()["state"] == "ok"
    finding = check_paused([queue("orders", 2), empty, later, queue("mails", 2, paused=True)])
    assert finding.state == "warning"
    assert finding.detail == "items wait in later (at least 5 items), mails (1 item)"
    assert finding.advice == "mongoq resume QUEUE ends a pause"


def test_the_queues_that_wait_longest_are_named_first() -> None:
    queues = [queue(f"q{minutes}", minutes) for minutes in range(61, 70)]
    finding = check_oldest(queues, timedelta(hours=1))
    assert finding.state == "problem"
    assert finding.detail.startswith("due items wait in q69 (1:09:00), q68 ")
    assert finding.detail.endswith(" and 4 more")
    assert check_oldest(queues, timedelta(hours=2)).detail == "the first one waits for 1:09:00, in queue q69"
    assert check_oldest([], timedelta(hours=1)).detail == "no item is due"


def test_workers_that_have_gone_are_named() -> None:
    live = WorkerRecord("a:1:x/1", "a", 1, NOW, NOW, True, {})
    gone = WorkerRecord("b:2:y/1", "b", 2, NOW, NOW, False, {"orders": 3})
    assert check_workers([live]).detail == "1 works"
    finding = check_workers([live, gone])
    assert finding.state == "problem"
    assert "b:2:y/1 since 2026-11-26 00:00:00 UTC" in finding.detail
    assert timedelta(minutes=10) == DEAD_WORKER_RETENTION
    assert "removes their records after ten minutes" in finding.advice


def test_a_queue_that_waits_for_its_limits_says_so() -> None:
    holders = (PermitHolder("worker", 8, 8, NOW, NOW),)
    limits = QueueLimits("calls", NOW, max_running=8, rate="5/s", holders=holders)
    finding = check_oldest([queue("calls", 70, limits=limits)], timedelta(hours=1))
    assert finding.detail == "due items wait in calls (1:10:00, workers hold 8 of 8 permits)"
    limits = QueueLimits("calls", NOW, max_running=9, holders=holders)
    finding = check_oldest([queue("calls", 70, limits=limits)], timedelta(hours=1))
    assert finding.detail == "due items wait in calls (1:10:00)"
