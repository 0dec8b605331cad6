"""Items that nobody wants after a time: a claim that comes too late settles them, on every shell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.testing import VirtualBroker
from tests.shells import Shell

MINUTE = timedelta(minutes=1)
CLAIMS = ["reserve", "reserve_many", "pop"]


async def _claim(queue: Any, way: str) -> list[Any]:
    """Claim once, and return what was handed out."""
    if way == "reserve_many":
        return list(await queue.reserve_many(10))
    item = await getattr(queue, way)()
    return [] if item is None else [item]


async def _history(queue: Any) -> list[Any]:
    return [item async for item in queue.history()]


async def _events(shell: Shell) -> Any:
    return (await shell.another().stats()).get("orders")


# --- what expires, and what does not -------------------------------------------------------------


@pytest.mark.every_shell("mongomock")
@pytest.mark.parametrize("way", CLAIMS)
async def test_an_item_that_was_not_started_in_time_is_not_handed_out(shell: Shell, way: str) -> None:
    queue = shell.queue()
    late = await queue.push("late", expires=60)
    fresh = await queue.push("fresh", expires=61)
    ever = await queue.push("ever")
    assert (await queue.get(late)).start_by == shell.clock.now() + MINUTE
    shell.clock.advance(60)
    claimed = [item.id for _ in range(2) for item in await _claim(queue, way)]
    assert claimed == [fresh, ever]
    assert await queue.get(late) is None
    assert shell.raw.count_documents({"_id": late}) == 0
    assert await queue.dead.size() == 0


@pytest.mark.parametrize("way", ["reserve", "pop"])
async def test_history_keeps_it_without_an_attempt(shell: Shell, way: str) -> None:
    queue = shell.queue(history=3600)
    id = await queue.push("late", expires=MINUTE, headers={"h": 1}, priority=2)
    start_by = shell.clock.now() + MINUTE
    shell.clock.advance(60)
    assert await _claim(queue, way) == []
    (item,) = await _history(queue)
    assert (item.id, item.payload, item.headers["h"], item.priority) == (id, "late", 1, 2)
    assert (item.start_by, item.processed, item.token) == (start_by, shell.clock.now(), None)
    assert item.attempts == 0
    assert await queue.size() == 0


@pytest.mark.parametrize("way", ["reserve", "pop"])
async def test_the_dead_queue_takes_it_if_the_queue_says_so(shell: Shell, way: str) -> None:
    queue = shell.queue(on_expired="dead")
    first, second = await queue.push_many(["a", "b"], expires=60)
    await queue.push("key", key="k", expires=60)
    shell.clock.advance(60)
    assert await _claim(queue, way) == []
    letters = await queue.dead.peek(9)
    assert {letter.id for letter in letters} >= {first, second}
    assert {(letter.origin.reason, letter.origin.attempts, letter.origin.key) for letter in letters} == {
        ("expired", 0, None),
        ("expired", 0, "k"),
    }
    assert {(letter.start_by, letter.attempts, letter.key) for letter in letters} == {(None, 0, None)}
    assert await queue.size() == 0
    # Sent back, a letter starts whenever a caller comes.
    assert (await queue.dead.replay()).pushed == 3
    shell.clock.advance(3600)
    assert len(await queue.reserve_many(9)) == 3


@pytest.mark.parametrize(
    ("claim", "way"),
    [("reserve", "lease"), ("reserve", "rollback"), ("reserve_many", "release"), ("reserve_many", "release_many")],
)
async def test_an_item_that_was_handed_out_does_not_expire(shell: Shell, claim: str, way: str) -> None:
    queue = shell.queue()
    ids = await queue.push_many(["a", "b"], expires=60)
    shell.clock.advance(59)
    claimed = [item for _ in range(2) for item in await _claim(queue, claim)]
    assert [item.id for item in claimed] == ids
    assert shell.raw.count_documents({"start_by": {"$exists": True}}) == 0
    assert {item.start_by for item in claimed} == {shell.clock.now() + timedelta(seconds=1)}
    for item in claimed:
        if way == "rollback":
            await queue.rollback(item)
        elif way == "release":
            await queue.release(item)
        elif way == "release_many":
            await queue.release_many([item], delay=1)
    shell.clock.advance(3600)
    assert [item.id for item in await queue.reserve_many(9)] == ids


async def test_a_batch_settles_its_expired_items_and_returns_the_others(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await queue.push_many(range(6), expires=[60, None, 61, MINUTE, shell.clock.now() + MINUTE, 3600])
    shell.clock.advance(60)
    items = await queue.reserve_many(10)
    assert [(item.payload, item.attempts) for item in items] == [(1, 1), (2, 1), (5, 1)]
    assert len({item.token for item in items}) == 1
    assert sorted(item.payload for item in await _history(queue)) == [0, 3, 4]
    await queue.commit_many(items)
    assert await queue.size() == 0


@pytest.mark.parametrize("way", ["reserve"])
async def test_however_many_have_expired_the_next_one_is_found(shell: Shell, way: str) -> None:
    queue = shell.queue()
    await queue.push_many(range(2_500), expires=1)
    id = await queue.push("good")
    shell.clock.advance(1)
    assert [item.id for item in await _claim(queue, way)] == [id]
    assert shell.raw.count_documents({"q": "orders", "start_by": {"$exists": True}}) == 0


async def test_they_are_counted(shell: Shell) -> None:
    queue = shell.queue(on_expired="dead")
    await queue.push_many(range(5), expires=1)
    shell.clock.advance(1)
    assert await queue.reserve() is None
    await queue.push("late", expires=1)
    shell.clock.advance(1)
    assert await queue.pop() is None
    await shell.broker.close()
    stats = await _events(shell)
    assert (stats.put, stats.expired, stats.reserve, stats.dead, stats.get) == (6, 6, 0, 0, 0)


async def test_a_crash_between_the_claim_and_the_decision_leaves_it_to_the_next_claim(shell: Shell) -> None:
    """As the claim leaves it: reserved, the attempt counted, the date still there."""
    queue = shell.queue(on_expired="dead")
    await queue.push_many(["a", "b"], expires=[60, None])
    token, lapsed = ObjectId(), shell.clock.now() + timedelta(seconds=30)
    marks = {"when": lapsed, "reserved": True, "token": token, "by": "x", "attempts": 1}
    shell.raw.update_one({"payload": "a"}, {"$set": marks})
    shell.clock.advance(60)
    (item,) = await queue.reserve_many(5)
    assert item.payload == "b"
    (letter,) = await queue.dead.peek()
    assert (letter.payload, letter.origin.reason, letter.origin.attempts) == ("a", "expired", 1)


async def test_a_remembered_id_is_remembered_after_it_has_expired(shell: Shell) -> None:
    queue = shell.queue()
    id = ObjectId()
    await queue.push("a", id=id, expires=60)
    await queue.push_many(["b"], ids=[ObjectId()], expires=60)
    shell.clock.advance(60)
    assert await queue.reserve() is None
    assert await queue.push("a", id=id) == id
    assert await queue.size() == 0
    assert shell.raw.count_documents({"payload": {"$exists": True}, "q": "orders"}) == 0


# --- keys, topics, moves -------------------------------------------------------------------------


async def test_a_key_is_free_once_its_item_has_expired(shell: Shell) -> None:
    queue = shell.queue()
    first = await queue.push("a", key="k", expires=60)
    shell.clock.advance(60)
    assert await queue.push("b", key="k") == first, "no claim has met it yet"
    assert await queue.reserve() is None
    second = await queue.push("b", key="k")
    assert first != second
    assert (await queue.reserve()).id == second


async def test_a_replacing_push_has_its_own_time(shell: Shell) -> None:
    queue = shell.queue()
    id = await queue.push("a", key="k", expires=60)
    await queue.push("b", key="k", on_duplicate="replace")
    assert (await queue.get(id)).start_by is None
    await queue.push("c", key="k", on_duplicate="replace", expires=90)
    assert (await queue.get(id)).start_by == shell.clock.now() + timedelta(seconds=90)


async def test_each_copy_of_a_topic_has_it(shell: Shell) -> None:
    await shell.broker.bind("news", "one", "two")
    await shell.queue("news").push("a", expires=60)
    await shell.queue("news").push_many(["b"], expires=60)
    for name in ("one", "two"):
        assert {item.start_by for item in await shell.queue(name).peek(5)} == {shell.clock.now() + MINUTE}
    with pytest.raises(mongoq.ArgumentInvalid, match="one for all items"):
        await shell.queue("news").push_many([1, 2], expires=[60, None])
    shell.clock.advance(60)
    assert await shell.queue("one").reserve() is None
    assert await shell.queue("two").reserve_many(5) == []


async def test_a_copy_of_a_replay_has_no_such_time(shell: Shell) -> None:
    queue = shell.queue(history=7200)
    await queue.push("a", expires=60)
    shell.clock.advance(60)
    assert await queue.reserve() is None
    await queue.replay(to="other")
    shell.clock.advance(3600)
    assert (await shell.queue("other").reserve()).payload == "a"


# --- items made by others ------------------------------------------------------------------------


async def test_a_moved_item_has_the_time_that_the_move_gives(shell: Shell) -> None:
    queue, other = shell.queue(), shell.queue("other", on_expired="dead")
    ids = await queue.push_many(range(4))
    shell.clock.advance(100)
    first, *items = await queue.reserve_many(4)
    await queue.move(first, "other", expires=60)
    day = shell.clock.now() + timedelta(days=1)
    moves = [mongoq.Move("other", expires=MINUTE), mongoq.Move("other", delay=30, expires=31), mongoq.Move("other")]
    await queue.move_many(zip(items, moves, strict=True))
    times = {item.id: item.start_by for item in [*await other.peek(9), *await other.peek(state="scheduled")]}
    start_by = shell.clock.now() + MINUTE
    assert times == dict(zip(ids, [start_by, start_by, start_by - timedelta(seconds=29), None], strict=True))
    shell.clock.advance(60)
    (ever,) = await other.reserve_many(9)
    assert ever.payload == 3
    await other.move(ever, "orders", expires=day)
    assert (await queue.get(ever.id)).start_by == day
    assert [(letter.origin.reason, letter.origin.attempts) for letter in await other.dead.peek(9)] == [
        ("expired", 0)
    ] * 3


async def test_a_move_with_what_no_time_can_be_changes_nothing(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    item = await queue.reserve()
    for expires in (0, True, float("nan"), "soon", datetime(2040, 1, 1), {"$gt": 1}):
        with pytest.raises(mongoq.ArgumentInvalid, match="expires"):
            await queue.move(item, "other", expires=expires)
        with pytest.raises(mongoq.ArgumentInvalid, match=r"moves\[0\].expires"):
            await queue.move_many([(item, mongoq.Move("other", expires=expires))])
    with pytest.raises(mongoq.ArgumentInvalid, match="never start"):
        await queue.move(item, "other", delay=60, expires=60)
    await queue.commit(item)


async def test_the_item_of_a_tick_has_the_time_of_its_schedule(shell: Shell) -> None:
    queue = shell.queue("reports")
    await shell.broker.schedule("hourly", queue="reports", every=3600, expires=600)
    shell.clock.advance(3600)
    assert await shell.broker.tick() == 1
    (item,) = await queue.peek()
    assert item.start_by == shell.clock.now() + 10 * MINUTE
    shell.clock.advance(600)
    assert await queue.reserve() is None
    extra = await queue.get(await shell.broker.run_schedule_now("hourly"))
    assert extra.start_by == shell.clock.now() + 10 * MINUTE
    await shell.broker.schedule("hourly", queue="reports", every=3600)
    shell.clock.advance(3600)
    assert await shell.broker.tick() == 1
    assert {item.start_by for item in await queue.peek(9)} == {extra.start_by, None}


# --- sequences -----------------------------------------------------------------------------------


def _control_documents(shell: Shell) -> list[Any]:
    documents = shell.raw.find({"_id": {"$regex": "^sequence:"}}).sort("sequence", 1)
    return [(document["sequence"], document["open"]) for document in documents]


@pytest.mark.parametrize(
    ("way", "history", "on_expired"),
    [("reserve", None, "dead"), ("reserve_many", 7200, "dead"), ("pop", 7200, "history"), ("pop", None, "dead")],
)
async def test_the_next_item_follows_one_that_was_not_started_in_time(
    shell: Shell, way: str, history: Any, on_expired: str
) -> None:
    queue = shell.queue(history=history, on_expired=on_expired)
    for payload, expires in (("late", 60), ("fresh", 3600), ("ever", None)):
        await queue.push(payload, sequence="a", expires=expires)
    shell.clock.advance(60)
    (item,) = await _claim(queue, way)
    assert (item.payload, item.attempts) == ("fresh", 1)
    if way != "pop":
        assert await _claim(queue, way) == [], "one at a time"
    assert shell.raw.count_documents({"payload": "late", "q": "orders", "place": {"$exists": True}}) == 0
    letters = await queue.dead.peek(9)
    kept = [each.payload for each in await _history(queue)] if history else []
    assert [letter.payload for letter in letters] == (["late"] if on_expired == "dead" else [])
    assert ("late" in kept) == (history is not None and on_expired == "history")
    for letter in letters:
        assert (letter.sequence, letter.origin.reason, letter.start_by) == ("a", "expired", None)


@pytest.mark.parametrize("way", ["reserve_many"])
async def test_a_blocked_item_that_has_expired_is_met_when_its_turn_comes(shell: Shell, way: str) -> None:
    queue = shell.queue()
    await queue.push("first", sequence="a")
    await queue.push_many(["late", "later", "good"], sequence="a", expires=[60, 61, None])
    first = await queue.reserve()
    shell.clock.advance(61)
    first = await queue.reserve()  # again, after its lease
    assert await _claim(queue, way) == []
    assert (await queue.counts()).blocked == 3, "no claim meets what waits"
    await queue.commit(first)
    assert [item.payload for item in await _claim(queue, way)] == ["good"]
    assert shell.raw.count_documents({"start_by": {"$exists": True}}) == 0


@pytest.mark.parametrize("way", ["reserve", "pop"])
async def test_however_many_of_a_sequence_have_expired_the_next_one_is_found(shell: Shell, way: str) -> None:
    queue = shell.queue()
    await queue.push_many(range(30), sequences=["a", "b", "c"] * 10, expires=1)
    await queue.push_many(["a", "b", "c"], sequences=["a", "b", "c"])
    shell.clock.advance(1)
    found = []
    for _ in range(3):
        for item in await _claim(queue, way):
            found.append(item.payload)
            if way != "pop":
                await queue.commit(item)
    assert sorted(found) == ["a", "b", "c"]
    assert await queue.size() == 0
    assert _control_documents(shell) == []


async def test_a_sequence_of_expired_items_alone_ends(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await queue.push_many(range(5), sequence="a", expires=1)
    shell.clock.advance(1)
    assert await queue.reserve() is None
    assert _control_documents(shell) == []
    assert {(item.payload, item.attempts, item.sequence) for item in await _history(queue)} == {
        (number, 0, "a") for number in range(5)
    }
    assert shell.raw.count_documents({"$or": [{"place": {"$exists": True}}, {"ready_from": {"$exists": True}}]}) == 0
    assert await queue.repair_sequences() == 0
    await shell.broker.close()
    assert (await _events(shell)).expired == 5


async def test_of_several_at_a_time_each_that_has_expired_lets_one_follow(shell: Shell) -> None:
    queue = shell.queue(max_in_sequence=2)
    await queue.push_many(range(6), sequence="a", expires=[1, 60, 1, None, 1, None])
    shell.clock.advance(1)
    items = [await queue.reserve(), await queue.reserve()]
    assert [item.payload for item in items] == [1, 3]
    assert await queue.reserve() is None
    assert _control_documents(shell) == [("a", 2)]
    await queue.commit_many(items)
    assert (await queue.reserve()).payload == 5


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [None, 0])
async def test_a_time_that_is_over_is_no_error(shell: Shell, delay: Any) -> None:
    queue, over = shell.queue(), shell.clock.now() - MINUTE
    await queue.push("a", expires=over, delay=delay)
    await queue.push_many(["b"], expires=[over], delay=delay)
    assert await queue.size() == 2
    assert await queue.reserve() is None


async def test_what_no_time_can_be(shell: Shell) -> None:
    queue = shell.queue()
    for expires in (0, True, float("inf"), "soon", timedelta(days=40_000), datetime(2040, 1, 1), {"$gt": 1}):
        with pytest.raises(mongoq.ArgumentInvalid, match="expires"):
            await queue.push("a", expires=expires)
        with pytest.raises(mongoq.ArgumentInvalid, match=r"expires\[1\]"):
            await queue.push_many(["a", "b"], expires=[60, expires])
    with pytest.raises(mongoq.ArgumentInvalid, match="give one for each"):
        await queue.push_many(["a", "b"], expires=[60])
    assert await queue.size() == 0


async def test_an_item_that_could_never_start_is_refused(shell: Shell) -> None:
    queue, delay = shell.queue(), 60
    when = shell.clock.now() + timedelta(seconds=delay)
    for options in ({"delay": delay}, {"when": when}):
        for expires in (60, shell.clock.now() + MINUTE):
            with pytest.raises(mongoq.ArgumentInvalid, match="never start"):
                await queue.push("a", expires=expires, **options)
            with pytest.raises(mongoq.ArgumentInvalid, match="never start"):
                await queue.push_many(["a"], expires=[expires], **options)
    assert await queue.size() == 0
    await queue.push("a", delay=59, expires=60)
    shell.clock.advance(59)
    assert (await queue.reserve()).payload == "a"


async def test_the_setting(shell: Shell) -> None:
    queue = shell.queue()
    assert queue.settings.on_expired == "history"
    assert (await queue.configure(on_expired="dead")).on_expired == "dead"
    await queue.push("a", expires=1)
    shell.clock.advance(1)
    assert await shell.another().queue("orders").reserve() is None
    assert await queue.dead.size() == 1
    with pytest.raises(mongoq.ArgumentInvalid, match="'history' or 'dead'"):
        await queue.configure(on_expired="delete")
    with pytest.raises(mongoq.ArgumentInvalid, match="no dead queue"):
        shell.broker.queue("x", dead=None, on_expired="dead")
    # A dead queue has none itself: its own items are deleted.
    await queue.dead.push("b", expires=1)
    shell.clock.advance(1)
    assert [item.payload for item in await queue.dead.reserve_many(5)] == ["a"]


@pytest.mark.parametrize("way", ["reserve", "pop"])
async def test_without_a_dead_queue_expired_items_are_deleted(shell: Shell, way: str) -> None:
    queue = shell.queue(on_expired="dead")
    await queue.push_many(["a", "b"], expires=60)
    await queue.configure(dead=None)
    shell.clock.advance(60)
    assert await _claim(queue, way) == []
    assert await queue.size() == 0


class TickingClock(mongoq.VirtualClock):
    """A clock that goes on whenever it is read."""

    def now(self) -> datetime:
        return self.advance(0.001)


def test_an_expiry_as_long_as_the_delay_is_refused_however_long_that_takes() -> None:
    with VirtualBroker(clock=TickingClock()) as broker:
        queue = broker.queue("orders")
        for due in ({"delay": 60}, {"when": datetime(2024, 1, 1, 1, tzinfo=UTC)}):
            expires = due.get("delay", datetime(2024, 1, 1, 1, tzinfo=UTC))
            with pytest.raises(mongoq.ArgumentInvalid, match="never start"):
                queue.push(1, **due, expires=expires)
            with pytest.raises(mongoq.ArgumentInvalid, match="never start"):
                queue.check_push(1, **due, expires=expires)
        assert not broker.stats()
