"""Metrics for Prometheus: what they say, what a scrape costs, and what happens without a server."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.monitoring.prometheus import PrometheusMetrics
from tests.proxy import Proxy
from tests.waiting import until

NOWHERE = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=100"
Values = dict[tuple[str, ...], float]


def values_of(text: bytes) -> Values:
    """Return the values by name of the metric and values of its labels, the queue first and a bucket last."""
    order = ("queue", "state", "event", "outcome", "le")
    return {
        (sample.name, *(sample.labels[label] for label in order if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def scrape(broker: mongoq.Broker, **options: Any) -> Values:
    return values_of(PrometheusMetrics(broker, **{"within": 60, **options}).render())


def bury_one(queue: mongoq.Queue[Any]) -> None:
    item = queue.reserve()
    assert item is not None
    queue.bury(item, reason="no stock")


def beat(raw: Any, name: str, queue: str, *, seen: datetime, **more: Any) -> None:
    """Write the record of a worker, as it does itself."""
    host, pid, _ = name.split(":")
    times = {"started": seen, "seen": seen, "every": 5.0, "expires": seen + timedelta(hours=1)}
    queues = [{"queue": queue, "held": 0, **more}]
    raw.insert_one({"_id": f"worker:{name}", "host": host, "pid": int(pid), **times, "queues": queues})


# --- the queues ----------------------------------------------------------------------------------


def test_items_are_counted_by_queue_and_state(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders")
    orders.push_many(range(4))
    orders.push_many(range(3), delay=3600)
    taken = orders.reserve_many(2)
    raw.update_one({"_id": taken[1].id}, {"$set": {"when": datetime(2026, 1, 1, tzinfo=UTC)}})
    values = scrape(broker)
    counts = {labels[2]: value for labels, value in values.items() if labels[:2] == ("mongoq_items", "orders")}
    assert counts == {"ready": 2, "scheduled": 3, "reserved": 1, "expired": 1, "blocked": 0}
    orders.push_many(range(3), sequence="a")
    assert scrape(broker)["mongoq_items", "orders", "blocked"] == 2
    assert values["mongoq_items_truncated", "orders"] == 0
    assert values["mongoq_up",] == 1
    assert values["mongoq_scrape_duration_seconds",] > 0


def test_a_count_that_ends_at_its_limit_says_so(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(50))
    broker.queue("mails").push_many(range(3))
    values = scrape(broker, budget=40)
    assert values["mongoq_items", "orders", "ready"] == 11  # more than ten
    assert values["mongoq_items_truncated", "orders"] == 1
    assert values["mongoq_items", "mails", "ready"] == 3
    assert values["mongoq_items_truncated", "mails"] == 0


def test_the_age_is_that_of_the_first_due_item(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, when=datetime.now(UTC) - timedelta(hours=1))
    broker.queue("later").push(1, delay=3600)
    values = scrape(broker)
    assert 3500 < values["mongoq_oldest_age_seconds", "orders"] < 7200
    assert values["mongoq_oldest_age_seconds", "later"] == 0


def test_the_longest_run_that_is_overdue_is_told(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(1)
    for number, seconds in enumerate((400.0, 2000.0, 700.0)):
        beat(raw, f"host:{number}:x", "orders", seen=datetime.now(UTC) + timedelta(minutes=1), overdue=seconds)
    assert scrape(broker)["mongoq_overdue_run_seconds", "orders"] == 2000


def test_dead_letters_pauses_consumers_workers_and_events_are_counted(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", max_retries=0)
    orders.push_many(range(3))
    bury_one(orders)
    orders.pause()
    beat(raw, "host:1:alive", "orders", seen=datetime.now(UTC) + timedelta(minutes=1))
    beat(raw, "host:1:gone", "orders", seen=datetime.now(UTC) - timedelta(minutes=5), overdue=9999.0)
    broker.stats()  # writes the counters
    values = scrape(broker)
    assert values["mongoq_overdue_run_seconds", "orders"] == 0
    assert values["mongoq_dead_items", "orders"] == 1
    assert ("mongoq_dead_items", "orders.dead") not in values
    assert values["mongoq_paused", "orders"] == 1
    assert values["mongoq_paused", "orders.dead"] == 0
    # The second record is that of a worker whose heartbeats have ended.
    assert values["mongoq_workers",] == values["mongoq_consumers", "orders"] == 1
    assert values["mongoq_events_total", "orders", "put"] == 3
    assert values["mongoq_events_total", "orders", "dead"] == 1
    assert values["mongoq_events_total", "orders", "commit"] == 0


def test_letters_wait_for_a_person_and_have_an_age_only_with_a_consumer(broker: mongoq.Broker, raw: Any) -> None:
    for queue in (broker.queue("orders"), broker.queue("mails", dead="graves")):
        queue.push(1)
        bury_one(queue)
    values = scrape(broker)
    assert ("mongoq_oldest_age_seconds", "orders.dead") not in values
    assert ("mongoq_oldest_age_seconds", "graves") not in values
    assert values["mongoq_items", "graves", "ready"] == 1
    beat(raw, "host:1:a", "graves", seen=datetime.now(UTC) + timedelta(minutes=1))
    assert ("mongoq_oldest_age_seconds", "graves") in scrape(broker)


def test_any_name_of_a_queue_comes_through(broker: mongoq.Broker, raw: Any) -> None:
    names = ['say "hi"', "back\\slash", "line\nbreak", "größe 日本", "{a=1}"]
    broker.ensure_indexes()
    for name in names:
        raw.insert_one({"q": name, "when": datetime.now(UTC), "priority": 0, "payload": 1, "reserved": False})
    assert {("mongoq_items", name, "ready") for name in names} <= scrape(broker).keys()


def test_there_are_metrics_without_queues(broker: mongoq.Broker) -> None:
    values = scrape(broker)
    assert (values["mongoq_up",], values["mongoq_workers",]) == (1, 0)
    assert not [labels for labels in values if labels[0] == "mongoq_items"]


# --- what it costs -------------------------------------------------------------------------------


@pytest.fixture
def profiled(client: MongoClient[Any], database: str) -> Iterator[Any]:
    client[database].command("profile", 2)
    yield client[database]["system.profile"]
    client[database].command("profile", 0)


def test_a_scrape_examines_no_more_than_its_budget(broker: mongoq.Broker, raw: Any, profiled: Any) -> None:
    for name in ("orders", "mails"):
        broker.queue(name).push_many(range(2_000))
        broker.queue(name).push_many(range(2_000), delay=3600)
    metrics = PrometheusMetrics(broker, budget=1_000)
    raw.database.command("profile", 0)
    profiled.drop()
    raw.database.command("profile", 2)
    values = values_of(metrics.render())
    entries = list(profiled.find({"ns": broker.namespace}))
    assert entries
    assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
    assert sum(entry.get("docsExamined", 0) for entry in entries) <= 1_000 + 20
    assert sum(entry.get("keysExamined", 0) for entry in entries) <= 12_000
    assert values["mongoq_items_truncated", "orders"] == 1


def test_scrapes_share_a_reading(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    metrics = PrometheusMetrics(broker, cache=3600)
    first = metrics.render()
    broker.queue("orders").push(2)
    assert metrics.render() == first
    assert scrape(broker)["mongoq_items", "orders", "ready"] == 2
    unshared = PrometheusMetrics(broker, cache=0)
    unshared.render()
    broker.queue("orders").push(3)
    assert values_of(unshared.render())["mongoq_items", "orders", "ready"] == 3


# --- without a server ----------------------------------------------------------------------------


def test_a_scrape_without_a_server_answers_that_nothing_is_up(caplog: pytest.LogCaptureFixture) -> None:
    with MongoClient[Any](NOWHERE) as nowhere, mongoq.Broker(nowhere["app"]["mongoq"]) as away:
        metrics = PrometheusMetrics(away, cache=0, within=0.2)
        values = values_of(metrics.render())
        metrics.render()
    assert values["mongoq_up",] == 0
    assert set(values) == {("mongoq_up",), ("mongoq_scrape_duration_seconds",)}
    # Once for an outage, and not once for each scrape.
    assert len([record for record in caplog.records if record.name == "mongoq.metrics"]) == 1


def test_metrics_come_back_with_the_server(uri: str, database: str) -> None:
    with (
        Proxy(uri) as proxy,
        MongoClient[Any](proxy.uri_with(socketTimeoutMS="200", serverSelectionTimeoutMS="200")) as own,
        mongoq.Broker(own[database]["mongoq"]) as broker,
    ):
        metrics = PrometheusMetrics(broker, cache=0, within=0.5)
        proxy.hold()
        until(lambda: values_of(metrics.render())["mongoq_up",] == 0)
        proxy.pass_on()
        until(lambda: values_of(metrics.render())["mongoq_up",] == 1)


# --- apps ----------------------------------------------------------------------------------------


def test_the_wsgi_app_serves_the_metrics(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    started: list[Any] = []
    app = PrometheusMetrics(broker).wsgi_app()
    body = b"".join(app(environ, lambda status, headers: started.append((status, dict(headers)))))
    assert started[0][0] == "200 OK"
    assert started[0][1]["Content-Type"].startswith("text/plain")
    assert values_of(body)["mongoq_items", "orders", "ready"] == 1


async def ask_asgi(app: Any, query: bytes = b"", method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    scope = {"type": "http", "method": method, "path": "/", "query_string": query, "headers": []}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_asgi_app_serves_the_metrics(broker: mongoq.Broker, uri: str, database: str, kind: str) -> None:
    broker.queue("orders").push(1)

    async def serve() -> None:
        async with AsyncMongoClient[Any](uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as other:
            app = PrometheusMetrics(broker if kind == "threads" else other).asgi_app()
            (status, headers, body), again = await asyncio.gather(ask_asgi(app), ask_asgi(app))
            assert (status, again[2]) == (200, body)
            assert headers[b"content-type"].startswith(b"text/plain")
            assert values_of(body)["mongoq_items", "orders", "ready"] == 1
            some = await ask_asgi(app, b"name[]=mongoq_workers")
            assert list(values_of(some[2])) == [("mongoq_workers",)]
            assert (await ask_asgi(app, method="POST"))[0] == 405

    asyncio.run(serve())


def test_the_asgi_app_answers_without_a_server() -> None:
    async def serve() -> None:
        async with AsyncMongoClient[Any](NOWHERE) as own, mongoq.AsyncBroker(own["app"]["mongoq"]) as away:
            status, _, body = await ask_asgi(PrometheusMetrics(away, within=0.2).asgi_app())
            assert (status, values_of(body)["mongoq_up",]) == (200, 0)

    asyncio.run(serve())


def test_an_asynchronous_broker_is_for_the_asgi_app_alone(uri: str, database: str) -> None:
    async def make() -> None:
        async with AsyncMongoClient[Any](uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as other:
            metrics = PrometheusMetrics(other)
            for method in (metrics.render, metrics.wsgi_app):
                with pytest.raises(mongoq.ArgumentInvalid, match="asgi_app"):
                    method()

    asyncio.run(make())


# --- handlers ------------------------------------------------------------------------------------


def handle(payload: Any) -> Any:
    if payload == "raise":
        raise ValueError("no stock")
    return {
        "retry": mongoq.Retry(3600),
        "dead": mongoq.Dead("no stock"),
        "drop": mongoq.Drop(),
        "move": mongoq.Move("other"),
        "list": [1],
    }.get(payload)


PAYLOADS = ["ok", "ok", "list", "raise", "retry", "dead", "drop", "move"]
COUNTS = {"done": 3, "failed": 1, "retry": 1, "dead": 1, "drop": 1, "move": 1}


def counts_of(metrics: PrometheusMetrics) -> dict[str, float]:
    values = values_of(metrics.render())
    return {labels[2]: v for labels, v in values.items() if labels[0] == "mongoq_process_duration_seconds_count"}


def run_until_measured(worker: mongoq.Worker, metrics: PrometheusMetrics, number: int) -> None:
    """Run a worker until so many calls were measured; an item that waits for its retry would keep a drain busy."""
    thread = threading.Thread(target=worker.run, kwargs={"signals": False})
    thread.start()
    until(lambda: sum(counts_of(metrics).values()) >= number)
    worker.stop()
    thread.join()


def test_calls_of_handlers_are_measured_by_outcome(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(PAYLOADS)
    metrics = PrometheusMetrics()
    worker = metrics.instrument(mongoq.Worker(broker))
    assert metrics.instrument(worker) is worker
    worker.consumer("orders", max_retries=0)(handle)
    run_until_measured(worker, metrics, len(PAYLOADS))
    assert counts_of(metrics) == COUNTS
    values = values_of(metrics.render())
    name = "mongoq_process_duration_seconds"
    assert values[f"{name}_bucket", "orders", "done", "+Inf"] == COUNTS["done"]
    assert 0 <= values[f"{name}_sum", "orders", "done"] < 60
    assert ("mongoq_up",) not in values


def test_a_batch_is_one_call(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many(range(4))
    broker.queue("mails").push_many(range(4))
    metrics = PrometheusMetrics()
    worker = metrics.instrument(mongoq.Worker(broker))
    worker.consumer("orders", batch=4)(lambda payloads: [mongoq.Drop()] * len(payloads))
    worker.consumer("mails", batch=4)(lambda payloads: [None] + [mongoq.Drop()] * (len(payloads) - 1))
    worker.run(drain=True)
    values = values_of(metrics.render())
    name = "mongoq_process_duration_seconds_count"
    assert (values[name, "orders", "drop"], values[name, "mails", "mixed"]) == (1, 1)


def test_coroutines_and_pipelines_are_measured(broker: mongoq.Broker, uri: str, database: str) -> None:
    broker.queue("orders").push_many(range(2))
    broker.queue("mails").push(1)
    metrics = PrometheusMetrics()
    pipeline = metrics.instrument(mongoq.Pipeline("mailing"))
    pipeline.sink("mails")(lambda payload: None)
    pipeline.drain(broker)

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as other:
            worker = metrics.instrument(mongoq.AsyncWorker(other))

            @worker.consumer("orders")
            async def task(payload: Any) -> None:
                await asyncio.sleep(0)

            await worker.run(drain=True)

    asyncio.run(work())
    values = values_of(metrics.render())
    name = "mongoq_process_duration_seconds_count"
    assert (values[name, "orders", "done"], values[name, "mails", "done"]) == (2, 1)


class Bill(BaseModel):
    """Payload of a queue with a model."""

    amount: int


UNFIT: dict[str, Any] = {
    "lazy": lambda broker: (number for number in range(3)),
    "class": lambda broker: mongoq.Drop,
    "model": lambda broker: mongoq.Move(broker.queue("bills", model=Bill), payload={"amount": "many"}),
    "large": lambda broker: mongoq.Move("bills", payload="x" * 17_000_000),
    "name": lambda broker: mongoq.Move("a\0b"),
    "fork": lambda broker: mongoq.Fork([mongoq.Move("bills"), mongoq.Move("bills", priority=1000)]),
}
"""Results that cannot be applied."""


def test_a_result_that_cannot_be_applied_is_a_failure(broker: mongoq.Broker) -> None:
    for queue in ("orders", "mails"):
        broker.queue(queue).push_many([*UNFIT, "fit"])
    metrics = PrometheusMetrics()
    worker = metrics.instrument(mongoq.Worker(broker))
    seen: list[Any] = []

    @worker.around
    @contextmanager
    def look(job: Any) -> Iterator[None]:
        yield
        seen.extend(job.returned if isinstance(job.returned, list) else [job.returned])

    @worker.consumer("orders", max_retries=0)
    def handle(payload: str) -> Any:
        return UNFIT[payload](broker) if payload in UNFIT else mongoq.Move("bills")

    @worker.consumer("mails", max_retries=0, batch=3, prefetch=3)
    def handle_batch(payloads: list[str]) -> list[Any]:
        return [None if payload in ("lazy", "class") else handle(payload) for payload in payloads]

    worker.run(drain=True)
    values = values_of(metrics.render())
    counts = {labels[1:]: v for labels, v in values.items() if labels[0] == "mongoq_process_duration_seconds_count"}
    assert counts == {
        ("orders", "failed"): 6,
        ("orders", "move"): 1,
        ("mails", "mixed"): 1,  # of the first batch one has failed
        ("mails", "failed"): 1,
        ("mails", "move"): 1,
    }
    assert Counter(type(entry).__name__ for entry in seen) == {
        "OutcomeInvalid": 2,
        "PayloadInvalid": 2,
        "PayloadTooLarge": 2,
        "QueueNameInvalid": 2,
        "ArgumentInvalid": 2,
        "Move": 2,
        "NoneType": 2,
    }
    assert (broker.queue("orders").dead.size(), broker.queue("mails").dead.size()) == (6, 4)
    assert broker.queue("bills").size() == 2


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_so_it_is_in_a_pipeline(broker: mongoq.Broker, delivery: Any) -> None:
    broker.queue("orders").push_many(["none", "large", "elsewhere", "patch", "fit"])
    metrics = PrometheusMetrics()
    pipeline = metrics.instrument(mongoq.Pipeline("shop", errors="shop.errors", outputs="bills"))
    results = {
        "large": "x" * 17_000_000,
        "elsewhere": mongoq.Move("elsewhere"),
        "patch": mongoq.Move("bills", patch={"$unknown": {"a": 1}}),
        "fit": "bill",
    }
    pipeline.stage("orders", name="bill", to="bills", max_retries=0, delivery=delivery)(results.get)
    progress = pipeline.drain(broker)
    assert (progress.stages["bill"].dead, progress.stages["bill"].done) == (4, 0)
    assert broker.stats()["orders"].dead == 4
    values = values_of(metrics.render())
    name = "mongoq_process_duration_seconds_count"
    assert (values[name, "orders", "failed"], values[name, "orders", "done"]) == (4, 1)
    assert broker.queue("shop.errors").size() == 4


# --- registries and arguments --------------------------------------------------------------------


def test_metrics_have_a_registry_of_their_own(broker: mongoq.Broker) -> None:
    before = {metric.name for metric in REGISTRY.collect()}
    first, second = PrometheusMetrics(broker), PrometheusMetrics(broker)
    assert first.registry is not second.registry
    assert {metric.name for metric in REGISTRY.collect()} == before
    mine = CollectorRegistry()
    assert PrometheusMetrics(broker, registry=mine).registry is mine
    assert mine.get_sample_value("mongoq_up") == 1


@pytest.mark.parametrize(
    "options, name",
    [({"broker": 1}, "broker"), ({"budget": 0}, "budget"), ({"cache": -1}, "cache"), ({"within": 0}, "within")],
    ids=repr,
)
def test_bad_arguments_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=name):
        PrometheusMetrics(**options)


def test_only_workers_and_pipelines_are_instrumented(broker: mongoq.Broker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="a Worker"):
        PrometheusMetrics().instrument(broker)  # type: ignore[type-var]
