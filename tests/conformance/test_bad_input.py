"""Bad arguments: each is named, and nothing is written."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.shells import Shell

NAMES = ["", "é" * 61, "a\0b", "$a", 5, "\ud800"]


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("name", NAMES, ids=repr)
async def test_a_queue_name_that_cannot_be_stored_is_refused(shell: Shell, name: Any) -> None:
    with pytest.raises(mongoq.QueueNameInvalid, match="queue:"):
        shell.queue(name)
    with pytest.raises(mongoq.QueueNameInvalid, match="dead:"):
        shell.queue("fine", dead=name)
    queue = shell.queue()
    await queue.push(1)
    item = await queue.reserve()
    with pytest.raises(mongoq.QueueNameInvalid, match="to:"):
        await queue.move(item, name)
    await queue.commit(item)


@pytest.mark.parametrize("name", ["Ünicode 🦀.a$b", "queue:orders"])
async def test_odd_names_that_can_be_stored_work(shell: Shell, name: str) -> None:
    queue = shell.queue(name)
    await queue.push(1)
    assert await shell.broker.queues() == [name]
    await queue.pause()
    assert await queue.is_paused()
    await queue.resume()
    await queue.bury(await queue.reserve())
    assert await queue.dead.size() == 1


DURATIONS = [timedelta(seconds=-1), math.nan, "soon", True, 1e300]


@pytest.mark.parametrize("value", DURATIONS, ids=repr)
async def test_a_duration_that_is_none_is_named(shell: Shell, value: Any) -> None:
    for option in ("lease", "history"):
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{option}: "):
            shell.queue(**{option: value})
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(mongoq.ArgumentInvalid, match="^delay: "):
        await queue.push(1, delay=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^once: "):
        await queue.push(1, once=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^lease: "):
        await queue.reserve(lease=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^wait: "):
        await queue.reserve(wait=value)
    item = await queue.reserve()
    with pytest.raises(mongoq.ArgumentInvalid, match="^delay: "):
        await queue.rollback(item, delay=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^delay: "):
        await queue.move(item, "next", delay=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^lease: "):
        await queue.extend(item, lease=value)
    await queue.commit(item)
    assert await queue.size() == 0


async def test_no_lease_at_all_is_refused(shell: Shell) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^lease: must be a millisecond"):
        await shell.queue().reserve(lease=0)


@pytest.mark.parametrize("value", [datetime(2024, 1, 1), "2024-01-01"], ids=repr)
async def test_a_time_without_a_zone_is_named(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    await queue.push(1)
    item = await queue.reserve()
    with pytest.raises(mongoq.ArgumentInvalid, match="^when: "):
        await queue.push(1, when=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^when: "):
        await queue.move(item, "next", when=value)
    for option in ("since", "until"):
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{option}: "):
            _ = [item async for item in queue.history(**{option: value})]
    await queue.commit(item)


@pytest.mark.parametrize("value", [-101, 101, 1.0, True], ids=repr)
async def test_a_priority_out_of_range_is_named(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    with pytest.raises(mongoq.ArgumentInvalid, match="^priority: an int from -100"):
        await queue.push(1, priority=value)
    await queue.push(1)
    item = await queue.reserve()
    with pytest.raises(mongoq.ArgumentInvalid, match="^priority: "):
        await queue.move(item, "next", priority=value)
    await queue.commit(item)


@pytest.mark.parametrize("value", ["65e06e6e000000000000001", "x" * 24, "twelve bytes", b"twelve bytes", 5])
async def test_an_id_is_an_object_id_or_its_digits(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    for attempt in (lambda: queue.push(1, id=value), lambda: queue.get(value), lambda: queue.remove(value)):
        with pytest.raises(mongoq.ArgumentInvalid, match="^id: a bson.ObjectId or its 24 hex digits, not"):
            await attempt()


@pytest.mark.parametrize("value", [0, 1.5, True, 2**31], ids=repr)
async def test_a_number_of_items_is_a_positive_int(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    with pytest.raises(mongoq.ArgumentInvalid, match="^n: "):
        await queue.peek(value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^limit: "):
        await queue.counts(limit=value)
    with pytest.raises(mongoq.ArgumentInvalid, match="^page: "):
        _ = [item async for item in queue.history(page=value)]


async def test_an_unknown_state_names_the_known_ones(shell: Shell) -> None:
    queue = shell.queue()
    for attempt in (lambda: queue.size("done"), lambda: queue.peek(state="done"), lambda: queue.purge(state="done")):
        with pytest.raises(mongoq.ArgumentInvalid, match="state: one of ready, scheduled"):
            await attempt()


async def test_settings_that_make_no_sense_are_refused(shell: Shell) -> None:
    for retries in (-1, 1.5, "3", True):
        with pytest.raises(mongoq.ArgumentInvalid, match="^max_retries: "):
            shell.queue(max_retries=retries)
    with pytest.raises(mongoq.ArgumentInvalid, match="^max_retries: .* no dead queue"):
        shell.queue(dead=None, max_retries=3)
    with pytest.raises(mongoq.ArgumentInvalid, match="^dead: .* its own dead queue"):
        shell.queue("a", dead="a")
    with pytest.raises(mongoq.ArgumentInvalid, match="^model: "):
        shell.queue(model=5)


@pytest.mark.parametrize("value", ["text", [1]], ids=repr)
async def test_headers_are_a_document_of_limited_size(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    with pytest.raises(mongoq.PayloadInvalid, match="^headers: a document"):
        await queue.push(1, headers=value)
    with pytest.raises(mongoq.PayloadTooLarge, match="^headers: "):
        await queue.push(1, headers={"h": "x" * 17_000})


async def test_an_error_is_an_exception_or_a_text(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    item = await queue.reserve()
    for attempt in (lambda: queue.rollback(item, error=5), lambda: queue.bury(item, error=5)):
        with pytest.raises(mongoq.ArgumentInvalid, match="^error: "):
            await attempt()
    with pytest.raises(mongoq.ArgumentInvalid, match="^reason: "):
        await queue.bury(item, reason="x" * 513)
    await queue.commit(item)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Surrogate(Exception):
    def __str__(self) -> str:
        return "\ud800 and more" * 10_000


@pytest.mark.parametrize(
    ("error", "message"),
    [(Mute(), "(its text cannot be made: RuntimeError)"), (Surrogate(), "\\ud800 and more\\ud800")],
)
async def test_an_error_whose_text_cannot_be_stored_is_kept_as_well_as_it_can(
    shell: Shell, error: Exception, message: str
) -> None:
    queue = shell.queue()
    await queue.push(1)
    await queue.rollback(await queue.reserve(), error=error)
    details = (await queue.reserve()).error
    assert details.message.startswith(message)
    assert len(details.message.encode()) <= 4096


@pytest.mark.every_shell("motor")
async def test_a_closed_broker_says_so(shell: Shell) -> None:
    broker = shell.another()
    queue = broker.queue("orders")
    await broker.close()
    await broker.close()
    with pytest.raises(mongoq.BrokerClosed, match="closed"):
        await queue.push(1)


@pytest.mark.parametrize("value", [0, []], ids=repr)
async def test_headers_that_are_no_document_do_not_remove_headers(shell: Shell, value: Any) -> None:
    queue = shell.queue()
    await queue.push(1, headers={"h": 1})
    item = await queue.reserve()
    with pytest.raises(mongoq.PayloadInvalid, match="^headers: a document"):
        await queue.move(item, "next", headers=value)
    await queue.commit(item)


FOREIGN: list[dict[str, Any]] = [
    {"attempts": "0"},
    {"attempts": None},
    {"attempts": 2**63 - 1},
    {"once": "2020"},
    {"error": "text"},
    {"origin": {}},
    {"headers": 5},
    {"by": 5, "token": "x"},
]


@pytest.mark.parametrize("take", ["reserve", "pop", "pop with history"])
async def test_a_document_of_another_program_does_not_block_the_queue(shell: Shell, take: str) -> None:
    queue = shell.queue(history=60 if "history" in take else None)
    envelope = {"q": "orders", "when": shell.clock.now(), "priority": 0, "reserved": False, "attempts": 0}
    shell.raw.insert_many([{**envelope, "payload": f"odd {n}", **fields} for n, fields in enumerate(FOREIGN)])
    await queue.push("good", priority=1)
    payloads = []
    while (item := await (queue.reserve() if take == "reserve" else queue.pop())) is not None:
        payloads.append(item.payload)
    assert payloads[-1] == "good"
    dead = [item.payload for item in await queue.dead.peek(99)]
    assert sorted(payloads + dead) == ["good", *(f"odd {n}" for n in range(len(FOREIGN)))]


async def test_a_time_outside_of_the_years_of_utc_is_named_with_the_reason(shell: Shell) -> None:
    time = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    queue, reason = shell.queue(), "lies beyond the years 1 to 9999 in UTC"
    await queue.push("held")
    item = await queue.reserve()
    calls: list[tuple[str, Any]] = [
        (r"payload.a\[0\].at", lambda: queue.push({"a": [{"at": time}]})),
        (r"payloads\[1\]", lambda: queue.push_many([1, time])),
        ("headers.at", lambda: queue.push(1, headers={"at": time})),
        ("when", lambda: queue.push(1, when=time)),
        ("when", lambda: queue.push_many([1], when=time)),
        ("when", lambda: queue.move(item, "next", when=time)),
        ("payload", lambda: queue.commit(item, payload=time)),
        ("patch.*at", lambda: queue.move(item, "next", patch={"$set": {"at": time}})),
        ("since", lambda: queue.replay(since=time)),
        ("until", lambda: queue.replay(until=time)),
        ("where.at", lambda: queue.replay(where={"at": {"$gt": time}})),
    ]
    for argument, call in calls:
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{argument}.*: {reason}"):
            await call()
    for bounds in ({"since": time}, {"until": time}):
        with pytest.raises(mongoq.ArgumentInvalid, match=reason):
            [each async for each in queue.history(**bounds)]
    await queue.release(item)
    assert [each.payload for each in await queue.peek(9)] == ["held"]


def test_a_delay_beyond_the_last_year_is_named() -> None:
    with VirtualBroker(clock=mongoq.VirtualClock(datetime(9999, 12, 31, tzinfo=UTC))) as virtual:
        queue = virtual.queue("orders")
        for push in (queue.push, lambda payload, **options: queue.push_many([payload], **options)):
            with pytest.raises(mongoq.ArgumentInvalid, match="delay: ends beyond the year 9999"):
                push(1, delay=timedelta(days=2))
