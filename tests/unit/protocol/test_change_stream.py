"""The reader of the change stream, on scripted answers."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from mongoq.protocol.flow import Command, Interruption, ReplyLost, Request, Rest, Waiter
from mongoq.protocol.wait.change_stream import run_change_stream, stream_pipeline
from tests.unit.scripted import LOST, NOW, context


class Failure(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Reading:
    """Runs a reader for a queue that somebody waits for."""

    def __init__(self) -> None:
        self.queue: Any = context()
        self.registry = self.queue.broker.registry
        self.registry.restless = lambda: False
        self.wait_queue = self.registry.wait_queue("orders")
        self.waiter: Waiter = self.wait_queue.enter(patient=False)
        self.sleep()
        self.number = self.registry.start()
        self.flow = run_change_stream(self.queue.broker, self.number)
        self.request: Request | None = next(self.flow)
        self.answer("session")

    def sleep(self) -> None:
        self.wait_queue.turn(self.waiter)
        self.wait_queue.begin(self.waiter)
        self.wait_queue.record_nothing(self.waiter, self.wait_queue._changes, 1000)
        # which would be over at once where this process has to wait for the processor
        self.wait_queue.poll = self.wait_queue.due
        assert self.wait_queue.begin_sleep(self.waiter) > 0

    def answer(self, reply: Any) -> None:
        try:
            raising = isinstance(reply, Exception)
            self.request = self.flow.throw(reply) if raising else self.flow.send(reply)
        except StopIteration:
            self.request = None

    def opens(self, cursor: int = 7, token: str = "t0") -> None:
        self.answer({"cursor": {"id": cursor, "postBatchResumeToken": token, "firstBatch": []}})

    def receive(self, *events: Any, cursor: int = 7, token: str = "t1") -> None:
        self.answer({"cursor": {"id": cursor, "postBatchResumeToken": token, "nextBatch": list(events)}})

    @property
    def command(self) -> dict[str, Any]:
        assert isinstance(self.request, Command), self.request
        return dict(self.request.arguments["command"])

    @property
    def resumes_after(self) -> Any:
        return self.command["pipeline"][0]["$changeStream"].get("resumeAfter")

    def is_called(self) -> bool:
        called, self.waiter.called = self.waiter.called, False
        return called


@pytest.fixture
def reading() -> Reading:
    return Reading()


EVENT = {"id": 1, "q": "orders", "when": int(NOW.timestamp() * 1000)}


def test_the_stream_is_opened_read_and_lets_everybody_ask_once(reading: Reading) -> None:
    assert reading.resumes_after is None
    reading.opens()
    assert reading.is_called()
    reading.sleep()
    reading.waiter.set()


def test_an_event_calls_who_waits(reading: Reading) -> None:
    reading.opens()
    reading.is_called()
    assert "getMore" in reading.command
    reading.receive(EVENT)
    assert reading.is_called()


def test_an_event_in_the_future_moves_the_alarm_only(reading: Reading) -> None:
    reading.opens()
    reading.is_called()
    reading.receive({**EVENT, "when": EVENT["when"] + 5000})
    assert not reading.is_called()
    assert reading.waiter.was_set


@pytest.mark.parametrize("id", ["topics:mongoq", "queue:orders"])
def test_what_a_producer_or_a_consumer_goes_by_is_looked_at_again_at_once(reading: Reading, id: str) -> None:
    reading.opens()
    broker = reading.queue.broker
    broker.calm_until = reading.queue.state.calm_until = math.inf
    reading.receive({"id": id})
    calm = broker.calm_until if id.startswith("topics") else reading.queue.state.calm_until
    assert calm < time.monotonic()


def test_events_of_no_interest_or_of_odd_types_are_passed_by(reading: Reading) -> None:
    reading.opens()
    reading.is_called()
    reading.receive({"id": {"a": 1}, "q": "others"}, {"id": "x"}, {"id": None, "q": 7, "when": None})
    assert not reading.is_called()


def test_a_date_that_is_none_counts_as_now(reading: Reading) -> None:
    reading.opens()
    reading.is_called()
    reading.receive({"id": {"a": 1}, "q": "orders", "when": None})
    assert reading.is_called()


def test_a_control_document_is_read_again(reading: Reading) -> None:
    reading.opens()
    reading.is_called()
    state = reading.queue.state
    state.store(paused=True)
    assert not state.stale(1.0, reading.registry)
    reading.receive({"id": "queue:orders"})
    assert state.stale(1.0, reading.registry)
    assert reading.is_called()


def test_bindings_are_read_again(reading: Reading) -> None:
    reading.opens()
    topics = reading.queue.broker.topics
    topics.read_at = time.monotonic()
    assert not topics.stale(0.0, reading.registry)
    reading.receive({"id": "topics:mongoq"})
    assert topics.stale(3600.0, reading.registry)


@pytest.mark.parametrize("error", [LOST, Failure(43), Failure(237)], ids=str)
def test_after_a_lost_connection_the_stream_goes_on_where_it_was(reading: Reading, error: Exception) -> None:
    reading.opens()
    reading.receive()
    reading.answer(error)
    assert isinstance(reading.request, Rest)
    assert not reading.registry.watches("orders")
    reading.answer(None)
    assert reading.resumes_after == "t1"
    reading.is_called()
    reading.opens()
    assert reading.is_called()
    assert reading.registry.watches("orders")


@pytest.mark.parametrize("code", [286, 280, 260, 10334])
def test_where_the_stream_cannot_go_on_it_begins_anew(reading: Reading, code: int) -> None:
    reading.opens()
    reading.receive()
    reading.answer(Failure(code))
    reading.answer(None)
    assert reading.resumes_after is None


def test_a_token_that_is_refused_is_given_up(reading: Reading) -> None:
    reading.opens()
    reading.receive()
    reading.answer(LOST)
    reading.answer(None)
    assert reading.resumes_after == "t1"
    reading.answer(Failure(286))
    reading.answer(None)
    assert reading.resumes_after is None


def test_a_stream_that_has_ended_begins_anew(reading: Reading) -> None:
    reading.opens()
    reading.receive(cursor=0)
    assert isinstance(reading.request, Rest)
    reading.answer(None)
    assert reading.resumes_after is None


def test_errors_in_a_row_are_met_with_growing_pauses(reading: Reading) -> None:
    pauses = []
    for _ in range(10):
        reading.answer(ReplyLost(ConnectionError()))
        assert isinstance(reading.request, Rest)
        pauses.append(reading.request.seconds)
        reading.answer(None)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 5.0)


def test_without_change_streams_there_is_no_reader(reading: Reading) -> None:
    reading.answer(Failure(40573))
    while reading.request is not None:
        reading.answer(None)
    assert reading.registry.deaf
    assert not reading.registry.running
    assert reading.registry.start() == 0


def test_a_stream_for_more_queues_takes_over_where_the_other_was(reading: Reading) -> None:
    reading.opens()
    for _ in range(5):
        reading.receive()
    waiter = reading.registry.wait_queue("others").enter(patient=True)
    number, cursor = reading.registry.widen("others")
    assert cursor == 7
    assert reading.registry.widen("others") == (0, 0), "one is enough"
    second = run_change_stream(reading.queue.broker, number)
    next(second)
    request = second.send("session")
    assert isinstance(request, Command)
    pipeline = request.arguments["command"]["pipeline"]
    assert pipeline[0]["$changeStream"]["resumeAfter"] == "t1"
    assert "others" in str(pipeline)
    second.send({"cursor": {"id": 8, "postBatchResumeToken": "t2", "firstBatch": []}})
    assert reading.registry.watches("others")
    assert waiter.called
    reading.is_called()
    reading.receive(EVENT)
    assert not reading.is_called(), "the other reader tells it"
    while reading.request is not None:
        reading.answer(None)
    assert reading.registry.running == number
    assert not reading.registry.replaced
    second.close()


def test_when_nobody_waits_the_stream_is_closed(reading: Reading) -> None:
    reading.opens()
    reading.waiter.called = reading.waiter.asking = False
    reading.wait_queue.leave(reading.waiter)
    reading.receive()
    assert isinstance(reading.request, Rest)
    reading.answer(None)
    assert "killCursors" in reading.command
    assert not reading.registry.running
    while reading.request is not None:
        reading.answer(None)


def test_an_error_of_a_reader_without_use_is_nobodys(reading: Reading) -> None:
    reading.opens()
    reading.registry.close()
    reading.answer(Interruption(ConnectionError()))
    while reading.request is not None:
        reading.answer(None)
    assert not reading.registry.running


def test_a_raised_error_at_the_very_end_is_swallowed(reading: Reading) -> None:
    reading.registry.closed = True
    while reading.request is not None:
        reading.answer(Failure(1))
    assert not reading.registry.running


def test_no_payload_travels() -> None:
    *_, projection = stream_pipeline(frozenset(["a"]))
    assert set(projection["$project"]) == {"id", "q", "when"}
    assert "payload" not in str(projection)
