"""Topics: what is pushed to one goes to every queue bound to it, to all of them or to none."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from tests.conformance.transactions import Failed, run_transaction, transaction
from tests.shells import Shell

QUEUES = ("billing", "shipping")


class Order(BaseModel):
    number: int


async def topic(shell: Shell, *queues: str, **options: Any) -> Any:
    """A handle of a topic with these queues."""
    await shell.broker.bind("orders", *(queues or QUEUES))
    return shell.queue(**options)


async def payloads(shell: Shell, *queues: str) -> list[list[Any]]:
    return [[item.payload for item in await shell.queue(queue).peek(99)] for queue in queues or QUEUES]


async def sizes(shell: Shell, *queues: str) -> list[int]:
    return [await shell.queue(queue).size() for queue in queues or ("orders", *QUEUES)]


# --- what a push writes --------------------------------------------------------------------------------


@pytest.mark.every_shell
async def test_a_push_goes_to_every_bound_queue_and_not_to_that_of_the_topic(shell: Shell) -> None:
    orders = await topic(shell)
    id = await orders.push({"$set": {"a.b": "$$NOW"}}, headers={"h": 1}, priority=7)
    assert await sizes(shell) == [0, 1, 1]
    items = [await shell.queue(queue).reserve() for queue in QUEUES]
    for item in items:
        assert (item.payload, item.headers, item.priority) == ({"$set": {"a.b": "$$NOW"}}, {"h": 1}, 7)
        assert item.origin == mongoq.Origin("orders", id, "published", 0, None, shell.clock.now())
    assert len({id, *(item.id for item in items)}) == 3


async def test_what_one_queue_does_is_nothing_to_the_other(shell: Shell) -> None:
    orders = await topic(shell)
    await orders.push(1)
    billing, shipping = map(shell.queue, QUEUES)
    await billing.commit(await billing.reserve())
    item = await shipping.reserve()
    await shipping.bury(item, reason="lost")
    assert (await sizes(shell, *QUEUES, "shipping.dead")) == [0, 0, 1]
    await shipping.dead.replay()
    assert (await shipping.reserve()).id == item.id, "a letter goes back to the queue it died in, not to the topic"


async def test_a_delay_holds_for_each_copy(shell: Shell) -> None:
    orders = await topic(shell)
    await orders.push(1, delay=60)
    assert [await shell.queue(queue).reserve() for queue in QUEUES] == [None, None]
    shell.clock.advance(61)
    assert [(await shell.queue(queue).reserve()).payload for queue in QUEUES] == [1, 1]


async def test_a_single_queue_is_a_topics_queue_too(shell: Shell) -> None:
    orders = await topic(shell, "billing")
    id = await orders.push(1)
    item = await shell.queue("billing").reserve()
    assert item.origin.id == id != item.id
    assert await sizes(shell) == [0, 1, 0]
    assert (await orders.push_many([2, 3]))[0] > id
    assert await payloads(shell) == [[2, 3], []]


async def test_what_a_models_handle_pushes_is_checked_once_for_all(shell: Shell) -> None:
    orders = await topic(shell, model=Order)
    for wrong in (orders.push({"number": "none"}), orders.push_many([Order(number=1), {"number": None}])):
        with pytest.raises(mongoq.PayloadInvalid):
            await wrong
    assert await sizes(shell) == [0, 0, 0]
    await orders.push(Order(number=1))
    await orders.push_many([Order(number=2)])
    assert await payloads(shell) == [[{"number": 1}, {"number": 2}]] * 2


async def test_each_bound_queue_counts_what_is_put_into_it(shell: Shell) -> None:
    orders = await topic(shell)
    id = ObjectId()
    for _ in range(2):
        await orders.push(1, id=id)
    await orders.push(1, key="k")
    await orders.push(2, key="k")
    await orders.push_many([3, 4])
    stats = await shell.broker.stats()
    assert {queue: counters.put for queue, counters in stats.items() if counters.put} == dict.fromkeys(QUEUES, 4)


# --- ids -----------------------------------------------------------------------------------------------


@pytest.mark.every_shell
@pytest.mark.parametrize("settled", [False, True])
async def test_the_same_id_twice_is_one_publication(shell: Shell, settled: bool) -> None:
    orders, id = await topic(shell), ObjectId()
    assert await orders.push({"$inc": 1}, id=id, headers={"h": 1}) == id
    if settled:
        for queue in map(shell.queue, QUEUES):
            item = await queue.reserve()
            assert (item.payload, item.headers) == ({"$inc": 1}, {"h": 1})
            await queue.commit(item)
    assert await orders.push("again", id=id) == id
    assert await orders.push_many(["again"], ids=[id]) == [id]
    assert await payloads(shell) == ([[], []] if settled else [[{"$inc": 1}]] * 2)


async def test_a_queue_that_is_bound_later_gets_its_copy_when_an_id_is_pushed_again(shell: Shell) -> None:
    orders, id = await topic(shell), ObjectId()
    await orders.push(1, id=id)
    await shell.broker.bind("orders", "audit")
    await orders.push(1, id=id)
    assert await sizes(shell, *QUEUES, "audit") == [1, 1, 1]


async def test_many_are_pushed_in_their_order_and_their_ids_are_theirs(shell: Shell) -> None:
    orders = await topic(shell)
    ids = await orders.push_many([{"n": n} for n in range(50)], headers={"h": 1}, priority=3)
    for queue in map(shell.queue, QUEUES):
        items = await queue.peek(99)
        assert [(item.payload["n"], item.origin.id) for item in items] == list(enumerate(ids))
        assert {(item.priority, item.headers["h"], item.origin.queue) for item in items} == {(3, 1, "orders")}
    assert await orders.push_many([]) == []
    assert await sizes(shell, "orders") == [0]


# --- keys ----------------------------------------------------------------------------------------------


async def test_each_queue_holds_one_live_item_of_a_key(shell: Shell) -> None:
    orders = await topic(shell)
    first = await orders.push("old", key="k")
    billing = shell.queue("billing")
    await billing.commit(await billing.reserve())
    second = await orders.push("new", key="k")
    assert second != first
    assert await payloads(shell) == [["new"], ["old"]], "billing had given the key free"
    assert [(await shell.queue(queue).peek())[0].key for queue in QUEUES] == ["k", "k"]


async def test_a_push_that_replaces_takes_every_copy_over(shell: Shell) -> None:
    orders = await topic(shell)
    await orders.push("old", key="k", headers={"h": 1}, priority=5)
    claim = await shell.queue("billing").reserve()
    id = await orders.push("new", key="k", on_duplicate="replace")
    assert await payloads(shell) == [["new"], ["new"]]
    for queue in map(shell.queue, QUEUES):
        (item,) = await queue.peek()
        assert (item.origin.id, item.headers, item.priority) == (id, {}, 0)
    with pytest.raises(mongoq.ReservationLost):
        await shell.queue("billing").commit(claim)


@pytest.mark.every_shell("motor")
async def test_a_key_that_one_queue_refuses_is_pushed_to_none(shell: Shell) -> None:
    orders = await topic(shell)
    live = await shell.queue("shipping").push("there", key="k")
    with pytest.raises(mongoq.DuplicateItem) as caught:
        await orders.push("new", key="k", on_duplicate="raise")
    assert (caught.value.queue, caught.value.item_id) == ("shipping", live)
    assert await payloads(shell) == [[], ["there"]]
    assert (await shell.broker.stats())["shipping"].put == 1


# --- transactions of the caller's ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "options"),
    [(1, {}), (2, {}), (2, {"key": "k"}), (2, {"id": ObjectId()})],
    ids=["one queue", "plain", "key", "id"],
)
async def test_a_push_happens_in_the_callers_transaction(shell: Shell, bound: int, options: dict[str, Any]) -> None:
    orders = await topic(shell, *QUEUES[:bound])
    with pytest.raises(Failed):
        async with transaction(shell) as tx:
            await orders.push(1, session=tx.session, **options)
            raise Failed
    assert await sizes(shell) == [0, 0, 0]
    async with transaction(shell) as tx:
        id = await orders.push(1, session=tx.session, **options)
        assert await orders.push(2, id=id, session=tx.session) == id, "it is there already, and spoils nothing"
        assert await sizes(shell) == [0, 0, 0]
    assert await payloads(shell) == [[1]] * bound + [[]] * (2 - bound)


async def test_a_transaction_goes_by_the_bindings_of_its_pushes(shell: Shell) -> None:
    """Not by those of the moment at which it began to read."""
    orders = shell.queue()
    async with transaction(shell) as tx:
        await orders.push("before", session=tx.session)
        await shell.broker.bind("orders", *QUEUES)
        await orders.push("after", session=tx.session)
    assert await payloads(shell, "orders", *QUEUES) == [["before"], ["after"], ["after"]]


# --- the queue of the topic itself ---------------------------------------------------------------------


async def test_what_lies_in_the_queue_of_the_topic_stays_there(shell: Shell) -> None:
    orders = shell.queue()
    await orders.push("before")
    await topic(shell)
    await orders.push("after")
    assert await payloads(shell, "orders", *QUEUES) == [["before"], ["after"], ["after"]]
    item = await orders.reserve()
    await orders.rollback(item)
    await orders.commit(await orders.reserve())
    assert await sizes(shell) == [0, 1, 1]


async def test_a_move_and_a_replay_go_to_that_queue_itself(shell: Shell) -> None:
    await topic(shell)
    source = shell.queue("other", history=60)
    await source.push_many(["moved", "many moved", "replayed"])
    await source.move(await source.reserve(), "orders")
    await source.move_many([(await source.reserve(), mongoq.Move("orders"))])
    await source.pop()
    await source.replay(to="orders")
    assert await sizes(shell) == [3, 0, 0]


async def test_what_lies_there_can_be_sent_on_in_a_transaction(shell: Shell) -> None:
    """As docs/topics.md says: also when its push is sent again by its producer."""
    orders, id = shell.queue(), ObjectId()
    await orders.push("early", id=id, headers={"h": 1})
    await topic(shell)
    item = await orders.reserve()

    async def send_on(tx: Any) -> None:
        await orders.push(item.payload, id=item.id, headers=item.headers, session=tx.session)
        await orders.commit(item, session=tx.session)

    await run_transaction(shell, send_on)
    assert await payloads(shell, "orders", *QUEUES) == [[], ["early"], ["early"]]
    await orders.push("early", id=id)
    assert await payloads(shell) == [["early"], ["early"]]


# --- bindings ------------------------------------------------------------------------------------------


async def test_bindings_are_listed_in_the_order_they_were_made(shell: Shell) -> None:
    bind, unbind = shell.broker.bind, shell.broker.unbind
    assert await shell.broker.bindings() == {}
    assert await bind("orders", "b", "a", "b") == ("b", "a")
    assert await bind("orders", "c", "a") == ("b", "a", "c")
    assert await bind("events", "a") == ("a",)
    assert await shell.another().bindings() == {"orders": ("b", "a", "c"), "events": ("a",)}
    assert await unbind("orders", "a", "unheard of") == ("b", "c")
    assert await unbind("orders") == ()
    assert await unbind("orders") == await unbind("unheard of", "x") == ()
    assert await shell.broker.bindings() == {"events": ("a",)}


async def test_a_broker_goes_by_its_own_bindings_at_once(shell: Shell) -> None:
    orders = await topic(shell)
    await orders.push(1)
    await shell.broker.unbind("orders", "billing")
    await orders.push(2)
    await shell.broker.unbind("orders")
    await orders.push(3)
    await shell.broker.bind("orders", "billing")
    await orders.push(4)
    assert await payloads(shell, "orders", *QUEUES) == [[3], [1, 4], [1, 2]]


WRONG: list[tuple[Any, tuple[Any, ...], str]] = [
    ("orders", (), "queues"),
    ("orders", ("orders",), r"queues\[0\]"),
    ("orders", ("billing", "orders"), r"queues\[1\]"),
    ("orders", ("next", "events"), "queues"),
    ("listener", ("next",), "topic"),
    ("orders.dead", ("next",), "topic"),
    ("orders", ("next", "next.dead"), r"queues\[1\]"),
    ("orders", ("next", "$x"), r"queues\[1\]"),
    (7, ("next",), "topic"),
]


async def test_what_cannot_be_bound_is_named_and_nothing_is_changed(shell: Shell) -> None:
    await shell.broker.bind("events", "listener")
    for wrong, queues, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{argument}: "):
            await shell.broker.bind(wrong, *queues)
    for wrong, queues in (("", ()), ("orders", ("$x",))):
        with pytest.raises(mongoq.QueueNameInvalid):
            await shell.broker.unbind(wrong, *queues)
    assert await shell.broker.bindings() == {"events": ("listener",)}


@pytest.mark.parametrize("bound", ["orders", [{"topic": "orders"}]], ids=str)
async def test_bindings_of_another_program_are_named_and_nothing_is_pushed(shell: Shell, bound: Any) -> None:
    shell.raw.insert_one({"_id": "topics:mongoq", "bound": bound})
    for attempt in (
        shell.queue().push(1),
        shell.queue().push_many([1]),
        shell.broker.bindings(),
        *([shell.broker.bind("orders", "billing"), shell.broker.unbind("orders")] if bound == "orders" else []),
    ):
        with pytest.raises(mongoq.CollectionUnsuitable, match="mend 'topics:mongoq'"):
            await attempt
    assert shell.raw.count_documents({"q": {"$exists": True}}) == 0


async def test_a_document_without_bindings_binds_nothing(shell: Shell) -> None:
    shell.raw.insert_one({"_id": "topics:mongoq"})
    await shell.queue().push(1)
    assert await shell.broker.bindings() == {}
    assert await sizes(shell) == [1, 0, 0]
