"""What machines read in the logs of a worker: fields of the records, and errors without their messages."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk

SECRET = "4111-1111"


def records(caplog: pytest.LogCaptureFixture, text: str) -> list[Any]:
    return [record for record in caplog.records if text in record.getMessage()]


def formatted(caplog: pytest.LogCaptureFixture) -> str:
    """Return the records as a handler prints them, with their tracebacks."""
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    return "\n".join(formatter.format(record) for record in caplog.records)


@pytest.fixture(autouse=True)
def _all_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "mongoq"):
        yield


async def fail(payload: Any) -> None:
    raise ValueError(SECRET)


def test_a_failure_has_all_fields(desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture) -> None:
    (id,) = queue.push_many(["x"])
    desk.consume("orders", fail, max_retries=1, retry=mongoq.Fixed(0))
    desk.run()
    first, second = records(caplog, "has failed in run")
    assert (first.mongoq_queue, first.mongoq_item, first.mongoq_attempt) == ("orders", str(id), 1)
    assert second.mongoq_attempt == 2
    assert 0 <= first.mongoq_duration < 60
    (started,) = records(caplog, "starts: ")
    assert first.mongoq_worker == started.mongoq_worker
    assert first.mongoq_worker in started.getMessage()
    json.dumps({name: value for name, value in vars(first).items() if name.startswith("mongoq_")})


def test_so_has_a_run_that_takes_too_long(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["x"])

    async def handle(payload: Any, job: Any) -> None:
        if job.item.attempts == 1:
            until(lambda: records(caplog, "has run for"))

    desk.consume("orders", handle, max_time=0.05)
    desk.run()
    record, *_ = records(caplog, "has run for")  # it is told of again when the time has doubled
    assert (record.mongoq_queue, record.mongoq_item) == ("orders", str(id))
    assert record.mongoq_duration >= 0.05
    assert "/" in record.mongoq_worker


# --- errors without their messages ---------------------------------------------------------------


class Odd(Exception):
    """Has notes, a cause and attributes with private data."""


async def fail_oddly(payload: Any) -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        odd = Odd(SECRET, payload)
        odd.add_note(SECRET)
        raise odd from error


def test_types_only_keep_messages_out_of_the_logs(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(SECRET)
    desk.consume("orders", fail_oddly, max_retries=0)
    desk.run(log_errors="type")
    text = formatted(caplog)
    assert SECRET not in text
    (record,) = records(caplog, "has failed in run")
    assert f"Odd at {__file__}:" in record.getMessage()
    assert "Traceback" in text
    assert f'File "{__file__}"' in text
    (letter,) = queue.dead.peek(10)
    assert letter.error is not None
    assert SECRET in letter.error.message  # the item keeps it


def test_outcomes_keep_their_reasons_out_as_well(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [mongoq.Dead(SECRET), mongoq.Retry(error=SECRET), ValueError(SECRET), mongoq.Move("$" + SECRET)]
    queue, batches = broker.queue("orders"), broker.queue("batches")
    queue.push_many(range(len(outcomes)))
    batches.push("x")
    worker = mongoq.Worker(broker, log_errors="type")
    worker.consumer(queue, max_retries=0)(outcomes.__getitem__)
    worker.consumer(batches, max_retries=0, batch=1)(lambda _: [SECRET] * 2)
    worker.run(drain=True)
    assert (queue.dead.size(), batches.dead.size()) == (len(outcomes), 1)
    assert SECRET not in formatted(caplog)
    assert records(caplog, "item ")


def test_a_pipeline_has_the_option_too(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", log_errors="type")

    @pipeline.source(to="in")
    def rows(position: Any) -> Iterator[mongoq.Record]:
        yield mongoq.Record(1, position=1)
        raise KeyError(SECRET)

    @pipeline.sink("in", max_retries=0)
    def load(payload: Any) -> None:
        raise ValueError(SECRET)

    with contextlib.suppress(mongoq.StageStopped):
        pipeline.drain(broker)
    assert broker.queue("line.errors").size() == 1
    assert SECRET not in formatted(caplog)
    assert "KeyError" in formatted(caplog)
    assert records(caplog, "source 'rows' stops")[0].mongoq_queue == "in"


def test_another_value_is_refused(broker: mongoq.Broker) -> None:
    value: Any = "types"
    with pytest.raises(mongoq.ArgumentInvalid, match="log_errors"):
        mongoq.Worker(broker, log_errors=value)
    pipeline = mongoq.Pipeline("line", log_errors=value)
    pipeline.sink("in")(print)
    with pytest.raises(mongoq.GraphInvalid, match="log_errors"):
        pipeline.check()
