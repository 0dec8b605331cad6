"""Control documents of another version or another program do not break what people and monitors look at."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, MaxKey
from bson.datetime_ms import DatetimeMS

import mongoq
from tests.cli.conftest import Run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ODD: list[Any] = [None, "\x1b[31m", -1, 2**62, float("nan"), True, [], [1], {"x": 1}, [{}], [None], NOW]
ODD += [DatetimeMS(2**62), Binary(b"x"), MaxKey(), [{"queue": 1, "held": "x"}], [{"queue": "orders", "held": [1]}]]
ODD += [[{"topic": "t"}], [{"topic": 1, "queue": 1}]]
WORKER = {
    "host": "host",
    "pid": 1,
    "started": NOW,
    "seen": NOW,
    "every": 5.0,
    "queues": [{"queue": "orders", "held": 1}],
}
SETTINGS = {"lease": 30.0, "history": 60.0, "max_retries": 3, "dead": "dead", "on_expired": "dead"}
KINDS: dict[str, dict[str, Any]] = {
    "worker:host:1:x/{}": WORKER,
    "queue:orders{}": {"settings": SETTINGS, "paused": False},
    "stats:orders{}": {"put": 1, "commit": 2, "expires": NOW},
    "stream:consumer{}": {"queue": "orders", "until": NOW + timedelta(days=36_500), "number": 1},
    "end:0:orders{}": {"q": "orders", "end": NOW, "priority": 0},
}
COMMANDS = ["workers", "queues", "stats", "bindings", "peek orders", "settings orders"]


def make_variants(id: str, whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the document without each field, and with each odd value in each field."""
    variants: list[dict[str, Any]] = [{k: v for k, v in whole.items() if k != field} for field in whole]
    variants += [{**whole, field: value} for field in whole for value in ODD]
    if "settings" in whole:
        variants += [{"settings": {**SETTINGS, field: value}} for field in SETTINGS for value in ODD]
    for number, variant in enumerate(variants):
        yield {"_id": id.format(number), **variant}


def look(run: Run, broker: mongoq.Broker) -> str:
    """Let people and monitors look at everything, and return what the commands print."""
    printed = []
    for command in COMMANDS:
        for options in ([], ["--json"]):
            result = run(*command.split(), *options)
            assert result.exit_code == 0, (command, result.stderr)
            assert "\x1b" not in result.output
            printed.append(result.stdout)
    findings = run("doctor", "--json")
    assert '"check": "oldest item"' in findings.stdout, findings.stderr
    from mongoq.monitoring.prometheus import PrometheusMetrics

    assert b"mongoq_up 1" in PrometheusMetrics(broker).render()
    broker.stats()
    broker.queues()
    return "".join(printed)


@pytest.mark.parametrize("id", KINDS)
def test_odd_control_documents_hide_no_others(run: Run, broker: mongoq.Broker, raw: Any, id: str) -> None:
    broker.queue("orders").push(1)
    raw.insert_many([{"_id": "worker:good:1:x/1", **WORKER}, *make_variants(id, KINDS[id])])
    printed = look(run, broker)
    assert "good:1:x/1" in printed
    assert "orders" in printed


def test_odd_bindings_hide_no_queues(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    for value in (None, "x", [{"topic": 1, "queue": 1}]):
        raw.replace_one({"_id": "topics:mongoq"}, {"bound": value}, upsert=True)
        result = run("queues")
        assert result.exit_code == 0, value
        assert "orders" in result.stdout
        # A push must not take a topic for a queue.
        assert run("bindings").exit_code in {0, 1}


def test_odd_records_do_not_stop_a_worker(broker: mongoq.Broker, raw: Any) -> None:
    """It sweeps the records of workers that are gone."""
    broker.queue("orders").push(1)
    raw.insert_many([*make_variants("worker:host:1:x/{}", WORKER)])
    raw.insert_one({"_id": "worker:gone:1:x/1", **WORKER, "seen": NOW - timedelta(days=30)})
    payloads: list[Any] = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(payloads.append)
    worker.run(drain=True, signals=False)
    assert payloads == [1]
    assert raw.find_one({"_id": "worker:gone:1:x/1"}) is None


def test_a_schema_document_without_a_version_is_refused_in_a_sentence(run: Run, raw: Any) -> None:
    for schema in ({}, {"version": 1}, {"version": "1", "oldest_reader": "1"}, {"oldest_reader": []}):
        raw.replace_one({"_id": "schema:mongoq"}, schema, upsert=True)
        result = run("queues")
        assert result.exit_code == 1
        assert "has no version; mend 'schema:mongoq' in it" in result.stderr


def test_settings_that_cannot_be_used_name_their_document(run: Run, raw: Any) -> None:
    raw.insert_one({"_id": "queue:orders", "settings": {"lease": "long"}})
    result = run("settings", "orders")
    assert result.exit_code == 1
    assert "mend 'queue:orders' in it" in result.stderr
