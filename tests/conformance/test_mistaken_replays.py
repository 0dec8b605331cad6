"""Replays that find nothing because the call was a mistake, and those that find nothing rightly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

DAY = timedelta(days=1)


async def _letter(queue: Any, payload: Any = 1) -> ObjectId:
    id = await queue.push(payload)
    await queue.bury(await queue.reserve(), reason="bad")
    return id


@pytest.mark.parametrize("options", [{}, {"where": {"$eq": 1}}, {"dry_run": True, "to": "elsewhere"}], ids=str)
async def test_letters_are_not_the_history_of_their_queue(shell: Shell, options: Any) -> None:
    id = await _letter(shell.queue("mails"))
    for selection in ({}, {"ids": [id]} if not options.keys() & {"where"} else {}):
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await shell.queue("mails.dead").replay(**options, **selection)
        assert "broker.queue('mails').dead.replay()" in str(caught.value)
    assert await shell.queue("mails").dead.size() == 1


async def test_a_dead_queue_with_a_name_of_its_own_is_one_as_well(shell: Shell) -> None:
    await _letter(shell.queue("mails", dead="graves"))
    with pytest.raises(mongoq.ArgumentInvalid, match=r"broker\.dead_queue\('graves'\)\.replay\(\)"):
        await shell.queue("graves").replay()
    assert (await shell.broker.dead_queue("graves").replay()).pushed == 1


async def test_letters_of_a_pipeline_are_named_by_the_queue_that_holds_them(shell: Shell) -> None:
    """Its error queue is stored nowhere as a dead queue."""
    id = await _letter(shell.queue("mails"))
    shell.raw.update_one({"_id": id}, {"$set": {"q": "errors", "origin.stage": "send"}})
    for replay in (shell.queue("mails").dead.replay, shell.broker.dead_queue("send").replay):
        with pytest.raises(mongoq.ArgumentInvalid, match=r"broker\.dead_queue\('errors'\)\.replay\(\)"):
            await replay()
    with pytest.raises(mongoq.ArgumentInvalid, match=r"broker\.dead_queue\('errors'\)\.replay\(\)"):
        await shell.queue("errors").replay()
    assert (await shell.broker.dead_queue("errors").replay()).pushed == 1


async def test_a_dead_queue_that_keeps_history_is_replayed_from_it(shell: Shell) -> None:
    queue = shell.queue("mails")
    await _letter(queue)
    graves = shell.queue("mails.dead", history=DAY)
    await graves.commit(await graves.reserve())
    await _letter(queue)
    assert (await graves.replay(to="again")).pushed == 1
    assert (await graves.replay(to="again", where={"$eq": "another"})).found == 0


Replay = Callable[[Shell, str], Any]
WAYS: dict[str, Replay] = {
    "the dead queue of a queue": lambda shell, name: shell.queue(name).dead.replay(),
    "a dead queue by its name": lambda shell, name: shell.broker.dead_queue(f"{name}.dead").replay(),
    "its history": lambda shell, name: shell.queue(f"{name}.dead").replay(),
    "chosen ids": lambda shell, name: shell.queue(name).dead.replay(ids=[ObjectId()]),
    "a filter": lambda shell, name: shell.queue(name).dead.replay(where={"a": 1}),
}


async def test_a_name_with_a_slip_in_it_is_reported_with_the_nearest_ones(
    shell: Shell,
) -> None:
    for name in ("mail", "invoices", "shop.orders", "zebras"):
        await _letter(shell.queue(name))
    for slip, right in (("mial", "mail"), ("invoces", "invoices"), ("shop.oders", "shop.orders")):
        for replay in WAYS.values():
            with pytest.raises(mongoq.QueueUnknown) as caught:
                await replay(shell, slip)
            assert caught.value.nearest[0] == f"{right}.dead"
            assert repr(f"{right}.dead") in str(caught.value)


async def test_a_history_is_looked_for_by_near_names_too(shell: Shell) -> None:
    queue = shell.queue("invoices", history=DAY)
    await queue.push(1)
    await queue.pop()
    with pytest.raises(mongoq.QueueUnknown, match="'invoices'"):
        await shell.queue("invoises").replay(to="again")


async def test_a_queue_that_is_not_used_yet_has_nothing_to_replay(shell: Shell) -> None:
    for way, replay in WAYS.items():
        assert (await replay(shell, "reports")).found == 0, way
    for used in ("mails", "tenant-7", "shop.orders"):
        await _letter(shell.queue(used))
    for name in ("reports", "tenant-8", "shop.errors", "x"):
        for way, replay in WAYS.items():
            assert (await replay(shell, name)).found == 0, (way, name)


@pytest.mark.parametrize("trace", ["items", "letters", "settings", "counters", "a topic", "its owner"])
async def test_a_queue_that_has_left_a_trace_is_known(shell: Shell, trace: str) -> None:
    await _letter(shell.queue("mails"))
    queue = shell.queue("mals")
    if trace == "items":
        await queue.push(1)
    elif trace == "letters":
        other = shell.another()
        await _letter(other.queue("mals"))
        await other.queue("mals").dead.purge()
        await other.close()  # writes the counters
    elif trace == "settings":
        await queue.configure(lease=5)
    elif trace == "counters":
        shell.raw.insert_one({"_id": "stats:mals", "put": 1})
    elif trace == "a topic":
        shell.raw.insert_one({"_id": "topics:mongoq", "bound": [{"topic": "all", "queue": "mals"}]})
    else:
        await shell.queue("another", dead="mals.dead").configure(lease=5)
    assert (await queue.dead.replay()).found == 0


async def test_looking_at_a_name_with_a_slip_in_it_finds_nothing_as_ever(shell: Shell) -> None:
    await _letter(shell.queue("mails"))
    dead = shell.queue("mals").dead
    assert await dead.peek(5) == []
    assert await dead.reserve() is None
    assert await dead.purge() == 0
    assert [item async for item in dead.history(state=None)] == []
    assert (await dead.replay(ids=[])).found == 0
