"""Ticks of schedules beside other processes: kills between any two commands, pauses, changes, slow functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.conformance.test_schedules import DAY, HOUR, at_hour, control, one, text, times
from tests.shells import Shell

MIN_UNSEEN = timedelta(minutes=30)


async def settle_all(shell: Shell, queue: str) -> list[str]:
    """Commit what is ready in a queue, and return the ticks of these items."""
    done = []
    while (item := await shell.queue(queue).reserve()) is not None:
        await shell.queue(queue).commit(item)
        done.append(item.headers["mongoq-tick"])
    return done


@contextmanager
def commands_refused_after(client: MongoClient[Any], number: int, *, appname: str) -> Iterator[None]:
    """Let the server refuse all commands of a process but for the first ones."""
    commands = ["find", "insert", "update", "findAndModify", "aggregate", "delete", "bulkWrite"]
    data = {"failCommands": commands, "errorCode": 8000, "appName": appname}
    client.admin.command("configureFailPoint", "failCommand", mode={"skip": number}, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_a_kill_between_any_two_commands_loses_no_tick_and_doubles_none(
    client: MongoClient[Any], uri: str, database: str
) -> None:
    """A process that cannot send its next command is like one that was killed before it."""
    clock = mongoq.VirtualClock(datetime(2100, 1, 1, 0, 59, tzinfo=UTC))
    done: list[str] = []

    def settle() -> None:
        while (item := queue.reserve()) is not None:
            queue.commit(item)
            done.append(item.headers["mongoq-tick"])

    with MongoClient(uri, appname="victim", retryReads=False, retryWrites=False) as own:
        broker = mongoq.Broker(client[database]["mongoq"], clock=clock)
        victim = mongoq.Broker(own[database]["mongoq"], clock=clock)
        queue = broker.queue("reports")
        for each in (broker, victim):
            each.schedule("hourly", queue="reports", every=HOUR, missed="all")
        for number in range(100):
            clock.advance(3 * HOUR)
            with commands_refused_after(client, number, appname="victim"):
                try:
                    finished = victim.tick() == 3
                except (PyMongoError, mongoq.MongoqError):
                    finished = False
            settle()
            broker.tick()
            settle()
            if finished:
                break
        victim.close()
        broker.close()
    assert number >= 6  # each of three ticks takes a push and an advance, at least
    start = datetime(2100, 1, 1, 1, tzinfo=UTC)
    assert sorted(done) == [text(start + n * HOUR) for n in range(3 * (number + 1))]


async def test_a_pause_ends_the_catching_up_of_another_process(shell: Shell) -> None:
    hour = at_hour(shell)
    ticks: list[datetime] = []

    def make(tick: mongoq.Tick) -> int:
        ticks.append(tick.at)
        if len(ticks) == 1:
            with mongoq.Broker(shell.raw, clock=shell.clock) as other:
                other.pause_schedule("hourly")
        return len(ticks)

    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed="all", horizon=9 * DAY, make=make)
    shell.clock.advance(60 + 50 * 3600)
    assert await shell.broker.tick() == 1  # it was just at this tick
    assert await times(shell) == [text(hour)]
    assert (await one(shell)).next == hour + HOUR
    await shell.another().resume_schedule("hourly")
    assert await shell.broker.tick() == 50
    assert await times(shell) == [text(hour + n * HOUR) for n in range(51)]


async def test_a_tick_whose_schedule_was_removed_meanwhile_ends_there(shell: Shell) -> None:
    at_hour(shell)

    def make(tick: mongoq.Tick) -> str:
        shell.raw.delete_one({"_id": "schedule:hourly"})
        return "made"

    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=make, missed="all")
    shell.clock.advance(60 + 5 * 3600)
    await shell.broker.tick()
    assert len(await times(shell)) == 1
    assert await shell.broker.schedules() == []


@pytest.mark.parametrize(
    "table", [{"every": 40 * DAY}, {"cron": "0 0 1 1 *", "timezone": "UTC"}, {"at": True}], ids=["days", "year", "once"]
)
async def test_a_rare_tick_is_not_doubled_after_a_kill_and_weeks_without_a_process(
    shell: Shell, table: dict[str, Any]
) -> None:
    hour = at_hour(shell)
    table = {"at": hour} if "at" in table else table
    following = await shell.broker.schedule("rare", queue="reports", **table)
    shell.clock.advance(following - shell.clock.now())
    due = control(shell, "rare")
    assert await shell.broker.tick() == 1
    assert len(await settle_all(shell, "reports")) == 1
    shell.raw.update_one({"_id": "schedule:rare"}, {"$set": {"next": due["next"]}})  # it was killed before the advance
    shell.clock.advance(30 * DAY)
    shell.raw.delete_many({"expires": {"$lt": shell.clock.now()}})  # as the server does
    await shell.another().tick()
    assert await times(shell) == []


# --- many schedules ----------------------------------------------------------------------------------------

MANY = [f"s{number:02}" for number in range(20)]
"""Names of schedules that are due together."""


async def schedule_many(shell: Shell, make: Any) -> datetime:
    """Define them in a process, with a function that gets the name, and return their tick, a minute ahead."""
    hour = at_hour(shell)
    for name in MANY:
        await shell.broker.schedule(name, queue="reports", every=HOUR, make=lambda tick: make(tick.name))
    return hour


@pytest.mark.every_shell
async def test_a_process_leaves_alone_what_another_has_made_since_it_looked(shell: Shell) -> None:
    tried: list[str] = []

    def make(name: str) -> str:
        tried.append(name)
        if len(tried) == 1:
            with mongoq.Broker(shell.raw, clock=shell.clock) as other:
                for each in MANY:
                    other.schedule(each, queue="reports", every=HOUR, make=str)
                assert other.tick() == len(MANY)
        return name

    hour = await schedule_many(shell, make)
    shell.clock.advance(60)
    assert await shell.broker.tick() == 0
    assert await times(shell) == [text(hour)] * len(MANY)
    assert len(tried) == 1


async def test_a_process_that_meets_another_goes_on_at_a_place_of_its_own(shell: Shell) -> None:
    """Else the two would meet again at the next schedule, and at all that follow."""
    continued = set()
    tried: list[str] = []

    def make(name: str) -> str:
        tried.append(name)
        if len(tried) == 1:  # another process was faster
            following = shell.clock.now() + HOUR
            shell.raw.update_one({"_id": f"schedule:{name}"}, {"$set": {"next": following}})
        return name

    await schedule_many(shell, make)
    for _ in range(10):
        shell.clock.advance(HOUR)
        tried.clear()
        assert await shell.broker.tick() == len(MANY) - 1
        assert sorted(tried) == MANY
        continued.add(tried[1])
    assert len(continued) > 1


# --- payloads that cannot be stored ----------------------------------------------------------------------


def _raise(error: BaseException) -> Any:
    raise error


MAKES: dict[str, tuple[Any, str]] = {
    "too large": (lambda tick: b"x" * (17 * 2**20), "16,711,680 is the limit"),
    "no value of BSON": (lambda tick: object(), "BSON cannot hold a builtins.object"),
    "end of an iterator": (lambda tick: next(iter([])), "StopIteration"),
    "long error": (lambda tick: _raise(ValueError("x" * 10**6)), "ValueError: xxx"),
    "an error of ours": (lambda tick: _raise(mongoq.BrokerClosed("x")), "has failed"),
}


@pytest.mark.parametrize("kind", MAKES)
async def test_a_payload_that_cannot_be_made_holds_up_its_own_schedule_alone(
    shell: Shell, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, words = MAKES[kind]
    hour = at_hour(shell)
    await shell.broker.schedule("a", queue="reports", every=HOUR, make=make)
    await shell.broker.schedule("b", queue="others", every=HOUR)
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert await times(shell, "others") == [text(hour)]
    (line,) = caplog.messages
    assert line.startswith("schedule 'a' cannot tick here: ")
    assert words in line
    assert len(line) < 2_100
    with pytest.raises(mongoq.ArgumentInvalid):
        await shell.broker.run_schedule_now("a")
    assert (await shell.broker.schedules())[0].next == hour


async def test_a_trouble_that_comes_back_is_logged_again(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    at_hour(shell)
    answers: list[Any] = [object(), object(), 7, object(), object()]
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=lambda tick: answers.pop(0))
    shell.clock.advance(60)
    made = []
    for _ in range(5):
        made.append(await shell.broker.tick())
        if made[-1]:
            shell.clock.advance(HOUR)
    assert made == [0, 0, 1, 0, 0]
    assert [line[:32] for line in caplog.messages] == ["schedule 'hourly' cannot tick he"] * 2


# --- prune -----------------------------------------------------------------------------------------------


async def test_a_prune_leaves_what_running_workers_have(shell: Shell) -> None:
    """A worker says every ten minutes what it has: a shorter time would delete the schedules of running code."""
    at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, make=str)
    shell.clock.advance(timedelta(minutes=9))
    for short in (0, 60, MIN_UNSEEN - timedelta(milliseconds=1)):
        with pytest.raises(mongoq.ArgumentInvalid, match="^unseen: 30 minutes or more, such as"):
            await shell.another().prune_schedules(unseen=short)
    assert await shell.another().prune_schedules(unseen=MIN_UNSEEN) == []
    shell.clock.advance(MIN_UNSEEN)
    assert await shell.another().prune_schedules(unseen=MIN_UNSEEN) == ["hourly"]


async def test_a_program_without_a_worker_that_makes_the_ticks_has_its_schedules(shell: Shell) -> None:
    at_hour(shell)
    await shell.broker.schedule("function", queue="reports", every=HOUR, make=str)
    await shell.broker.schedule("value", queue="reports", every=HOUR, payload=1)
    shell.clock.advance(5 * DAY)
    assert await shell.broker.tick() == 2
    assert await shell.another().prune_schedules() == []
    seen = {record.name: record.seen for record in await shell.broker.schedules()}
    assert seen["function"] == shell.clock.now()
    assert seen["value"] == shell.clock.now() - 5 * DAY  # that anybody can tick, so it says nothing


# --- odd times -------------------------------------------------------------------------------------------


async def test_jitter_beyond_the_interval_delays_each_tick_by_its_own(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("often", queue="reports", every=60, jitter=HOUR, missed="all")
    shell.clock.advance(60 + 30 * 60)
    await shell.broker.tick()
    items = [*await shell.queue("reports").peek(99, state="scheduled"), *await shell.queue("reports").peek(99)]
    ticked = {datetime.fromisoformat(item.headers["mongoq-tick"]): item.due for item in items}
    assert sorted(ticked) == [hour + timedelta(minutes=n) for n in range(31)]
    assert all(tick <= due < max(tick + HOUR, shell.clock.now() + DAY) for tick, due in ticked.items())
    shell.clock.advance(HOUR + timedelta(minutes=1))
    await shell.broker.pause_schedule("often")
    assert len(set(await settle_all(shell, "reports"))) == 31
