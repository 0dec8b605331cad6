"""Held sequences: with ``on_dead="hold"`` no item follows a dead letter until it is replayed, or has gone."""

from __future__ import annotations

import time
from typing import Any

import pydantic
import pytest

import mongoq
from tests.shells import Shell


class Order(pydantic.BaseModel):
    """Payloads that fit; the ones of these tests do not."""

    customer: str


async def fill(
    shell: Shell, *payloads: Any, sequence: str = "a", most: int = 1, expires: float | None = None, **options: Any
) -> Any:
    """Push into a sequence of a queue that holds, and return the queue."""
    queue = shell.queue(**options)
    await queue.configure(on_dead="hold", max_in_sequence=most)
    for payload in payloads:
        await queue.push(payload, sequence=sequence, expires=expires)
    return queue


async def drain(shell: Shell) -> list[Any]:
    payloads = []
    while (item := await shell.queue().pop()) is not None:
        payloads.append(item.payload)
    return payloads


def control(shell: Shell, sequence: str = "a") -> tuple[int, list[Any]] | None:
    """What the control document says: the number of heads and letters, and the letters that hold the sequence."""
    document = shell.raw.find_one({"_id": {"$regex": "^sequence:orders:"}, "sequence": sequence})
    return None if document is None else (document["open"], [each["id"] for each in document.get("held", [])])


async def die(queue: Any) -> Any:
    """Bury the first item, and return its id."""
    item = await queue.reserve()
    await queue.bury(item, reason="no stock")
    return item.id


# --- how an item dies ----------------------------------------------------------------------------


async def crash(shell: Shell, queue: Any) -> None:
    """Reserve the first item for the last time, as a worker that is killed then."""
    await queue.configure(max_retries=0)
    await queue.reserve(lease=10)
    shell.clock.advance(11)


async def _dies_by_burial(shell: Shell, queue: Any) -> None:
    await die(queue)


async def _dies_by_rollback_many(shell: Shell, queue: Any) -> None:
    await queue.configure(max_retries=0)
    await queue.rollback_many(await queue.reserve_many(10), error="x")


async def _dies_by_a_claim_after_a_crash(shell: Shell, queue: Any) -> None:
    await crash(shell, queue)
    assert await queue.reserve() is None


async def _dies_by_a_claim_of_many_after_a_crash(shell: Shell, queue: Any) -> None:
    await crash(shell, queue)
    assert await queue.reserve_many(5) == []


async def _dies_by_a_pop_after_a_crash(shell: Shell, queue: Any) -> None:
    await crash(shell, queue)
    assert await queue.pop() is None


async def _dies_by_a_pop_that_cannot_decode_it(shell: Shell, queue: Any) -> None:
    assert await shell.queue(model=Order).pop() is None


async def _dies_by_a_claim_that_cannot_decode_it(shell: Shell, queue: Any) -> None:
    assert await shell.queue(model=Order).reserve() is None


DIES = [value for name, value in sorted(globals().items()) if name.startswith("_dies_by_")]


@pytest.mark.parametrize("dies", DIES)
async def test_no_item_follows_one_that_dies(shell: Shell, dies: Any) -> None:
    queue = await fill(shell, 1, 2, 3)
    await dies(shell, queue)
    (letter,) = await queue.dead.peek(9)
    assert (letter.payload, letter.sequence, letter.origin.place, letter.stored("place")) == (1, "a", 0, None)
    assert await queue.reserve() is None
    assert await queue.pop() is None
    assert (await queue.counts()).blocked == 2
    assert control(shell) == (1, [letter.id])
    assert await queue.repair_sequences() == 0
    await queue.configure(max_retries=5)
    assert (await queue.dead.replay()).pushed == 1
    assert await drain(shell) == [1, 2, 3]
    assert control(shell) is None
    assert await queue.dead.size() == 0


async def test_a_process_that_knows_of_no_sequence_pops_no_item_behind_a_dead_one(shell: Shell) -> None:
    other = shell.another().queue("orders", model=Order)
    await other.push(Order(customer="x"))
    assert (await other.pop()).payload.customer == "x"
    queue = await fill(shell, 1, 2)
    assert await other.pop() is None
    assert [item.payload for item in await queue.dead.peek(9)] == [1]
    assert control(shell) is not None
    assert (await queue.counts()).blocked == 1


