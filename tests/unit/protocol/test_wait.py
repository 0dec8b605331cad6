"""A wait, step by step: what it asks between two attempts, and what wakes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.model.clock import EPOCH, Sample, ServerClock
from mongoq.protocol.claim import reserve
from mongoq.protocol.flow import Beside, Command, Flow, Request, Rest
from mongoq.protocol.state.wait_queue import WaitQueue
from mongoq.protocol.wait.wait import wait_for_item
from tests.unit.scripted import context

OPEN = {"cursor": {"id": 7, "postBatchResumeToken": {"_data": "0"}, "firstBatch": []}}


def hello() -> dict[str, Any]:
    return {"localTime": datetime.now(UTC).replace(tzinfo=None)}


def reserving(queue: Any, wait: float = 60) -> Flow[Any]:
    return reserve.reserve(queue, lease=None, wait=wait, on_invalid="bury")


def measured() -> Any:
    """A queue on the server's clock."""
    queue = context()
    clock = queue.broker.clock = ServerClock()
    clock.adopt([Sample(clock.local(), clock.local(), datetime.now(UTC))])
    return queue


def watched(queue: Any) -> None:
    """Let a stream tell of the queue."""
    registry = queue.broker.registry
    number = registry.start()
    registry.wait_queue(queue.name)
    assert registry.record_answer(number, None)
    registry.record_open(7, frozenset([queue.name]), lossless=False)
    queue.state.store(paused=False)


def item(queue: Any, now: datetime) -> dict[str, Any]:
    return {"_id": ObjectId(), "q": queue.name, "payload": 1, "when": now, "priority": 0, "attempts": 0}


class Step:
    """Runs a flow request by request."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow = flow
        self.request: Request | None = next(flow)
        self.result: Any = None

    def answer(self, reply: Any) -> Step:
        try:
            self.request = self.flow.send(reply)
        except StopIteration as stop:
            self.request, self.result = None, stop.value
        return self

    def is_claim(self) -> bool:
        return isinstance(self.request, Command) and self.request.method == "find_one_and_update"

    def is_look(self) -> bool:
        return isinstance(self.request, Command) and self.request.method == "aggregate"

    def rests(self) -> None:
        """Go on until it rests: without a stream it asks again after 10 ms, for which a machine may stand still."""
        while self.is_claim():
            self.answer(None)
        self.seconds()

    def seconds(self) -> float:
        assert isinstance(self.request, Rest), self.request
        return self.request.seconds


def test_a_waiter_measures_the_clock_again_when_it_is_due() -> None:
    """A worker may wait for hours, over failovers and steps of the server's clock."""
    queue = context()
    clock = queue.broker.clock = ServerClock()
    step = Step(reserving(queue))

    def measured_before_the_claim() -> Command[object]:
        hellos = 0
        while isinstance(step.request, Command) and step.request.method == "command":
            hellos += 1
            step.answer(hello())
        assert hellos == 5
        assert step.is_claim()
        assert isinstance(step.request, Command)
        return step.request

    first = measured_before_the_claim()
    assert first.arguments["filter"]["when"]["$lte"] > EPOCH
    assert isinstance(step.answer(None).request, Beside)
    step.answer(None).rests()
    clock.disturb()
    queue.broker.wake(queue.name)
    step.answer(None)
    measured_before_the_claim()
    step.answer(None).rests()
    step.flow.close()


def test_a_woken_waiter_that_finds_nothing_sleeps_until_the_next_item_is_due() -> None:
    queue = measured()
    watched(queue)
    step = Step(reserving(queue))
    assert step.is_claim()
    assert step.answer(None).is_look()
    step.answer([{"_id": 0, "when": queue.broker.clock.now() + timedelta(seconds=20)}])
    assert 10 < step.seconds() <= 20
    queue.broker.wake(queue.name)
    assert step.answer(None).is_claim()
    assert step.answer(None).is_look()
    assert step.answer([]).seconds() > 50
    step.flow.close()


def test_what_is_scheduled_moves_the_alarm_and_asks_nothing() -> None:
    queue = measured()
    watched(queue)
    step = Step(reserving(queue))
    step.answer(None).answer([])
    queue.broker.record_put(queue.name, queue.broker.clock.now() + timedelta(seconds=5))
    assert isinstance(step.request, Rest)
    assert step.request.event.was_set
    assert 1 < step.answer(None).seconds() <= 5
    step.flow.close()


@pytest.mark.parametrize("place", ["claim", "look", "rest"])
def test_a_push_at_any_step_on_the_way_to_sleep_leads_to_another_claim(place: str) -> None:
    """Between 'the queue is empty' and 'waiting' nothing is lost, wherever it falls; each claim here came too early."""
    queue = measured()
    watched(queue)
    step, woken, claims = Step(reserving(queue)), False, 0
    while True:
        now = "claim" if step.is_claim() else "look" if step.is_look() else "rest"
        if now == place and not woken:
            woken = True
            queue.broker.wake(queue.name)
        elif woken and now == "claim":
            claims += 1
        if isinstance(step.request, Rest) and not step.request.event.was_set:
            break
        step.answer([] if now == "look" else None)
    assert claims == 1
    step.flow.close()


