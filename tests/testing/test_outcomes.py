"""What a run by hand came to: outcomes, retries on the virtual clock, dead letters, batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import mongoq
from mongoq.testing import AsyncVirtualBroker, VirtualBroker, VirtualWorker

FIXED = mongoq.Fixed(10)


def register(worker: VirtualWorker, answer: Any, **options: Any) -> list[Any]:
    """Register a handler of orders that answers so, and keeps what it was called with."""
    payloads: list[Any] = []

    @worker.consumer("orders", **{"retry": FIXED, **options})
    def handle(payload: Any) -> Any:
        payloads.append(payload)
        value = answer(payload) if callable(answer) and not isinstance(answer, type) else answer
        if isinstance(value, BaseException):
            raise value
        return value

    return payloads


def test_nothing_ready_is_none(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, None)
    virtual.queue("orders").push(1, delay=5)
    assert worker.run_one("orders") is None


def test_what_a_handler_returns_is_done(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    payloads = register(worker, 7)
    id = virtual.queue("orders").push({"n": 1})
    result = worker.run_one(virtual.queue("orders"))
    assert result is not None
    assert (result.outcome, result.returned, result.error, result.item.id) == ("done", 7, None, id)
    assert payloads == [{"n": 1}]
    assert virtual.queue("orders").size() == 0


def test_an_exception_is_a_retry_on_the_virtual_clock(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    error = TimeoutError("no answer")
    payloads = register(worker, error)
    orders = virtual.queue("orders")
    id = orders.push(1)
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, result.error, result.delay) == ("retry", error, timedelta(seconds=10))
    failed = orders.get(id)
    assert failed.error.message == "no answer"
    assert worker.run_one("orders") is None
    virtual.advance(9.999)
    assert worker.run_one("orders") is None
    virtual.advance(timedelta(milliseconds=1))
    assert worker.run_one("orders").item.attempts == 2
    assert payloads == [1, 1]


def test_the_last_retry_ends_in_the_dead_queue(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, ValueError("bad"), max_retries=1)
    orders = virtual.queue("orders")
    orders.push(1)
    outcomes = []
    for _ in range(2):
        outcomes.append(worker.run_one("orders"))
        virtual.advance(10)
    assert [result.outcome for result in outcomes] == ["retry", "dead"]
    assert outcomes[1].to == "orders.dead"
    assert orders.dead.peek()[0].origin.reason == "retries exhausted"


@pytest.mark.parametrize(
    "answer, outcome, to",
    [
        (mongoq.Drop(), "dropped", None),
        (mongoq.Dead("no such city"), "dead", "orders.dead"),
        (mongoq.Move("invoices", payload=2), "moved", "invoices"),
    ],
)
def test_an_outcome_is_carried_out(
    virtual: VirtualBroker, worker: VirtualWorker, answer: Any, outcome: str, to: str | None
) -> None:
    register(worker, answer)
    virtual.queue("orders").push(1)
    result = worker.run_one("orders")
    assert (result.outcome, result.to, result.returned) == (outcome, to, answer)
    assert virtual.queue("orders").size() == 0
    assert to is None or virtual.queue(to).size() == 1


def test_a_move_to_a_handle_of_another_broker_goes_to_the_queue_of_that_name(
    virtual: VirtualBroker, worker: VirtualWorker
) -> None:
    with VirtualBroker() as elsewhere:
        register(worker, mongoq.Move(elsewhere.queue("invoices", model=int), payload=3))
        virtual.queue("orders").push(1)
        assert worker.run_one("orders").to == "invoices"
        assert (virtual.queue("invoices").peek()[0].payload, elsewhere.queue("invoices").size()) == (3, 0)


def test_a_retry_tells_its_delay_and_error(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, mongoq.Retry(3, error="busy"))
    virtual.queue("orders").push(1)
    result = worker.run_one("orders")
    assert (result.outcome, result.delay, result.error) == ("retry", timedelta(seconds=3), "busy")


def test_success_on_is_done_with_the_error(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, KeyError("there already"), success_on=KeyError)
    virtual.queue("orders").push(1)
    result = worker.run_one("orders")
    assert (result.outcome, type(result.error)) == ("done", KeyError)


@pytest.mark.parametrize(
    "answer",
    [mongoq.Drop, mongoq.Outcome(), mongoq.Move("$bad"), SystemExit(3), mongoq.TransactionsUnavailable("standalone")],
)
def test_what_fails_a_worker_is_a_retry(virtual: VirtualBroker, worker: VirtualWorker, answer: Any) -> None:
    register(worker, answer)
    virtual.queue("orders").push(1)
    result = worker.run_one("orders")
    assert result.outcome == "retry"
    expected = {
        type: mongoq.OutcomeInvalid,
        mongoq.Outcome: mongoq.OutcomeInvalid,
        mongoq.Move: mongoq.QueueNameInvalid,
    }
    assert type(result.error) is expected.get(type(answer), type(answer))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("raised by a helper")])
def test_what_ends_a_test_ends_the_run_and_gives_the_item_back(
    virtual: VirtualBroker, worker: VirtualWorker, error: BaseException
) -> None:
    register(worker, error)
    virtual.queue("orders").push(1)
    with pytest.raises(type(error)):
        worker.run_one("orders")
    item = virtual.queue("orders").peek()[0]
    assert (item.state, item.attempts) == ("ready", 0)


def test_an_item_taken_from_the_handler_is_lost(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    orders = virtual.queue("orders")
    register(worker, lambda _: orders.purge(state="reserved"))
    orders.push(1)
    result = worker.run_one("orders")
    assert (result.outcome, type(result.error)) == ("lost", mongoq.ReservationLost)


def test_the_result_reads_as_a_line(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, TimeoutError("no answer"))
    virtual.queue("orders").push({"n": 1})
    assert repr(worker.run_one("orders")) == (
        "Result('retry', run 1 of 'orders' with {'n': 1}, error=TimeoutError('no answer'), delay=0:00:10)"
    )


def test_the_traceback_of_a_failure_is_logged(
    virtual: VirtualBroker, worker: VirtualWorker, caplog: pytest.LogCaptureFixture
) -> None:
    register(worker, TimeoutError("no answer"))
    virtual.queue("orders").push(1)
    worker.run_one("orders")
    assert "a run of queue 'orders' has failed" in caplog.text
    assert "TimeoutError: no answer" in caplog.text


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_tells_of_each_item(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    error = ValueError("three")
    batches = register(worker, lambda payloads: [None, mongoq.Drop(), error][: len(payloads)], batch=3)
    virtual.queue("orders").push_many([1, 2, 3, 4])
    results = worker.run_batch("orders")
    assert [(result.item.payload, result.outcome) for result in results] == [(1, "done"), (2, "dropped"), (3, "retry")]
    assert [result.returned for result in results] == [None, mongoq.Drop(), error]
    assert results[2].error is error
    assert [result.outcome for result in worker.run_batch("orders")] == ["done"]
    assert worker.run_batch("orders") == []
    assert batches == [[1, 2, 3], [4]]


def test_errors_of_a_batch_that_count_as_success_are_reported(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    error = KeyError("there already")
    register(worker, [error, None], batch=2, success_on=KeyError)
    virtual.queue("orders").push_many([1, 2])
    assert [(result.outcome, result.error) for result in worker.run_batch("orders")] == [
        ("done", error),
        ("done", None),
    ]


def test_what_mongomock_cannot_do_is_raised(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, mongoq.Move("next", patch={"$mul": {"n": 2}}))
    virtual.queue("orders").push({"n": 1})
    with pytest.raises(Exception, match="mul"):
        worker.run_one("orders")


def test_one_item_of_a_batch_handler_is_a_list_of_one(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    batches = register(worker, None, batch=10)
    virtual.queue("orders").push_many([1, 2])
    assert worker.run_one("orders").outcome == "done"
    assert batches == [[1]]


def test_an_exception_fails_the_whole_batch(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, ValueError("bad"), batch=10)
    virtual.queue("orders").push_many([1, 2])
    assert [result.outcome for result in worker.run_batch("orders")] == ["retry", "retry"]


# --- forced retries and time ---------------------------------------------------------------------


def test_a_retry_is_forced_without_moving_the_clock(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    register(worker, ValueError("bad"))
    orders, start = virtual.queue("orders"), virtual.clock.now()
    orders.push_many([1, 2])
    orders.push(3, delay=60)
    first, second = worker.run_until_idle()
    assert virtual.force_retry(first.item) == 1
    assert worker.run_one("orders").item.attempts == 2
    assert worker.force_retry(second.item.id) == 1
    assert worker.run_one("orders").item.payload == 2
    assert virtual.force_retry("orders") == 2
    assert virtual.force_retry(orders) == 0
    assert [item.payload for item in orders.peek(5)] == [1, 2]
    assert virtual.clock.now() == start


def test_what_waits_for_nothing_cannot_be_forced(virtual: VirtualBroker) -> None:
    id = virtual.queue("orders").push(1)
    with pytest.raises(mongoq.ArgumentInvalid, match="waits for nothing"):
        virtual.force_retry(id)
    with pytest.raises(mongoq.QueueNameInvalid):
        virtual.force_retry(5)  # type: ignore[arg-type]


def test_a_lease_runs_out_on_the_virtual_clock(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    """A worker that has died: its item comes back when its lease ends, and the attempt counts."""
    register(worker, None)
    virtual.queue("orders").push(1)
    virtual.queue("orders").reserve(lease=30)
    virtual.advance(29)
    assert worker.run_one("orders") is None
    virtual.advance(1)
    assert worker.run_one("orders").item.attempts == 2


def transact(virtual: VirtualBroker, queue: Any) -> Any:
    with virtual.transaction() as transaction:
        queue.push(2, session=transaction.session)


def push_in_a_session(virtual: VirtualBroker, queue: Any) -> Any:
    queue.push(2, session=object())


def push_many_in_a_session(virtual: VirtualBroker, queue: Any) -> Any:
    queue.push_many([2], session=object())


def wrap(virtual: VirtualBroker, queue: Any) -> Any:
    try:
        transact(virtual, queue)
    except mongoq.MongoqError as error:
        raise RuntimeError("the order cannot be billed") from error


def wrap_without_a_cause(virtual: VirtualBroker, queue: Any) -> Any:
    try:
        transact(virtual, queue)
    except mongoq.MongoqError:
        raise KeyError("order")  # noqa: B904


HANDLERS = [
    (transact, None),
    (push_in_a_session, None),
    (push_many_in_a_session, 5),
    (wrap, None),
    (wrap_without_a_cause, None),
]


@pytest.mark.parametrize(("handler", "batch"), HANDLERS)
def test_a_transaction_is_no_failure_of_the_item_and_ends_the_run_of_the_test(
    virtual: VirtualBroker, worker: VirtualWorker, handler: Any, batch: int | None
) -> None:
    register(worker, lambda payload: handler(virtual, virtual.queue("next")), batch=batch)
    queue = virtual.queue("orders")
    queue.push(1)
    for _ in range(2):
        with pytest.raises(mongoq.TransactionsUnavailable, match="take the fixture mongoq_broker"):
            worker.run_until_idle()
    (item,) = queue.peek()
    assert (item.attempts, item.error) == (0, None)
    assert virtual.queues() == ["orders"]


async def test_and_of_a_coroutine_as_well() -> None:
    async with AsyncVirtualBroker() as virtual:
        worker = virtual.worker()

        @worker.consumer("orders")
        async def handle(payload: Any) -> None:
            async with virtual.transaction() as transaction:
                await virtual.queue("next").push(payload, session=transaction.session)

        await virtual.queue("orders").push(1)
        with pytest.raises(mongoq.TransactionsUnavailable, match="mongoq_async_broker"):
            await worker.run_one("orders")
        assert [item.attempts for item in await virtual.queue("orders").peek()] == [0]


def test_a_fork_of_an_item_that_runs_at_most_once_is_moved(virtual: VirtualBroker) -> None:
    pipeline = mongoq.Pipeline("line", outputs=["a", "b"])

    @pipeline.stage("orders", to=["a", "b"], delivery="at-most-once")
    def work(payload: Any) -> Any:
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b", payload=2)])

    virtual.queue("orders").push(1)
    [result] = virtual.worker(pipeline).run_until_idle()
    assert (result.outcome, result.to) == ("moved", None)
    assert [virtual.queue(name).peek()[0].payload for name in ("a", "b")] == [1, 2]


# --- later and too late ---------------------------------------------------------------------------


def test_the_result_of_an_item_that_is_put_off(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    outcomes: list[Any] = [mongoq.Later(600), mongoq.Later(when=virtual.clock.now() + timedelta(hours=1)), None]

    @worker.consumer("orders", max_retries=0)
    def handle(payload: Any) -> Any:
        return outcomes.pop(0)

    orders = virtual.queue("orders")
    id = orders.push("a")
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, result.error, result.delay) == ("later", None, timedelta(minutes=10))
    assert (orders.get(id).attempts, worker.run_one("orders")) == (0, None)
    virtual.advance(600)
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, result.delay, result.item.attempts) == ("later", timedelta(minutes=50), 1)
    virtual.advance(3_000)
    result = worker.run_one("orders")
    assert result is not None
    assert result.outcome == "done"


def test_an_expired_item_is_not_run(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    handled: list[Any] = []
    worker.consumer("orders")(handled.append)
    orders = virtual.queue("orders", on_expired="dead")
    orders.push("late", expires=300)
    orders.push("good", expires=301)
    virtual.advance(300)
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, handled) == ("done", ["good"])
    assert worker.run_one("orders") is None
    (letter,) = orders.dead.peek()
    assert (letter.payload, letter.origin.reason) == ("late", "expired")
