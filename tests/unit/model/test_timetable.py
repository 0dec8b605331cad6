"""Timetables: the dates of cron expressions, intervals and single dates, and which of several due ticks are made."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mongoq
from mongoq.model.schedule import timetable
from mongoq.model.schedule.timetable import Cron, Every, Single, check_cron, select_ticks

DAILY, HOURLY, QUARTERS = "30 2 * * *", "0 * * * *", "*/15 * * * *"
NO_TICK_AT_TWO = ["00:00", "00:15", "00:30", "00:45", "01:00", "01:15", "01:30", "01:45", "03:00", "03:15"]

CHANGES: list[tuple[str, str, str, list[str]]] = [
    # 02:00 becomes 03:00: what was to come in the missing hour comes at its end.
    ("Europe/Berlin", "2026-03-29", DAILY, ["03:00+0200"]),
    ("Europe/Berlin", "2026-03-29", HOURLY, ["00:00+0100", "01:00+0100", "03:00+0200"]),
    ("Europe/Berlin", "2026-03-29", QUARTERS, [f"{at}+0{1 + (at > '02')}00" for at in NO_TICK_AT_TWO]),
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
    ("America/New_York", "2026-03-08", DAILY, ["03:00-0400"]),
    ("America/New_York", "2026-03-08", HOURLY, ["00:00-0500", "01:00-0500", "03:00-0400"]),
    ("America/New_York", "2026-03-08", QUARTERS, [f"{at}-0{5 - (at > '02')}00" for at in NO_TICK_AT_TWO]),
    # 02:00 becomes 01:00: 02:30 comes once anyway.
    ("America/New_York", "2026-11-01", DAILY, ["02:30-0500"]),
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2026-11-01", HOURLY, ["00:00-0400", "01:00-0400", "01:00-0500", "02:00-0500", "03:00-0500"]),
    (
        "America/New_York",
        "2026-11-01",
        QUARTERS,
        [
            *(f"{hour:02}:{minute:02}-0400" for hour in (0, 1) for minute in (0, 15, 30, 45)),
            *(f"{hour:02}:{minute:02}-0500" for hour in (1, 2) for minute in (0, 15, 30, 45)),
            "03:00-0500",
            "03:15-0500",
        ],
    ),
    # 02:00 becomes 02:30, by half an hour.
    ("Australia/Lord_Howe", "2026-10-04", DAILY, ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", HOURLY, ["00:00+1030", "01:00+1030", "03:00+1100"]),
    (
        "Australia/Lord_Howe",
        "2026-10-04",
        QUARTERS,
        [
            *(f"{hour:02}:{minute:02}+1030" for hour in (0, 1) for minute in (0, 15, 30, 45)),
            *("02:30+1100", "02:45+1100", "03:00+1100", "03:15+1100"),
        ],
    ),
    # 02:00 becomes 01:30.
    ("Australia/Lord_Howe", "2026-04-05", DAILY, ["02:30+1030"]),
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45+1100"]),
    ("Australia/Lord_Howe", "2026-04-05", HOURLY, ["00:00+1100", "01:00+1100", "02:00+1030", "03:00+1030"]),
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


@pytest.mark.parametrize(("zone", "day", "expression", "expected"), CHANGES, ids=str)
def test_ticks_when_the_clocks_change(zone: str, day: str, expression: str, expected: list[str]) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = midnight.replace(hour=3, minute=30).astimezone(UTC)
    table, ticks = check_cron(expression, zone), list[datetime]()
    tick = table.after(midnight.astimezone(UTC) - timedelta(milliseconds=1))
    while tick is not None and tick < end:
        ticks.append(tick)
        tick = table.after(tick)
    assert [tick.astimezone(ZoneInfo(zone)).strftime("%H:%M%z") for tick in ticks] == expected
    # From whatever time a process asks, the next tick is one of these, and the latest as well.
    for minutes in range(0, int((end - midnight).total_seconds() / 60), 7):
        now = midnight.astimezone(UTC) + timedelta(minutes=minutes, seconds=1)
        later = [tick for tick in ticks if tick > now]
        following = table.after(now)
        assert following is not None
        assert following > now  # also in the second pass of an hour, from which the library goes back to the first
        assert not later or following == later[0]
        passed = [tick for tick in ticks if tick <= now]
        assert not passed or table.latest(ticks[0], now) == passed[-1]


def test_the_latest_tick_is_found_after_years() -> None:
    table = check_cron("0 0 29 2 *", "UTC")
    first, now = datetime(2024, 2, 29, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    assert table.latest(first, now) == datetime(2028, 2, 29, tzinfo=UTC)
    assert table.latest(first, datetime(2026, 1, 1, tzinfo=UTC)) == first
    often = check_cron("* * * * *", "UTC")
    assert often.latest(first, now) == now


def test_an_interval_is_counted_from_its_origin_whenever_it_is_asked() -> None:
    start = datetime(2024, 1, 1, 12, tzinfo=UTC)
    table = Every(timedelta(minutes=7), start)
    assert table.after(start - timedelta(days=400)) == start
    assert table.after(start) == start + timedelta(minutes=7)
    assert table.after(start + timedelta(minutes=20)) == start + timedelta(minutes=21)
    assert table.latest(start, start + timedelta(minutes=20)) == start + timedelta(minutes=14)
    assert table.after(datetime.max.replace(tzinfo=UTC)) is None


def test_an_interval_has_no_tick_before_its_origin_after_a_change_either() -> None:
    """A tick of the former definition is due while the origin of the new one is yet to come."""
    due, now, start = (datetime(2024, 1, day, hour, tzinfo=UTC) for day, hour in ((1, 10), (1, 13), (2, 12)))
    table = Every(timedelta(hours=1), start)
    assert table.latest(due, now) == due
    assert select_ticks(table, due, now, "last", None) == ([due], start)
    assert select_ticks(table, due, start, "last", None) == ([start], start + timedelta(hours=1))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_timetable_ends_with_the_year_9999_in_any_zone(zone: str) -> None:
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for expression in ("* * * * *", "59 23 31 12 *", "0 0 1 1 *"):
        table, tick = Cron(expression, zone), end - timedelta(minutes=3)
        for _ in range(5):
            following = table.after(tick)
            assert following is None or tick < following <= end
            tick = following or tick
        assert table.after(end) is None


@given(
    length=st.integers(1, 10**6),
    first=st.integers(0, 50),
    late=st.floats(0, 10**8),
    missed=st.sampled_from(["last", "all", "skip"]),
)
def test_ticks_of_an_interval_are_those_of_the_rule(length: int, first: int, late: float, missed: Any) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    table = Every(timedelta(seconds=length), start)
    due = start + first * table.length
    now = due + timedelta(seconds=late)
    ticks, following = select_ticks(table, due, now, missed, None)
    assert following is not None
    assert all((tick - start) % table.length == timedelta(0) for tick in [*ticks, following])
    assert all(due <= tick <= now for tick in ticks)
    if missed == "all":
        assert all(now - tick <= timedelta(days=1) for tick in ticks)
        assert ticks == [ticks[0] + n * table.length for n in range(len(ticks))] if ticks else True
        assert not ticks or following == ticks[-1] + table.length
        assert len(ticks) == 100 or following > now
    else:
        assert following > now >= following - table.length
        latest = following - table.length
        in_time = now - latest <= timedelta(minutes=1)
        assert ticks == ([latest] if missed == "last" or in_time else [])


def test_a_date_is_over_once_it_was_due() -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    assert Single(at).after(at - timedelta(milliseconds=1)) == at
    assert Single(at).after(at) is None
    assert select_ticks(Single(at), at, at + timedelta(days=3), "last", None) == ([at], None)
    assert select_ticks(Single(at), at, at + timedelta(days=3), "all", None) == ([], None)


def test_expressions_that_never_fire_are_refused_and_rare_ones_are_not() -> None:
    for expression in ("0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6 *", "0 0 */31 2 0#5"):
        with pytest.raises(mongoq.ArgumentInvalid, match="never fires"):
            check_cron(expression, "UTC")
    assert check_cron("0 0 29 2 *", "UTC").after(datetime(2025, 1, 1, tzinfo=UTC)) == datetime(2028, 2, 29, tzinfo=UTC)
    assert check_cron("0 0 29 2 MON#5", "UTC").after(datetime(2025, 1, 1, tzinfo=UTC)) is not None


def test_the_zone_of_the_machine_is_none_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems list it: it would tick at another time on each machine."""
    monkeypatch.setattr(timetable, "available_timezones", lambda: {"localtime", "Factory", "UTC"})
    for name in ("localtime", "Factory"):
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^timezone: there is no zone '{name}'"):
            check_cron(HOURLY, name)
    assert str(check_cron(HOURLY, "UTC")) == "cron 0 * * * * UTC"


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "cronsim":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"mongoq-driver\[schedules\]"):
        check_cron(HOURLY, "UTC")
    with pytest.raises(ModuleNotFoundError, match=r"mongoq-driver\[schedules\]"):
        Cron(HOURLY, "UTC").after(datetime.now(UTC))
