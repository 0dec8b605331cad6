"""Sequences: items with the same ``sequence`` are handed out in the order of their pushes, one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell


async def fill(shell: Shell, *payloads: Any, sequence: str = "a", **options: Any) -> list[ObjectId]:
    return [await shell.queue().push(payload, sequence=sequence, **options) for payload in payloads]


async def drain(shell: Shell, name: str = "orders") -> list[Any]:
    """Pop everything that is eligible, one after the other."""
    payloads = []
    while (item := await shell.queue(name).pop()) is not None:
        payloads.append(item.payload)
    return payloads


def controls(shell: Shell) -> list[Any]:
    """What the control documents of the sequences say: the sequence, and the number of its heads."""
    documents = shell.raw.find({"_id": {"$regex": "^sequence:"}}).sort("sequence", 1)
    return [(document["sequence"], document["open"]) for document in documents]


def assert_consistent(shell: Shell, name: str = "orders", most: int = 1) -> None:
    """Check every sequence: heads are as many as the control document counts, and before all blocked items."""
    items = list(shell.raw.find({"q": name, "place": {"$exists": True}}))
    counted = {
        document["sequence"]: document["open"]
        for document in shell.raw.find({"_id": {"$regex": "^sequence:"}, "queue": name})
    }
    sequences = {item["sequence"] for item in items}
    assert counted.keys() == sequences
    for sequence in sequences:
        heads = [item["place"] for item in items if item["sequence"] == sequence and "when" in item]
        blocked = [item["place"] for item in items if item["sequence"] == sequence and "when" not in item]
        assert len(heads) == counted[sequence] == min(most, len(heads) + len(blocked))
        assert not blocked or max(heads) < min(blocked)
        assert all(("ready_from" in item) != ("when" in item) for item in items)


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.every_shell
async def test_one_item_of_a_sequence_is_handed_out_at_a_time(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2, 3)
    await fill(shell, 10, sequence="b")
    first, other = await queue.reserve(), await queue.reserve()
    assert (first.payload, first.sequence, other.payload, other.sequence) == (1, "a", 10, "b")
    assert await queue.reserve() is None
    await queue.commit(first)
    second = await queue.reserve()
    assert second.payload == 2
    assert await queue.reserve() is None
    assert_consistent(shell)
    await queue.commit(second)
    await queue.commit(other)
    assert await drain(shell) == [3]
    assert controls(shell) == []


async def test_items_go_in_the_order_of_their_pushes_whatever_their_priorities_and_dates(shell: Shell) -> None:
    await fill(shell, 1, priority=100)
    await fill(shell, 2, delay=60)
    await fill(shell, 3, priority=-100)
    assert await drain(shell) == [1]
    shell.clock.advance(61)
    assert await drain(shell) == [2, 3]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_blocked_item_waits_for_its_own_date_after_its_turn_has_come(shell: Shell, many: bool) -> None:
    queue, names = shell.queue(), ["a", "b"] if many else ["a"]
    later = shell.clock.now() + timedelta(hours=1)
    for name in names:
        await fill(shell, 1, sequence=name)
        await fill(shell, 2, when=later, sequence=name)
    await queue.commit_many(await queue.reserve_many(9))
    assert [waiting.due for waiting in await queue.peek(9, state="scheduled")] == [later] * len(names)
    shell.clock.advance(3601)
    assert await drain(shell) == [2] * len(names)


async def test_a_failed_item_keeps_its_place(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2)
    await queue.rollback(await queue.reserve(), delay=10, error=ValueError("x"))
    assert await queue.reserve() is None
    shell.clock.advance(10)
    again = await queue.reserve()
    assert (again.payload, again.attempts) == (1, 2)
    await queue.release(again)
    assert (await queue.reserve()).payload == 1
    assert_consistent(shell)


@pytest.mark.every_shell
async def test_two_items_of_a_sequence_at_a_time(shell: Shell) -> None:
    queue = shell.queue()
    await queue.configure(max_in_sequence=2)
    await fill(shell, 1, 2, 3, 4)
    first, second = await queue.reserve(), await queue.reserve()
    assert await queue.reserve() is None
    await queue.commit(second)
    third = await queue.reserve()
    assert (third.payload, await queue.reserve()) == (3, None)
    assert_consistent(shell, most=2)
    await queue.commit(first)
    await queue.commit(third)
    assert controls(shell) == [("a", 1)]
    assert await drain(shell) == [4]
    assert controls(shell) == []


async def test_only_as_many_items_as_the_limit_may_overtake(shell: Shell) -> None:
    """The first ones of a sequence begin by priority and date; the others wait for one of them to leave."""
    queue = shell.queue()
    await queue.configure(max_in_sequence=3)
    await fill(shell, 0, delay=60)
    for number in range(1, 9):
        await fill(shell, number, priority=-number % 3, delay=number % 2)
    left, begun = set(range(9)), []
    while left:
        items = await queue.reserve_many(9)
        for payload in sorted(item.payload for item in items):
            assert sum(other < payload for other in left) < 3
            begun.append(payload)
        if items:
            await queue.commit(items[-1])
            left.discard(items[-1].payload)
            await queue.release_many(items[:-1])
        shell.clock.advance(0 if items else 60)
    assert begun[0] != 0  # the delayed one
    assert controls(shell) == []


async def test_an_item_with_a_later_date_is_passed_by_all_others_where_two_may_go(shell: Shell) -> None:
    queue = shell.queue()
    await queue.configure(max_in_sequence=2)
    await fill(shell, 1, delay=60)
    await fill(shell, 2, 3, 4)
    assert await drain(shell) == [2, 3, 4]
    shell.clock.advance(60)
    assert await drain(shell) == [1]


async def test_a_raised_limit_never_lets_a_new_item_overtake(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2, 3)
    await queue.configure(max_in_sequence=2)
    await fill(shell, 4)
    assert_consistent(shell, most=2)
    items = [await queue.reserve(), await queue.reserve()]
    assert [item.payload for item in items] == [1, 2]


@pytest.mark.parametrize("many", [True], ids=["many"])
async def test_a_lowered_limit_holds_from_the_next_settlements_on(shell: Shell, many: bool) -> None:
    queue = shell.queue()
    await queue.configure(max_in_sequence=3)
    names = ["a", "b"] if many else ["a"]
    for name in names:
        await fill(shell, 1, 2, 3, 4, 5, 6, sequence=name)
    items = await queue.reserve_many(9)
    assert sorted(item.payload for item in items) == sorted([1, 2, 3] * len(names))
    await queue.configure(max_in_sequence=1)
    for number in (1, 2):
        await queue.commit_many([item for item in items if item.payload == number])
        assert await queue.reserve() is None
    assert controls(shell) == [(name, 1) for name in names]
    await queue.commit_many([item for item in items if item.payload == 3])
    assert_consistent(shell)
    for number in (4, 5, 6):
        items = await queue.reserve_many(9)
        assert [item.payload for item in items] == [number] * len(names)
        await queue.commit_many(items)
    assert controls(shell) == []


@pytest.mark.parametrize("many", [True], ids=["many"])
async def test_no_more_items_follow_than_a_lowered_limit_allows(shell: Shell, many: bool) -> None:
    queue = shell.queue()
    await queue.configure(max_in_sequence=3)
    names = ["a", "b"] if many else ["a"]
    for name in names:
        await fill(shell, 1, 2, 3, 4, 5, 6, sequence=name)
    items = await queue.reserve_many(9)
    await queue.configure(max_in_sequence=2)
    await queue.commit_many(items)
    assert controls(shell) == [(name, 2) for name in names]
    assert_consistent(shell, most=2)
    items = await queue.reserve_many(9)
    assert sorted(item.payload for item in items) == sorted([4, 5] * len(names))


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_raised_limit_holds_from_the_next_settlement_on(shell: Shell, many: bool) -> None:
    queue = shell.queue()
    names = ["a", "b"] if many else ["a"]
    for name in names:
        await fill(shell, 1, 2, 3, 4, 5, sequence=name)
    items = await queue.reserve_many(9)
    await queue.configure(max_in_sequence=3)
    await queue.commit_many(items)
    assert_consistent(shell, most=3)
    items = await queue.reserve_many(9)
    assert sorted(item.payload for item in items) == sorted([2, 3, 4] * len(names))
    await queue.commit_many(items)
    assert_consistent(shell, most=3)
    assert await drain(shell) == [5] * len(names)
    assert controls(shell) == []


# --- how a head leaves ---------------------------------------------------------------------------


async def _leave_by_commit(queue: Any) -> None:
    await queue.commit(await queue.reserve())


async def _leave_by_commit_with_a_patch(queue: Any) -> None:
    await queue.configure(history=60)
    await queue.commit(await queue.reserve(), payload={"done": True})


async def _leave_by_commit_many(queue: Any) -> None:
    await queue.commit_many(await queue.reserve_many(10))


async def _leave_by_pop(queue: Any) -> None:
    assert (await queue.pop()).payload == 1


async def _leave_by_move(queue: Any) -> None:
    await queue.move(await queue.reserve(), "next")


async def _leave_by_move_many(queue: Any) -> None:
    await queue.move_many([(item, mongoq.Move("next")) for item in await queue.reserve_many(10)])


async def _leave_by_burial(queue: Any) -> None:
    await queue.bury(await queue.reserve(), reason="bad")


async def _leave_by_rollback_many(queue: Any) -> None:
    await queue.configure(max_retries=0)
    await queue.rollback_many(await queue.reserve_many(10), error="x")


async def _leave_by_removal(queue: Any) -> None:
    assert await queue.remove((await queue.peek())[0].id)


async def _leave_by_purge(queue: Any) -> None:
    assert await queue.purge(state="ready", limit=1) == 1


LEAVES = [value for name, value in sorted(globals().items()) if name.startswith("_leave_by_")]


@pytest.mark.parametrize("leave", LEAVES)
async def test_the_next_item_follows_the_one_that_leaves(shell: Shell, leave: Any) -> None:
    await fill(shell, 1, 2, 3)
    await leave(shell.queue())
    assert_consistent(shell)
    following = await shell.queue().reserve()
    assert following.payload == 2
    assert await shell.queue().reserve() is None
    await shell.queue().commit(following)
    assert_consistent(shell)
    await shell.queue().commit(await shell.queue().reserve())
    assert controls(shell) == []
    assert not list(shell.raw.find({"q": "orders", "place": {"$exists": True}}))


@pytest.mark.parametrize("history", [None, 60])
async def test_a_process_that_knows_of_no_sequence_pops_in_order(shell: Shell, history: int | None) -> None:
    other = shell.another().queue("orders", history=history)
    await other.push("free")
    assert (await other.pop()).payload == "free"
    await fill(shell, 1, 2, 3)
    assert [(await other.pop()).payload for _ in range(3)] == [1, 2, 3]
    assert controls(shell) == []
    assert shell.raw.find_one({"place": {"$exists": True}}) is None


@pytest.mark.parametrize("leave", [_leave_by_commit, _leave_by_commit_many, _leave_by_pop, _leave_by_purge])
async def test_the_control_document_goes_with_the_last_item(shell: Shell, leave: Any) -> None:
    await fill(shell, 1)
    await leave(shell.queue())
    assert controls(shell) == []
    assert shell.raw.find_one({"place": {"$exists": True}}) is None
    await fill(shell, "again")
    assert (await shell.queue().reserve()).payload == "again"


async def test_a_claim_that_buries_lets_the_next_item_follow(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await fill(shell, 1, 2)
    await queue.reserve(lease=10)
    shell.clock.advance(11)
    assert (await queue.reserve()).payload == 2
    (letter,) = await queue.dead.peek()
    assert (letter.payload, letter.sequence, letter.state) == (1, "a", "ready")
    assert_consistent(shell)


async def test_a_processed_item_keeps_its_sequence_and_no_place(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await fill(shell, 1, 2)
    await queue.commit(await queue.reserve())
    await queue.pop()
    assert [item.sequence async for item in queue.history()] == ["a", "a"]
    assert shell.raw.find_one({"place": {"$exists": True}}) is None


@pytest.mark.every_shell
async def test_a_batch_lets_the_next_items_of_all_its_sequences_follow(shell: Shell) -> None:
    queue = shell.queue(max_in_sequence=2)
    names = [f"s{number}" for number in range(30)]
    for round_number in range(5):
        await queue.push_many([(name, round_number) for name in names], sequences=names)
    seen: dict[str, list[int]] = {}
    while items := await queue.reserve_many(1_000):
        assert len(items) <= 2 * len(names)
        for item in items:
            seen.setdefault(item.sequence, []).append(item.payload[1])
        await queue.commit_many(items)
        assert_consistent(shell, most=2)
    assert seen == {name: [0, 1, 2, 3, 4] for name in names}
    assert controls(shell) == []


async def test_a_lost_item_of_a_batch_keeps_its_sequence_waiting(shell: Shell) -> None:
    queue = shell.queue()
    for name in ("a", "b", "c"):
        await fill(shell, 1, 2, sequence=name)
    items = await queue.reserve_many(10, lease=10)
    shell.clock.advance(11)
    taken = await queue.reserve()
    with pytest.raises(mongoq.BatchIncomplete) as incomplete:
        await queue.commit_many(items)
    assert set(incomplete.value.failed) == {taken.id}
    assert_consistent(shell)
    assert {item.sequence for item in await queue.reserve_many(10)} == {"a", "b", "c"} - {taken.sequence}


async def test_purge_leaves_the_sequence_of_a_held_item(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2)
    held = await queue.reserve()
    assert await queue.purge() == 1
    assert_consistent(shell)
    await queue.commit(held)
    assert controls(shell) == []


async def test_a_dropped_queue_leaves_nothing_of_its_sequences(shell: Shell) -> None:
    await fill(shell, 1, 2, 3)
    with pytest.raises(mongoq.QueueNotEmpty):
        await shell.broker.drop_queue("orders")
    assert await shell.broker.drop_queue("orders", force=True) == 3
    assert controls(shell) == []
    assert shell.raw.find_one({"q": "orders"}) is None
    await fill(shell, 4, 5)
    assert await drain(shell) == [4, 5]


# --- moves and letters ---------------------------------------------------------------------------


async def test_a_moved_item_belongs_to_no_sequence_unless_it_enters_one(shell: Shell) -> None:
    queue, following = shell.queue(), shell.queue("next")
    await fill(shell, 1, 2, 3)
    await queue.move(await queue.reserve(), "next")
    await queue.move(await queue.reserve(), "next", sequence="b")
    await queue.move(await queue.reserve(), "next", sequence="a")
    items = await following.reserve_many(9)
    assert [(item.payload, item.sequence) for item in items] == [(1, None), (2, "b"), (3, "a")]


async def test_moved_items_take_places_at_the_end_of_their_sequence(shell: Shell) -> None:
    queue, following = shell.queue(), shell.queue("next")
    await following.push(0, sequence="b")
    await queue.push_many([1, 2, 3])
    items = await queue.reserve_many(9)
    await queue.move_many([(item, mongoq.Move("next", sequence="b")) for item in items])
    assert_consistent(shell, "next")
    assert (await following.counts()).blocked == 3
    await following.push(4, sequence="b")
    assert await drain(shell, "next") == [0, 1, 2, 3, 4]


async def test_a_replayed_letter_goes_to_the_end_of_its_sequence(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2, 3)
    await queue.bury(await queue.reserve())
    result = await queue.dead.replay()
    assert (result.pushed, result.refused) == (1, 0)
    assert_consistent(shell)
    assert await drain(shell) == [2, 3, 1]


# --- many at once --------------------------------------------------------------------------------


async def test_push_many_keeps_the_order_given(shell: Shell) -> None:
    queue = shell.queue()
    ids = await queue.push_many([1, 2, 3], sequence="a")
    await queue.push_many([4, "free", 5], sequences=["a", None, "b"])
    assert_consistent(shell)
    assert (await queue.get(ids[0])).payload == 1
    seen: dict[Any, list[Any]] = {}
    while (item := await queue.reserve()) is not None:
        seen.setdefault(item.sequence, []).append(item.payload)
        await queue.commit(item)
    assert seen == {"a": [1, 2, 3, 4], "b": [5], None: ["free"]}


async def test_a_push_with_an_id_takes_one_place(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    await fill(shell, 1)
    for _ in range(3):
        assert await queue.push(2, id=id, sequence="a") == id
    await queue.push_many([2, 3], ids=[id, ObjectId()], sequence="a")
    await queue.commit(await queue.reserve())
    await queue.commit(await queue.reserve())
    await queue.push(2, id=id, sequence="a")
    assert_consistent(shell)
    assert await drain(shell) == [3]
    with pytest.raises(mongoq.DuplicateItem):
        await shell.queue("others").push(2, id=id, sequence="a")
    assert controls(shell) == []


# --- reads ---------------------------------------------------------------------------------------


async def test_reads_show_blocked_items(shell: Shell) -> None:
    queue = shell.queue()
    first, second, third = await fill(shell, 1, 2, 3)
    await queue.push("free")
    counts = await queue.counts()
    assert (counts.ready, counts.blocked, counts.total) == (2, 2, 4)
    assert await queue.size("blocked") == 2
    blocked = await queue.peek(5, state="blocked")
    assert [(item.id, item.state, item.due) for item in blocked] == [
        (second, "blocked", None),
        (third, "blocked", None),
    ]
    assert (await queue.get(third)).state == "blocked"
    assert [item.id for item in await queue.blocked_by(third)] == [first]
    assert await queue.blocked_by(first) == await queue.blocked_by(ObjectId()) == []
    held = await queue.reserve()
    assert [(item.id, item.state) for item in await queue.blocked_by(second)] == [(held.id, "reserved")]


async def test_a_repair_lets_the_items_behind_a_deleted_one_go(shell: Shell) -> None:
    queue = shell.queue()
    first, *_ = await fill(shell, 1, 2, 3)
    (last,) = await fill(shell, 9, sequence="b")
    await fill(shell, 5, 6, sequence="c")
    shell.raw.delete_many({"_id": {"$in": [first, last]}})
    assert await queue.repair_sequences() == 1
    assert_consistent(shell)
    assert await queue.repair_sequences() == 0
    assert sorted(await drain(shell)) == [2, 3, 5, 6]


async def test_a_repair_lets_one_item_go_where_two_were_the_first(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2)
    shell.raw.delete_many({"_id": {"$regex": "^sequence:"}})
    await fill(shell, 3, 4)
    assert [item.payload for item in await queue.peek(9)] == [1, 3]
    assert await queue.repair_sequences() == 1
    assert [item.payload for item in await queue.peek(9)] == [1]
    assert await queue.repair_sequences() == 0
    assert sorted([payload async for payload in _one_at_a_time(queue)]) == [1, 2, 3, 4]
    assert controls(shell) == []


async def test_a_repair_takes_no_item_from_its_holder(shell: Shell) -> None:
    queue = shell.queue()
    await fill(shell, 1, 2)
    shell.raw.delete_many({"_id": {"$regex": "^sequence:"}})
    await fill(shell, 3, 4)
    held = await queue.reserve_many(2)
    assert await queue.repair_sequences() == 0
    assert controls(shell) == [("a", 2)]
    await queue.commit(held[0])
    assert await queue.reserve() is None
    await queue.commit(held[1])
    assert sorted([payload async for payload in _one_at_a_time(queue)]) == [2, 4]
    assert controls(shell) == []


async def test_a_repair_counts_a_sequence_without_a_control_document(shell: Shell) -> None:
    queue = shell.queue()
    for number in range(3):
        await fill(shell, 1, 2, 3, sequence=f"s{number}")
    shell.raw.delete_many({"_id": {"$regex": "^sequence:"}})
    shell.raw.delete_one({"sequence": "s1", "place": 0})
    assert await queue.repair_sequences() == 1
    for number in range(3):
        await fill(shell, 4, sequence=f"s{number}")
    assert_consistent(shell)
    assert sorted(item.payload for item in await queue.peek(9)) == [1, 1, 2]


async def _one_at_a_time(queue: Any) -> AsyncIterator[Any]:
    while items := await queue.reserve_many(9):
        assert len(items) == 1
        yield items[0].payload
        await queue.commit(items[0])


# --- bad input -----------------------------------------------------------------------------------


async def test_a_sequence_that_cannot_be_used(shell: Shell) -> None:
    queue = shell.queue()
    for sequence in ("", 1, "ü" * 513, "\ud800", True):
        with pytest.raises(mongoq.ArgumentInvalid, match="sequence"):
            await queue.push(1, sequence=sequence)
        with pytest.raises(mongoq.ArgumentInvalid, match=r"sequences\[1\]"):
            await queue.push_many([1, 2], sequences=["a", sequence])
    for options in ({"sequences": ["a"]}, {"sequences": "ab", "sequence": "a"}, {"sequences": 3}):
        with pytest.raises(mongoq.ArgumentInvalid, match="sequences"):
            await queue.push_many([1, 2], **options)
    for most in (0, True, 1.5, "2", None):
        with pytest.raises(mongoq.ArgumentInvalid, match="max_in_sequence"):
            shell.queue(max_in_sequence=most)
        with pytest.raises(mongoq.ArgumentInvalid, match="max_in_sequence"):
            await queue.configure(max_in_sequence=most)
    assert shell.raw.count_documents({"q": "orders"}) == 0
    await queue.push(1)
    item = await queue.reserve()
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence"):
        await queue.move(item, "next", sequence="")
    await queue.commit(item)


async def test_a_sequence_cannot_be_combined_with_a_key(shell: Shell) -> None:
    queue = shell.queue()
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence: cannot be given with key="):
        await queue.push(1, sequence="a", key="k")
    await queue.push(1)
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence: cannot be given with key="):
        await queue.move(await queue.reserve(), "next", sequence="a", key="k")
    assert await queue.size() == 1


async def test_a_topic_has_no_sequences(shell: Shell) -> None:
    await shell.broker.bind("orders", "first")
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence: 'orders' is a topic"):
        await shell.queue().push(1, sequence="a")
    with pytest.raises(mongoq.ArgumentInvalid, match="sequence: 'orders' is a topic"):
        await shell.queue().push_many([1], sequence="a")
    assert controls(shell) == []


async def test_history_reads_blocked_items_in_pages(shell: Shell) -> None:
    queue = shell.queue()
    for name in ("b", "a", "c"):
        await fill(shell, *({"n": number} for number in range(4)), sequence=name)
    places = [(item.sequence, item.payload["n"]) async for item in queue.history(state="blocked", page=2)]
    assert places == [(name, number) for name in "abc" for number in (1, 2, 3)]
    found = [item.sequence async for item in queue.history(state="blocked", where={"n": {"$gt": 2}}, page=2)]
    assert found == ["a", "b", "c"]
    for times in ({"since": shell.clock.now()}, {"until": shell.clock.now()}):
        with pytest.raises(mongoq.ArgumentInvalid, match=f"{next(iter(times))}: cannot be given"):
            assert [item async for item in queue.history(state="blocked", **times)]


# --- odd documents, any names --------------------------------------------------------------------


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_an_item_that_another_program_left_without_a_date_is_passed_over(shell: Shell, names: str) -> None:
    change = {"$set": {"ready_from": "soon"}}
    for name in names:
        await fill(shell, f"{name}1", f"{name}2", f"{name}3", sequence=name)
    shell.raw.update_one({"payload": "a2"}, change)
    queue = shell.queue()
    await queue.commit_many(await queue.reserve_many(5))
    assert sorted(await drain(shell)) == [f"{name}{n}" for name in names for n in (2, 3) if (name, n) != ("a", 2)]


NAMES = [
    "\x00",
    "a\x00",
    "$where",
    "$a.b",
    "a.b",
    "{'$gt': ''}",
    "a:b",
    "sequence:orders:a",
    " ",
    "\U0001f600",
    "x" * 1024,
]


async def test_sequences_with_any_names(shell: Shell) -> None:
    queue = shell.queue()
    for name in NAMES:
        await queue.push_many([name + "1", name + "2", name + "3"], sequence=name)
    for number in "123":
        items = await queue.reserve_many(99)
        assert sorted(item.payload for item in items) == sorted(name + number for name in NAMES)
        await queue.commit_many(items)
    assert shell.raw.count_documents({"sequence": {"$exists": True}}) == 0
