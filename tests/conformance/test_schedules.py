"""Schedules: one item for each tick, by the server's clock, whatever happens to the processes that make it."""

from __future__ import annotations

import struct
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel
from pymongo.errors import AutoReconnect

import mongoq
from tests.shells import Shell

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def at_hour(shell: Shell) -> datetime:
    """Put the clock at a minute before a full hour, and return the hour: a tick of the schedules below."""
    now = shell.clock.now()
    hour = now.replace(minute=0, second=0, microsecond=0) + 2 * HOUR
    shell.clock.advance(hour - timedelta(minutes=1) - now)
    return hour


async def times(shell: Shell, queue: str = "reports") -> list[str]:
    """Ticks of the items of a queue."""
    return sorted(item.headers["mongoq-tick"] for item in await shell.queue(queue).peek(1_000))


def text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


async def one(shell: Shell) -> mongoq.ScheduleRecord:
    (record,) = await shell.broker.schedules()
    return record


def control(shell: Shell, name: str = "hourly") -> Any:
    return shell.raw.find_one({"_id": f"schedule:{name}"})


@pytest.mark.every_shell
async def test_a_tick_is_one_item_at_its_time(shell: Shell) -> None:
    hour = at_hour(shell)
    payload = {"$set": {"a.b": "$$NOW"}, "list": [1, {"$inc": 1}]}
    options: dict[str, Any] = {"payload": payload, "headers": {"$where": 1}, "priority": -5}
    assert await shell.broker.schedule("hourly", queue="reports", every=HOUR, **options) == hour
    assert await shell.broker.tick() == 0
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert await shell.broker.tick() == 0
    item = await shell.queue("reports").pop()
    assert (item.payload, item.priority) == (payload, -5)
    assert item.headers == {"$where": 1, "mongoq-tick": text(hour), "mongoq-schedule": "hourly"}
    assert await shell.queue("reports").size() == 0
    record = await one(shell)
    assert (record.name, record.next, record.last, record.paused) == ("hourly", hour + HOUR, hour, False)
    assert (record.what, record.queue, record.late, record.trouble) == ("every 3600 s", "reports", timedelta(0), None)


async def test_an_item_that_was_settled_before_the_advance_does_not_come_again(shell: Shell) -> None:
    """A process is killed between push and advance, and a worker is done with the item before others come."""
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.clock.advance(60)
    due = control(shell)
    await shell.broker.tick()
    item = await shell.queue("reports").reserve()
    await shell.queue("reports").commit(item)
    shell.raw.update_one({"_id": "schedule:hourly"}, {"$set": {"next": due["next"]}})  # the advance never came
    shell.clock.advance(timedelta(hours=8) + timedelta(minutes=1))
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed="all", horizon=timedelta(days=30))
    assert await shell.broker.tick() == 9
    assert await times(shell) == [text(hour + n * HOUR) for n in range(1, 9)]


async def test_the_id_is_remembered_for_longer_than_ticks_can_be_late(shell: Shell) -> None:
    at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed="all", horizon=timedelta(days=30))
    shell.clock.advance(60)
    await shell.broker.tick()
    item = await shell.queue("reports").reserve()
    await shell.queue("reports").commit(item)
    assert shell.raw.find_one({"_id": item.id})["expires"] - shell.clock.now() == timedelta(days=31)


async def test_processes_that_read_the_same_tick_make_one_item(shell: Shell) -> None:
    """One that was slow between its read and its push comes after another has made the tick, and gone on."""
    hour = at_hour(shell)
    brokers = [mongoq.Broker(shell.raw, clock=shell.clock) for _ in range(2)]
    made: list[int] = []

    def make(tick: mongoq.Tick) -> str:
        if brokers:
            other = brokers.pop()
            other.schedule("hourly", queue="reports", every=HOUR, make=make)
            made.append(other.tick())
            other.close()
        return "made"

    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=make)
    shell.clock.advance(60)
    made.append(await shell.broker.tick())
    assert sum(made) == 1
    assert await times(shell) == [text(hour)]
    assert (await one(shell)).next == hour + HOUR


