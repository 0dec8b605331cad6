"""Transactions: what happens in one happens with the caller's own writes, or not at all."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

transactional = pytest.mark.parametrize("shell", ["aio", "sync", "motor"], indirect=True)
without = pytest.mark.parametrize("shell", ["mongomock"], indirect=True)


class Failed(Exception):
    """What the caller's own code raises."""


@asynccontextmanager
async def transaction(shell: Shell) -> AsyncIterator[Any]:
    """A transaction of any shell."""
    block = shell.broker.transaction()
    if inspect.isawaitable(block):
        with await block as tx:
            yield tx
    else:
        async with block as tx:
            yield tx


async def run_transaction(shell: Shell, function: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    if shell.kind in ("aio", "motor"):
        return await shell.broker.run_transaction(function)
    return await shell.broker.run_transaction(lambda tx: finished(function(tx)))


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing, as those of the synchronous shell."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def settled(reply: Any) -> Any:
    return await reply if isinstance(reply, Awaitable) else reply


def client_of(shell: Shell) -> Any:
    return shell.broker._driver._backend.client


def orders_of(shell: Shell) -> Any:
    """The caller's own collection, by the client of the broker."""
    return client_of(shell)[shell.raw.database.name]["own"]


async def note(shell: Shell, tx: Any, **document: Any) -> None:
    await settled(orders_of(shell).insert_one(document, session=tx.session))


def noted(shell: Shell) -> int:
    return int(shell.raw.database["own"].count_documents({}))


async def reserved(shell: Shell, payload: Any = 1, **options: Any) -> Any:
    await shell.queue().push(payload, **options)
    return await shell.queue().reserve()


@asynccontextmanager
async def own_session(shell: Shell) -> AsyncIterator[Any]:
    """A session that the caller has started, with a transaction in it."""
    session = await settled(client_of(shell).start_session())
    await settled(session.start_transaction())
    try:
        yield session
        await settled(session.commit_transaction())
    finally:
        await settled(session.end_session())


@transactional
async def test_a_push_happens_with_the_callers_own_write(shell: Shell) -> None:
    queue = shell.queue()
    async with transaction(shell) as tx:
        await note(shell, tx, n=1)
        id = await queue.push({"order": 1}, session=tx.session)
        assert await queue.size() == noted(shell) == 0, "nobody sees it before it is committed"
    assert noted(shell) == 1
    item = await queue.reserve()
    assert (item.id, item.payload) == (id, {"order": 1})


@transactional
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


@transactional
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


@transactional
@pytest.mark.parametrize("how", ["live", "a stub", "keyed", "moved"])
async def test_an_id_that_is_there_already_adds_nothing_and_spoils_nothing(shell: Shell, how: str) -> None:
    queue, id = shell.queue(), ObjectId()
    again = {"key": "k"} if how == "keyed" else {}
    await queue.push("old", id=id)
    if how == "a stub":
        await queue.commit(await queue.reserve())
    if how == "moved":
        await queue.move(await queue.reserve(), "next")
    before = shell.raw.find_one({"_id": id})
    async with transaction(shell) as tx:
        assert await queue.push("new", id=id, session=tx.session, **again) == id
        await note(shell, tx, n=1)
    assert shell.raw.find_one({"_id": id}) == before
    assert noted(shell) == 1


@transactional
async def test_an_id_is_remembered_from_within_a_transaction_too(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    payload = {"$set": {"a.b": "$$NOW"}, "c.d": [{"$inc": 1}]}
    async with transaction(shell) as tx:
        await queue.push(payload, id=id, headers={"$h": 1}, priority=3, session=tx.session)
        await queue.push("again", id=id, session=tx.session)
    item = await queue.reserve()
    assert (item.payload, item.headers, item.priority, item.attempts) == (payload, {"$h": 1}, 3, 1)
    await queue.commit(item)
    await queue.push("again", id=id)
    assert await queue.size() == 0


@transactional
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


@transactional
async def test_a_move_to_a_key_that_is_taken_says_so_and_aborts(shell: Shell) -> None:
    item = await reserved(shell)
    live = await shell.queue("next").push(1, key="k")
    with pytest.raises(mongoq.DuplicateItem) as caught:
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await shell.queue().move(item, "next", key="k", session=tx.session)
    assert (caught.value.item_id, noted(shell)) == (live, 0)
    await shell.queue().commit(item)


@transactional
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


@transactional
async def test_a_patch_that_does_not_fit_aborts_and_says_so(shell: Shell) -> None:
    item = await reserved(shell, "no document")
    with pytest.raises(mongoq.PatchInvalid):
        async with transaction(shell) as tx:
            await note(shell, tx, n=1)
            await shell.queue().move(item, "next", patch={"$set": {"a": 1}}, session=tx.session)
    assert noted(shell) == 0
    await shell.queue().commit(item)


# --- reserved() ----------------------------------------------------------------------------------------


@transactional
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


@transactional
@pytest.mark.parametrize("how", ["commit", "move"])
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


@transactional
async def test_a_block_that_fails_after_its_transaction_has_settled_its_item(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(Failed):
        async with queue.reserved() as item:
            async with transaction(shell) as tx:
                await queue.commit(item, session=tx.session)
            raise Failed
    assert await queue.size() == 0


@transactional
async def test_a_block_that_swallows_the_failure_of_its_transaction_commits_its_item(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    async with queue.reserved() as item:
        with pytest.raises(Failed):
            async with transaction(shell) as tx:
                await queue.move(item, "next", session=tx.session)
                raise Failed
    assert await queue.size() == await shell.queue("next").size() == 0


@transactional
async def test_a_block_whose_item_is_lost_after_an_abort_says_so(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(mongoq.ReservationLost):
        async with queue.reserved() as item:
            with pytest.raises(Failed):
                async with transaction(shell) as tx:
                    await queue.commit(item, session=tx.session)
                    raise Failed
            shell.clock.advance(31)
            assert await queue.reserve() is not None


@transactional
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


@transactional
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


@transactional
async def test_run_transaction_commits_and_returns_what_the_function_returned(shell: Shell) -> None:
    async def work(tx: Any) -> Any:
        await note(shell, tx, n=1)
        return await shell.queue().push(1, session=tx.session)

    id = await run_transaction(shell, work)
    assert noted(shell) == 1
    assert (await shell.queue().reserve()).id == id


@transactional
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


@transactional
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


@transactional
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


@transactional
async def test_ids_that_are_there_already_spoil_no_push_of_many(shell: Shell) -> None:
    queue = shell.queue()
    ids = [ObjectId() for _ in range(4)]
    await queue.push_many(["a", "b"], ids=ids[:2])
    async with own_session(shell) as session:
        assert await queue.push_many(["x", "y", "c", "d"], ids=ids, session=session) == ids
    assert [item.payload for item in await queue.peek(9)] == ["a", "b", "c", "d"]
    assert (await shell.broker.stats())["orders"].put == 4


@transactional
async def test_a_topic_takes_many_in_the_transaction_of_the_caller(shell: Shell) -> None:
    await shell.broker.bind("news", "orders", "bills")
    with pytest.raises(Failed):
        async with transaction(shell) as tx:
            await shell.queue("news").push_many([1, 2], session=tx.session)
            raise Failed
    async with own_session(shell) as session:
        await shell.queue("news").push_many([1, 2], session=session)
        assert await shell.queue().size() == 0
    for name in ("orders", "bills"):
        assert [item.payload for item in await shell.queue(name).peek(9)] == [1, 2]


@transactional
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


@transactional
async def test_many_in_a_session_without_a_transaction_are_refused(shell: Shell) -> None:
    session = await settled(client_of(shell).start_session())
    try:
        with pytest.raises(mongoq.ArgumentInvalid, match="session: is in no transaction"):
            await shell.queue().push_many([1], session=session)
        with pytest.raises(mongoq.ArgumentInvalid, match="session: a session of the client"):
            await shell.queue().push_many([1], session=5)
    finally:
        await settled(session.end_session())
    assert await shell.queue().size() == 0


@without
async def test_many_in_a_session_need_a_server(shell: Shell) -> None:
    with pytest.raises(mongoq.TransactionsUnavailable, match="fixture mongoq_broker"):
        await shell.queue().push_many([1], session=object())


# --- sessions ------------------------------------------------------------------------------------------


@transactional
async def test_a_session_of_the_callers_own_will_do(shell: Shell) -> None:
    item = await reserved(shell)
    async with own_session(shell) as session:
        await shell.queue().push(2, session=session)
        await shell.queue().move(item, "next", session=session)
        assert await shell.queue("next").size() == 0
    assert await shell.queue("next").size() == await shell.queue().size() == 1


@transactional
async def test_a_session_that_cannot_be_joined_is_refused_and_nothing_happens(shell: Shell) -> None:
    queue = shell.queue()
    session = await settled(client_of(shell).start_session())
    async with transaction(shell) as tx:
        ended = tx.session
    refused = {"in no transaction": [session, ended], "not str": ["tx"], f"not {type(tx).__name__}": [tx]}
    for problem, sessions in refused.items():
        for unusable in sessions:
            with pytest.raises(mongoq.ArgumentInvalid, match=problem):
                await queue.push(1, session=unusable)
    await settled(session.end_session())
    assert shell.raw.count_documents({}) <= 1, "the schema document"


@transactional
async def test_a_transaction_in_a_transaction_is_refused(shell: Shell) -> None:
    async with transaction(shell) as tx:
        await shell.queue().push(1, session=tx.session)
        with pytest.raises(mongoq.ArgumentInvalid, match="running here already"):
            async with transaction(shell):
                raise AssertionError("unreachable")
    assert await shell.queue().size() == 1
    async with transaction(shell):
        pass


@transactional
async def test_a_session_is_asked_for_within_the_block_only(shell: Shell) -> None:
    block = await settled(shell.broker.transaction())
    with pytest.raises(mongoq.ArgumentInvalid, match="has not begun"):
        _ = block.session


@transactional
async def test_what_the_caller_has_ended_by_hand_stays_so(shell: Shell) -> None:
    async with transaction(shell) as tx:
        await shell.queue().push(1, session=tx.session)
        await settled(tx.session.abort_transaction())
    assert await shell.queue().size() == 0
    async with transaction(shell) as tx:
        await shell.queue().push(1, session=tx.session)
        await settled(tx.session.commit_transaction())
    assert await shell.queue().size() == 1


@without
async def test_without_transactions_it_says_what_to_do_and_writes_nothing(shell: Shell) -> None:
    item = await reserved(shell)
    attempts: list[Callable[[], Any]] = [
        lambda: shell.queue().push(1, session=object()),
        lambda: shell.queue().commit(item, session=object()),
        lambda: shell.queue().move(item, "next", session=object()),
        lambda: run_transaction(shell, lambda tx: shell.queue().push(1, session=tx.session)),
        lambda: transaction(shell).__aenter__(),
    ]
    hint = "fixture mongoq_broker.*EmbeddedServer" if shell.kind == "mongomock" else "replSet.*EmbeddedServer"
    for attempt in attempts:
        with pytest.raises(mongoq.TransactionsUnavailable, match=hint):
            await attempt()
    assert await shell.queue().counts() == mongoq.Counts(reserved=1)
