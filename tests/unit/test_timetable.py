"""Timetables: the ticks of cron expressions and intervals, and which of several due ones are made."""

from __future__ import annotations

import sys
import zoneinfo
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mongoq
from mongoq.testing import VirtualBroker

MILLISECOND = timedelta(milliseconds=1)
DAILY, HOURLY, QUARTERS = "30 2 * * *", "0 * * * *", "*/15 * * * *"


def broker_at(now: datetime) -> VirtualBroker:
    return VirtualBroker(clock=mongoq.VirtualClock(now.astimezone(UTC)))


def made(broker: VirtualBroker) -> list[datetime]:
    """Make the due ticks, and return their times."""
    broker.tick()
    times = []
    while item := broker.queue("reports").pop():
        times.append(datetime.fromisoformat(item.headers["mongoq-tick"]))
    return times


CHANGES: list[tuple[str, str, str, list[str]]] = [
    # 02:00 becomes 03:00: what was to come in the missing hour comes at its end.
    ("Europe/Berlin", "2026-03-29", DAILY, ["03:00+0200"]),
    ("Europe/Berlin", "2026-03-29", HOURLY, ["00:00+0100", "01:00+0100", "03:00+0200"]),
    # 03:00 becomes 02:00: a fixed time comes once, the first time; what is counted in hours or minutes goes on.
    ("Europe/Berlin", "2026-10-25", DAILY, ["02:30+0200"]),
    ("Europe/Berlin", "2026-10-25", HOURLY, ["00:00+0200", "01:00+0200", "02:00+0200", "02:00+0100", "03:00+0100"]),
    (
        "Europe/Berlin",
        "2026-10-25",
        QUARTERS,
        [
            *(f"{hour:02}:{minute:02}+0200" for hour in (0, 1, 2) for minute in (0, 15, 30, 45)),
            *(f"02:{minute:02}+0100" for minute in (0, 15, 30, 45)),
            "03:00+0100",
            "03:15+0100",
        ],
    ),
    # 02:00 becomes 01:00: 02:30 comes once anyway.
    ("America/New_York", "2026-11-01", DAILY, ["02:30-0500"]),
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    # 02:00 becomes 02:30, by half an hour.
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", HOURLY, ["00:00+1030", "01:00+1030", "03:00+1100"]),
    # 02:00 becomes 01:30.
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45+1100"]),
    (
        "Australia/Lord_Howe",
        "2026-04-05",
        QUARTERS,
        [
            *(f"{hour:02}:{minute:02}+1100" for hour in (0, 1) for minute in (0, 15, 30, 45)),
            *("01:30+1030", "01:45+1030", "02:00+1030", "02:15+1030", "02:30+1030", "02:45+1030"),
            *("03:00+1030", "03:15+1030"),
        ],
    ),
]
"""Zone, day of a change of its clocks, expression, and all ticks from midnight to before 03:30, in local time."""


@pytest.mark.parametrize(("zone", "day", "expression", "expected"), CHANGES)
def test_ticks_when_the_clocks_change(zone: str, day: str, expression: str, expected: list[str]) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    before, end = midnight.astimezone(UTC) - MILLISECOND, midnight.replace(hour=3, minute=30).astimezone(UTC)
    options: dict[str, Any] = {"queue": "reports", "cron": expression, "timezone": zone}
    ticks: list[datetime] = []
    with broker_at(before) as broker:
        due = broker.schedule("one by one", **options)
        while due is not None and due < end:
            broker.advance(due - broker.clock.now())
            ticks += made(broker)
            assert ticks[-1] == due
            due = broker.schedules()[0].next
    assert [tick.astimezone(ZoneInfo(zone)).strftime("%H:%M%z") for tick in ticks] == expected
    # Whenever a process begins, the next tick is one of these, also in the second pass of an hour.
    with broker_at(before + timedelta(seconds=1)) as broker:
        while (now := broker.clock.now()) < end:
            following = broker.schedule(f"{now:%H%M}", **options)
            assert following is not None
            assert following > now
            assert following == next((tick for tick in ticks if tick > now), following)
            broker.advance(timedelta(minutes=7))
    # And whenever one comes back, the last tick that it missed.
    for place, tick in enumerate(ticks[1:]):
        with broker_at(before) as broker:
            broker.schedule("come back late", **options)
            broker.advance(tick - MILLISECOND - before)
            assert made(broker) == [ticks[place]]


def test_behind_a_change_of_the_clocks_the_next_tick_is_the_same_whenever_a_process_asks() -> None:
    four_oclock = datetime(2026, 9, 26, 14, 15, tzinfo=UTC)  # in Chatham 02:45 became 03:45 a quarter before
    for minutes in (20, 15, 10, 5, 1):
        with broker_at(four_oclock - timedelta(minutes=minutes)) as broker:
            due = broker.schedule("even hours", queue="reports", cron="0 */2 * * *", timezone="Pacific/Chatham")
            assert due == four_oclock, minutes