async def test_a_schedule_made_anew_has_ticks_of_its_own(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.clock.advance(60)
    await shell.broker.tick()
    assert await shell.broker.remove_schedule("hourly") is True
    assert await shell.broker.remove_schedule("hourly") is False
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.raw.update_one({"_id": "schedule:hourly"}, {"$set": {"next": hour}})
    assert await shell.broker.tick() == 1
    assert await times(shell) == [text(hour)] * 2


# --- missed ticks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "horizon", "expected"),
    [
        ("last", timedelta(minutes=20), []),
        ("last", None, [50]),
        ("all", timedelta(hours=2), [49, 50]),
        ("skip", None, []),
    ],
)
async def test_missed_ticks_go_by_their_rule(shell: Shell, missed: Any, horizon: Any, expected: list[int]) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed=missed, horizon=horizon)
    shell.clock.advance(timedelta(minutes=1) + 50.5 * HOUR)
    assert await shell.broker.tick() == len(expected)
    assert await times(shell) == [text(hour + n * HOUR) for n in expected]
    assert (await one(shell)).next == hour + 51 * HOUR


async def test_many_missed_ticks_are_made_in_parts(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("often", queue="reports", every=60, missed="all")
    shell.clock.advance(250 * 60)  # the first one is a minute ahead
    assert await shell.broker.tick() == 250
    assert await times(shell) == sorted(text(hour + timedelta(minutes=n)) for n in range(250))


# --- pause, run now --------------------------------------------------------------------------------------


async def test_a_paused_schedule_makes_no_ticks_and_goes_by_its_rule_afterwards(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    await shell.broker.pause_schedule("hourly")
    shell.clock.advance(60 + 3 * 3600)
    assert await shell.broker.tick() == 0
    assert (await one(shell)).paused
    assert (await one(shell)).late == timedelta(0)
    await shell.broker.resume_schedule("hourly")
    assert (await one(shell)).late == 3 * HOUR
    assert await shell.broker.tick() == 1
    assert await times(shell) == [text(hour + 3 * HOUR)]


async def test_run_now_makes_an_extra_item_each_time(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    await shell.broker.pause_schedule("hourly")
    before = control(shell)
    ids = [await shell.broker.run_schedule_now("hourly") for _ in range(2)]
    items = await shell.queue("reports").peek(9)
    assert {item.id for item in items} == set(ids)
    assert [item.payload["extra"] for item in items] == [True, True]
    assert items[0].headers["mongoq-schedule"] == "hourly"
    assert control(shell) == before
    await shell.broker.resume_schedule("hourly")
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert (await one(shell)).last == hour


async def test_an_unknown_name_says_what_is_near(shell: Shell) -> None:
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    for method in ("pause_schedule", "resume_schedule", "run_schedule_now"):
        with pytest.raises(mongoq.ScheduleUnknown, match=r"no schedule 'hourl' .*'hourly'"):
            await getattr(shell.broker, method)("hourl")


# --- definitions -----------------------------------------------------------------------------------------


async def test_the_same_definition_changes_nothing(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    at_hour(shell)
    options: dict[str, Any] = {"every": HOUR, "payload": {"a": [1, 2.5, None]}, "headers": {"h": 1}}
    await shell.broker.schedule("hourly", queue="reports", **options)
    before = control(shell)
    shell.clock.advance(10)
    await shell.another().schedule("hourly", queue="reports", **options)
    after = control(shell)
    assert after.pop("seen") - before.pop("seen") == timedelta(seconds=10)
    assert after.pop("by") != before.pop("by")
    assert after == before
    assert not caplog.records


async def test_a_change_keeps_pause_and_identity(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    await shell.broker.pause_schedule("hourly")
    before = control(shell)
    following = await shell.broker.schedule("hourly", queue="others", every=HOUR, start=hour + timedelta(minutes=30))
    assert following == hour + timedelta(minutes=30)
    after = control(shell)
    assert (after["identity"], after["paused"]) == (before["identity"], True)
    assert after["edition"] != before["edition"]
    assert "'hourly' has a new definition" in caplog.text


async def test_a_change_swallows_no_tick_and_doubles_none(shell: Shell) -> None:
    """Though it comes between the read of a process and its push."""
    hour = at_hour(shell)
    half = hour + timedelta(minutes=30)

    def make(tick: mongoq.Tick) -> str:
        with mongoq.Broker(shell.raw, clock=shell.clock) as other:
            following = other.schedule("hourly", queue="reports", every=HOUR, start=half)
            assert following == hour  # due already
        return "made"

    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=make)
    shell.clock.advance(61)
    made = await shell.broker.tick()
    assert made + await shell.another().tick() == 1
    assert await times(shell) == [text(hour)]
    assert (await one(shell)).next == half


async def test_a_tick_that_went_to_the_former_queue_is_not_made_again(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.clock.advance(60)
    due = control(shell)
    assert await shell.broker.tick() == 1
    shell.raw.replace_one({"_id": due["_id"]}, due)  # the process was killed before the advance
    await shell.broker.schedule("hourly", queue="others", every=HOUR)
    await shell.broker.tick()
    assert [await shell.queue(name).size() for name in ("reports", "others")] == [1, 0]
    assert (await one(shell)).next == hour + HOUR


async def test_the_higher_version_wins(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    hour = at_hour(shell)
    new, old = shell.broker, shell.another()
    await new.schedule("hourly", queue="new", every=HOUR, version=2)
    for _ in range(3):
        assert await old.schedule("hourly", queue="old", every=60, version=1) == hour
    assert caplog.text.count("goes by version 2") == 1
    assert (await one(shell)).queue == "new"
    await old.schedule("hourly", queue="newest", every=HOUR, version=3)
    assert ((await one(shell)).queue, (await one(shell)).version) == ("newest", 3)


async def test_a_date_comes_once(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    hour = at_hour(shell)
    for _ in range(2):
        assert await shell.broker.schedule("launch", queue="reports", at=hour) == hour
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert (await one(shell)).next is None
    assert await shell.broker.schedule("launch", queue="reports", at=hour) is None
    shell.clock.advance(HOUR)
    assert await shell.broker.tick() == 0
    assert await shell.broker.schedule("past", queue="reports", at=hour) is None
    assert "'past' never ticks" in caplog.text


@pytest.mark.every_shell
async def test_what_is_over_expires_unless_it_gets_a_new_date(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("launch", queue="reports", at=hour)
    await shell.broker.schedule("skipped", queue="reports", at=hour, missed="skip")
    await shell.broker.schedule("hourly", queue="reports", every=3600)
    shell.clock.advance(2 * HOUR)
    await shell.broker.tick()
    await shell.broker.schedule("past", queue="reports", at=hour)
    expires = {name: control(shell, name).get("expires") for name in ("launch", "skipped", "past", "hourly")}
    assert expires.pop("hourly") is None
    assert set(expires.values()) == {shell.clock.now() + timedelta(days=1)}
    shell.clock.advance(HOUR)
    later = shell.clock.now() + timedelta(hours=1)
    assert await shell.broker.schedule("launch", queue="reports", at=later) == later
    await shell.broker.schedule("past", queue="reports", at=hour)
    assert "expires" not in control(shell, "launch")
    assert control(shell, "past")["expires"] == shell.clock.now() + timedelta(days=1)


async def test_jitter_delays_the_item_by_the_same_in_each_process(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, jitter=600, missed="all")
    shell.clock.advance(60)
    await shell.broker.tick()
    (item,) = await shell.queue("reports").peek(9, state="scheduled")
    assert timedelta(0) < item.due - hour < timedelta(seconds=600)
    shell.raw.delete_one({"_id": item.id})
    shell.raw.update_one({"_id": "schedule:hourly"}, {"$set": {"next": hour}})
    await shell.another().tick()
    assert (await shell.queue("reports").get(item.id)).due == item.due


# --- rules of time zones -----------------------------------------------------------------------------------

DAILY: dict[str, Any] = {"queue": "reports", "cron": "0 6 * * *", "timezone": "Test/Town"}


@pytest.fixture
def set_offset(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Return a function that gives the zone ``Test/Town`` other rules, as an update of the machine does."""
    before, zone = zoneinfo.TZPATH, tmp_path / "Test" / "Town"
    zone.parent.mkdir()

    def set_offset(hours: int) -> None:
        # One type of local time in the first form of TZif (RFC 8536): counts, offset in seconds, no summer time, name.
        counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
        zone.write_bytes(b"TZif" + bytes(16) + counts + struct.pack(">lbb", hours * 3600, 0, 0) + b"LMT\0")
        zoneinfo.ZoneInfo.clear_cache()

    zoneinfo.reset_tzpath([tmp_path])
    yield set_offset
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


def at_midnight(shell: Shell) -> datetime:
    """Put the clock at midnight in UTC, and return it."""
    midnight = shell.clock.now().replace(hour=0, minute=0, second=0, microsecond=0) + DAY
    shell.clock.advance(midnight - shell.clock.now())
    return midnight


@pytest.mark.parametrize("missed", ["last", "all", "skip"])
@pytest.mark.parametrize("defines_anew", [True, False], ids=["defined anew", "not defined anew"])
async def test_new_rules_of_a_time_zone_neither_lose_nor_double_a_tick(
    shell: Shell, set_offset: Callable[[int], None], missed: Any, defines_anew: bool
) -> None:
    """Six o'clock there is 5:00 in UTC by the old rules, and 6:00 by the new ones."""
    midnight = at_midnight(shell)
    set_offset(1)
    assert await shell.broker.schedule("daily", missed=missed, **DAILY) == midnight + 5 * HOUR
    shell.clock.advance(timedelta(hours=5, seconds=1))
    assert await shell.broker.tick() == 1
    set_offset(0)
    broker = shell.another()
    if defines_anew:
        assert await broker.schedule("daily", missed=missed, **DAILY) == midnight + DAY + 6 * HOUR
    for _ in range(3 * 24):
        shell.clock.advance(HOUR)
        await broker.tick()
    expected = [midnight + 5 * HOUR, midnight + DAY + 6 * HOUR, midnight + 2 * DAY + 6 * HOUR]
    assert await times(shell) == [text(tick) for tick in expected]


@pytest.mark.parametrize("missed", ["last", "all"])
async def test_a_tick_that_new_rules_put_earlier_comes_once(
    shell: Shell, set_offset: Callable[[int], None], missed: Any
) -> None:
    midnight = at_midnight(shell)
    set_offset(0)
    await shell.broker.schedule("daily", missed=missed, **DAILY)
    await shell.broker.schedule("untouched", missed=missed, **DAILY)
    set_offset(1)
    assert await shell.another().schedule("daily", missed=missed, **DAILY) == midnight + 5 * HOUR
    shell.clock.advance(DAY)
    assert await shell.broker.tick() == 2
    # The latter was due at the former time, and its next tick goes by the new rules.
    assert await times(shell) == [text(midnight + 5 * HOUR), text(midnight + 6 * HOUR)]
    assert [record.next for record in await shell.broker.schedules()] == [midnight + DAY + 5 * HOUR] * 2


@pytest.mark.parametrize("missed", ["last", "all"])
async def test_a_tick_that_was_missed_before_new_rules_comes_once(
    shell: Shell, set_offset: Callable[[int], None], missed: Any
) -> None:
    midnight = at_midnight(shell)
    set_offset(1)
    await shell.broker.schedule("daily", missed=missed, **DAILY)
    set_offset(0)
    shell.clock.advance(7 * HOUR)
    broker = shell.another()
    await broker.schedule("daily", missed=missed, **DAILY)
    assert await broker.tick() == 1
    assert await times(shell) == [text(midnight + 6 * HOUR)]
    assert (await one(shell)).next == midnight + DAY + 6 * HOUR


async def test_a_due_tick_of_the_former_definition_is_none_of_former_rules(shell: Shell) -> None:
    """It comes, though it is no tick of the cron expression that the schedule has now."""
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.clock.advance(61)
    for version in (1, 2):
        cron: dict[str, Any] = {"cron": f"3{version} * * * *", "timezone": "UTC", "version": version}
        assert await shell.broker.schedule("hourly", queue="reports", **cron) == hour
    assert await shell.broker.tick() == 1
    assert await times(shell) == [text(hour)]
    assert (await one(shell)).next == hour + timedelta(minutes=32)


# --- functions -------------------------------------------------------------------------------------------


async def test_a_function_makes_the_payload(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule(
        "hourly", queue="reports", every=HOUR, make=lambda tick: {"day": tick.local.isoformat()}
    )
    shell.clock.advance(60)
    other = shell.another()
    assert await other.tick() == 0  # it does not have the function
    with pytest.raises(mongoq.ArgumentInvalid, match="does not have it in its code"):
        await other.run_schedule_now("hourly")
    assert await shell.broker.tick() == 1
    assert (await shell.queue("reports").peek())[0].payload == {"day": hour.isoformat()}


async def test_a_function_of_another_version_is_not_used(shell: Shell) -> None:
    at_hour(shell)
    old = shell.another()
    await old.schedule("hourly", queue="reports", every=HOUR, make=lambda tick: "old", version=1)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=lambda tick: "new", version=2)
    shell.clock.advance(60)
    assert await old.tick() == 0
    assert await shell.broker.tick() == 1
    assert (await shell.queue("reports").peek())[0].payload == "new"


async def test_a_function_that_fails_stops_no_other_schedule(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    at_hour(shell)
    answers: list[Any] = []

    def make(tick: mongoq.Tick) -> Any:
        return answers[0]

    def meet_an_outage(tick: mongoq.Tick) -> Any:
        raise AutoReconnect("another server")

    await shell.broker.schedule("a", queue="reports", every=HOUR, make=make)
    await shell.broker.schedule("b", queue="reports", every=HOUR)
    await shell.broker.schedule("outage_of_its_own", queue="reports", every=HOUR, make=meet_an_outage)
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert await shell.broker.tick() == 0
    assert caplog.text.count("IndexError") == 1
    answers.append(7)
    assert await shell.broker.tick() == 1


async def test_a_model_checks_the_payload(shell: Shell) -> None:
    class Report(BaseModel):
        day: int

    with pytest.raises(mongoq.PayloadInvalid, match="day"):
        await shell.broker.schedule("x", queue=shell.queue("reports", model=Report), every=HOUR, payload={"day": "no"})
    assert await shell.broker.schedules() == []


# --- documents of other programs -------------------------------------------------------------------------

ODD: list[dict[str, Any]] = [
    {"identity": "x"},
    {"what": {"every": "often"}},
    {"what": {"every": 0, "start": datetime(2024, 1, 1, tzinfo=UTC)}},
    {"what": 5},
    {"what": {"cron": "nonsense", "timezone": "UTC"}},
    {"what": {"cron": "* * * * *", "timezone": "Nowhere/Land"}},
    {"queue": "$q"},
    {"queue": None},
    {"missed": "some"},
    {"horizon": "long"},
    {"jitter": -1},
    {"start_within": "soon"},
    {"start_within": 5, "jitter": 60},
    {"headers": [1]},
    {"source": "magic"},
    {"priority": 1000},
    {"version": "1"},
]


async def test_odd_documents_stop_no_other_schedule(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    pattern = control(shell)
    # More than a page of them, all of which come first.
    odd = [{**pattern, "_id": f"schedule:a{n}", **ODD[n % len(ODD)]} for n in range(120)]
    shell.raw.insert_many([*odd, {"_id": "schedule:", "next": hour}, {"_id": "schedule:empty"}])
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    number = len(caplog.records)
    assert number == 121
    assert await shell.broker.tick() == 0
    assert len(caplog.records) == number
    records = {record.name: record for record in await shell.broker.schedules()}
    assert len(records) == 123
    assert records["hourly"].trouble is None
    assert records["a0"].trouble is not None
    assert "no identity" in records["a0"].trouble
    # Defining it mends it.
    await shell.broker.schedule("a0", queue="reports", every=HOUR)
    assert await shell.broker.tick() == 1


async def test_what_is_stored_is_never_an_operator(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    operator = {"$gt": ObjectId("0" * 24)}
    shell.raw.insert_one({**control(shell), "_id": "schedule:odd", "identity": operator, "edition": operator})
    assert await shell.broker.schedule("odd", queue="reports", every=HOUR) == hour
    stored = control(shell, "odd")
    assert isinstance(stored["identity"], ObjectId)
    assert isinstance(stored["edition"], ObjectId)


# --- schedules that have disappeared from code -----------------------------------------------------------


async def test_schedules_of_functions_can_be_pruned_when_no_code_has_them(shell: Shell) -> None:
    at_hour(shell)
    await shell.broker.schedule("function", queue="reports", every=HOUR, make=str)
    await shell.broker.schedule("value", queue="reports", every=HOUR)
    shell.clock.advance(timedelta(days=1, minutes=1))
    unseen = {record.name: record.unseen for record in await shell.broker.schedules()}
    assert unseen == {"function": True, "value": False}
    assert await shell.another().prune_schedules(unseen=timedelta(days=2)) == []
    assert await shell.another().prune_schedules() == ["function"]
    assert [record.name for record in await shell.broker.schedules()] == ["value"]


# --- bad input -------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "cron: give one of"),
    ({"every": 60, "at": datetime.now(UTC)}, "at: give one of"),
    ({"cron": "61 * * * *", "timezone": "UTC"}, "cron: the field minute .*'61'.*such as"),
    ({"cron": "*/61 * * * *", "timezone": "UTC"}, "cron: the field minute .*60 values, and a step of 61 leaves one"),
    ({"cron": "0 0 * * 1-", "timezone": "UTC"}, "cron: the field day-of-week"),
    ({"cron": "0 0 31 2 *", "timezone": "UTC"}, "cron: .*never fires"),
    ({"cron": "0 0 * *", "timezone": "UTC"}, "cron: .*4 fields, and five"),
    ({"cron": 5, "timezone": "UTC"}, "cron: a text of five fields"),
    ({"cron": "0 0 * * *"}, "timezone: cron= needs a zone.*'Europe/Berlin'"),
    ({"cron": "0 0 * * *", "timezone": "Europe/Berln"}, "timezone: .*nearest are 'Europe/Berlin'"),
    ({"cron": "0 0 * * *", "timezone": "GMT+2"}, "timezone: .*that is 'Etc/GMT-2', with the opposite sign"),
    ({"cron": "0 0 * * *", "timezone": "../etc/passwd"}, "timezone: there is no zone"),
    ({"every": 60, "timezone": "UTC"}, "timezone: belongs to cron="),
    ({"every": 0}, "every: must be a second .*such as 60"),
    ({"every": "hourly"}, "every: 'hourly' is no duration.*such as 60"),
    ({"at": datetime(2030, 1, 1)}, "at: a naive datetime"),
    ({"at": datetime.now(UTC), "start": datetime.now(UTC)}, "start: is the origin of every="),
    ({"every": 60, "missed": "none"}, "missed: 'last', 'all' or 'skip'"),
    ({"every": 60, "missed": "skip", "horizon": 5}, "horizon: .*skip"),
    ({"every": 60, "jitter": -5}, "jitter: cannot be negative"),
    ({"every": 60, "expires": 0}, "expires: must be a millisecond"),
    ({"every": 60, "expires": datetime.now(UTC)}, "expires: a time from each tick on, such as 600"),
    ({"every": 60, "expires": 30, "jitter": 30}, "expires: must be longer than the jitter"),
    ({"every": 60, "version": -5}, "version: a whole number"),
    ({"every": 60, "priority": 101}, "priority: an int"),
    ({"every": 60, "headers": 5}, "headers: a document"),
    ({"every": 60, "headers": {"mongoq-tick": 5}}, "headers.mongoq-tick: mongoq writes"),
    ({"every": 60, "payload": object()}, "payload: BSON cannot hold"),
    ({"every": 60, "payload": "x" * 2**20}, "payload: .*bytes"),
    ({"every": 60, "make": 5}, "make: a plain function of the tick"),
    ({"every": 60, "make": str, "payload": 5}, "make: .*not both"),
    ({"every": 60, "queue": "$q"}, "queue: .*cannot begin with"),
    ({"every": 60, "name": ""}, "name: .*cannot be empty"),
]


async def test_bad_input_is_refused_before_anything_is_written(shell: Shell) -> None:
    stored = list(shell.raw.find())
    for options, message in BAD:
        arguments = {"name": "hourly", "queue": "reports", **options}
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{message}"):
            await shell.broker.schedule(arguments.pop("name"), **arguments)
    assert list(shell.raw.find()) == stored
