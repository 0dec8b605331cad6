"""Values of callers: retry policies, moves, and the clock for tests."""

from __future__ import annotations

import pickle
import random
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from mongoq import Exponential, Fixed, Linear

DAY = 86_400


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Fixed(), [1, 1, 1, 1]),
        (Fixed(0), [0, 0, 0, 0]),
        (Fixed(timedelta(minutes=1)), [60, 60, 60, 60]),
        (Fixed(10, cap=3), [3, 3, 3, 3]),
        (Linear(5, cap=12), [5, 10, 12, 12]),
        (Exponential(jitter=0), [1, 2, 4, 8]),
        (Exponential(3, jitter=0, factor=3), [3, 9, 27, 81]),
        (Exponential(2000, jitter=0), [2000, 3600, 3600, 3600]),
        (Exponential(DAY, cap=None, jitter=0), [DAY, 2 * DAY, 4 * DAY, 8 * DAY]),
    ],
)
def test_the_delays_of_a_policy(policy: mongoq.RetryPolicy, seconds: list[float]) -> None:
    assert [policy.delay(retry).total_seconds() for retry in (1, 2, 3, 4)] == seconds


def test_jitter_makes_a_delay_shorter_or_longer_by_its_share() -> None:
    policy = Fixed(10, jitter=0.1)
    assert [policy.delay(1, dice=lambda n=n: n).total_seconds() for n in (0.0, 0.25, 0.5, 1.0)] == [9, 9.5, 10, 11]


def test_every_delay_can_be_stored() -> None:
    chance = random.Random(1)
    for _ in range(500):
        kind, jitter = chance.choice([Fixed, Linear, Exponential]), chance.random()
        base, cap = chance.choice([0, 10 ** chance.uniform(-4, 9)]), chance.choice([None, 10 ** chance.uniform(-4, 9)])
        delay = kind(base, cap=cap, jitter=jitter).delay(int(2 ** chance.uniform(0, 30)))
        assert timedelta(0) <= delay <= timedelta(days=36_525)
        if cap is not None:
            assert delay.total_seconds() <= cap * (1 + jitter) + 0.001


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(-1), "base"),
        (lambda: Fixed("soon"), "base"),
        (lambda: Fixed(float("nan")), "base"),
        (lambda: Linear(1, cap=-1), "cap"),
        (lambda: Linear(1, jitter=1.5), "jitter"),
        (lambda: Linear(1, jitter=float("nan")), "jitter"),
        (lambda: Exponential(1, factor=0.5), "factor"),
        (lambda: Exponential(1, factor="2"), "factor"),  # type: ignore[arg-type]
        (lambda: Exponential().delay(0), "retry"),
        (lambda: Exponential().delay(1.5), "retry"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_policy_is_refused(make: Any, message: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=message):
        make()


def test_policies_and_outcomes_are_data() -> None:
    policy = Exponential(base=1, cap=3600, jitter=0.1)
    assert policy == pickle.loads(pickle.dumps(policy))
    assert repr(policy) == "Exponential(base=1, cap=3600, jitter=0.1, factor=2.0)"
    options: dict[str, Any] = {"payload": {"n": 1}, "patch": None, "delay": 2, "when": None, "priority": 3}
    options |= {"headers": {"a": "b"}, "sequence": "c", "expires": 60}
    move = mongoq.Move("b", **options)
    assert {name: getattr(move, name) for name in options} == options
    assert pickle.loads(pickle.dumps(move)) == move
    assert replace(move, to="c") == mongoq.Move("c", **options) != move
    assert hash(mongoq.Move("b", delay=2)) == hash(mongoq.Move("b", delay=2))
    for value, name in [(policy, "base"), (move, "to"), (move, "anything")]:
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, "c")


def test_the_virtual_clock_stands_still_until_it_is_moved() -> None:
    clock = mongoq.VirtualClock(datetime(2024, 1, 1, tzinfo=UTC))
    assert clock.now() == clock.now()
    assert clock.advance(1.5) == clock.now() == datetime(2024, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    with pytest.raises(mongoq.ArgumentInvalid):
        clock.advance(-1)
    with pytest.raises(mongoq.ArgumentInvalid):
        mongoq.VirtualClock(datetime(2024, 1, 1))