async def test_an_item_with_attempts_that_cannot_be_counted_holds_its_sequence(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    shell.raw.update_one({"payload": 1}, {"$set": {"attempts": "many"}})
    assert await queue.reserve() is None
    (letter,) = await queue.dead.peek()
    assert (letter.origin.place, control(shell)) == (0, (1, [letter.id]))
    await queue.dead.remove(letter.id)
    assert await drain(shell) == [2]


@pytest.mark.parametrize("claim", ["reserve", "pop"])
async def test_an_item_that_was_not_started_in_time_holds_its_sequence(shell: Shell, claim: str) -> None:
    queue = await fill(shell, 1, 2, expires=60, on_expired="dead")
    await fill(shell, 3)
    shell.clock.advance(61)
    for number in (1, 2):
        if claim == "reserve_many":
            assert await queue.reserve_many(5) == []
        else:
            assert await getattr(queue, claim)() is None
        (letter,) = await queue.dead.peek(9)
        assert (letter.payload, letter.origin.reason, letter.origin.place) == (number, "expired", number - 1)
        assert control(shell) == (1, [letter.id])
        assert await queue.dead.remove(letter.id)
    assert await drain(shell) == [3]
    assert (await shell.broker.stats())["orders"].expired == 2


async def test_items_that_expire_together_hold_their_sequences(shell: Shell) -> None:
    queue = await fill(shell, "a1", "a2", expires=60, on_expired="dead")
    await fill(shell, "b1", "b2", sequence="b", expires=60)
    shell.clock.advance(61)
    assert await queue.reserve() is None
    assert sorted(item.payload for item in await queue.dead.peek(9)) == ["a1", "b1"]
    assert (await queue.counts()).blocked == 2
    assert (await queue.dead.replay()).pushed == 2
    assert sorted(item.payload for item in await queue.reserve_many(9)) == ["a1", "b1"]


async def test_a_queue_that_continues_lets_the_next_item_follow(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await queue.configure(on_dead="continue")
    await die(queue)
    assert await drain(shell) == [2]
    assert (await queue.dead.peek())[0].origin.place is None


# --- what becomes of the letter ------------------------------------------------------------------


@pytest.mark.every_shell("mongomock")
async def test_a_replayed_letter_goes_back_to_its_place(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    await queue.push(3, sequence="a")
    assert (await queue.dead.replay()).pushed == 1
    (first,) = await queue.peek(9)
    assert (first.payload, first.stored("place"), first.origin.place) == (1, 0, None)
    assert control(shell) == (1, [])
    assert await drain(shell) == [1, 2, 3]
    assert control(shell) is None


async def _goes_by_removal(queue: Any) -> None:
    assert await queue.dead.remove((await queue.dead.peek())[0].id)


async def _goes_by_purge(queue: Any) -> None:
    assert await queue.dead.purge() == 1


async def _goes_by_purge_of_a_reason(queue: Any) -> None:
    assert await queue.dead.purge(reason="no stock") == 1


async def _goes_by_pop(queue: Any) -> None:
    assert (await queue.dead.pop()).payload == 1


async def _goes_by_commit(queue: Any) -> None:
    await queue.dead.commit(await queue.dead.reserve())


async def _goes_by_commit_many(queue: Any) -> None:
    await queue.dead.commit_many(await queue.dead.reserve_many(5))


async def _goes_by_move(queue: Any) -> None:
    await queue.dead.move(await queue.dead.reserve(), "elsewhere")


async def _goes_by_move_many(queue: Any) -> None:
    items = await queue.dead.reserve_many(5)
    await queue.dead.move_many([(item, mongoq.Move("elsewhere")) for item in items])


async def _goes_by_a_replay_elsewhere(queue: Any) -> None:
    assert (await queue.dead.replay(to="elsewhere")).pushed == 1


GOES = [value for name, value in sorted(globals().items()) if name.startswith("_goes_by_")]


@pytest.mark.parametrize("goes", GOES)
async def test_the_sequence_goes_on_when_its_letter_has_gone(shell: Shell, goes: Any) -> None:
    queue = await fill(shell, 1, 2, 3)
    await die(queue)
    await goes(queue)
    assert control(shell) == (1, [])
    (following,) = await queue.peek(9)
    assert following.payload == 2
    assert await drain(shell) == [2, 3]
    assert control(shell) is None
    # Nothing is left of a sequence whose only item has died.
    queue = await fill(shell, 1)
    await die(queue)
    assert control(shell) is not None
    await goes(queue)
    assert control(shell) is None
    await queue.push(2, sequence="a")
    assert await drain(shell) == [2]


async def _disappears_by_hand(shell: Shell) -> None:
    shell.raw.delete_one({"q": "orders.dead"})


async def _disappears_into_history(shell: Shell) -> None:
    shell.raw.update_one(
        {"q": "orders.dead"}, {"$set": {"processed": shell.clock.now()}, "$unset": {"when": "", "token": ""}}
    )


DISAPPEARS = [value for name, value in sorted(globals().items()) if name.startswith("_disappears_")]


@pytest.mark.parametrize("disappears", DISAPPEARS)
async def test_a_repair_finds_out_that_a_letter_has_gone(shell: Shell, disappears: Any) -> None:
    queue = await fill(shell, 1, 2, 3)
    await die(queue)
    await disappears(shell)
    assert await queue.reserve() is None
    assert await queue.repair_sequences() == 1
    assert control(shell) == (1, [])
    assert await drain(shell) == [2, 3]


async def test_a_dropped_dead_queue_holds_nothing(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    await shell.broker.drop_queue("orders.dead", force=True)
    assert await drain(shell) == [2]


async def test_a_letter_of_a_dropped_queue_goes_to_the_end(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    assert await shell.broker.drop_queue("orders", force=True) == 1
    await fill(shell, 3)
    await queue.dead.replay()
    assert await drain(shell) == [3, 1]
    assert control(shell) is None


async def test_a_letter_that_is_reserved_still_holds(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    letter = await queue.dead.reserve()
    assert (await queue.dead.replay()).pushed == 0
    assert await queue.repair_sequences() == 0
    await queue.dead.rollback(letter, error="x")
    assert await queue.pop() is None
    await queue.dead.replay()
    assert await drain(shell) == [1, 2]


@pytest.mark.parametrize("many", [True, False])
async def test_a_letter_that_is_moved_back_into_its_sequence_takes_its_place(shell: Shell, many: bool) -> None:
    queue = await fill(shell, {"n": 1}, {"n": 2})
    await die(queue)
    letter = await queue.dead.reserve()
    move = mongoq.Move("orders", payload={"n": 10}, sequence="a")
    if many:
        await queue.dead.move_many([(letter, move)])
    else:
        await queue.dead.move(letter, "orders", payload={"n": 10}, sequence="a")
    (first,) = await queue.peek(9)
    assert (first.payload["n"], first.stored("place"), first.origin.place) == (10, 0, None)
    assert control(shell) == (1, [])
    assert [payload["n"] for payload in await drain(shell)] == [10, 2]
    assert control(shell) is None


@pytest.mark.every_shell("motor")
async def test_a_letter_in_a_transaction(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    letter = await queue.dead.reserve()
    if shell.kind == "sync":
        with shell.broker._target.transaction() as tx:
            queue._target.dead.commit(letter, session=tx.session)
            assert queue._target.pop() is None
    else:
        async with shell.broker.transaction() as tx:
            await queue.dead.commit(letter, session=tx.session)
    assert await drain(shell) == [2]


# --- what may happen to the sequence meanwhile ----------------------------------------------------


async def test_items_that_are_pushed_meanwhile_wait(shell: Shell) -> None:
    queue = await fill(shell, 1)
    await die(queue)
    await queue.push(2, sequence="a")
    await queue.push_many([3, 4], sequence="a")
    assert await queue.reserve() is None
    assert (await queue.counts()).blocked == 3
    await queue.configure(max_in_sequence=3)
    await queue.push(5, sequence="a")
    assert await queue.reserve() is None
    await queue.dead.replay()
    assert [item.payload for item in await queue.reserve_many(9)] == [1, 2, 3]


@pytest.mark.parametrize("many", [True, False])
async def test_a_head_beside_a_letter_lets_nothing_follow(shell: Shell, many: bool) -> None:
    queue = await fill(shell, 1, 2, 3, 4, most=2)
    first, second = await queue.reserve(), await queue.reserve()
    await queue.bury(first)
    assert control(shell) == (2, [first.id])
    await (queue.commit_many([second]) if many else queue.commit(second))
    assert control(shell) == (1, [first.id])
    assert await queue.reserve() is None
    await queue.dead.replay()
    assert [item.payload for item in await queue.reserve_many(9)] == [1, 3]
    assert control(shell) == (2, [])


async def test_two_letters_of_a_sequence_hold_it_both(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, 4, 5, most=2)
    first, second = await die(queue), await die(queue)
    assert control(shell) == (2, [first, second])
    assert (await queue.dead.replay(ids=[second])).pushed == 1
    assert control(shell) == (2, [first])
    assert (await queue.pop()).payload == 2
    assert await queue.reserve() is None
    assert control(shell) == (1, [first])
    assert await queue.dead.remove(first)
    assert [item.payload for item in await queue.reserve_many(9)] == [3, 4]
    assert control(shell) == (2, [])


async def test_one_of_two_letters_is_removed(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, 4, most=2)
    first, second = await die(queue), await die(queue)
    assert await queue.dead.remove(first)
    assert control(shell) == (1, [second])
    assert await queue.reserve() is None
    assert await queue.dead.remove(second)
    assert [item.payload for item in await queue.reserve_many(9)] == [3, 4]


async def test_a_lowered_limit_lets_nothing_past_a_letter(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, most=2)
    first, second = await queue.reserve(), await queue.reserve()
    await queue.bury(first)
    await queue.configure(max_in_sequence=1)
    await queue.commit(second)
    assert await queue.reserve() is None
    await queue.dead.replay()
    assert await drain(shell) == [1, 3]


async def test_a_repair_counts_letters_and_heads(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, 4, most=2)
    letter = await die(queue)
    shell.raw.delete_one({"payload": 2})
    assert await queue.repair_sequences() == 0
    assert control(shell) == (1, [letter])
    assert await queue.dead.remove(letter)
    assert [item.payload for item in await queue.reserve_many(9)] == [3, 4]


async def test_a_deleted_control_document_is_made_again(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3)
    item = await queue.reserve()
    shell.raw.delete_one({"_id": {"$regex": "^sequence:"}})
    await queue.bury(item)
    await queue.push(4, sequence="a")
    assert await queue.reserve() is None
    await queue.dead.replay()
    assert await drain(shell) == [1, 2, 3, 4]


async def test_a_hold_without_its_control_document_outlives_other_heads(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, most=2)
    first, second = await queue.reserve(), await queue.reserve()
    shell.raw.delete_one({"_id": {"$regex": "^sequence:"}})
    await queue.bury(first)
    await queue.commit(second)
    assert control(shell) == (0, [first.id])
    assert await queue.reserve() is None
    await queue.dead.remove(first.id)
    assert await drain(shell) == [3]


@pytest.mark.prove
@pytest.mark.parametrize("knows_sequences", [True, False])
async def test_a_process_that_has_not_heard_of_the_hold_deletes_the_other_head(
    shell: Shell, knows_sequences: bool
) -> None:
    other = shell.another().queue("orders")
    if knows_sequences:
        await other.push(0, sequence="b")
        assert (await other.pop()).payload == 0
    else:
        await other.push(0)
        assert await other.purge() == 1
    queue = await fill(shell, 1, 2, 3, most=2)
    letter = await die(queue)
    time.sleep(1.1)  # settings are taken for granted for a second
    assert await other.purge(state="ready") == 1
    assert await queue.peek(9) == []
    assert control(shell) == (1, [letter])
    await queue.dead.replay()
    assert await drain(shell) == [1, 3]


async def test_a_queue_with_blocked_items_alone_is_listed(shell: Shell) -> None:
    queue = await fill(shell, 1, 2)
    await die(queue)
    assert await shell.broker.queues() == ["orders", "orders.dead"]


async def test_more_sequences_than_one_transaction_looks_up(shell: Shell) -> None:
    queue, number = await fill(shell), 120
    await queue.configure(max_retries=0, on_expired="dead")
    names = [f"s{n}" for n in range(number)]
    await queue.push_many(range(number), sequences=names, expires=60)
    await queue.push_many(range(number, 3 * number), sequences=names * 2)
    shell.clock.advance(61)
    assert await queue.reserve_many(5) == []
    assert await queue.reserve() is None
    assert (await queue.dead.purge(reason="expired")) == number
    items = await queue.reserve_many(999)
    assert [item.payload for item in items] == list(range(number, 2 * number))
    await queue.rollback_many(items, error="x")
    assert await queue.reserve() is None
    assert (await queue.dead.replay()).pushed == number
    for start in (number, 2 * number):
        items = await queue.reserve_many(999)
        assert sorted(item.payload for item in items) == list(range(start, start + number))
        await queue.commit_many(items)
    assert shell.raw.count_documents({"_id": {"$regex": "^sequence:"}}) == 0


# --- what readers see ----------------------------------------------------------------------------


async def test_a_blocked_item_names_the_letter_that_holds_it(shell: Shell) -> None:
    queue = await fill(shell, 1, 2, 3, most=2)
    first = await die(queue)
    (waiting,) = await queue.peek(state="blocked")
    blockers = await queue.blocked_by(waiting.id)
    assert (blockers[0].id, blockers[0].queue) == (first, "orders.dead")
    assert [item.payload for item in blockers] == [1, 2]


# --- bad input -----------------------------------------------------------------------------------


async def test_a_value_that_cannot_be_used(shell: Shell) -> None:
    for value in ("stop", True, None):
        with pytest.raises(mongoq.ArgumentInvalid, match="on_dead: 'continue' or 'hold', not"):
            shell.queue(on_dead=value)
        with pytest.raises(mongoq.ArgumentInvalid, match="on_dead"):
            await shell.queue().configure(on_dead=value)


async def test_a_queue_without_a_dead_queue_cannot_hold(shell: Shell) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="on_dead: queue 'orders' has no dead queue"):
        shell.queue(dead=None, on_dead="hold")
    with pytest.raises(mongoq.ArgumentInvalid, match="on_dead"):
        await shell.queue("orders.dead").configure(on_dead="hold")
