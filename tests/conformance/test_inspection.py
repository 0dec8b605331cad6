"""What people and monitoring ask for: selections of items, reads of all queues, exports and imports, on every shell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

LATE = {"delay": 120, "expires": 60}
"""An item that could never start."""


async def die(queue: Any, reason: str) -> Any:
    item = await queue.reserve()
    await queue.bury(item, reason=reason, error=ValueError("no city"))
    return item.id


@pytest.mark.every_shell
async def test_a_selection_counts_and_reads_its_items(shell: Shell) -> None:
    queue = shell.queue(history=60)
    for n in range(6):
        await queue.push({"n": n}, delay=100 if n == 5 else 0)
    await queue.reserve()
    await queue.pop()
    later = queue.select(where={"n": {"$gte": 3}})
    assert await later.count() == await later.count(free=True) == mongoq.BoundedCount(3)
    assert await queue.select().count(free=True) == mongoq.BoundedCount(4)  # all but the one that a caller holds
    assert await queue.select().count(2) == mongoq.BoundedCount(3, exact=False)
    assert [item.payload["n"] for item in await later.read(2)] == [3, 4]
    assert [[item.payload["n"] for item in items] async for items in later.pages()] == [[3, 4, 5]]
    items, behind = await queue.select(state="processed").read_slice()
    assert ([item.payload["n"] for item in items], behind) == ([1], None)


async def test_the_time_of_a_count_keeps_later_items_out_of_a_change(shell: Shell) -> None:
    queue = shell.queue()
    # An id says the second of its push, by the clock of this machine, which the clock of the test does not follow.
    await queue.push("counted", id=ObjectId("65f0c0ffee65f0c0ffee0001"))
    await die(queue, "one")
    counted_at = await shell.broker.inspect().now()
    shell.clock.advance(2)
    await queue.push("later")
    assert await queue.select(as_of=counted_at).count() == mongoq.BoundedCount(0)
    assert await queue.purge(as_of=counted_at) == 0
    await die(queue, "two")
    letters = queue.dead
    assert await letters.select(as_of=counted_at).count(free=True) == mongoq.BoundedCount(1)
    pages: list[int] = []
    done = await letters.replay(as_of=counted_at, progress=lambda far: pages.append(far.pushed))
    assert (done.pushed, pages) == (1, [1])
    assert await letters.purge(as_of=counted_at) == 0
    assert await letters.size() == 1


async def test_dead_letters_are_found_and_grouped(shell: Shell) -> None:
    queue = shell.queue()
    for reason in ("stock", "stock", "city"):
        await queue.push(reason)
        await die(queue, reason)
    letters = await shell.broker.inspect().dead_queue("orders")
    assert (letters.name, letters.letters_of) == ("orders.dead", None)
    chosen = letters.select(error="ValueError")
    groups, more = await chosen.groups(groups=1)
    assert [(group.reason, group.number) for group in groups] == [("stock", 2)]
    assert not more
    assert await chosen.releases() == ([], 0)
    with pytest.raises(mongoq.QueueUnknown):
        await shell.broker.inspect().dead_queue("ordres")


async def test_items_of_sequences_say_what_they_wait_for_and_hold(shell: Shell) -> None:
    queue, inspection = shell.queue(), shell.broker.inspect()
    await queue.configure(on_dead="hold")
    for n in range(2):
        await queue.push(n, sequence="a")
    [blocked] = await queue.peek(state="blocked")
    first = await queue.peek()
    assert await inspection.blockers([blocked]) == {"a": [{"id": str(first[0].id), "state": "ready"}]}
    id = await die(queue, "stock")
    [letter] = await queue.dead.peek()
    assert await inspection.holders([letter]) == [True]
    assert await inspection.holders([]) == []
    assert await inspection.held_sequences() == {"orders": mongoq.BoundedCount(1)}
    assert await inspection.stuck_sequences() == {"orders": mongoq.BoundedCount(0)}
    releases, _ = await queue.dead.select(ids=[id]).releases()
    assert [(each.queue, each.sequence, each.first) for each in releases] == [("orders", "a", blocked.id)]


@pytest.mark.every_shell
async def test_an_inspection_reads_all_queues(shell: Shell) -> None:
    queue, inspection = shell.queue(), shell.broker.inspect(within=30)
    await queue.configure(lease=20)
    id = await queue.push("a", key="k")
    [found] = await inspection.queues()
    assert (found.name, found.ready, found.dead_queue) == ("orders", mongoq.BoundedCount(1), "orders.dead")
    assert [each.name for each in await inspection.queues(["orders"], budget=10)] == ["orders"]
    assert (await inspection.settings("orders")).stored == {"lease"}
    assert (await inspection.events()).keys() <= {"orders"}
    assert [await inspection.is_known(name) for name in ("orders", "others")] == [True, False]
    await inspection.check_known("orders")
    with pytest.raises(mongoq.QueueUnknown):
        await inspection.check_known("ordres")
    assert "keeps no history" in await inspection.explain_no_history("orders")
    item = await inspection.item(id)
    assert (item.payload, item.problem) == ("a", None)
    assert await inspection.item(ObjectId()) is None
    assert [await inspection.has_key("orders", key) for key in ("k", "other")] == [True, False]
    assert (await inspection.workers(), await inspection.schedules(), await inspection.unusable()) == ([], [], [])
    with pytest.raises(mongoq.ScheduleUnknown):
        await inspection.schedule("daily")
    assert shell.broker.collection.name == shell.raw.name


async def test_a_change_of_settings_can_be_tried(shell: Shell) -> None:
    queue = shell.queue()
    await queue.configure(lease=20)
    after = await queue.configure(dead=None, dry_run=True)
    assert (after.lease.total_seconds(), after.dead, after.max_retries) == (20, None, None)
    assert (await queue.configure(lease=20)).dead == "orders.dead"
    for bad in ({"burst": 3}, {"existing": True}, {}):
        with pytest.raises(mongoq.ArgumentInvalid):
            await queue.configure(**bad, dry_run=True)


async def test_the_first_call_of_a_broker_may_choose_by_a_time(shell: Shell) -> None:
    """No server has told its time yet."""
    queue, moment = shell.queue(), datetime.now(UTC)
    assert await queue.dead.select(as_of=moment).count() == mongoq.BoundedCount(0)
    for bad in (moment.replace(tzinfo=None), "yesterday"):
        with pytest.raises(mongoq.ArgumentInvalid, match="as_of"):
            queue.select(as_of=bad)
    with pytest.raises(mongoq.ArgumentInvalid, match="groups"):
        await queue.select().groups(groups=0)


async def test_the_first_call_of_a_broker_may_try_an_import(shell: Shell) -> None:
    queue = shell.queue(history=60)
    exported = {"id": ObjectId(), "payload": 1, "processed": datetime.now(UTC), "priority": 0, "attempts": 1}
    assert (await queue.import_items([exported], dry_run=True)).pushed == 1


async def test_a_push_can_be_checked(shell: Shell) -> None:
    queue = shell.queue()
    queue.check_push([{"n": 1}], delay=5, priority=3, headers={"a": "b"}, key="k", expires=60)
    for bad in (
        {"priority": 101},
        {"delay": -1},
        {"key": ""},
        {"sequence": "a", "key": "k"},
        {"expires": "soon"},
        LATE,
    ):
        with pytest.raises(mongoq.ArgumentInvalid):
            queue.check_push([], **bad)
    with pytest.raises(mongoq.PayloadInvalid):
        queue.check_push([1, object()])
    for none in ("ab", {"a": 1}, None):
        with pytest.raises(mongoq.ArgumentInvalid, match="payloads"):
            queue.check_push(none)
    assert await queue.size() == 0


async def test_exported_items_can_be_imported_elsewhere(shell: Shell) -> None:
    queue, other = shell.queue(history=60), shell.queue("copies", history=60)
    await queue.push("done")
    await queue.pop()
    await queue.push("live", priority=3, headers={"a": "b"})
    chosen = queue.select(), queue.select(state="processed")
    items = [item for each in chosen async for found, _ in each.export() for item in found]
    assert [item["payload"] for item in items] == ["live", "done"]
    shell.raw.delete_many({"q": "orders"})
    other.check_import(items)
    assert (await other.import_items(items, dry_run=True)).pushed == 2
    assert await other.size() == 0
    assert (await other.import_items(items)).pushed == 2
    assert (await other.import_items(items)).already == 2
    [item] = await other.peek()
    assert (item.payload, item.priority, item.headers) == ("live", 3, {"a": "b"})
    with pytest.raises(mongoq.ArgumentInvalid):
        await other.import_items([{"payload": 1}])