def test_the_last_of_the_missed_ticks_is_found_after_years() -> None:
    leap_day, often = {"cron": "0 0 29 2 *"}, {"cron": "* * * * *"}
    for options, expected in [(leap_day, datetime(2028, 2, 29, tzinfo=UTC)), (often, datetime(2031, 1, 1, tzinfo=UTC))]:
        with broker_at(datetime(2024, 1, 1, tzinfo=UTC)) as broker:
            broker.schedule("rare", queue="reports", timezone="UTC", **options)
            broker.advance(datetime(2031, 1, 1, tzinfo=UTC) - broker.clock.now())
            assert made(broker) == [expected]


@settings(deadline=None, database=None, derandomize=True, max_examples=20)
@given(
    length=st.integers(3000, 10**6),
    first=st.integers(0, 50),
    late=st.floats(0, 10**8),
    missed=st.sampled_from(["last", "all", "skip"]),
)
def test_ticks_of_an_interval_are_those_of_the_rule(length: int, first: int, late: float, missed: Any) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    due = start + first * timedelta(seconds=length)
    with broker_at(due - MILLISECOND) as broker:
        options: dict[str, Any] = {"every": length, "start": start, "missed": missed}
        assert broker.schedule("often", queue="reports", **options) == due
        now = broker.advance(timedelta(seconds=late) + MILLISECOND)
        ticks, following = made(broker), broker.schedules()[0].next
    latest = due + (now - due) // timedelta(seconds=length) * timedelta(seconds=length)
    assert following == latest + timedelta(seconds=length)
    if missed == "all":
        number = min((latest - due) // timedelta(seconds=length), 86_400 // length + 1)
        every = [latest - n * timedelta(seconds=length) for n in range(number, -1, -1)]
        assert ticks == [tick for tick in every if now - tick <= timedelta(days=1)]
    else:
        assert ticks == ([latest] if missed == "last" or now - latest <= timedelta(minutes=1) else [])


def test_an_interval_has_no_tick_before_its_origin_after_a_change_either() -> None:
    """A tick of the former definition is due while the origin of the new one is yet to come."""
    due, start = datetime(2024, 1, 1, 10, tzinfo=UTC), datetime(2024, 1, 2, 12, tzinfo=UTC)
    with broker_at(due - MILLISECOND) as broker:
        broker.schedule("report", queue="reports", every=3600)
        broker.advance(timedelta(hours=3))
        broker.schedule("report", queue="reports", every=3600, start=start)
        assert made(broker) == [due]
        assert broker.schedules()[0].next == start


def test_a_timetable_ends_with_the_year_9999_in_any_zone() -> None:
    for zone, expected in [("Asia/Tokyo", None), ("America/New_York", 59), ("UTC", 59)]:
        with broker_at(datetime(9999, 12, 31, 23, 58, 30, tzinfo=UTC)) as broker:
            tick = broker.schedule("report", queue="reports", cron="* * * * *", timezone=zone)
            assert (tick and tick.minute) == expected
            broker.advance(60)
            assert broker.schedule("later", queue="reports", cron="* * * * *", timezone=zone) is None


def test_expressions_that_never_fire_are_refused_and_rare_ones_are_not() -> None:
    with broker_at(datetime(2025, 1, 1, tzinfo=UTC)) as broker:
        for expression in ("0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6 *"):
            with pytest.raises(mongoq.ArgumentInvalid, match="never fires"):
                broker.schedule("never", queue="reports", cron=expression, timezone="UTC")
        leap_day = broker.schedule("rare", queue="reports", cron="0 0 29 2 *", timezone="UTC")
        assert leap_day == datetime(2028, 2, 29, tzinfo=UTC)
        assert broker.schedule("rarer", queue="reports", cron="0 0 29 2 MON#5", timezone="UTC") is not None


def test_the_zone_of_the_machine_is_none_for_all(tmp_path: Path) -> None:
    """Some systems list it: it would tick at another time on each machine."""
    for name in ("localtime", "Factory", "Town"):
        (tmp_path / name).write_bytes(b"TZif" + bytes(100))
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([tmp_path])
    try:
        assert {"localtime", "Factory", "Town"} <= zoneinfo.available_timezones()
        with broker_at(datetime(2025, 1, 1, tzinfo=UTC)) as broker:
            for name in ("localtime", "Factory"):
                with pytest.raises(mongoq.ArgumentInvalid, match=f"^timezone: there is no zone '{name}'"):
                    broker.schedule("report", queue="reports", cron=HOURLY, timezone=name)
    finally:
        zoneinfo.reset_tzpath(before)


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    missing = pytest.raises(ModuleNotFoundError, match=r"mongoq-driver\[schedules\]")
    with broker_at(datetime(2025, 1, 1, tzinfo=UTC)) as broker, missing:
        broker.schedule("report", queue="reports", cron=HOURLY, timezone="UTC")
