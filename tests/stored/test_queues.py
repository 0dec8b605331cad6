"""The current code reads and continues queues from the documents of earlier versions."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell
from tests.stored import inside
from tests.stored.dump import HERE, Dump, kind
from tests.stored.story import LONG, Order
from tests.stored.write import LIFT, REPORT, VALUES

DAY = timedelta(days=1)
HELD = HERE / "2026-11-27b.jsonl"
"""The first dump with a sequence that a dead letter holds."""
LATER = HERE / "2026-11-28.jsonl"
"""The first dump with a schedule that expires, and with an item that a rate has put off."""
NEW = [HERE / "2026-11-27.jsonl", HELD, LATER]
"""The first dumps with items that expire, sequences and schedules."""


def id_of(number: int) -> ObjectId:
    """Return an id that the writer chose."""
    return ObjectId(f"{number:024x}")


async def taken(queue: Any) -> list[Any]:
    """Reserve all eligible items, one by one."""
    items = []
    while item := await queue.reserve():
        items.append(item)
    return items


async def done(queue: Any) -> list[Any]:
    """Reserve and commit all eligible items, one by one, and return their payloads."""
    values = []
    while item := await queue.reserve():
        values.append(item.payload)
        await queue.commit(item)
    return values


async def payloads(queue: Any) -> list[Any]:
    return [item.payload for item in await queue.peek(100)]


# --- items -----------------------------------------------------------------------------------


async def test_items_come_in_their_order_with_all_that_they_hold(shell: Shell) -> None:
    items = await taken(shell.queue())
    assert [(item.payload, item.priority, item.attempts) for item in items] == [
        ("first of all", -10, 1),
        ("released", -9, 1),
        ("its lease is over", -8, 2),
        ("plain", 0, 1),
        (VALUES, 0, 1),
        ("last of all", 100, 1),
    ]
    assert items[0].headers == {"by": "Cleo", "n": 1}
    for item in items:
        await shell.queue().commit(item)
    assert len([item async for item in shell.queue().history()]) == 4 + 6


async def test_a_payload_of_a_model_comes_back_equal(shell: Shell) -> None:
    assert (await shell.queue("typed", model=Order).pop()).payload == LIFT


async def test_an_item_that_was_moved_has_what_the_move_gave_it(shell: Shell) -> None:
    [moved, waiting] = await taken(shell.queue("parcels"))
    assert (moved.payload, moved.priority, moved.key, moved.headers) == ("moved on", -7, "parcel-1", {"by": "Bob"})
    assert waiting.payload == "waits in line"


async def test_a_lease_that_runs_holds_until_it_ends(shell: Shell) -> None:
    queue = shell.queue()
    [leased] = await queue.peek(10, state="reserved")
    assert (leased.payload, leased.attempts) == ("held", 1)
    assert "held" not in [item.payload for item in await taken(queue)]
    shell.clock.advance(leased.lease_until - shell.clock.now())
    again = await queue.reserve()
    assert (again.payload, again.attempts, again.id) == ("held", 2, leased.id)


async def test_a_scheduled_item_comes_when_it_is_due(shell: Shell) -> None:
    queue = shell.queue()
    for item in await taken(queue):
        await queue.commit(item)
    [later] = await queue.peek(10, state="scheduled")
    assert later.payload == "later"
    assert await queue.next_when() == later.due
    shell.clock.advance(later.due - shell.clock.now())
    assert (await queue.reserve()).id == later.id


async def test_a_failed_item_has_its_error_and_the_rest_of_its_retries(shell: Shell) -> None:
    queue = shell.queue("retries")
    [failed] = await taken(queue)
    assert (failed.payload, failed.attempts) == ("failed with an error", 2)
    assert (failed.error.type, failed.error.message) == ("ConnectionError", "no answer")
    assert "raise ConnectionError(text)" in failed.error.traceback
    await queue.rollback(failed, error="again")
    [letter] = await queue.dead.peek(10)
    assert (letter.id, letter.origin.attempts, letter.error.message) == (failed.id, 2, "again")
    shell.clock.advance(DAY)
    retried = await queue.reserve()
    assert (retried.payload, retried.error.type, retried.error.message) == ("failed with a text", "", "no reply")


async def test_items_that_may_have_killed_their_holder_come_last_and_alone(shell: Shell) -> None:
    queue = shell.queue("batches")
    fresh = await queue.reserve_many(10)
    assert [item.payload for item in fresh] == ["not yet had 1", "not yet had 2"]
    await queue.commit_many(fresh)
    for n in (1, 2):
        [suspect] = await queue.reserve_many(10)
        assert (suspect.payload, suspect.attempts) == (f"suspect {n}", 2)
        await queue.commit(suspect)


# --- settings --------------------------------------------------------------------------------


async def test_settings_are_adopted(shell: Shell) -> None:
    queue = shell.queue("set", lease=5, max_retries=1, history=None, dead="elsewhere")
    item = await queue.reserve()
    assert item.lease_until - shell.clock.now() == timedelta(seconds=90.5)
    settings = queue.settings
    assert (settings.lease, settings.history) == (timedelta(seconds=90.5), LONG)
    assert (settings.max_retries, settings.dead) == (7, "set.letters")


async def test_settings_that_are_none_are_adopted(shell: Shell) -> None:
    unset, final = shell.queue("unset", history=DAY, max_retries=3), shell.queue("final")
    assert await unset.reserve() is None
    assert await final.reserve() is None
    assert (unset.settings.history, unset.settings.max_retries, final.settings.dead) == (None, None, None)


async def test_a_pause_holds_until_the_queue_is_resumed(shell: Shell) -> None:
    queue = shell.queue("paused")
    assert await queue.is_paused()
    assert await queue.reserve() is None
    await queue.resume()
    assert (await queue.reserve()).payload == "it waits"
    resumed = shell.queue("resumed")
    assert not await resumed.is_paused()
    assert (await resumed.pop()).payload == "it does not wait"


# --- dead letters ----------------------------------------------------------------------------


async def test_dead_letters_tell_where_they_come_from(shell: Shell) -> None:
    buried, beyond, died = await shell.queue("invoices").dead.peek(10)
    assert (buried.payload, buried.headers, buried.key) == ("buried", {"by": "Ada"}, None)
    origin = buried.origin
    assert (origin.queue, origin.reason, origin.key) == ("invoices", "no such customer", "invoice-1")
    assert (origin.id, origin.attempts) == (buried.id, 1)
    assert (beyond.payload, beyond.origin.attempts, beyond.error.message) == ("beyond its retries", 1, "no paper")
    assert (died.payload, died.origin.attempts, died.error) == ("its worker died", 1, None)


async def test_dead_letters_go_back_to_the_queue_that_they_died_in(shell: Shell) -> None:
    result = await shell.queue("invoices").dead.replay()
    assert (result.found, result.pushed) == (3, 3)
    back = await taken(shell.queue("invoices"))
    assert [item.payload for item in back] == ["buried", "beyond its retries", "its worker died"]
    assert [(item.key, item.attempts) for item in back] == [("invoice-1", 1), (None, 1), (None, 1)]
    assert (await shell.broker.dead_queue("graveyard").replay()).pushed == 2
    for name in ("notes", "memos"):
        [item] = await taken(shell.queue(name))
        assert item.payload == f"of {name}"


# --- ids and keys ----------------------------------------------------------------------------


async def test_an_id_that_is_remembered_is_not_pushed_again(shell: Shell) -> None:
    before = list(shell.raw.find({"_id": {"$type": "objectId"}}))
    for number in (1, 2, 3, 4):
        assert await shell.queue("charges").push("again", id=id_of(number)) == id_of(number)
        with pytest.raises(mongoq.DuplicateItem):
            await shell.queue("elsewhere").push("again", id=id_of(number))
    assert list(shell.raw.find({"_id": {"$type": "objectId"}})) == before


async def test_a_kept_item_is_remembered_by_its_id_for_longer_than_it_is_kept(shell: Shell) -> None:
    queue = shell.queue("kept")
    [kept_item] = [item async for item in queue.history()]
    assert (kept_item.id, kept_item.payload) == (id_of(5), "kept")
    assert await queue.push("again", id=kept_item.id) == kept_item.id
    assert await queue.reserve() is None
    document = shell.raw.find_one({"_id": kept_item.id})
    assert document["expires"] == document["once"] > kept_item.processed + DAY


async def test_an_item_with_a_remembered_id_leaves_a_stub_when_it_is_settled(shell: Shell) -> None:
    queue = shell.queue("charges")
    await queue.commit(await queue.reserve())
    stub = shell.raw.find_one({"_id": id_of(4)})
    earlier = shell.raw.find_one({"_id": id_of(1)})
    assert stub.keys() == earlier.keys()
    assert stub["expires"] == stub["once"]


async def test_a_key_is_taken_as_long_as_its_item_is_live(shell: Shell) -> None:
    queue = shell.queue("reports")
    for key in ("ready", "scheduled", "held"):
        document = shell.raw.find_one({"q": "reports", "key": key})
        assert await queue.push("another", key=key) == document["_id"]
        with pytest.raises(mongoq.DuplicateItem) as refused:
            await queue.push("another", key=key, on_duplicate="raise")
        assert refused.value.item_id == document["_id"]
        assert await queue.push("the latest", key=key, on_duplicate="replace") == document["_id"]
        item = await queue.get(document["_id"])
        assert (item.payload, item.state, item.token) == ("the latest", "ready", None)
        assert shell.raw.count_documents({"q": "reports", "key": key}) == 1


async def test_a_key_is_free_once_its_item_is_done(shell: Shell) -> None:
    queue = shell.queue("reports")
    [processed] = [item async for item in queue.history()]
    assert processed.key == "free"
    assert await queue.push("another", key="free", on_duplicate="raise") != processed.id


# --- history and replay ----------------------------------------------------------------------


async def test_history_is_filtered(shell: Shell) -> None:
    queue = shell.queue()
    items = [item async for item in queue.history()]
    assert [item.payload for item in items] == ["committed", {"what": "patched", "n": 42}, "the result", "popped"]
    assert [item.attempts for item in items] == [1, 1, 1, 1]
    assert (items[0].headers, items[2].key) == ({"by": "Ada"}, "order-1")
    assert [item.id async for item in queue.history(where={"n": {"$gt": 40}})] == [items[1].id]
    assert [item.id async for item in queue.history(where={"$in": ["popped"]})] == [items[3].id]
    assert [item async for item in queue.history(since=shell.clock.now())] == []
    assert len([item async for item in queue.history(until=shell.clock.now(), page=1)]) == 4


async def test_kept_items_are_kept_longer_after_configure_with_existing(shell: Shell) -> None:
    await shell.queue().configure(history=2 * LONG, existing=True)
    for document in shell.raw.find({"q": "orders", "processed": {"$exists": True}}):
        assert document["expires"] == document["processed"] + 2 * LONG


async def test_a_replay_goes_on_where_it_was_ended(shell: Shell) -> None:
    again, queue = shell.queue("again"), shell.queue("done")
    result = await queue.replay(to="again")
    assert (result.found, result.already, result.pushed) == (4, 2, 2)
    copies = await taken(again)
    assert [(copy.payload["n"], copy.priority, copy.origin.key) for copy in copies] == [
        (n, n, f"done-{n}") for n in range(4)
    ]
    assert {(copy.origin.queue, copy.origin.reason, copy.headers["by"]) for copy in copies} == {
        ("done", "replayed", "Ada")
    }
    await again.commit_many(copies)
    assert (await queue.replay(to="again")).pushed == 0


async def test_a_replay_goes_on_behind_a_position(shell: Shell) -> None:
    queue = shell.queue("done")
    second = [item async for item in queue.history()][1]
    result = await queue.replay(to="again", after=(second.processed, second.id))
    assert (result.found, result.already, result.pushed) == (2, 0, 2)


async def test_a_copy_that_a_replay_made_is_replayed_no_more(shell: Shell) -> None:
    queue = shell.queue("done")
    [copy] = await taken(queue)
    assert (copy.payload, copy.origin.reason) == ({"n": 3}, "replayed: once more")
    await queue.commit(copy)
    assert len([item async for item in queue.history()]) == 5
    result = await queue.replay(label="once more")
    assert (result.found, result.already, result.pushed) == (4, 1, 3)


# --- topics ----------------------------------------------------------------------------------


async def test_bindings_route(shell: Shell) -> None:
    assert await shell.broker.bindings() == {"news": ("mail", "archive"), "alerts": ("pager",)}
    id = await shell.queue("news").push("today")
    for name in ("mail", "archive"):
        items = await taken(shell.queue(name))
        assert [item.payload for item in items] == ["published", "published under an id", "today"]
        assert {(item.origin.queue, item.origin.reason) for item in items} == {("news", "published")}
        assert (items[0].headers, items[1].origin.id, items[2].origin.id) == ({"by": "Ada"}, id_of(6), id)
    assert await shell.broker.unbind("alerts") == ()
    await shell.queue("alerts").push("water")
    assert await payloads(shell.queue("alerts")) == ["water"]
    assert await payloads(shell.queue("pager")) == ["fire"]


async def test_a_publication_with_an_id_is_not_published_again(shell: Shell) -> None:
    await shell.queue("mail").commit_many(await taken(shell.queue("mail")))
    await shell.queue("news").push("published under an id", id=id_of(6))
    assert await payloads(shell.queue("mail")) == []
    assert await payloads(shell.queue("archive")) == ["published", "published under an id"]


# --- looking ---------------------------------------------------------------------------------


def counted(dump: Dump, queue: str) -> Counter[str]:
    """Count the live items of a queue by state, from its documents."""
    live = [document for document in dump.documents if kind(document) in (f"{queue}, waiting", f"{queue}, reserved")]
    names = {(False, True): "ready", (False, False): "scheduled", (True, True): "expired", (True, False): "reserved"}
    return Counter(
        names[document["reserved"], document["when"] <= dump.now] if "when" in document else "blocked"
        for document in live
    )


async def test_stats_and_counts_agree_with_the_documents(shell: Shell, dump: Dump) -> None:
    stats = await shell.broker.stats()
    queues = {document["q"] for document in dump.documents if "q" in document and isinstance(document["_id"], ObjectId)}
    assert set(await shell.broker.queues()) == queues
    for name in queues:
        expected = counted(dump, name)
        for counts in (stats[name].counts, await shell.queue(name).counts()):
            assert {state: getattr(counts, state) for state in expected} == expected
            assert counts.total == expected.total()
    for counters in (document for document in dump.documents if kind(document) == "stats:"):
        name = counters["_id"].removeprefix("stats:")
        events = {event: number for event, number in counters.items() if event not in ("_id", "expires")}
        assert {event: getattr(stats[name], event) for event in events} == events


async def test_counters_go_on(shell: Shell) -> None:
    before = (await shell.broker.stats())["orders"]
    await shell.queue().push(1)
    await shell.queue().pop()
    await shell.broker.close()
    counters = shell.raw.find_one({"_id": "stats:orders"})
    assert (counters["put"], counters["get"]) == (before.put + 1, before.get + 1)


async def test_a_trail_is_read(shell: Shell) -> None:
    [line] = [item async for item in shell.queue("lines").history()]
    assert line.hops == 2
    hops = await shell.broker.trail(line.id)
    assert hops == line.trail
    assert [(hop.queue, hop.stage, hop.ended, hop.to) for hop in hops] == [
        ("raw", "check", "moved", "checked"),
        ("checked", "split", "moved", "lines"),
        ("lines", "pack", "done", None),
    ]
    assert [(hop.kept, hop.large) for hop in hops] == [(False, True), (True, False), (True, False)]
    assert hops[1].payload["skus"] == ["bolt", "nut"]


async def test_workers_are_listed_until_they_are_gone(shell: Shell) -> None:
    records = await shell.broker.workers()
    assert sorted(worker.queues["jobs"] for worker in records if worker.queues) == [0, 1]
    assert all(worker.alive and worker.host == "host" and worker.pid > 0 for worker in records)
    shell.clock.advance(60)
    assert not any(worker.alive for worker in await shell.broker.workers())


async def test_a_queue_is_dropped_with_all_that_is_stored_of_it(shell: Shell) -> None:
    for name in ("orders", "done", "kept", "charges", "forgotten"):
        await shell.broker.drop_queue(name, force=True)
        remaining = shell.raw.count_documents({"q": name})
        controls = [f"queue:{name}", f"stats:{name}", f"end:0:{name}"]
        assert remaining + shell.raw.count_documents({"_id": {"$in": controls}}) == 0


# --- idle queues, halts, marks ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["resting", "forgotten"])
async def test_an_idle_queue_that_is_used_stays(shell: Shell, name: str) -> None:
    assert "idle" in shell.raw.find_one({"_id": f"queue:{name}"})
    await shell.queue(name).push(1)
    await shell.broker.close()  # a process writes within five seconds, or when it closes, that it uses a queue
    assert shell.raw.find_one({"_id": f"queue:{name}"}) == {"_id": f"queue:{name}", "settings": {"lease": 20.0}}


def test_a_queue_that_stays_idle_expires(broker: mongoq.Broker, store: Any, clock: mongoq.VirtualClock) -> None:
    clock.advance(101 * DAY)
    assert inside.sweep(broker)
    assert "expires" in store.find_one({"_id": "queue:resting"})
    assert "expires" not in store.find_one({"_id": "queue:orders"})


async def test_the_mark_behind_a_queue_is_no_item(shell: Shell) -> None:
    queue = shell.queue("forgotten")
    assert await queue.reserve() is None
    assert (await queue.counts()).total == 0
    assert await queue.push(1)
    assert await payloads(queue) == [1]


def test_a_run_on_spark_is_halted_and_its_tasks_are_known(broker: mongoq.Broker, dump: Dump) -> None:
    [halt] = [document["_id"] for document in dump.documents if kind(document) == "halt:"]
    assert inside.is_halted(broker, ObjectId(halt.removeprefix("halt:")))
    assert not inside.is_halted(broker, ObjectId())
    [run] = [document["run"] for document in dump.documents if "run" in document]
    assert inside.tasks_of(broker, run) == 1


# --- items that must be started in time ------------------------------------------------------


@pytest.mark.parametrize("dump", NEW, indirect=True)
async def test_items_that_must_be_started_in_time_expire_or_come(shell: Shell) -> None:
    queue = shell.queue("codes")
    assert [item.payload for item in await taken(queue)] == ["in time", "put off"]
    (letter,) = await queue.dead.peek(5)
    assert (letter.payload, letter.origin.reason, letter.start_by) == ("too late", "expired", None)


@pytest.mark.parametrize("dump", [LATER], indirect=True)
async def test_an_item_that_a_rate_has_put_off_comes_back_or_expires(shell: Shell) -> None:
    queue = shell.queue("calls")
    item = await queue.reserve()
    assert item is not None
    assert (item.payload, item.start_by is not None) == ({"customer": 7}, True)
    assert await queue.reserve() is None


# --- sequences, schedules --------------------------------------------------------------------


@pytest.mark.parametrize("dump", NEW, indirect=True)
async def test_sequences_go_on_where_they_were(shell: Shell) -> None:
    queue = shell.queue("tickets")
    assert [item.payload for item in await queue.peek(9, state="blocked")] == ["a 2", "a 3", "a 4"]
    assert await done(queue) == ["b 2", "of no sequence"]
    await queue.push("a 5", sequence="a")
    shell.clock.advance(2 * DAY)
    assert await queue.repair_sequences() == 0
    assert await done(queue) == ["a 1", "a 2", "a 3"]
    shell.clock.advance(30 * DAY)
    assert await done(queue) == ["a 4", "a 5"]
    assert shell.raw.count_documents({"_id": {"$regex": "^sequence:tickets:"}}) == 0


@pytest.mark.parametrize("dump", [HELD, LATER], indirect=True)
async def test_a_letter_holds_its_sequence_still(shell: Shell) -> None:
    queue = shell.queue("payments")
    assert await done(queue) == []
    assert await queue.repair_sequences() == 0
    (letter,) = await queue.dead.peek(9)
    assert (letter.payload, letter.origin.place) == ("charge", 0)
    assert (await queue.dead.replay()).pushed == 1
    assert await done(queue) == ["charge", "invoice"]
    assert shell.raw.count_documents({"_id": {"$regex": "^sequence:payments:"}}) == 0


@pytest.mark.parametrize("dump", NEW, indirect=True)
async def test_schedules_go_on_where_they_were(shell: Shell) -> None:
    schedules = {each.name: each for each in await shell.broker.schedules()}
    assert [name for name, each in schedules.items() if each.paused] == ["clean"]
    assert [name for name, each in schedules.items() if each.next is None] == ["party"]
    before = shell.raw.find_one({"_id": "schedule:report"})
    await shell.broker.schedule("report", **REPORT)
    assert shell.raw.find_one({"_id": "schedule:report"})["edition"] == before["edition"]  # the same digest
    due = shell.queue("due")
    await done(due)
    assert await shell.broker.tick() == 0
    shell.clock.advance(DAY)
    assert await shell.broker.tick() == 1
    shell.clock.advance(60)
    [item] = await taken(due)
    assert (item.payload, item.headers["mongoq-schedule"], item.priority) == ({"what": "report"}, "report", 3)
    assert schedules["report"].next.isoformat(timespec="milliseconds")[:19] == item.headers["mongoq-tick"][:19]


@pytest.mark.parametrize("dump", [LATER], indirect=True)
async def test_a_schedule_that_expires_gets_a_new_date(shell: Shell) -> None:
    assert "expires" in shell.raw.find_one({"_id": "schedule:party"})
    later = shell.clock.now() + DAY
    assert await shell.broker.schedule("party", queue="due", at=later) is not None
    assert "expires" not in shell.raw.find_one({"_id": "schedule:party"})
