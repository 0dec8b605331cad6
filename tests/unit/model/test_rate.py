"""Rates: their texts, and the slots of several processes as an observer counts the starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mongoq
from mongoq.model.permits import TENURE, PermitHolder, plan_permits, share_permits
from mongoq.model.rate import AHEAD_MS, Block, Bucket, Slots, make_pace, parse_rate, take_block

ROUNDING = 1e-3


@pytest.mark.parametrize(
    ("text", "stored", "interval", "burst"),
    [
        ("100/m", "100/m", 600, 1),
        ("5/s", "5/s", 200, 1),
        ("1000/h", "1000/h", 3600, 1),
        ("10/30s", "10/30s", 3000, 1),
        (" 10 / 1s ", "10/s", 100, 2),
        ("100/s", "100/s", 10, 25),
        ("7/2d", "7/2d", 2 * 86_400_000 / 7, 1),
    ],
)
def test_the_texts_of_rates(text: str, stored: str, interval: float, burst: int) -> None:
    rate = parse_rate(text)
    assert (rate.text, rate.interval, rate.default_burst) == (stored, interval, burst)


@pytest.mark.parametrize("text", ["", "/", "5", "5/", "/s", "5/s/s", "1.5/s", "inf/s", "1e3/s", "٣/s", "5/S", "0x5/s"])
def test_texts_that_are_no_rates(text: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="rate") as error:
        parse_rate(text)
    assert "100/m" in str(error.value)


def _violations(starts: list[float], interval: float, burst: int) -> list[tuple[float, float]]:
    return [
        (first, last)
        for place, first in enumerate(starts)
        for number, last in enumerate(starts[place:], 1)
        if number > burst + (last - first + ROUNDING) / interval
    ]


class _Process:
    """A process that takes blocks, and uses their slots by its own clock; it may be late, or give a block back."""

    def __init__(self) -> None:
        self.slots = Slots()
        self.bucket: Bucket | None = None


@settings(deadline=None, max_examples=150)
@given(
    burst=st.integers(1, 6),
    text=st.sampled_from(["5/s", "100/m", "40/s", "2000/s"]),
    exact=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["take", "start", "give back"]),
            st.integers(1, 5),
            st.one_of(st.integers(0, 5), st.integers(0, 2_000)),
        ),
        max_size=80,
    ),
)
def test_no_window_holds_more_than_the_burst_and_the_rate(
    burst: int, text: str, exact: bool, steps: list[tuple[int, str, int, int]]
) -> None:
    pace = make_pace(text, burst, exact=exact)
    bucket: Bucket | None = None
    processes = [_Process() for _ in range(3)]
    starts: list[float] = []
    now = 1_700_000_000_000.0
    for place, act, n, pause in steps:
        slots = processes[place].slots
        if act == "take":
            own = slots.detach()
            taken = take_block(bucket, pace, now, n, own)
            if own is not None and (isinstance(taken, float) or not taken[1]):
                slots.restore(own)
            if not isinstance(taken, float):
                slots.add(taken[0])
                bucket = Bucket(taken[0].end, pace.interval)
                assert taken[0].next <= now + pace.ahead
        elif act == "start":
            number = min(n, pace.max_together)
            wait = slots.use(now, number)
            if 0 < wait < float("inf"):
                now = float(int(now + wait) + 1)  # a clock of whole milliseconds
                wait = slots.use(now, number)
            if wait == 0:
                starts += [now] * number
        elif slots.has_unused and bucket is not None:
            own = slots.detach()
            assert own is not None
            if bucket.next == own.end:
                bucket = Bucket(own.next, pace.interval)
                slots.restore(Block(own.next, own.next, pace))
            else:
                slots.restore(own)
        now += pause
    assert not _violations(starts, parse_rate(text).interval, burst)


@pytest.mark.parametrize(("text", "burst"), [("100/m", 1), ("5/s", 1), ("5/s", 3), ("100/s", None)])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_backlog_uses_the_limit_up(text: str, burst: int | None, workers: int) -> None:
    """Each process is a millisecond late at each start, and takes what it can use in parallel."""
    pace, bucket = make_pace(text, burst), None
    processes = [Slots() for _ in range(workers)]
    starts: list[float] = []
    begin = now = 1_700_000_000_000.0
    while now < begin + 20_000:
        for slots in processes:
            if slots.count(float("inf")) == 0:
                own = slots.detach()
                taken = take_block(bucket, pace, now, 4, own)
                if isinstance(taken, float):
                    slots.restore(own) if own is not None else None
                else:
                    slots.add(taken[0])
                    bucket = Bucket(taken[0].end, pace.interval)
            if slots.first() + 1 <= now and slots.use(now) == 0:
                starts.append(now)
        now += 1
    expected = 20_000 / parse_rate(text).interval
    assert 0.95 * expected <= len(starts) <= expected + (burst or parse_rate(text).default_burst)


def test_a_slot_stays_where_it_is_while_no_other_one_can_be_had() -> None:
    pace = make_pace("3/h", None)
    taken = take_block(None, pace, 0.0, 1)
    assert not isinstance(taken, float)
    block, _ = taken
    bucket = Bucket(block.end, pace.interval)
    for now in (1.0, 10.0, 50.0):
        wait = take_block(bucket, pace, now, 3, block)
        assert isinstance(wait, float)
        assert wait > pace.interval - 2 * AHEAD_MS
    later = take_block(bucket, pace, 500.0, 3, block)  # it was not used in time
    assert not isinstance(later, float)
    assert (later[0].next, later[0].number, later[1]) == (500.0 + pace.lead, 1, True)


def test_a_new_rate_begins_one_of_its_intervals_after_the_last_slot() -> None:
    slow, fast = make_pace("1/h", None), make_pace("5/s", None)
    taken = take_block(None, slow, 0.0, 1)
    assert not isinstance(taken, float)
    bucket = Bucket(taken[0].end, slow.interval)
    assert isinstance(take_block(bucket, slow, 1_000.0, 1), float)
    faster = take_block(bucket, fast, 1_000.0, 1)
    assert not isinstance(faster, float)
    assert faster[0].next >= taken[0].next + fast.interval
    slower = take_block(Bucket(1_000.0, fast.interval), slow, 1_000.0, 1)
    assert slower == pytest.approx(slow.interval - fast.interval - AHEAD_MS)


# --- permits -------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("limit", "wanted", "shares"),
    [
        (8, [8], [8]),
        (8, [8, 8], [4, 4]),
        (8, [2, 8], [2, 6]),
        (7, [8, 8], [4, 3]),
        (2, [8, 8, 8], [1, 1, 0]),
        (5, [0, 8], [0, 5]),
        (0, [1], [0]),
        (10, [1, 2], [1, 2]),
        (9, [1, 9, 9], [1, 4, 4]),
    ],
)
def test_permits_are_divided_by_what_each_wants(limit: int, wanted: list[int], shares: list[int]) -> None:
    assert share_permits(limit, wanted) == shares


@given(limit=st.integers(0, 50), wanted=st.lists(st.integers(0, 30), max_size=8))
def test_shares_use_the_limit_and_never_exceed_it(limit: int, wanted: list[int]) -> None:
    shares = share_permits(limit, wanted)
    assert sum(shares) == min(limit, sum(wanted))
    assert all(share <= number for share, number in zip(shares, wanted, strict=True))
    unmet = [share for share, number in zip(shares, wanted, strict=True) if share < number]
    assert not unmet or all(share <= min(unmet) + 1 for share in shares)


def _holder(by: str, number: int, wanted: int, seconds: float = 0) -> PermitHolder:
    return PermitHolder(by, number, wanted, NOW - timedelta(seconds=seconds), NOW + timedelta(seconds=30))


@pytest.mark.parametrize(
    ("others", "mine", "occupied", "wanted", "number"),
    [
        ([], None, 0, 4, 4),
        ([], None, 0, 20, 8),
        ([_holder("b", 8, 8)], None, 0, 4, 0),  # all are taken
        ([_holder("b", 0, 8)], _holder("a", 8, 8), 7, 8, 7),  # another one asks: what ends is given back
        ([_holder("b", 0, 8)], _holder("a", 8, 8), 3, 8, 4),  # down to its share
        ([_holder("b", 0, 1)], _holder("a", 8, 8), 5, 8, 7),
        ([_holder("b", 9, 9)], _holder("a", 3, 3), 3, 3, 3),  # runs cannot be undone
    ],
)
def test_a_worker_gives_back_what_is_above_its_share(
    others: list[PermitHolder], mine: PermitHolder | None, occupied: int, wanted: int, number: int
) -> None:
    assert plan_permits(8, others, mine, occupied=occupied, wanted=wanted, now=NOW).number == number


def test_one_permit_goes_round_among_the_workers_that_ask() -> None:
    waiting = [_holder("b", 0, 1, seconds=1)]
    assert plan_permits(1, waiting, _holder("a", 1, 1, seconds=0.5), occupied=0, wanted=1, now=NOW).number == 0
    assert plan_permits(1, waiting, _holder("a", 1, 1, seconds=1.5), occupied=0, wanted=1, now=NOW).number == 1
    assert plan_permits(1, waiting, _holder("a", 1, 1, seconds=3), occupied=0, wanted=1, now=NOW).number == 0
    # and the one that asks longest comes first
    assert plan_permits(1, [_holder("c", 0, 1, seconds=2)], waiting[0], occupied=0, wanted=1, now=NOW).number == 0
    assert plan_permits(1, [_holder("c", 0, 1, seconds=0.5)], waiting[0], occupied=0, wanted=1, now=NOW).number == 1


def test_slots_of_a_block_are_one_interval_apart() -> None:
    pace = make_pace("5/s", 1)
    taken = take_block(None, pace, 0.0, 5)
    assert not isinstance(taken, float)
    slots, used, now = Slots(), [], 0.0
    slots.add(taken[0])
    while slots.count(float("inf")):
        if slots.use(now) == 0:
            used.append(now)
        now += 1
    assert len(used) == 5
    assert all(later - earlier >= 200 for earlier, later in pairwise(used))


def test_a_late_start_moves_the_slots_behind_it() -> None:
    pace = make_pace("5/s", 1)
    taken = take_block(None, pace, 0.0, 5)
    assert not isinstance(taken, float)
    slots = Slots()
    slots.add(taken[0])
    assert slots.use(500) == 0
    assert slots.use(500) >= 200
    assert slots.count(float("inf")) == 1


def test_the_permit_that_cannot_be_divided_goes_from_one_worker_to_the_other() -> None:
    now, holders, totals, numbers = NOW, dict[str, PermitHolder](), list[int](), list[int]()
    for step in range(400):
        now += timedelta(milliseconds=50)
        by = "ab"[step % 2]
        mine, others = holders.get(by), [holder for holder in holders.values() if holder.by != by]
        number, since = plan_permits(3, others, mine, occupied=0, wanted=8, now=now)
        holders[by] = PermitHolder(by, number, 8, since, now + TENURE)
        totals.append(sum(holder.number for holder in holders.values()))
        numbers.append(holders["a"].number)
    assert max(totals) == 3
    assert totals.count(3) > 0.9 * len(totals)
    assert 0.3 < numbers.count(2) / len(numbers) < 0.7
