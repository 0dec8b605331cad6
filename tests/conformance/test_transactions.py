"""Transactions: what happens in one happens with the caller's own writes, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.conformance.transactions import Failed, note, noted, own_session, run_transaction, settled, transaction
from tests.shells import Shell


async def reserved(shell: Shell, payload: Any = 1, **options: Any) -> Any:
    await shell.queue().push(payload, **options)
    return await shell.queue().reserve()


@pytest.mark.every_shell("motor")
async def test_a_push_happens_with_the_callers_own_write(shell: Shell) -> None:
    queue = shell.queue()
    async with transaction(shell) as tx:
        await note(shell, tx, n=1)
        id = await queue.push({"order": 1}, session=tx.session)
        assert await queue.size() == noted(shell) == 0, "nobody sees it before it is committed"
    assert noted(shell) == 1
    item = await queue.reserve()
    assert (item.id, item.payload) == (id, {"order": 1})


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("error", [Failed(), KeyboardInterrupt()], ids=repr)
async def test_an_exception_aborts_and_goes_on_unchanged(shell: Shell, error: BaseException) -> None:
    item = await reserved(shell)
    other = await reserved(shell)
    with pytest.raises(type(error)) as caught:
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await shell.queue("next").push(1, session=tx.session)
            await shell.queue().commit(item, session=tx.session)
            await shell.queue().move(other, "next", session=tx.session)
            raise error
    assert caught.value is error
    assert noted(shell) == await shell.queue("next").size() == 0
    assert await shell.queue().counts() == mongoq.Counts(reserved=2)
    await shell.queue().commit(item)
    await shell.queue().move(other, "next")


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("options", [{}, {"history": 60}], ids=["deleted", "kept"])
async def test_a_commit_and_a_move_happen_with_the_callers_own_write(shell: Shell, options: dict[str, Any]) -> None:
    queue = shell.queue(**options)
    first, second = await reserved(shell, {"n": 1}), await reserved(shell, {"n": 2})
    async with transaction(shell) as tx:
        await queue.commit(first, payload={"done": 1}, session=tx.session)
        await queue.move(second, "next", patch={"$set": {"a.b": 2}}, session=tx.session)
        await note(shell, tx, n=1)
        assert await queue.counts() == mongoq.Counts(reserved=2)
    assert noted(shell) == 1
    assert await queue.size() == 0
    assert [item.payload for item in await queue.peek(9, state="processed")] == [{"done": 1}] * len(options)
    assert (await shell.queue("next").pop()).payload == {"n": 2, "a": {"b": 2}}


@pytest.mark.parametrize("how", ["live", "a stub", "keyed"])
async def test_an_id_that_is_there_already_adds_nothing_and_spoils_nothing(shell: Shell, how: str) -> None:
    queue, id = shell.queue(), ObjectId()
    again = {"key": "k"} if how == "keyed" else {}
    await queue.push("old", id=id)
    if how == "a stub":
        await queue.commit(await queue.reserve())
    before = shell.raw.find_one({"_id": id})
    async with transaction(shell) as tx:
        assert await queue.push("new", id=id, session=tx.session, **again) == id
        await note(shell, tx, n=1)
    assert shell.raw.find_one({"_id": id}) == before
    assert noted(shell) == 1


async def test_a_key_holds_within_a_transaction(shell: Shell) -> None:
    queue = shell.queue()
    live = await queue.push("old", key="a")
    async with transaction(shell) as tx:
        assert await queue.push("new", key="a", session=tx.session) == live
        fresh = await queue.push("b", key="b", session=tx.session)
        assert await queue.push("b again", key="b", session=tx.session) == fresh
    assert await queue.size() == 2
    with pytest.raises(mongoq.DuplicateItem) as caught:
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await queue.push("c", key="a", on_duplicate="raise", session=tx.session)
    assert (caught.value.item_id, noted(shell)) == (live, 0)


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("how", ["commit", "move"])
async def test_who_lost_the_reservation_commits_nothing_of_his_transaction(shell: Shell, how: str) -> None:
    queue = shell.queue()
    stale = await reserved(shell)
    shell.clock.advance(31)
    holder = await queue.reserve()
    with pytest.raises(mongoq.ReservationLost) as caught:
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await queue.push("more", session=tx.session)
            settle = queue.commit(stale, session=tx.session) if how == "commit" else None
            await (settle or queue.move(stale, "next", session=tx.session))
    assert caught.value.held_by == holder.by
    assert noted(shell) == 0
    assert await queue.counts() == mongoq.Counts(reserved=1)
    await queue.commit(holder)


async def test_a_patch_that_does_not_fit_aborts_and_says_so(shell: Shell) -> None:
    item = await reserved(shell, "no document")
    with pytest.raises(mongoq.PatchInvalid):
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await shell.queue().move(item, "next", patch={"$set": {"a": 1}}, session=tx.session)
    assert noted(shell) == 0
    await shell.queue().commit(item)


# --- calls without session= ----------------------------------------------------------------------------


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("commits", [True, False])
async def test_calls_without_a_session_belong_to_the_transaction_of_their_block(shell: Shell, commits: bool) -> None:
    queue, own = shell.queue(), shell.raw.database.name
    first, second = await reserved(shell, 1), await reserved(shell, 2)
    try:
        async with transaction(shell) as tx:
            await queue.push(3)
            await queue.push(4, key="k")
            await queue.push_many([5, 6])
            await queue.commit(first)
            await queue.move(second, "next")
            once = mongoq.once if shell.kind == "sync" else mongoq.once_async
            assert await settled(once(tx.session.client[own]["own"], "hash", {"n": 1}))
            assert await queue.counts() == mongoq.Counts(reserved=2), "nobody sees it before it is committed"
            assert await shell.queue("next").size() == noted(shell) == 0
            if not commits:
                raise Failed
    except Failed:
        assert await queue.counts() == mongoq.Counts(reserved=2)
        assert await shell.queue("next").size() == noted(shell) == 0
    else:
        assert [item.payload for item in await queue.peek(9)] == [3, 4, 5, 6]
        assert await shell.queue("next").size() == noted(shell) == 1
    await queue.push(7)
    assert await queue.counts() == (mongoq.Counts(ready=5) if commits else mongoq.Counts(ready=1, reserved=2))


async def test_a_call_with_session_none_happens_whatever_becomes_of_the_transaction(shell: Shell) -> None:
    queue = shell.queue()
    first, second = await reserved(shell), await reserved(shell)
    with pytest.raises(Failed):
        async with transaction(shell) as tx:
            await queue.push(1, session=None)
            await queue.push_many([2, 3], session=None)
            await queue.commit(first, session=None)
            await queue.move(second, "next", session=None)
            own = tx.session.client[shell.raw.database.name]["own"]
            once = mongoq.once if shell.kind == "sync" else mongoq.once_async
            await settled(once(own, "hash", {"n": 1}, session=None))
            raise Failed
    assert await queue.counts() == mongoq.Counts(ready=3)
    assert await shell.queue("next").size() == noted(shell) == 1


async def test_the_item_of_a_block_within_a_transaction_is_committed_with_it_or_stays(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(Failed):
        async with transaction(shell):
            async with queue.reserved():
                await shell.queue("next").push(1)
            raise Failed
    assert await queue.counts() == mongoq.Counts(reserved=1)
    assert await shell.queue("next").size() == 0
    shell.clock.advance(31)
    async with transaction(shell), queue.reserved():
        await shell.queue("next").push(1)
    assert await queue.size() == 0
    assert await shell.queue("next").size() == 1


async def test_a_function_without_a_session_is_run_in_its_transaction(shell: Shell) -> None:
    async def work(tx: Any) -> None:
        await shell.queue().push(1)
        raise Failed

    with pytest.raises(Failed):
        await run_transaction(shell, work)
    assert await shell.queue().size() == 0


# --- reserved() ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["commit", "move"])
async def test_a_block_that_settles_its_item_in_a_transaction_is_left_alone(shell: Shell, how: str) -> None:
    queue = shell.queue()
    await queue.push(1)
    async with queue.reserved() as item, transaction(shell) as tx:
        await note(shell, tx, n=1)
        if how == "commit":
            await queue.commit(item, session=tx.session)
        else:
            await queue.move(item, "next", session=tx.session)
    assert noted(shell) == 1
    assert await queue.size() == 0
    assert await shell.queue("next").size() == (how == "move")


@pytest.mark.parametrize("how", ["commit"])
async def test_a_block_whose_transaction_fails_rolls_its_item_back(shell: Shell, how: str) -> None:
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(Failed):
        async with queue.reserved() as item, transaction(shell) as tx:
            await note(shell, tx, n=1)
            if how == "commit":
                await queue.commit(item, session=tx.session)
            else:
                await queue.move(item, "next", session=tx.session)
            raise Failed("no stock")
    assert noted(shell) == 0
    again = await queue.reserve()
    assert (again.error.message, again.attempts) == ("no stock", 2)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_block_within_a_transaction_leaves_its_item_to_it(shell: Shell, commits: bool) -> None:
    queue = shell.queue()
    await queue.push(1)
    try:
        async with transaction(shell) as tx:
            async with queue.reserved() as item:
                await queue.commit(item, session=tx.session)
            if not commits:
                raise Failed
    except Failed:
        assert await queue.counts() == mongoq.Counts(reserved=1)
        shell.clock.advance(31)
        item = await queue.reserve()
        assert item.attempts == 2
    else:
        assert await queue.size() == 0


@pytest.mark.parametrize("commits", [True, False])
async def test_a_block_goes_by_the_callers_own_transaction(shell: Shell, commits: bool) -> None:
    queue = shell.queue()
    await queue.push(1)
    try:
        async with queue.reserved() as item, own_session(shell) as session:
            await queue.commit(item, session=session)
            if not commits:
                raise Failed
    except Failed:
        assert (await queue.reserve()).error.type.endswith("Failed")
    else:
        assert await queue.size() == 0


# --- run_transaction -----------------------------------------------------------------------------------


@pytest.mark.every_shell("motor")
async def test_run_transaction_commits_and_returns_what_the_function_returned(shell: Shell) -> None:
    async def work(tx: Any) -> Any:
        await note(shell, tx, n=1)
        return await shell.queue().push(1, session=tx.session)

    id = await run_transaction(shell, work)
    assert noted(shell) == 1
    assert (await shell.queue().reserve()).id == id


async def test_an_exception_of_the_function_is_not_tried_again(shell: Shell) -> None:
    calls, error = [], Failed()

    async def work(tx: Any) -> None:
        calls.append(tx)
        await shell.queue().push(1, session=tx.session)
        raise error

    with pytest.raises(Failed) as caught:
        await run_transaction(shell, work)
    assert caught.value is error
    assert len(calls) == 1
    assert await shell.queue().size() == 0


@pytest.mark.every_shell("motor")
async def test_a_function_of_the_other_kind_is_refused(shell: Shell) -> None:
    async def pushes(tx: Any) -> None:
        await shell.queue().push(1, session=tx.session)

    with pytest.raises(mongoq.ArgumentInvalid, match="^function: returns .*; AsyncBroker takes an async function"):
        if shell.kind == "sync":
            await shell.broker.run_transaction(pushes)
        else:
            await shell.broker.run_transaction(lambda tx: None)
    assert await shell.queue().size() == 0


# --- many at once ------------------------------------------------------------------------------------


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("identified", [False, True])
async def test_many_items_are_pushed_with_the_transaction_or_not_at_all(shell: Shell, identified: bool) -> None:
    queue = shell.queue()
    ids = [ObjectId() for _ in range(200)] if identified else None
    with pytest.raises(Failed):
        async with transaction(shell) as tx:
            await queue.push_many(range(200), ids=ids, session=tx.session)
            raise Failed
    assert await queue.size() == 0
    async with transaction(shell) as tx:
        pushed = await queue.push_many(range(200), ids=ids, headers={"a": 1}, priority=3, session=tx.session)
        assert await queue.size() == 0
    assert await queue.size() == 200
    assert ids is None or pushed == ids
    items = await queue.peek(3)
    assert [(item.payload, item.headers, item.priority) for item in items] == [(n, {"a": 1}, 3) for n in range(3)]
    assert [item.id for item in items] == sorted(pushed)[:3]
    assert all((item.once is not None) is identified for item in items)


async def test_ids_that_are_there_already_spoil_no_push_of_many(shell: Shell) -> None:
    queue = shell.queue()
    ids = [ObjectId() for _ in range(4)]
    await queue.push_many(["a", "b"], ids=ids[:2])
    async with own_session(shell) as session:
        assert await queue.push_many(["x", "y", "c", "d"], ids=ids, session=session) == ids
    assert [item.payload for item in await queue.peek(9)] == ["a", "b", "c", "d"]
    assert (await shell.broker.stats())["orders"].put == 4


async def test_a_transaction_refuses_more_than_it_carries(shell: Shell) -> None:
    queue = shell.queue()
    async with transaction(shell) as tx:
        with pytest.raises(mongoq.ArgumentInvalid, match=r"payloads: 30,001 are 30,001 copies.*30,000 is the limit"):
            await queue.push_many(range(30_001), session=tx.session)
        with pytest.raises(mongoq.ArgumentInvalid, match=r"payloads: 3 are .* bytes in one transaction"):
            await queue.push_many(["x" * 12_000_000] * 3, session=tx.session)
        with pytest.raises(mongoq.PayloadInvalid, match=r"payloads\[1\]"):
            await queue.push_many([1, object()], session=tx.session)
        assert await queue.push_many([], session=tx.session) == []
        await queue.push_many(["small"], session=tx.session)
    assert [item.payload for item in await queue.peek(9)] == ["small"]


async def test_many_in_a_session_without_a_transaction_are_refused(shell: Shell) -> None:
    async with own_session(shell, begun=False) as session:
        with pytest.raises(mongoq.ArgumentInvalid, match="session: is in no transaction"):
            await shell.queue().push_many([1], session=session)
        with pytest.raises(mongoq.ArgumentInvalid, match="session: a session of the client"):
            await shell.queue().push_many([1], session=5)
    assert await shell.queue().size() == 0


# --- sessions ------------------------------------------------------------------------------------------


@pytest.mark.every_shell("motor")
async def test_a_session_of_the_callers_own_will_do(shell: Shell) -> None:
    item = await reserved(shell)
    async with own_session(shell) as session:
        await shell.queue().push(2, session=session)
        await shell.queue().move(item, "next", session=session)
        assert await shell.queue("next").size() == 0
    assert await shell.queue("next").size() == await shell.queue().size() == 1


@pytest.mark.every_shell("motor")
async def test_a_session_that_cannot_be_joined_is_refused_and_nothing_happens(shell: Shell) -> None:
    queue = shell.queue()
    async with transaction(shell) as tx:
        ended = tx.session
    async with own_session(shell, begun=False) as session:
        refused = {"in no transaction": [session, ended], "not str": ["tx"], f"not {type(tx).__name__}": [tx]}
        for problem, sessions in refused.items():
            for unusable in sessions:
                with pytest.raises(mongoq.ArgumentInvalid, match=problem):
                    await queue.push(1, session=unusable)
    assert shell.raw.count_documents({}) <= 1, "the schema document"


@pytest.mark.every_shell("motor")
async def test_a_transaction_in_a_transaction_is_refused(shell: Shell) -> None:
    async with transaction(shell) as tx:
        await shell.queue().push(1, session=tx.session)
        with pytest.raises(mongoq.ArgumentInvalid, match="running here already"):
            async with transaction(shell):
                raise AssertionError("unreachable")
    assert await shell.queue().size() == 1
    async with transaction(shell):
        pass


@pytest.mark.every_shell("motor")
async def test_a_session_is_asked_for_within_the_block_only(shell: Shell) -> None:
    block = await settled(shell.broker.transaction())
    with pytest.raises(mongoq.ArgumentInvalid, match="has not begun"):
        _ = block.session


# --- without a server ----------------------------------------------------------------------------------


def test_without_transactions_it_says_what_to_do_and_writes_nothing() -> None:
    broker = mongoq.Broker(pytest.importorskip("mongomock").MongoClient(tz_aware=True)["test"]["mongoq"])
    queue = broker.queue("orders")
    queue.push(1)
    item = queue.reserve()
    attempts: list[Callable[[], Any]] = [
        lambda: queue.push(1, session=object()),
        lambda: queue.push_many([1], session=object()),
        lambda: queue.commit(item, session=object()),
        lambda: queue.move(item, "next", session=object()),
        lambda: broker.run_transaction(lambda tx: queue.push(1, session=tx.session)),
        lambda: broker.transaction().__enter__(),
    ]
    for attempt in attempts:
        with pytest.raises(mongoq.TransactionsUnavailable, match="fixture mongoq_broker.*EmbeddedServer"):
            attempt()
    assert queue.counts() == mongoq.Counts(reserved=1)
    broker.close()
