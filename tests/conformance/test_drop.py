"""Queues that are dropped: what is deleted, what is refused, and what is left alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

DAY = timedelta(days=1)


def _remaining(shell: Shell, name: str) -> list[Any]:
    """Return the ids of all that is stored of a queue."""
    documents = shell.raw.find({"$or": [{"q": name}, {"_id": {"$in": [f"queue:{name}", f"stats:{name}"]}}]})
    return [document["_id"] for document in documents]


async def _used(shell: Shell, name: str = "orders") -> Any:
    """A queue with settings, counters, a history, a remembered id and a mark, and without live items."""
    queue = shell.queue(name, history=DAY, lease=7)
    await queue.push("kept")
    await queue.commit(await queue.reserve())
    await queue.configure(history=None)
    other = shell.another()
    await other.queue(name).push("remembered", id=ObjectId())
    await queue.commit(await queue.reserve())
    shell.raw.insert_one({"_id": f"end:-3:{name}", "q": name, "priority": -3})
    await other.close()  # writes its counters
    return queue


@pytest.mark.every_shell("mongomock")
async def test_nothing_is_left_of_it_and_all_of_others(shell: Shell) -> None:
    await _used(shell)
    await _used(shell, "orders.dead")
    await _used(shell, "orders2")
    before = _remaining(shell, "orders.dead"), _remaining(shell, "orders2")
    assert len(_remaining(shell, "orders")) == 5
    assert await shell.broker.drop_queue("orders") == 0
    assert _remaining(shell, "orders") == []
    assert (_remaining(shell, "orders.dead"), _remaining(shell, "orders2")) == before
    assert "orders" not in await shell.broker.queues()
    assert "orders" not in await shell.another().stats()


@pytest.mark.parametrize("state", ["ready", "scheduled", "expired"])
async def test_a_queue_that_holds_live_items_is_refused(shell: Shell, state: str) -> None:
    queue = await _used(shell)
    for _ in range(3):
        await queue.push(1, delay=60 if state == "scheduled" else 0)
        if state == "expired":
            await queue.reserve(lease=5)
    if state == "expired":
        shell.clock.advance(6)
    before = sorted(map(str, _remaining(shell, "orders")))
    with pytest.raises(mongoq.QueueNotEmpty) as caught:
        await shell.broker.drop_queue("orders")
    assert (caught.value.queue, caught.value.items) == ("orders", 3)
    assert sorted(map(str, _remaining(shell, "orders"))) == before


async def test_force_throws_live_items_away(shell: Shell) -> None:
    queue = await _used(shell)
    for n in range(3):
        await queue.push(n)
    item = await queue.reserve()
    assert await shell.broker.drop_queue("orders", force=True) == 3
    assert _remaining(shell, "orders") == []
    with pytest.raises(mongoq.ReservationLost):
        await queue.extend(item)


async def test_a_pause_is_gone_with_it_in_every_process(shell: Shell) -> None:
    queue = shell.queue()
    await queue.pause()
    handle = shell.another().queue("orders")
    assert await handle.is_paused()
    await shell.broker.drop_queue("orders")
    assert not await handle.is_paused()
    await queue.push(1)
    assert (await queue.reserve()).payload == 1


async def test_options_in_code_are_stored_again_when_any_handle_is_used(shell: Shell) -> None:
    queue, plain = await _used(shell), shell.queue()
    await shell.broker.drop_queue("orders")
    assert plain.settings == queue.settings
    await plain.push(1)
    assert shell.raw.find_one({"_id": "queue:orders"})["settings"] == {"history": None, "lease": 7.0}


async def test_its_counters_begin_anew(shell: Shell) -> None:
    await _used(shell)
    queue = shell.queue()
    await queue.push(1)
    await queue.pop()  # counted, and not written yet
    await shell.broker.drop_queue("orders")
    await queue.push(2)
    await shell.broker.close()
    assert (await shell.another().stats())["orders"].put == 1
    assert shell.raw.find_one({"_id": "stats:orders"}) == {"_id": "stats:orders", "put": 1}


async def test_bindings_stay(shell: Shell) -> None:
    shell.raw.insert_one({"_id": "topics:mongoq", "bound": [{"topic": "news", "queue": "orders"}]})
    await _used(shell)
    await shell.broker.drop_queue("orders")
    assert await shell.broker.bindings() == {"news": ("orders",)}


async def test_what_cannot_be_used_is_named(shell: Shell) -> None:
    await shell.queue().push(1)
    for name, options, argument in (("$x", {}, "queue"), (7, {}, "queue"), ("orders", {"force": 1}, "force")):
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await shell.broker.drop_queue(name, **options)
        assert caught.value.argument == argument
    assert await shell.queue().size() == 1
