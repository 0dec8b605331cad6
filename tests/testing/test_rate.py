"""Rates of virtual workers: they follow the clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st

import mongoq
from mongoq.testing import VirtualBroker


def test_a_rate_lets_items_start_by_the_virtual_clock(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="2/m", burst=2)(done.append)
    virtual.queue("orders").push_many([1, 2, 3, 4])
    worker.run_until_idle()
    assert done == [1, 2]
    virtual.advance(29)
    assert worker.run_one("orders") is None
    virtual.advance(1)
    worker.run_until_idle()
    assert done == [1, 2, 3]
    virtual.advance(60)
    worker.run_until_idle()
    assert done == [1, 2, 3, 4]


@settings(deadline=None, database=None, derandomize=True, max_examples=25)
@given(
    burst=st.integers(1, 4),
    text=st.sampled_from(["5/s", "100/m", "40/s"]),
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5) | st.integers(0, 900)), max_size=40),
)
def test_no_window_holds_more_than_the_burst_and_the_rate(burst: int, text: str, steps: list[tuple[int, int]]) -> None:
    """Two workers of a process that take turns; ``steps`` are who is next, and after how many milliseconds."""
    interval = {"5/s": 0.2, "100/m": 0.6, "40/s": 0.025}[text]
    with VirtualBroker() as virtual:
        workers = [virtual.worker(), virtual.worker()]
        for worker in workers:
            worker.consumer("orders", rate=text, burst=burst)(lambda _: None)
        virtual.queue("orders").push_many(range(len(steps)))
        now, starts = 0.0, list[float]()
        for who, pause in steps:
            virtual.advance(pause / 1000)
            now += pause / 1000
            if workers[who].run_one("orders") is not None:
                starts.append(now)
    for place, first in enumerate(starts):
        for number, last in enumerate(starts[place:], 1):
            assert number <= burst + (last - first + 0.000_001) / interval


def test_a_new_rate_begins_one_of_its_intervals_after_the_last_start(virtual: VirtualBroker) -> None:
    worker, queue = virtual.worker(), virtual.queue("orders")
    worker.consumer("orders", rate="1/h")(lambda _: None)
    queue.push_many([1, 2, 3])
    assert worker.run_one("orders") is not None
    for rate, seconds in [("5/s", 0.2), ("1/h", 3600)]:
        queue.configure(rate=rate)
        virtual.advance(seconds * 0.9)
        assert worker.run_one("orders") is None
        virtual.advance(seconds * 0.1)
        assert worker.run_one("orders") is not None


@pytest.mark.parametrize(
    ("text", "stored", "seconds"), [(" 10 / 1s ", "10/s", 0.1), ("10/30s", "10/30s", 3), ("7/2d", "7/2d", 172_800 / 7)]
)
def test_a_rate_is_a_number_and_a_period(virtual: VirtualBroker, text: str, stored: str, seconds: float) -> None:
    worker, queue = virtual.worker(), virtual.queue("orders")
    worker.consumer("orders", rate=text, burst=1)(lambda _: None)
    queue.push_many([1, 2])
    worker.run_until_idle()
    limits = queue.limits()
    assert limits.rate == stored
    assert limits.next_start is not None
    assert (limits.next_start - limits.read_at).total_seconds() == pytest.approx(seconds, abs=0.002)


def test_slots_that_found_no_item_are_given_back(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="1/m", burst=3, batch=3)(done.append)
    for number in range(3):
        virtual.queue("orders").push(number)
        assert len(worker.run_batch("orders")) == 1
    virtual.queue("orders").push(3)
    assert worker.run_batch("orders") == []
    assert done == [[0], [1], [2]]


def test_each_key_has_its_own_rate_and_later_items_wait_in_order(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="1/m", rate_key="customer.id")(done.append)
    payloads = [{"customer": {"id": key}, "n": n} for n, key in enumerate("aaabac")]
    virtual.queue("orders").push_many(payloads)
    worker.run_until_idle()
    assert [payload["n"] for payload in done] == [0, 3, 5]
    assert [item.attempts for item in virtual.queue("orders").peek(10, state="scheduled")] == [0, 0, 0]
    for expected in (1, 2, 4):
        virtual.advance(60)
        worker.run_until_idle()
        assert done[-1]["n"] == expected
    assert len(done) == 6


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (None, "", False),
        ([1], [1.0], True),
        ({"a": 1}, {"a": 2}, False),
        ("1", 1, False),
        (7, Int64(7), True),
        (7.0, Decimal128("7.0"), True),
        (Int64(10), Decimal128("1E+1"), True),
        ([0.5], [Decimal128("0.50")], True),
        (0.1, Decimal128("0.1"), False),
        (2.0**70, Decimal128(str(2**70)), True),
        (-0.0, 0, True),
        (float("nan"), Decimal128("sNaN"), True),
        (float("inf"), Decimal128("Infinity"), True),
        (Decimal128("1E+6000"), Decimal128("10E+5999"), True),
    ],
)
def test_equal_numbers_are_one_key(virtual: VirtualBroker, first: Any, second: Any, same: bool) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="1/m", rate_key=lambda payload: payload["k"])(done.append)
    virtual.queue("orders").push_many([{"k": first}, {"k": second}])
    worker.run_until_idle()
    assert len(done) == (1 if same else 2)


def test_items_without_the_field_share_a_bucket_of_their_own(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="1/m", rate_key="a.b")(done.append)
    virtual.queue("orders").push_many([{"a": 1}, 7, {"a": {"b": None}}, {"a.b": 1}, {"a": {"b": "x"}}])
    worker.run_until_idle()
    assert done == [{"a": 1}, {"a": {"b": None}}, {"a": {"b": "x"}}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": "abc"}, ["rate", "'abc'", "100/m"]),
        ({"rate": "0/s"}, ["rate", "'0'", "whole number", "100/m"]),
        ({"rate": "5/x"}, ["rate", "'x'", "unit", "100/m"]),
        ({"rate": "1.5/s"}, ["rate", "'1.5'", "whole number"]),
        ({"rate": "\u0663/s"}, ["rate", "whole number"]),
        ({"rate": "5/s/s"}, ["rate", "100/m"]),
        ({"rate": "5/0s"}, ["rate", "'0s'", "period"]),
        ({"rate": "5/31d"}, ["rate", "30 days"]),
        ({"rate": "99999999/s"}, ["rate", "10,000"]),
        ({"rate": 5}, ["rate", "a text, not int", "100/m"]),
        ({"rate": "5/s", "burst": 0}, ["burst", "from 1 up"]),
        ({"burst": 5}, ["burst", "rate="]),
        ({"max_running": 0}, ["max_running", "from 1 up"]),
        ({"max_running": True}, ["max_running", "True"]),
        ({"rate": "5/s", "rate_key": 5}, ["rate_key", "int", "customer.id"]),
        ({"rate": "5/s", "rate_key": "a..b"}, ["rate_key", "'a..b'", "empty part"]),
        ({"rate": "5/s", "rate_key": "a", "batch": 2}, ["rate_key", "batch="]),
    ],
)
def test_a_bad_limit_is_named_with_an_example(
    virtual: VirtualBroker, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(mongoq.ArgumentInvalid) as error:
        virtual.worker().consumer("orders", **options)
    for word in words:
        assert word in str(error.value)


def test_an_item_without_a_usable_key_fails_its_run(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), []
    worker.consumer("orders", rate="1/m", rate_key=lambda payload: payload["k"])(done.append)
    virtual.queue("orders").push_many([{}, {"k": 1}])
    results = worker.run_until_idle()
    assert [result.outcome for result in results] == ["retry", "done"]
    assert isinstance(results[0].error, KeyError)


def test_the_limits_of_a_queue_say_when_the_next_item_starts(virtual: VirtualBroker) -> None:
    worker, queue = virtual.worker(), virtual.queue("orders")
    worker.consumer("orders", rate="1/m", max_running=3)(lambda payload: None)
    queue.push_many([1, 2])
    worker.run_until_idle()
    limits = queue.limits()
    assert (limits.rate, limits.max_running, limits.permits) == ("1/m", 3, 0)
    assert limits.next_start is not None
    assert (limits.next_start - limits.read_at).total_seconds() == 60
    virtual.advance(60)
    assert queue.limits().reason is None


def test_a_changed_rate_holds_for_items_that_were_put_off(virtual: VirtualBroker) -> None:
    worker, queue, done = virtual.worker(), virtual.queue("orders"), list[Any]()
    worker.consumer("orders", rate="1/h", rate_key="k")(done.append)
    queue.push_many([{"k": 1, "n": n} for n in range(6)])
    queue.push({"k": 1, "n": 6}, delay=3600)  # the caller's own delay stays
    worker.run_until_idle()
    queue.configure(rate="2/s", burst=1)
    for _ in range(3):
        virtual.advance(0.5)
        worker.run_until_idle()
    assert [payload["n"] for payload in done] == [0, 1, 2, 3]
    queue.configure(rate=None)
    worker.run_until_idle()
    assert [payload["n"] for payload in done] == [0, 1, 2, 3, 4, 5]
    assert queue.counts().scheduled == 1


@pytest.mark.parametrize("leave", ["purge", "remove", "move", "bury"])
def test_no_item_waits_behind_items_that_have_left(virtual: VirtualBroker, leave: str) -> None:
    worker, queue, done = virtual.worker(), virtual.queue("orders"), list[Any]()
    worker.consumer("orders", rate="1/m", rate_key="k")(done.append)
    queue.push_many([{"k": 1, "n": n} for n in range(60)])
    worker.run_until_idle()
    if leave == "purge":
        assert queue.purge() == 59
    for item in queue.peek(100, state="scheduled"):
        if leave == "remove":
            queue.remove(item.id)
    if leave in ("move", "bury"):
        virtual.advance(60)
        for item in queue.reserve_many(100):
            queue.move(item, "other") if leave == "move" else queue.bury(item)
    queue.push({"k": 1, "n": 60})
    worker.run_until_idle()
    virtual.advance(60)
    worker.run_until_idle()
    assert [payload["n"] for payload in done] == [0, 60]


def test_an_item_expires_while_a_rate_puts_it_off(virtual: VirtualBroker) -> None:
    worker, queue, done = virtual.worker(), virtual.queue("orders", history=3600), list[Any]()
    worker.consumer("orders", rate="1/m", rate_key="k")(done.append)
    queue.push({"k": 1, "n": 0})
    queue.push({"k": 1, "n": 1}, expires=90)
    queue.push({"k": 1, "n": 2}, expires=90)
    worker.run_until_idle()
    assert all(item.start_by is not None for item in queue.peek(5, state="scheduled"))
    for _ in range(3):
        virtual.advance(60)
        worker.run_until_idle()
    assert [payload["n"] for payload in done] == [0, 1]
    assert {item.payload["n"]: item.attempts for item in queue.history()} == {0: 1, 1: 1, 2: 0}


def test_a_dropped_queue_leaves_no_limits(virtual: VirtualBroker) -> None:
    worker, done = virtual.worker(), list[Any]()
    for name in ("orders", "orders:a", "plain"):
        worker.consumer(name, rate="1/h", rate_key=None if name == "plain" else "k", max_running=2)(done.append)
        virtual.queue(name).push({"k": 1})
    worker.run_until_idle()
    assert len(done) == 3
    virtual.drop_queue("orders", force=True)
    virtual.drop_queue("plain", force=True)
    for name in ("orders", "orders:a", "plain"):
        virtual.queue(name).push({"k": 1})
    worker.run_until_idle()
    assert len(done) == 5  # the other queue's start is still used up