@pytest.mark.parametrize("place", ["look", "listener", "rest"])
def test_a_waiter_that_is_stopped_on_the_way_to_sleep_does_not_sleep(place: str) -> None:
    """The worker ends, or lets another consumer go first, just as this one has seen that neither is so."""
    queue, is_over = measured(), False
    if place != "listener":
        watched(queue)

    def attempt() -> Flow[None]:
        yield from reserve.claim_one(queue, timedelta(seconds=60))

    step = Step(wait_for_item(queue, attempt, 60, over=lambda: is_over))
    while step.request is not None:
        now = {Beside: "listener", Rest: "rest"}.get(type(step.request), "look" if step.is_look() else "")
        if now == place and not is_over:
            is_over = True
            queue.broker.registry.wake()
        assert not (is_over and isinstance(step.request, Rest)) or step.request.event.was_set
        step.answer([] if step.is_look() else None)
    assert is_over


def test_a_hundred_waiters_ask_once_and_one_push_wakes_one() -> None:
    queue = measured()
    watched(queue)
    first = Step(reserving(queue))
    assert first.answer(None).is_look()
    first.answer([])
    remaining = [Step(reserving(queue)) for _ in range(99)]
    assert all(isinstance(sleeper.request, Rest) for sleeper in remaining), "nothing has happened since the first asked"
    queue.broker.wake(queue.name)
    was_set = [step for step in (first, *remaining) if step.request.event.was_set]  # type: ignore[union-attr]
    assert was_set == [first]
    first.answer(None).answer(item(queue, queue.broker.clock.now()))
    assert first.result is not None
    assert [sleeper.request.event.was_set for sleeper in remaining].count(True) == 1, "there may be more"  # type: ignore[union-attr]
    for sleeper in remaining:
        sleeper.flow.close()
    assert not queue.broker.registry.wait_queue(queue.name).waiters


def test_a_cancelled_waiter_passes_its_call_on() -> None:
    queue = measured()
    watched(queue)
    first, second = Step(reserving(queue)), None
    first.answer(None).answer([])
    second = Step(reserving(queue))
    queue.broker.wake(queue.name)
    first.flow.close()
    assert second.answer(None).is_claim()
    second.flow.close()


def test_who_is_cancelled_while_it_asks_passes_its_call_on() -> None:
    queue = measured()
    watched(queue)
    first = Step(reserving(queue))
    first.answer(None).answer([])
    second = Step(reserving(queue))
    queue.broker.wake(queue.name)
    assert first.answer(None).is_claim()
    first.flow.close()
    assert second.answer(None).is_claim()
    second.flow.close()


def test_the_next_in_line_holds_the_timer_when_the_first_leaves() -> None:
    queue = measured()
    watched(queue)
    first = Step(reserving(queue))
    first.answer(None).answer([{"_id": 0, "when": queue.broker.clock.now() + timedelta(seconds=20)}])
    second = Step(reserving(queue))
    assert second.seconds() > 50
    first.flow.close()
    assert 10 < second.answer(None).seconds() <= 20
    second.flow.close()


def test_short_patience_asks_in_any_case() -> None:
    """An event may still be under way; who gives up before it can arrive has asked at least."""
    queue = measured()
    watched(queue)
    first = Step(reserving(queue))
    first.answer(None).answer([])
    assert Step(reserving(queue, wait=0.5)).is_claim()
    first.flow.close()


def test_an_item_due_that_cannot_be_claimed_is_not_asked_for_in_a_loop() -> None:
    queue = measured()
    watched(queue)
    step = Step(reserving(queue))
    for _ in range(20):
        if isinstance(step.request, Rest):
            break
        step.answer([{"_id": 0, "when": queue.broker.clock.now()}] if step.is_look() else None)
    assert 0 < step.seconds() <= 0.2
    step.flow.close()


def test_looks_grow_rare_while_nothing_happens() -> None:
    queue = measured()
    wait_queue: WaitQueue = queue.broker.registry.wait_queue(queue.name)
    now = wait_queue.emptied_at
    assert wait_queue.pause(now) <= 0.01
    assert 0.125 <= wait_queue.pause(now + 1) <= 0.25
    assert 2.5 <= wait_queue.pause(now + 1000) <= 5


def test_on_a_clock_that_stands_still_looks_stay_frequent() -> None:
    queue = context()
    wait_queue: WaitQueue = queue.broker.registry.wait_queue(queue.name)
    assert wait_queue.pause(wait_queue.emptied_at + 1000) <= 0.2
    step = Step(reserving(queue))
    assert step.is_claim()
    step.answer(None)
    assert step.seconds() <= 0.2
    step.flow.close()


def test_who_is_always_too_late_lets_others_go_first() -> None:
    queue = measured()
    wait_queue: WaitQueue = queue.broker.registry.wait_queue(queue.name)
    assert wait_queue.seconds_to_hold_back() == 0
    wait_queue.in_vain = 5000
    assert 0 <= wait_queue.seconds_to_hold_back() <= 0.01
    wait_queue.record_found()
    assert wait_queue.seconds_to_hold_back() == 0


def test_without_a_stream_nothing_is_known_before_it_is_reported() -> None:
    """An item that is handed back looks as it did when it was pushed."""
    queue = measured()
    wait_queue: WaitQueue = queue.broker.registry.wait_queue(queue.name)
    wait_queue.tell(0, 1, "a")
    assert wait_queue.heard(0, "a")


def test_what_the_stream_tells_twice_is_news_once() -> None:
    queue = measured()
    watched(queue)
    wait_queue: WaitQueue = queue.broker.registry.wait_queue(queue.name)
    wait_queue.tell(0, 1, "a")
    assert [wait_queue.heard(0, "a"), wait_queue.heard(0, "a")] == [False, True], (
        "the second is another event of that kind"
    )
    wait_queue.took(["b"])
    assert not wait_queue.heard(0, "b")
    wait_queue.took(list(range(5000)))
    assert wait_queue.heard(0, 1)
