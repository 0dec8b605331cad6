"""Rates of virtual workers: they follow the clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker


@pytest.fixture
def virtual() -> Any:
    with VirtualBroker() as broker:
        yield broker


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
        (0, False, False),
        (None, "", False),
        ([1], [1.0], True),
        ({"a": 1}, {"a": 2}, False),
        ("1", 1, False),
        ("$x", "$y", False),
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
        ({"rate": "-5/s"}, ["rate", "'-5'", "whole number"]),
        ({"rate": "nan/s"}, ["rate", "'nan'", "whole number"]),
        ({"rate": "5/0s"}, ["rate", "'0s'", "period"]),
        ({"rate": "5/31d"}, ["rate", "30 days"]),
        ({"rate": "99999999/s"}, ["rate", "10,000"]),
        ({"rate": 5}, ["rate", "a text, not int", "100/m"]),
        ({"rate": "5/s", "burst": 0}, ["burst", "from 1 up", "burst=10"]),
        ({"burst": 5}, ["burst", "rate="]),
        ({"max_running": 0}, ["max_running", "from 1 up", "max_running=8"]),
        ({"max_running": True}, ["max_running", "True", "max_running=8"]),
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
