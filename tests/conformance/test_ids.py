"""Ids that are given: the same push again adds nothing, and another push under the same id is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.conformance.transactions import transaction
from tests.shells import Shell

Fate = Callable[[Any, Any], Awaitable[Any]]


async def test_an_id_may_be_given_as_the_text_that_logs_show(shell: Shell) -> None:
    queue = shell.queue(history=60)
    id = await queue.push(1, id="65E06E6E0000000000000001")
    text = str(id)
    assert isinstance(id, ObjectId)
    assert await queue.push(1, id=text) == id
    assert (await queue.get(text)).id == id
    assert await shell.broker.trail(text) is not None
    await queue.pop()
    assert (await queue.replay(ids=[text])).pushed == 1
    await queue.bury(await queue.reserve())
    [letter] = await queue.dead.peek(5)
    assert (await queue.dead.replay(ids=[str(letter.id)])).pushed == 1
    assert await queue.remove(text)


@pytest.mark.parametrize("length", ["1500ms", "1.5s", " 1.5 ", timedelta(seconds=1.5), 1.5])
async def test_a_duration_may_be_given_as_a_text(shell: Shell, length: Any) -> None:
    queue = shell.queue(lease=length, history=length)
    await queue.push(1, delay="0s", expires=length)
    assert (queue.settings.lease, queue.settings.history) == (timedelta(seconds=1.5), timedelta(seconds=1.5))
    item = await queue.reserve(wait="5s", lease="2h")
    assert item.lease_until - shell.clock.now() == timedelta(hours=2)
    await queue.rollback(item, delay="1d")
    assert await queue.size("scheduled") == 1
    with pytest.raises(mongoq.ArgumentInvalid, match="^delay: .5 minutes. is no duration; write it as 90s, 5m"):
        await queue.push(1, delay="5 minutes")


async def moved(charges: Any, shell: Shell) -> None:
    await charges.move(await charges.reserve(), "archive", payload="changed")


async def moved_and_committed(charges: Any, shell: Shell) -> None:
    await moved(charges, shell)
    archive = shell.queue("archive")
    await archive.commit(await archive.reserve())


async def buried_and_replayed_elsewhere(charges: Any, shell: Shell) -> None:
    await charges.bury(await charges.reserve())
    await charges.dead.replay(to="archive")


async def popped(charges: Any, shell: Shell) -> None:
    await charges.pop()


FATES: dict[str, Fate] = {
    "live": lambda charges, _: charges.peek(),
    "reserved": lambda charges, _: charges.reserve(),
    "buried": lambda charges, _: _buried(charges),
    "committed": lambda charges, _: _committed(charges),
    "moved": moved,
    "moved and committed": moved_and_committed,
    "buried and replayed elsewhere": buried_and_replayed_elsewhere,
    "popped": popped,
}


async def _buried(charges: Any) -> None:
    await charges.bury(await charges.reserve())


async def _committed(charges: Any) -> None:
    await charges.commit(await charges.reserve())


PUSHES: dict[str, Callable[[Any, ObjectId], Awaitable[Any]]] = {
    "push": lambda queue, id: queue.push("new", id=id),
    "push with a key": lambda queue, id: queue.push("new", id=id, key="k"),
    "push that replaces": lambda queue, id: queue.push("new", id=id, key="k", on_duplicate="replace"),
    "push_many": lambda queue, id: queue.push_many(["new"], ids=[id]),
}


@pytest.mark.parametrize(
    ("fate", "history"), [("committed", 60), ("moved and committed", 60), *((fate, None) for fate in FATES)]
)
async def test_an_id_is_the_same_push_again_or_refused(shell: Shell, fate: str, history: float | None) -> None:
    charges, emails, id = shell.queue("charges", history=history), shell.queue("emails", history=history), ObjectId()
    await charges.push("old", id=id)
    await FATES[fate](charges, shell)
    before = shell.raw.find_one({"_id": id})
    for name, push in PUSHES.items():
        assert await push(charges, id) in (id, [id])
        with pytest.raises((mongoq.DuplicateItem, mongoq.BatchIncomplete)) as caught:
            await push(emails, id)
        raised: Any = caught.value
        error = raised.failed[id] if name == "push_many" else raised
        assert (error.id, error.item_id, error.queue, error.key) == (id, id, before["q"], None)
        assert all(text in str(error) for text in (str(id), repr(before["q"]), "'emails'"))
    assert shell.raw.find_one({"_id": id}) == before
    assert await emails.size() == 0


@pytest.mark.every_shell
async def test_of_many_pushes_the_rest_is_stored_and_one_error_names_the_others(shell: Shell) -> None:
    charges, emails = shell.queue("charges"), shell.queue("emails")
    ids = [ObjectId() for _ in range(6)]
    await charges.push_many([0, 1], ids=ids[:2])
    await charges.commit(await charges.reserve())
    await emails.push(2, id=ids[2])
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await emails.push_many(range(6), ids=ids)
    assert caught.value.done == ids[2:]
    refused: dict[Any, Any] = dict(caught.value.failed)
    assert {id: error.queue for id, error in refused.items()} == dict.fromkeys(ids[:2], "charges")
    assert all(isinstance(error, mongoq.DuplicateItem) for error in caught.value.failed.values())
    assert sorted(item.payload for item in await emails.peek(9)) == [2, 3, 4, 5]
    assert await emails.push_many(range(2, 6), ids=ids[2:]) == ids[2:]


@pytest.mark.parametrize("in_history", [False, True])
async def test_the_id_of_an_item_that_was_pushed_without_one_is_taken_elsewhere(shell: Shell, in_history: bool) -> None:
    charges, emails = shell.queue("charges", history=60), shell.queue("emails")
    id = await charges.push(1)
    if in_history:
        await charges.pop()
    with pytest.raises(mongoq.DuplicateItem) as caught:
        await emails.push(2, id=id)
    assert caught.value.queue == "charges"
    assert await charges.push(1, id=id) == id


async def test_the_copies_of_a_replay_have_their_ids_for_themselves(shell: Shell) -> None:
    charges, id = shell.queue("charges", history=60), ObjectId()
    await charges.push(1, id=id)
    await charges.pop()
    for _ in range(2):
        await charges.replay(to="archive")
    (copy,) = await shell.queue("archive").peek(9)
    with pytest.raises(mongoq.DuplicateItem) as caught:
        await shell.queue("emails").push(2, id=copy.id)
    assert caught.value.queue == "archive"
    await shell.queue("archive").pop()
    assert (await charges.replay(to="archive")).already == 1
    with pytest.raises(mongoq.DuplicateItem):
        await shell.queue("emails").push(2, id=copy.id)


@pytest.mark.parametrize("fate", ["live", "committed", "moved and committed"])
async def test_what_an_earlier_version_pushed_counts_as_the_same_push(shell: Shell, fate: str) -> None:
    """It did not store which queue the push went to: nobody can say that it was another one."""
    charges, id = shell.queue("charges"), ObjectId()
    await charges.push("old", id=id)
    shell.raw.update_one({"_id": id}, {"$unset": {"into": ""}})
    await FATES[fate](charges, shell)
    before = shell.raw.find_one({"_id": id})
    for name in ("charges", "emails"):
        assert await shell.queue(name).push("new", id=id) == id
        assert await shell.queue(name).push_many(["new"], ids=[id]) == [id]
    assert shell.raw.find_one({"_id": id}) == before


@pytest.mark.parametrize("queues", [["audit"], ["audit", "billing"]], ids=["one queue", "two queues"])
async def test_an_id_that_was_pushed_to_another_topic_is_refused(shell: Shell, queues: list[str]) -> None:
    for topic in ("orders", "returns"):
        await shell.broker.bind(topic, *queues)
    orders, returns, id = shell.queue("orders"), shell.queue("returns"), ObjectId()
    assert [await orders.push(1, id=id) for _ in range(2)] == [id, id]
    await shell.queue("audit").pop()
    assert await orders.push(1, id=id) == id
    with pytest.raises(mongoq.DuplicateItem) as caught:
        await returns.push(2, id=id)
    assert caught.value.id == id
    assert caught.value.queue in queues
    with pytest.raises(mongoq.DuplicateItem):
        await returns.push_many([3, 2], ids=[ObjectId(), id])
    assert await shell.queue("audit").size() == 0, "all copies of a publication are there, or none"


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("again", [{}, {"key": "k"}], ids=["plain", "key"])
async def test_an_id_of_another_push_is_refused_within_a_transaction(shell: Shell, again: dict[str, Any]) -> None:
    charges, emails, id = shell.queue("charges"), shell.queue("emails"), ObjectId()
    await charges.push(1, id=id)
    with pytest.raises(mongoq.DuplicateItem) as caught:
        async with transaction(shell) as tx:
            await emails.push("before", session=tx.session)
            await emails.push(2, id=id, session=tx.session, **again)
    assert (caught.value.queue, caught.value.id) == ("charges", id)
    assert await emails.size() == 0, "an error that leaves the block aborts its transaction"
    async with transaction(shell) as tx:
        with pytest.raises(mongoq.DuplicateItem):
            await emails.push(2, id=id, session=tx.session, **again)
        await emails.push("after", session=tx.session)
    assert (await emails.pop()).payload == "after", "one that is caught spoils nothing"


async def test_an_item_is_remembered_by_the_queue_it_was_pushed_to(shell: Shell) -> None:
    queue, id = shell.queue("charges"), ObjectId()
    await queue.push(1, id=id, once=timedelta(days=1))
    await moved_and_committed(queue, shell)
    document = shell.raw.find_one({"_id": id})
    assert (document["into"], document["q"]) == ("charges", "archive")
    await queue.push(1)
    assert "into" not in shell.raw.find_one({"q": "charges"})
