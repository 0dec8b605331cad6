"""What is wrong is reported when a consumer is registered, and nothing is claimed before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import mongoq


@pytest.fixture
def worker(broker: mongoq.Broker) -> mongoq.Worker:
    return mongoq.Worker(broker)


def fine(payload: Any) -> None:
    pass


OPTIONS: dict[str, list[Any]] = {
    "concurrency": [0, 1.5, True, 10**6],
    "prefetch": [-1, 10**6],
    "prefetch_bytes": [0],
    "lease": [0, "soon"],
    "retry": [1, mongoq.Fixed],
    "max_retries": [-1, 1.0],
    "success_on": ["KeyError", ("KeyError",), (int,)],
    "max_time": [0, -timedelta(1)],
    "batch": [0, 10**6],
    "probe": ["yes"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_be_used_is_named(worker: mongoq.Worker, name: str) -> None:
    for value in OPTIONS[name]:
        options: Any = {name: value}
        with pytest.raises(mongoq.ArgumentInvalid, match=name):
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


def keyword(payload: Any, *, named: Any) -> None:
    pass


class Asynchronous:
    async def __call__(self, payload: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (None, "a function, not NoneType"),
        (coroutine, "AsyncWorker"),
        (Asynchronous(), "AsyncWorker"),
        (generator, "is a generator"),
        (nothing, "is to take"),
        (keyword, "is to take"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(worker: mongoq.Worker, handler: Any, message: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=message):
        worker.consumer("orders")(handler)


def by_parts(sku: str, quantity) -> None:  # type: ignore[no-untyped-def]
    pass


def with_job_alone(job) -> None:  # type: ignore[no-untyped-def]
    pass


def annotated(job: dict[str, Any], context: mongoq.Job[Any]) -> None:
    pass


def usual(payload, _job) -> None:  # type: ignore[no-untyped-def]
    pass


@pytest.mark.parametrize(
    ("handler", "warning"),
    [
        (by_parts, "handler by_parts gets the job as its argument 'quantity'"),
        (with_job_alone, "handler with_job_alone gets the payload as its argument 'job'"),
        (annotated, None),
        (usual, None),
        (fine, None),
    ],
)
def test_arguments_that_look_like_others_are_named(
    worker: mongoq.Worker, caplog: pytest.LogCaptureFixture, handler: Any, warning: str | None
) -> None:
    worker.consumer("orders")(handler)
    assert [record.getMessage()[: len(warning or "")] for record in caplog.records] == ([warning] if warning else [])


def test_a_handler_stays_what_it_was(worker: mongoq.Worker) -> None:
    assert worker.consumer("orders")(fine) is fine


def test_a_queue_has_one_consumer(worker: mongoq.Worker) -> None:
    worker.consumer("orders")(fine)
    with pytest.raises(mongoq.ArgumentInvalid, match="has a consumer in this worker already"):
        worker.consumer("orders", concurrency=2)(lambda _: None)


def test_a_handle_of_another_broker_is_refused(worker: mongoq.Worker, uri: str) -> None:
    with (
        mongoq.connect(uri, database="another") as foreign,
        pytest.raises(mongoq.ArgumentInvalid, match="belongs to another broker"),
    ):
        worker.consumer(foreign.queue("orders"))


def test_retries_need_a_dead_queue(worker: mongoq.Worker, broker: mongoq.Broker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="no dead queue"):
        worker.consumer(broker.queue("orders", dead=None), max_retries=3)


def test_a_queue_that_cannot_be_is_refused(worker: mongoq.Worker) -> None:
    with pytest.raises(mongoq.QueueNameInvalid):
        worker.consumer("$a")


@pytest.mark.parametrize("options", [{"grace": -1}, {"grace": "soon"}, {"heartbeat": 0}])
def test_options_of_the_worker_are_checked(broker: mongoq.Broker, options: dict[str, Any]) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=next(iter(options))):
        mongoq.Worker(broker, **options)


def test_a_worker_takes_a_broker_of_its_kind(broker: mongoq.Broker, raw: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="AsyncBroker, not"):
        mongoq.AsyncWorker(broker)  # type: ignore[arg-type]
    with pytest.raises(mongoq.ArgumentInvalid, match="broker: Broker, not"):
        mongoq.Worker(raw)


def test_a_worker_needs_a_server() -> None:
    import mongomock

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
