"""Exceptions that can hardly be recorded: they are all the same, and nothing but their own item fails."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.awkward import AWKWARD, awkward
from tests.worker.conftest import KINDS, Desk

ONCE: dict[str, Any] = {"retry": mongoq.Fixed(0), "max_retries": 0}
ENDS_A_TEST = {"no class", "no name, no Exception", "generator exit"}
"""What is no ``Exception``, and so no failure of a run in a test."""


@pytest.fixture(autouse=True)
def written() -> Iterator[io.TextIOWrapper]:
    """Have all that is logged written, as a program does: that formats it."""
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    handler = logging.StreamHandler(text)
    logging.getLogger("mongoq").addHandler(handler)
    yield text
    logging.getLogger("mongoq").removeHandler(handler)


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_each_is_recorded_and_the_worker_goes_on(
    desk: Desk, queue: mongoq.Queue[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    payloads = []

    def handle(payload: str) -> None:
        if payload in AWKWARD:
            raise awkward(payload)
        payloads.append(payload)

    async def handle_in_task(payload: str) -> None:
        handle(payload)

    queue.push_many([each for name in AWKWARD for each in (name, "fine")])
    # not by an event loop of the handler's own: asyncio itself does not get over all of them
    options = {**ONCE, "success_on": (KeyError,)}
    desk.consumers.append(("orders", handle_in_task if desk.kind == "tasks" else handle, options))
    desk.run()
    assert payloads == ["fine"] * len(AWKWARD)
    letters = {item.payload: item for item in queue.dead.peek(100)}
    assert letters.keys() == AWKWARD.keys()
    for item in letters.values():
        assert item.error is not None
        assert item.error.type
    error_type = getattr(letters["no class"].error, "type", None)
    assert error_type == "tests.awkward.NoClass", "its own error, not one of asking for it"
    assert "Logging error" not in capfd.readouterr().err


def test_each_may_be_an_entry_of_a_batch(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    async def handle(payloads: list[str]) -> list[Any]:
        return [awkward(payload) if payload in AWKWARD else None for payload in payloads]

    queue.push_many([*AWKWARD, "fine"])
    desk.consume("orders", handle, batch=100, **ONCE)
    desk.run()
    assert {item.payload for item in queue.dead.peek(100)} == AWKWARD.keys()
    assert queue.size() == 0


def test_each_may_be_the_reason_to_retry(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    async def handle(payload: str) -> mongoq.Retry:
        return mongoq.Retry(error=awkward(payload))

    queue.push_many(list(AWKWARD))
    desk.consume("orders", handle, success_on=(KeyError,), **ONCE)
    desk.run()
    letters = queue.dead.peek(100)
    assert {item.payload for item in letters} == AWKWARD.keys()
    error_types = {item.payload: item.error.type for item in letters if item.error is not None}
    assert error_types["no class"] == "tests.awkward.NoClass", "its own error, not one of asking for it"


def test_each_can_be_given_when_an_item_is_settled_by_hand(queue: mongoq.Queue[Any]) -> None:
    queue.push_many(list(AWKWARD))
    for item in queue.reserve_many(100):
        queue.rollback(item, error=awkward(item.payload))
    for item in queue.reserve_many(100):
        assert item.error is not None
        assert item.error.type
        queue.bury(item, error=awkward(item.payload))
    assert {item.payload for item in queue.dead.peek(100)} == AWKWARD.keys()


def test_each_may_end_a_block(queue: mongoq.Queue[Any]) -> None:
    queue.push_many(list(AWKWARD))
    for _ in AWKWARD:
        errors: list[BaseException] = []
        with pytest.raises(BaseException) as raised, queue.reserved() as item:
            assert item is not None
            queue.remove(item.id)  # so that the block has something to log
            errors.append(awkward(item.payload))
            raise errors[0]
        assert raised.value is errors[0], item


def test_each_stops_nothing_in_a_pipeline(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("awkward", errors="errors", outputs="done")

    @pipeline.stage("raw", to="done", name="work", success_on=KeyError, batch=1, **ONCE)
    def work(payloads: list[str]) -> Any:
        raise awkward(payloads[0])

    broker.queue("raw").push_many(list(AWKWARD))
    pipeline.drain(broker)
    letters = broker.dead_queue("errors").peek(100)
    assert {item.payload for item in letters} == AWKWARD.keys()


@pytest.mark.parametrize("name", ["no traceback", "deep group", "no class"])
def test_each_ends_a_source_and_is_logged(broker: mongoq.Broker, name: str, written: io.TextIOWrapper) -> None:
    pipeline = mongoq.Pipeline("awkward")

    @pipeline.source(to="raw")
    def rows(position: Any) -> Iterator[mongoq.Record]:
        yield mongoq.Record(1, position=1)
        raise awkward(name)

    @pipeline.sink("raw")
    def load(payload: Any) -> None:
        pass

    with pytest.raises(mongoq.StageStopped):
        pipeline.drain(broker)
    written.flush()
    assert b"source 'rows' stops" in written.buffer.getvalue()  # type: ignore[attr-defined]


def test_each_fails_a_run_of_a_virtual_worker() -> None:
    names = sorted(AWKWARD.keys() - ENDS_A_TEST)
    with VirtualBroker() as virtual:
        worker = virtual.worker()

        @worker.consumer("orders", **ONCE)
        def handle(payload: Any) -> None:
            raise awkward(payload)

        virtual.queue("orders").push_many(names)
        assert [result.outcome for result in worker.run_until_idle()] == ["dead"] * len(names)


def test_a_move_that_raises_when_it_is_read_fails_its_item_alone(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    class Awkward:
        def __init__(self, name: str) -> None:
            self.error_name = name

        @property
        def name(self) -> str:
            raise awkward(self.error_name)

        _context = name  # as of a handle of a queue

    async def handle(payload: str) -> mongoq.Move:
        return mongoq.Move(Awkward(payload) if payload in AWKWARD else "done")

    queue.push_many([*AWKWARD, "fine"])
    desk.consume("orders", handle, **ONCE)
    desk.run()
    assert {item.payload for item in queue.dead.peek(100)} == AWKWARD.keys()
