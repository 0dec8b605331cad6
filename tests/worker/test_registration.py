"""What is wrong is reported when a consumer is registered, and nothing is claimed before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import mongomock
import pytest

import mongoq


@pytest.fixture
def worker(broker: mongoq.Broker) -> mongoq.Worker:
    return mongoq.Worker(broker)


def fine(payload: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -1}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 10**6}, "concurrency"),
        ({"prefetch": -1}, "prefetch"),
        ({"prefetch": 10**6}, "prefetch"),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"prefetch_bytes": 1.5}, "prefetch_bytes"),
        ({"lease": 0}, "lease"),
        ({"lease": -1}, "lease"),
        ({"lease": "1"}, "lease"),
        ({"retry": 1}, "retry"),
        ({"retry": mongoq.Fixed}, "retry"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.0}, "max_retries"),
        ({"success_on": "KeyError"}, "success_on"),
        ({"success_on": ("KeyError",)}, "success_on"),
        ({"success_on": (int,)}, "success_on"),
        ({"max_time": 0}, "max_time"),
        ({"max_time": -timedelta(1)}, "max_time"),
        ({"batch": 0}, "batch"),
        ({"batch": 10**6}, "batch"),
        ({"probe": "yes"}, "probe"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(worker: mongoq.Worker, options: dict[str, Any], message: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=message):
        worker.consumer("orders", **options)


def test_an_option_that_nobody_knows_is_refused(worker: mongoq.Worker) -> None:
    with pytest.raises(TypeError, match="retries"):
        worker.consumer("orders", retries=3)  # type: ignore[call-arg]


async def coroutine(payload: Any) -> None:
    pass


def generator(payload: Any) -> Any:
    yield


def nothing() -> None:
    pass


def three(payload: Any, job: Any, more: Any) -> None:
    pass


def keyword(payload: Any, *, named: Any) -> None:
    pass


class Asynchronous:
    async def __call__(self, payload: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (None, "a function, not NoneType"),
        ("handle", "a function, not str"),
        (coroutine, "AsyncWorker"),
        (Asynchronous(), "AsyncWorker"),
        (generator, "is a generator"),
        (nothing, "is to take"),
        (three, "is to take"),
        (keyword, "is to take"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(worker: mongoq.Worker, handler: Any, message: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=message):
        worker.consumer("orders")(handler)


def test_a_handler_stays_what_it_was(worker: mongoq.Worker) -> None:
    assert worker.consumer("orders")(fine) is fine


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
def test_a_queue_has_one_consumer(worker: mongoq.Worker, options: dict[str, Any]) -> None:
    worker.consumer("orders")(fine)
    with pytest.raises(mongoq.ArgumentInvalid, match="has a consumer in this worker already"):
        worker.consumer("orders", **options)(lambda _: None)


def test_a_handle_of_another_broker_is_refused(worker: mongoq.Worker, uri: str) -> None:
    with (
        mongoq.connect(uri, database="another") as foreign,
        pytest.raises(mongoq.ArgumentInvalid, match="belongs to another broker"),
    ):
        worker.consumer(foreign.queue("orders"))


def test_retries_need_a_dead_queue(worker: mongoq.Worker, broker: mongoq.Broker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="no dead queue"):
        worker.consumer(broker.queue("orders", dead=None), max_retries=3)


@pytest.mark.parametrize("name", ["", "$a", 3, "x" * 200])
def test_a_queue_that_cannot_be_is_refused(worker: mongoq.Worker, name: Any) -> None:
    with pytest.raises(mongoq.QueueNameInvalid):
        worker.consumer(name)


@pytest.mark.parametrize("options", [{"grace": -1}, {"grace": "1"}, {"heartbeat": 0}])
def test_options_of_the_worker_are_checked(broker: mongoq.Broker, options: dict[str, Any]) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=next(iter(options))):
        mongoq.Worker(broker, **options)


@pytest.mark.parametrize("make", [lambda: "broker", lambda: mongomock.MongoClient()["a"]["b"]])
def test_a_worker_takes_a_broker_of_its_kind(make: Callable[[], Any]) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="AsyncBroker, not"):
        mongoq.AsyncWorker(make())
    with pytest.raises(mongoq.ArgumentInvalid, match="broker: Broker, not"):
        mongoq.Worker(make())


def test_a_worker_needs_a_server() -> None:
    worker = mongoq.Worker(mongoq.Broker(mongomock.MongoClient()["a"]["b"]))
    worker.consumer("orders")(fine)
    with pytest.raises(mongoq.ArgumentInvalid, match="mongoq.testing"):
        worker.run()


def test_a_worker_without_consumers_does_not_run(worker: mongoq.Worker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="no consumers"):
        worker.run()


def test_while_it_runs_it_cannot_be_run_again_nor_changed(worker: mongoq.Worker, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    errors: list[Exception] = []

    @worker.consumer("orders")
    def handle(payload: Any) -> None:
        for attempt in (worker.run, lambda: worker.consumer("others")(fine)):
            try:
                attempt()
            except mongoq.ArgumentInvalid as error:
                errors.append(error)

    worker.run(drain=True)
    assert [str(error).partition(": ")[2] for error in errors] == [
        "it runs already",
        "'others' comes too late: the worker runs already",
    ]


def test_a_drain_that_is_neither_true_nor_false_is_refused(worker: mongoq.Worker) -> None:
    worker.consumer("orders")(fine)
    with pytest.raises(mongoq.ArgumentInvalid, match="drain"):
        worker.run(drain="yes")  # type: ignore[arg-type]
