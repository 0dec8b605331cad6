"""Retry policies: pure, as tables."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from typing import Any

import pytest

import mongoq
from mongoq import Exponential, Fixed, Linear
from mongoq.worker.fetch_limits import MAX_PREFETCH, PrefetchSizer

DAY = 86_400


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Fixed(), [1, 1, 1, 1]),
        (Fixed(0), [0, 0, 0, 0]),
        (Fixed(timedelta(minutes=1)), [60, 60, 60, 60]),
        (Fixed(10, cap=3), [3, 3, 3, 3]),
        (Linear(), [1, 2, 3, 4]),
        (Linear(5, cap=12), [5, 10, 12, 12]),
        (Linear(timedelta(hours=1)), [3600, 7200, 10_800, 14_400]),
        (Exponential(jitter=0), [1, 2, 4, 8]),
        (Exponential(3, jitter=0, factor=3), [3, 9, 27, 81]),
        (Exponential(1, cap=5, jitter=0), [1, 2, 4, 5]),
        (Exponential(0.01, jitter=0, factor=1), [0.01, 0.01, 0.01, 0.01]),
        (Exponential(0, jitter=0), [0, 0, 0, 0]),
        (Exponential(2000, jitter=0), [2000, 3600, 3600, 3600]),
        (Exponential(DAY, cap=None, jitter=0), [DAY, 2 * DAY, 4 * DAY, 8 * DAY]),
    ],
)
def test_the_delays_of_a_policy(policy: mongoq.RetryPolicy, seconds: list[float]) -> None:
    assert [policy.delay(retry).total_seconds() for retry in (1, 2, 3, 4)] == seconds


@pytest.mark.parametrize(("dice", "seconds"), [(0.0, 9), (0.25, 9.5), (0.5, 10), (1.0, 11)])
def test_jitter_makes_a_delay_shorter_or_longer_by_its_share(dice: float, seconds: float) -> None:
    assert Fixed(10, jitter=0.1).delay(1, dice=lambda: dice).total_seconds() == seconds


def test_every_delay_can_be_stored() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
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
        (lambda: Fixed("1"), "base"),  # type: ignore[arg-type]
        (lambda: Fixed(float("nan")), "base"),
        (lambda: Linear(1, cap=-1), "cap"),
        (lambda: Linear(1, jitter=1.5), "jitter"),
        (lambda: Linear(1, jitter=-0.1), "jitter"),
        (lambda: Linear(1, jitter=float("nan")), "jitter"),
        (lambda: Linear(1, jitter=True), "jitter"),
        (lambda: Exponential(1, factor=0.5), "factor"),
        (lambda: Exponential(1, factor="2"), "factor"),  # type: ignore[arg-type]
        (lambda: Exponential().delay(0), "retry"),
        (lambda: Exponential().delay(1.5), "retry"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_policy_is_refused(make: Any, message: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=message):
        make()


def test_a_policy_is_data() -> None:
    policy = Exponential(base=1, cap=3600, jitter=0.1)
    assert policy == pickle.loads(pickle.dumps(policy))
    assert repr(policy) == "Exponential(base=1, cap=3600, jitter=0.1, factor=2.0)"
    with pytest.raises(AttributeError):
        policy.base = 2  # type: ignore[misc]


# --- how many items wait for a run ---------------------------------------------------------------


def test_items_that_are_worked_off_at_once_are_fetched_in_larger_numbers() -> None:
    pace, now, targets = PrefetchSizer(), 0.0, []
    for _ in range(7):
        targets.append(pace.target)
        pace.record_claim(now, full=True)
        pace.adjust(now + 0.01, waiting=0)
        now += 0.01
    assert targets == [1, 4, 16, 64, 256, 1024, MAX_PREFETCH]


def test_it_does_not_matter_when_somebody_looks_that_nothing_waits() -> None:
    pace, slow = PrefetchSizer(), PrefetchSizer()
    for sizer, out_at in ((pace, 0.1), (slow, 0.3)):
        sizer.record_claim(0, full=True)
        sizer.record_empty(out_at)
        sizer.adjust(5.0, waiting=0)
    assert (pace.target, slow.target) == (4, 1)


def test_items_that_are_worked_off_sooner_than_others_are_claimed_are_fetched_in_larger_numbers() -> None:
    pace = PrefetchSizer()
    for ran_out in (1.9, 2.1):
        pace.record_claim(0, full=True, seconds=2)
        pace.record_empty(ran_out)
        pace.adjust(5.0, waiting=0)
    assert pace.target == 4


def test_items_that_wait_for_long_are_fetched_in_smaller_numbers() -> None:
    pace, now = PrefetchSizer(), 0.0
    for _ in range(7):
        pace.record_claim(now, full=True)
        pace.adjust(now, waiting=0)
    pace.record_claim(now, full=True)
    targets = []
    for _ in range(12):
        now += 1.1
        pace.adjust(now, waiting=5)
        targets.append(pace.target)
    assert targets == [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1]


def test_a_queue_that_has_no_more_does_not_grow_it() -> None:
    pace = PrefetchSizer()
    pace.record_claim(0, full=False)
    pace.adjust(0.01, waiting=0)
    assert pace.target == 1


def test_a_number_that_was_given_stays() -> None:
    pace = PrefetchSizer(5)
    pace.record_claim(0, full=True)
    pace.adjust(0.01, waiting=0)
    pace.adjust(10, waiting=5)
    assert pace.target == 5
