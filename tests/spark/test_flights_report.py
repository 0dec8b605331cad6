"""The report of the flights example: what Spark makes of histories and trails that are known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from examples.flights.pipeline import DONE, ERRORS
from examples.flights.report import Delays, Report, read_report
from examples.flights.timings import StageTimes, Times

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def read(spark: Any, store: Any) -> Callable[[], Report]:
    place = store.collection.database.name, store.collection.name
    return lambda: read_report(spark, store.uri, *place)


def at(milliseconds: float) -> datetime:
    return START + timedelta(milliseconds=milliseconds)


def hop(queue: str, stage: str, reserved: float, settled: float, to: str | None) -> dict[str, Any]:
    ended = "done" if to is None else "dead" if to == ERRORS else "moved"
    return {
        "queue": queue, "stage": stage, "by": "host:1:ab", "taken": at(reserved), "settled": at(settled),
        "attempts": 1, "ended": ended, "to": to,
    }  # fmt: skip


def flew(store: Any, trail: Any = None, **payload: Any) -> None:
    flight = {"airline": "A", "departure_delay": 0, "scheduled": START, "weather": None} | payload
    store.add(flight, queue=DONE, when=None, processed=store.now, trail=trail)


@pytest.mark.prove
def test_delays_are_summed_up_by_carrier_by_hour_in_new_york_and_by_weather(store: Any, read: Any) -> None:
    rain = {"visib": 3.0, "precip": 0.2, "wind_speed": 10.0}
    flew(store, airline="A", departure_delay=16, scheduled=datetime(2013, 1, 1, 10, 15, tzinfo=UTC), weather=rain)
    flew(store, airline="A", departure_delay=15, scheduled=datetime(2013, 7, 1, 9, 59, tzinfo=UTC))
    flew(store, airline="B", departure_delay=-6, scheduled=datetime(2013, 7, 2, 3, 0, tzinfo=UTC), weather=rain)
    flew(store, airline=None, departure_delay=60, scheduled=datetime(2013, 7, 2, 10, 0, tzinfo=UTC))
    report = read()
    assert report.flights == 4
    assert report.carriers == [Delays("unknown", 1, 60.0, 1.0), Delays("A", 2, 15.5, 0.5), Delays("B", 1, -6.0, 0.0)]
    assert report.hours == [Delays("05", 2, 15.5, 0.5), Delays("06", 1, 60.0, 1.0), Delays("23", 1, -6.0, 0.0)]
    unmeasured = Delays("not measured", 2, 37.5, 0.5)
    assert report.weather == {
        "visibility": [Delays("1 to 5 miles", 2, 5.0, 0.5), unmeasured],
        "rain": [Delays("0.1 inch or more", 2, 5.0, 0.5), unmeasured],
        "wind": [Delays("10 to 20 mph", 2, 5.0, 0.5), unmeasured],
    }


@pytest.mark.prove
def test_an_empty_history_is_an_empty_report(read: Any) -> None:
    report = read()
    assert (report.flights, report.carriers, report.hours, report.dead, report.stages) == (0, [], [], [], [])
    assert list(report.weather.values()) == [[], [], []]


@pytest.mark.prove
def test_an_item_waits_from_its_last_settlement_until_it_is_taken_and_runs_until_it_is_settled(
    store: Any, read: Any
) -> None:
    for number in range(21):  # of times that lie 10 ms apart, the 95th percentile is the last but one
        begin = number * 100.0
        flew(store, [
            hop("raw", "check", begin, begin + 40, "checked"),
            hop("checked", "enrich", begin + 40 + number * 10, begin + 340, "done"),
        ])  # fmt: skip
    check, enrich = read().stages
    assert (check.stage, check.items, check.waiting, check.running) == ("check", 21, None, Times(40, 40))
    assert (enrich.stage, enrich.items) == ("enrich", 21)
    assert enrich.waiting == Times(100, 190)
    assert enrich.running == Times(200, 290)


@pytest.mark.prove
def test_throughput_leaves_out_the_pauses(store: Any, read: Any) -> None:
    for settled in (0, 100, 200, 300, 60_000, 60_100, 3_600_000):
        flew(store, [hop("raw", "check", settled, settled, None)])
    [check] = read().stages
    assert (check.items, check.per_second) == (7, 10.0)


@pytest.mark.prove
def test_a_stage_that_never_settled_two_in_a_row_has_no_throughput(store: Any, read: Any) -> None:
    for settled in (0, 60_000):
        flew(store, [hop("raw", "check", settled, settled, None)])
    assert [stage.per_second for stage in read().stages] == [None]


@pytest.mark.prove
def test_no_stage_waited_while_a_letter_was_dead_and_the_dead_count_as_settled(store: Any, read: Any) -> None:
    checked = hop("raw", "check", 0, 10, "checked")
    died = hop("checked", "enrich", 30, 50, ERRORS)
    flew(
        store,
        [checked, died, hop("checked", "enrich", 90_000, 90_040, DONE), hop(DONE, "finish", 90_039, 90_050, None)],
    )
    origin = {"queue": "raw", "reason": "never departed", "attempts": 1, "at": store.now}
    store.add({}, queue=ERRORS, origin=origin, trail=[hop("raw", "check", 0, 30, ERRORS)])
    store.add({}, queue=ERRORS, origin=origin)
    report = read()
    assert report.dead == [("raw", "never departed", 2)]
    assert report.stages == [
        StageTimes("check", 2, 1000 / 20, None, Times(20, 29)),
        StageTimes("enrich", 2, None, Times(20, 20), Times(30, 39)),
        StageTimes("finish", 1, None, Times(0, 0), Times(11, 11)),  # the clocks of two workers part by a little
    ]
