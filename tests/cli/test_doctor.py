"""``mongoq doctor``: what it finds on a real server, and what each check says about others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click import Group
from click.testing import CliRunner
from pymongo import IndexModel, MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.proxy import Proxy
from tests.servers import drop

Examine = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def database(client: MongoClient[Any]) -> Iterator[str]:
    """The name of a database of this test's own: some begin without a collection, or spoil its indexes."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    drop(client, name)


@pytest.fixture
def examine(uri: str, database: str, command_line: Group) -> Examine:
    """Run ``mongoq doctor --json``, and return its exit code and the findings by check."""

    def run(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
        place = {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, **environment}
        result = CliRunner().invoke(command_line, ["doctor", "--json", *arguments], env=place)
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
        "long runs",
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
    assert examine()[1]["sequences"]["detail"] == "each is in order"
    raw.delete_one({"_id": first})
    code, findings = examine()
    assert (code, findings["sequences"]["state"]) == (1, "problem")
    assert findings["sequences"]["detail"] == "sequences are blocked, or out of order, in orders (1 sequence)"
    orders.repair_sequences()
    assert examine()[1]["sequences"]["state"] == "ok"
    raw.delete_one({"_id": {"$regex": "^sequence:"}})
    assert examine()[1]["sequences"]["state"] == "problem"
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


def test_the_lines_for_people_say_what_to_do(uri: str, database: str, command_line: Group) -> None:
    result = CliRunner().invoke(command_line, ["doctor"], env={"MONGOQ_URI": uri, "MONGOQ_DATABASE": database})
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
    assert "drop mongoq1_claim" in findings["indexes"]["advice"]
    assert findings["use of the index"]["state"] == "problem"


def test_indexes_that_are_of_no_use_are_problems(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.ensure_indexes()
    raw.database.command("collMod", raw.name, index={"name": "mongoq1_key", "hidden": True})
    assert "mongoq1_key of" in examine()[1]["indexes"]["detail"]
    assert "hidden: false" in examine()[1]["indexes"]["advice"]
    raw.drop_index("mongoq1_key")
    raw.create_index([("q", 1), ("key", 1)], name="mine")
    assert "drop mine" in examine()[1]["indexes"]["advice"]
    raw.drop_index("mine")
    raw.create_indexes([IndexModel(f"f{n}") for n in range(59)])
    assert "64 is the most" in examine()[1]["indexes"]["detail"]


def test_a_validator_is_a_problem(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.ensure_indexes()
    raw.database.command("collMod", raw.name, validator={"name": {"$exists": True}})
    code, findings = examine()
    assert code == 1
    assert "has a validator" in findings["collection"]["detail"]


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
    for number in range(9):
        broker.queue(f"orders-{number}").push(1, when=datetime.now(UTC) - timedelta(hours=2, minutes=number))
    code, findings = examine()
    assert code == 1
    assert findings["consumers"]["detail"].startswith("no worker takes the due items of orders-")
    assert findings["consumers"]["advice"] == "start a worker for them, such as mongoq worker app:worker"
    assert findings["oldest item"]["detail"].startswith("due items wait in orders-8 (2:08:")
    assert findings["oldest item"]["detail"].endswith(" and 4 more")
    _, findings = examine("--max-age=10000")
    assert findings["oldest item"]["state"] == "ok"
    assert findings["oldest item"]["detail"].startswith("the first one waits for 2:08:")


def test_a_queue_that_waits_for_its_limits_says_so(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    calls, now = broker.queue("calls"), datetime.now(UTC)
    calls.push(1, when=now - timedelta(hours=2))
    calls.configure(max_running=2)
    permits = {"by": "worker", "number": 2, "wanted": 2, "since": now, "until": now + timedelta(hours=1)}
    raw.insert_one({"_id": "limit:calls", "holders": [permits]})
    assert examine()[1]["oldest item"]["detail"].endswith(", workers hold 2 of 2 permits)")
    calls.configure(max_running=3)
    assert "permits" not in examine()[1]["oldest item"]["detail"]


def test_workers_that_have_gone_are_named(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1, when=datetime.now(UTC) - timedelta(hours=2))
    now = datetime.now(UTC)
    queues = [{"queue": "orders", "held": 1}]
    record = {"host": "a", "pid": 1, "started": now, "seen": now, "every": 60.0, "queues": queues}
    raw.insert_one({"_id": "worker:a:1:x/1", **record})
    _, findings = examine()
    assert (findings["workers"]["state"], findings["workers"]["detail"]) == ("ok", "1 works")
    assert findings["consumers"]["state"] == "ok"
    raw.insert_one({"_id": "worker:b:2:y/1", **record, "seen": now - timedelta(hours=2)})
    _, findings = examine()
    assert findings["workers"]["state"] == "problem"
    assert "b:2:y/1 since " in findings["workers"]["detail"]
    assert "removes their records after ten minutes" in findings["workers"]["advice"]


def test_runs_that_take_long_are_a_warning(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    now = datetime.now(UTC)
    record = {"host": "a", "pid": 1, "started": now, "seen": now, "every": 60.0}
    queues = [{"queue": "orders", "held": 1, "overdue": 3725.5}, {"queue": "mails", "held": 1}]
    raw.insert_one({"_id": "worker:a:1:x/1", **record, "queues": queues})
    raw.insert_one({"_id": "worker:b:2:y/1", **record, "seen": now - timedelta(hours=2), "queues": queues})
    _, findings = examine()
    finding = findings["long runs"]
    assert (finding["state"], finding["detail"]) == ("warning", "a:1:x/1 has run an item of orders for 1h 2m")
    assert "max_time" in finding["advice"]
    raw.delete_one({"_id": "worker:a:1:x/1"})
    assert examine()[1]["long runs"]["state"] == "ok"


def test_items_that_wait_in_a_paused_queue_are_a_warning(examine: Examine, broker: mongoq.Broker) -> None:
    broker.queue("empty").pause()
    assert examine()[1]["paused"]["state"] == "ok"
    mails = broker.queue("mails")
    mails.push(1)
    mails.pause()
    finding = examine()[1]["paused"]
    assert (finding["state"], finding["detail"]) == ("warning", "items wait in mails (1 item)")
    assert finding["advice"] == "mongoq resume QUEUE ends a pause"


def test_a_later_schema_is_a_problem(examine: Examine, broker: mongoq.Broker, raw: Any) -> None:
    broker.ensure_indexes()
    raw.update_one({"_id": "schema:mongoq"}, {"$set": {"version": 99, "oldest_reader": 99}}, upsert=True)
    code, findings = examine()
    assert code == 1
    assert [name for name, finding in findings.items() if finding["state"] == "problem" and "99" in str(finding)]


def test_a_standalone_server_is_no_problem(examine: Examine, memory: Path) -> None:
    with EmbeddedServer(memory / "standalone", replica_set=None) as alone:
        code, findings = examine(MONGOQ_URI=alone.uri)
    assert findings["replica set"]["state"] == "warning"
    assert "no transactions" in findings["replica set"]["detail"]
    assert {finding["state"] for finding in findings.values()} == {"ok", "warning", "unknown"}
    assert code == 0


@pytest.mark.parametrize(
    ("reply", "check", "state", "words"),
    [
        ({"version": "5.0.9"}, "server version", "problem", "mongoq needs MongoDB 6.0 or later"),
        ({"version": "10.0.0-rc1"}, "server version", "ok", "MongoDB 10.0.0-rc1"),
        ({"localTime": timedelta(seconds=-9)}, "clock", "problem", " s ahead of the server's"),
        ({"localTime": timedelta(seconds=9)}, "clock", "problem", " s behind the server's"),
        ({"hosts": ["a:1", "b:1"], "arbiters": ["c:1"]}, "write concern", "problem", "make the arbiter a member"),
        ({"minSnapshotHistoryWindowInSeconds": 300}, "history window", "ok", "300 s"),
        ({"minSnapshotHistoryWindowInSeconds": 301}, "history window", "problem", "300 or less"),
        ({"totalIndexSize": 2**29 - 2**20}, "cache", "ok", "0.50 GiB of indexes"),
        ({"totalIndexSize": 2**29 + 2**20}, "cache", "problem", "keep history for a shorter time"),
    ],
)
def test_what_a_server_says_is_judged(  # noqa: PLR0917
    examine: Examine, uri: str, reply: dict[str, Any], check: str, state: str, words: str
) -> None:
    """The server of the tests has a cache of one gigabyte."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        changed = dict(answer)
        for name, value in reply.items():
            if "arbiters" in reply or name in answer:
                changed[name] = answer[name] + value if isinstance(value, timedelta) else value
        return changed

    with Proxy(uri, change=change) as proxy:
        _, findings = examine(MONGOQ_URI=proxy.uri)
    assert findings[check]["state"] == state
    assert words in findings[check]["detail"] + findings[check]["advice"]


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
