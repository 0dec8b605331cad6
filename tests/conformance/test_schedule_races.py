"""Ticks of schedules beside other processes: kills between any two commands, pauses, changes, slow functions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import mongoq
from mongoq.model.clock import local_seconds
from mongoq.model.schedule.definition import MIN_UNSEEN
from mongoq.protocol.coordination import schedules, ticks
from tests.conformance.test_schedules import HOUR, at_hour, control, one, text, times
from tests.shells import Shell

DAY = timedelta(days=1)


class Killed(Exception):
    """Raised in place of a command: the process sends nothing more."""


def kill_after(number: int, flow: Iterator[Any]) -> Any:
    """Run a flow for a number of commands, and end it there."""
    step: Any = flow
    command = next(step)
    while True:
        if not number:
            step.close()
            raise Killed
        number -= 1
        try:
            reply = yield command
        except Exception as error:
            command = step.throw(error)
        else:
            try:
                command = step.send(reply)
            except StopIteration as end:
                return end.value


def tick_and_die(broker: Any, number: int, document: Any, read_at: float) -> Any:
    return (yield from kill_after(number, iter(ticks.make_ticks(broker, document, read_at))))


async def read_due(shell: Shell, broker: Any = None) -> ticks.DueSchedules:
    return await (broker or shell.broker)._run(ticks.find_due, timedelta(0))  # type: ignore[no-any-return]


async def settle_all(shell: Shell, queue: str) -> list[str]:
    """Commit what is ready in a queue, and return the ticks of these items."""
    done = []
    while (item := await shell.queue(queue).reserve()) is not None:
        await shell.queue(queue).commit(item)
        done.append(item.headers["mongoq-tick"])
    return done


@pytest.mark.parametrize("topic", [False, True])
async def test_a_kill_between_any_two_commands_loses_no_tick_and_doubles_none(shell: Shell, topic: bool) -> None:
    hour = at_hour(shell)
    if topic:
        await shell.broker.bind("reports", "one")
        await shell.broker.bind("reports", "two")
    queues = ["one", "two"] if topic else ["reports"]
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed="all")
    done: dict[str, list[str]] = {queue: [] for queue in queues}
    other, kills = shell.another(), 0
    for number in range(100):
        shell.clock.advance(3 * HOUR)
        read = await read_due(shell)
        try:
            await shell.broker._run(tick_and_die, number, read.documents[0], read.read_at)
        except Killed:
            kills += 1
        for queue in queues:
            done[queue] += await settle_all(shell, queue)
        await other.tick()
        for queue in queues:
            done[queue] += await settle_all(shell, queue)
        if kills <= number:
            break
    assert kills >= 6  # each of three ticks takes a push and an advance, at least
    for queue in queues:
        assert sorted(done[queue]) == [text(hour + n * HOUR) for n in range(len(done[queue]))]
        assert len(done[queue]) == 3 * (kills + 1)


async def test_a_pause_ends_the_catching_up_of_another_process(shell: Shell) -> None:
    hour = at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR, missed="all", horizon=9 * DAY)
    shell.clock.advance(60 + 50 * 3600)
    read = await read_due(shell)
    await shell.another().pause_schedule("hourly")
    assert (await shell.broker._run(ticks.make_ticks, read.documents[0], read.read_at)).made == 1
    assert await times(shell) == [text(hour)]  # it was just at this tick
    assert (await one(shell)).next == hour + HOUR
    await shell.another().resume_schedule("hourly")
    assert await shell.broker.tick() == 50
    assert await times(shell) == [text(hour + n * HOUR) for n in range(51)]


async def test_what_was_read_too_long_ago_is_read_again(shell: Shell) -> None:
    """A process slept for so long that the ids of the ticks are forgotten."""
    at_hour(shell)
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    shell.clock.advance(60)
    read = await read_due(shell)
    await shell.another().tick()
    shell.raw.delete_many({"q": "reports"})
    slept = await shell.broker._run(ticks.make_ticks, read.documents[0], local_seconds() - 31)
    assert slept.made == 0
    assert await times(shell) == []
    shell.clock.advance(HOUR)
    read = await read_due(shell)
    await shell.another().pause_schedule("hourly")
    assert (await shell.broker._run(ticks.make_ticks, read.documents[0], local_seconds() - 31)).made == 0
    await shell.another().resume_schedule("hourly")
    assert (await shell.broker._run(ticks.make_ticks, read.documents[0], local_seconds() - 31)).made == 1


async def test_a_function_that_takes_a_minute_makes_its_ticks_and_stops_no_others(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = at_hour(shell)
    ahead = 0.0
    monkeypatch.setattr(ticks, "local_seconds", lambda: local_seconds() + ahead)

    def make(tick: mongoq.Tick) -> str:
        nonlocal ahead
        ahead += 60
        return tick.at.isoformat()

    await shell.broker.schedule("a", queue="reports", every=HOUR, make=make, missed="all")
    await shell.broker.schedule("b", queue="others", every=HOUR)
    shell.clock.advance(60 + 2 * 3600)
    assert await shell.broker.tick() == 4
    assert await times(shell) == [text(hour + n * HOUR) for n in range(3)]
    assert await times(shell, "others") == [text(hour + 2 * HOUR)]
    assert ahead == 180  # each payload was made once


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
    "table",
    [{"every": 40 * DAY}, {"cron": "0 0 1 1 *", "timezone": "UTC"}, {"at": True}],
    ids=["each forty days", "each year", "once"],
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


# --- payloads that cannot be stored ----------------------------------------------------------------------


def _raise(error: BaseException) -> Any:
    raise error


MAKES: dict[str, tuple[Any, str]] = {
    "too large": (lambda tick: b"x" * (17 * 2**20), "16,711,680 is the limit"),
    "no value of BSON": (lambda tick: object(), "BSON cannot hold a builtins.object"),
    "too large an integer": (lambda tick: 2**70, "an integer beyond 64 bits"),
    "surrogate": (lambda tick: "\ud800", "lone surrogates"),
    "NUL in a name": (lambda tick: {"a\0b": 1}, "NULL byte"),
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


async def test_a_schedule_that_no_code_has_is_reported_once_beside_its_trouble(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    at_hour(shell)
    await shell.another().schedule("gone", queue="reports", every=HOUR, make=str)
    shell.clock.advance(2 * DAY)
    for _ in range(3):
        assert await shell.broker.tick() == 0
        for record in await shell.broker._run(schedules.refresh_seen):
            schedules.report_unseen(shell.broker._context, record)
    assert [line.partition(",")[0][:40] for line in caplog.messages] == [
        "schedule 'gone' cannot tick here: its pa",
        "schedule 'gone' is in no running code si",
    ]


async def test_a_process_reads_the_editions_of_its_own_schedules_alone(shell: Shell) -> None:
    at_hour(shell)
    other = shell.another()
    await other.schedule("others", queue="reports", every=HOUR)
    with pytest.raises(StopIteration) as end:
        next(iter(schedules.read_editions(shell.broker._context)))  # without own ones there is no command
    assert end.value.value == {}
    await shell.broker.schedule("hourly", queue="reports", every=HOUR)
    before = await shell.broker._run(schedules.read_editions)
    assert before == {"schedule:hourly": control(shell)["edition"]}
    await other.schedule("hourly", queue="reports", every=2 * HOUR)
    assert await shell.broker._run(schedules.read_editions) == {"schedule:hourly": control(shell)["edition"]} != before
    await other.remove_schedule("hourly")
    assert await shell.broker._run(schedules.read_editions) == {}


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


async def test_a_date_of_the_year_9999_is_kept(shell: Shell) -> None:
    last = datetime.fromisoformat("9999-12-31T23:59:59.999+00:00")
    assert await shell.broker.schedule("end", queue="reports", at=last, jitter=DAY) == last
    assert (await one(shell)).next == last
    assert await shell.broker.tick() == 0


@pytest.mark.parametrize("queue", ["reports.dead", "reports"])
async def test_any_queue_takes_ticks(shell: Shell, queue: str) -> None:
    hour = at_hour(shell)
    await shell.queue("reports", history=3600).push(0)
    await shell.queue("reports").pop()
    await shell.broker.schedule("hourly", queue=queue, every=HOUR)
    shell.clock.advance(60)
    assert await shell.broker.tick() == 1
    assert await times(shell, queue) == [text(hour)]
