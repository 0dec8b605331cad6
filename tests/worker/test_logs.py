"""What a worker logs: failed runs, its start and its end, and nothing that is nobody's business."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk

QUICK = mongoq.Fixed(0.01)
PAYLOAD = "a secret"
SECRET = "mongodb://ada:hunter2@db.example/shop"


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep all that is logged from INFO on."""
    with caplog.at_level(logging.INFO, "mongoq"):
        yield


def lines(caplog: pytest.LogCaptureFixture, least: int = logging.INFO) -> list[tuple[str, str]]:
    """Return levels and messages of the worker, without those of its start and end."""
    entries = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= least]
    return [(level, text) for level, text in entries if not text.startswith("worker ")]


def printed(record: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(record)


def test_no_text_of_a_handler_begins_a_line_or_moves_a_cursor(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever program prints the records."""
    hostile = "no stock\n2026-11-28 INFO mongoq.audit: 'eve'\r\v\x85\u2028\x1b[2J\x9b2J\u202e"
    queue.push_many(["raise", "class", "retry", "dead"])

    async def handle(payload: str) -> Any:
        if payload == "raise":
            raise ValueError(hostile)
        if payload == "class":
            raise type(hostile, (Exception,), {})
        return mongoq.Retry(error=hostile) if payload == "retry" else mongoq.Dead(hostile)

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    texts = [record.getMessage() for record in caplog.records]
    assert sum("no stock" in text for text in texts) == 4
    assert [text for text in texts if not text.isprintable()] == []


def test_a_failed_run_is_logged_with_its_error_and_what_comes_next(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["bad"])

    async def handle(payload: str) -> None:
        raise LookupError("no such\nthing")

    desk.consume("orders", handle, retry=QUICK, max_retries=1)
    desk.run()
    first, last = lines(caplog)
    assert first[0] == "WARNING"
    assert first[1].startswith(
        f"item {id} of queue 'orders' has failed in run 1: LookupError: no such thing; it runs again from 2"
    )
    buried = f"item {id} of queue 'orders' has failed in run 2, its last: LookupError: no such thing; it goes to queue"
    assert last == ("ERROR", f"{buried} 'orders.dead'")
    records = [record for record in caplog.records if "has failed" in record.getMessage()]
    assert all(record.name == "mongoq.worker" for record in records)
    assert all('raise LookupError("no such\\nthing")' in printed(record) for record in records)


def test_a_traceback_begins_in_the_handler(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("bad")
    desk.consumers.append(("orders", fail_in_task if desk.kind == "tasks" else fail_in_thread, {"max_retries": 0}))
    desk.run()
    (record,) = [record for record in caplog.records if "has failed" in record.getMessage()]
    assert record.exc_info is not None
    frames = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
    assert frames == ["fail_in_task" if desk.kind == "tasks" else "fail_in_thread", "fail_inside"]
    assert printed(record).count("  File ") == 2
    (letter,) = queue.dead.peek()
    assert letter.error is not None
    assert str(letter.error.traceback).count("  File ") == 2


def fail_inside(payload: str) -> None:
    raise LookupError(payload)


def fail_in_thread(payload: str) -> None:
    fail_inside(payload)


async def fail_in_task(payload: str) -> None:
    fail_inside(payload)


def test_what_a_handler_declares_is_logged(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(["retry", "dead"])
    outcomes = {"retry": mongoq.Retry(error="not yet"), "dead": mongoq.Dead("of no use")}

    async def handle(payload: str, job: Any) -> Any:
        return outcomes[payload] if job.item.attempts == 1 else None

    desk.consume("orders", handle, retry=QUICK)
    desk.run()
    (retried,) = [line for line in lines(caplog) if "Retry" in line[1]]
    (dead,) = [line for line in lines(caplog) if "declared dead" in line[1]]
    assert retried[0] == "INFO"
    assert "has failed in run 1: Retry: not yet; it runs again from" in retried[1]
    assert dead[0] == "WARNING"
    assert dead[1].endswith("was declared dead in run 1: of no use; it goes to queue 'orders.dead'")


def test_a_failed_batch_has_a_line_for_each_item_and_one_traceback(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    ids = queue.push_many(range(4))

    async def handle(payloads: list[int]) -> None:
        raise ValueError("all of them")

    desk.consume("orders", handle, batch=4, prefetch=4, max_retries=0)
    desk.run()
    records = [record for record in caplog.records if "has failed" in record.getMessage()]
    assert {str(id) for id in ids} == {record.getMessage().split()[1] for record in records}
    batches = queue.dead.size() and len({id(record.exc_info[1]) for record in records if record.exc_info})
    assert sum(record.exc_info is not None for record in records) == batches


def test_a_stage_is_named(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("in").push("x")
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    @pipeline.sink("in", max_retries=0)
    def load(payload: str) -> None:
        raise ValueError("out of order")

    pipeline.drain(broker)
    (failed,) = lines(caplog)
    assert failed[0] == "ERROR"
    assert failed[1].partition(" of ")[2] == (
        "stage 'load' has failed in run 1, its last: ValueError: out of order; it goes to queue 'line.errors'"
    )


def test_a_failure_while_the_handler_is_probed_does_not_count(
    broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("orders").push_many(["x", "y"])
    failures = iter([ConnectionError("down"), ConnectionError("still down")])
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", concurrency=1, probe=True, retry=QUICK, max_retries=1)
    def handle(payload: str) -> None:
        for failure in failures:
            raise failure

    worker.run(drain=True)
    first, second = lines(caplog)
    assert "does not count" not in first[1]
    assert second[1].endswith(", and the attempt does not count")


class Order(BaseModel):
    """What a handler makes of a payload."""

    n: int


def refused() -> BaseException:
    try:
        Order.model_validate({"n": PAYLOAD})
    except ValueError as error:
        return error
    raise AssertionError


def caused() -> BaseException:
    try:
        raise RuntimeError("it cannot be stored") from refused()
    except RuntimeError as error:
        return error


ERRORS: list[tuple[Any, str]] = [
    (ConnectionError(f"{SECRET} is away"), "ConnectionError: mongodb://***@db.example/shop is away"),
    (refused(), "ValidationError: 1 validation error(s) for Order"),
    (DuplicateKeyError("dup key: a secret", 11000, {}), "pymongo.errors.DuplicateKeyError: code 11000"),
    (caused(), "RuntimeError: it cannot be stored"),
    (ExceptionGroup("both", [ValueError(SECRET)]), "ExceptionGroup: both (1 sub-exception)"),
]


def test_no_credential_and_no_payload_is_logged(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(len(ERRORS)))
    worker = mongoq.Worker(broker)

    @worker.consumer(queue, max_retries=0)
    def handle(payload: int) -> None:
        raise ERRORS[payload][0]

    worker.run(drain=True)
    records = [record for record in caplog.records if "has failed" in record.getMessage()]
    assert len(records) == len(ERRORS)
    for record, (_, line) in zip(records, ERRORS, strict=True):
        assert f"{line}; it goes" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert "hunter2" not in printed(record)
        assert PAYLOAD not in printed(record)


# --- start and end -------------------------------------------------------------------------------


def life(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.getMessage().startswith("worker ")]
    assert {(record.name, record.levelno) for record in records} == {("mongoq.worker", logging.INFO)}
    return [record.getMessage().split(" ", 2)[2] for record in records]


def test_a_drain_says_that_the_queues_are_empty_and_counts_items_by_their_result(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(range(3))

    async def handle(payload: int) -> None:
        if payload == 2:
            raise LookupError

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    assert life(caplog) == [
        "starts: queue 'orders'",
        "stops: its queues are empty",
        "has ended; items done: 2, failed: 1, given back: 0",
    ]


def test_a_stop_says_so(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(payload: int) -> None:
        pass

    desk.consume("orders", handle)
    running = desk.start(grace=7)
    until(lambda: "starts: " in caplog.text)
    running.stop()
    assert life(caplog)[1] == "stops: it was told to; handlers have 7 s"


def test_runs_that_are_given_up_are_counted(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(range(2))
    jobs: list[Any] = []

    async def handle(payload: int, job: Any) -> None:
        jobs.append(job)
        while not job.lost.is_set():
            await asyncio.sleep(0.02)

    desk.consume("orders", handle, concurrency=2)
    running = desk.start(grace=0)
    until(lambda: len(jobs) == 2)
    running.stop()
    assert ("WARNING", "runs of queue 'orders' are given up, and their items go back: 2") in lines(caplog)
    assert all(job.lost.is_set() for job in jobs)
    until(lambda: sum("has ended late" in text for text in caplog.messages) == 2)  # else some other test would hear it
    # A claim under way may get the items once more, and gives them back as well.
    assert re.fullmatch("has ended; items done: 0, failed: 0, given back: [2-9]", life(caplog)[-1])


def test_a_signal_is_named_as_the_reason(
    broker: mongoq.Broker, caplog: pytest.LogCaptureFixture, signals: list[int]
) -> None:
    broker.queue("orders").push(1)
    worker = mongoq.Worker(broker)

    @worker.consumer("orders")
    def handle(payload: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    worker.run()
    assert life(caplog)[1] == "stops: a signal came; handlers have 25 s"
    assert signals == [signal.SIGTERM]


def test_a_stage_that_stops_the_run_is_the_reason(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("in").push(1)
    pipeline = mongoq.Pipeline("line", errors=None)

    @pipeline.sink("in", max_retries=0)
    def load(payload: int) -> None:
        raise ValueError("x")

    with pytest.raises(mongoq.StageStopped):
        pipeline.drain(broker)
    assert life(caplog)[1] == "stops: all that it ran has stopped by itself"
    assert ("ERROR", True) in [(level, "and the stage stops" in text) for level, text in lines(caplog)]


# --- settled by the handler ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["commit", "move", "session", "rollback"])
def test_a_handler_that_settles_its_item_itself_is_no_warning(
    client: MongoClient[Any], broker: mongoq.Broker, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    queue = broker.queue("orders")
    queue.push_many([1, 2])
    runs: list[int] = []
    worker = mongoq.Worker(broker)

    def handle(payload: Any, job: Any) -> None:
        runs.append(job.item.attempts)
        if way == "session":
            with client.start_session() as session, session.start_transaction():
                queue.commit(job.item, session=session)
        elif way == "rollback":
            if job.item.attempts == 1:
                queue.rollback(job.item)
        else:
            with broker.transaction() as tx:
                for item in job.items:
                    if way == "move":
                        queue.move(item, "next", session=tx.session)
                    else:
                        queue.commit(item, session=tx.session)

    worker.consumer("orders", max_retries=1)(handle)
    worker.run(drain=True)
    assert lines(caplog) == []
    assert queue.size() == 0
    assert broker.queue("next").size() == (2 if way == "move" else 0)


def test_a_transaction_that_is_aborted_leaves_the_item_to_the_worker(
    broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    worker = mongoq.Worker(broker)
    runs: list[int] = []

    @worker.consumer("orders", retry=QUICK)
    def handle(payload: int, job: Any) -> None:
        runs.append(payload)
        with broker.transaction() as tx:
            queue.commit(job.item, session=tx.session)
            if len(runs) == 1:
                raise ValueError("not this time")

    worker.run(drain=True)
    assert runs == [1, 1]
    ((level, text),) = lines(caplog)
    assert (level, "not this time" in text) == ("WARNING", True)
    assert queue.size() == 0


def test_an_item_that_somebody_else_takes_meanwhile_is_a_warning(
    broker: mongoq.Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", max_retries=0)
    def handle(payload: int, job: Any) -> None:
        raw.delete_one({"_id": job.item.id})

    worker.run(drain=True)
    ((level, text),) = lines(caplog)
    assert (level, "was not settled" in text) == ("WARNING", True)
