"""``mongoq exporter``, and ``/metrics`` of ``mongoq worker --http``."""

from __future__ import annotations

import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.cli.conftest import Run, Start
from tests.cli.programs import Program, begun
from tests.waiting import until

Values = dict[tuple[str, ...], float]
COUNT = "mongoq_process_duration_seconds_count"

ASYNC = """
from pymongo import AsyncMongoClient

async def make_async(broker: mongoq.AsyncBroker):
    worker = mongoq.AsyncWorker(broker)

    @worker.consumer("orders")
    async def work(payload):
        say("begin", payload, os.getpid())

    return worker

def make_pipeline():
    pipeline = mongoq.Pipeline("orders")
    pipeline.sink("orders")(lambda payload: say("begin", payload, os.getpid()))
    return pipeline

worker = make(connect())
"""


def values_of(text: bytes) -> Values:
    """Return the values by name of the metric and values of its labels, the queue first."""
    from prometheus_client.parser import text_string_to_metric_families

    order = ("queue", "state", "event", "outcome", "le")
    return {
        (sample.name, *(sample.labels[label] for label in order if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def scrape(program: Program, path: str = "/metrics") -> Values:
    def address() -> str | None:
        lines = program.logged(" served at ")
        return lines[0].rpartition(" ")[2] if lines else None

    until(lambda: address() or program.process.poll() is not None)
    found = address()
    assert found is not None, program.log
    with urllib.request.urlopen(found + path, timeout=30) as answer:
        return values_of(answer.read())


# --- the exporter --------------------------------------------------------------------------------


def test_the_exporter_serves_the_queues_until_a_signal(program: Start, broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(3))
    command = program("exporter", "--http", "127.0.0.1:0", "--cache", "0")
    values = scrape(command)
    assert (values["mongoq_up",], values["mongoq_items", "orders", "ready"]) == (1, 3)
    broker.queue("orders").push(4)
    assert scrape(command)["mongoq_items", "orders", "ready"] == 4
    assert not [labels for labels in values if labels[0] == COUNT]
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0, command.log


@pytest.mark.prove
def test_the_exporter_starts_without_a_server_and_says_that_nothing_is_up(program: Start) -> None:
    uri = "mongodb://user:secret@127.0.0.1:9/?serverSelectionTimeoutMS=100"
    command = program("exporter", "--http", ":0", MONGOQ_URI=uri)
    assert scrape(command)["mongoq_up",] == 0
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        scrape(command, "/readyz")
    with refused.value as answer:
        assert b"127.0.0.1" not in answer.read()  # everybody may ask
    command.process.terminate()
    assert command.end() == 0
    assert "secret" not in "".join(command.log)


def test_the_exporter_needs_a_server_and_a_port(
    run: Run, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("exporter", "--http", "here").exit_code == 2
    environment["MONGOQ_URI"] = ""
    result = run("exporter")
    assert (result.exit_code, "no server is named" in result.stderr) == (2, True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    result = run("exporter", "--http", ":0")
    assert (result.exit_code, "mongoq-driver[prometheus]" in result.stderr) == (1, True)


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.parametrize("target", ["make_async", "make_pipeline"])
def test_a_worker_serves_its_runs_and_the_queues(
    program: Start, broker: mongoq.Broker, gate: Path, target: str
) -> None:
    gate.touch()
    broker.queue("orders").push_many(range(3))
    broker.queue("later").push(1, delay=3600)
    command = program("worker", f"app:{target}", "--http", "127.0.0.1:0", more=ASYNC)
    begun(command, 3)
    until(lambda: (found := scrape(command)).get((COUNT, "orders", "done")) == 3 and found)
    values: Any = until(
        lambda: (found := scrape(command))["mongoq_up",] == 1 and found
    )  # a reading may precede the start
    assert values["mongoq_items", "later", "scheduled"] == 1
    command.process.terminate()
    assert command.end() == 0, command.log


def test_a_worker_may_serve_its_runs_alone(program: Start, broker: mongoq.Broker, gate: Path) -> None:
    gate.touch()
    broker.queue("orders").push(1)
    command = program("worker", "app:worker", "--http", "127.0.0.1:0", "--metrics", "process")
    begun(command, 1)
    values: Any = until(lambda: (found := scrape(command)).get((COUNT, "orders", "done")) == 1 and found)
    assert ("mongoq_up",) not in values
    command.process.terminate()
    assert command.end() == 0


@pytest.mark.prove
def test_a_supervisor_serves_the_runs_of_all_its_processes_and_of_those_that_have_died(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    gate.touch()
    orders = broker.queue("orders")
    orders.push_many(range(20))
    command = program("worker", "app:worker", "--http", "127.0.0.1:0", "--processes=2")
    until(lambda: scrape(command).get((COUNT, "orders", "done")) == 20)
    until(lambda: scrape(command)["mongoq_up",] == 1)
    for pid in command.workers():
        os.kill(pid, signal.SIGKILL)
    orders.push_many(range(5))
    until(lambda: scrape(command).get((COUNT, "orders", "done")) == 25)
    command.process.terminate()
    assert command.end() == 0
