"""Pushes that share an insert: their envelopes are made there, as each by itself would have made its own."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect

import mongoq
from mongoq.model.encoding.codec import codec_options
from mongoq.protocol.flow import Command, Duplicate, Flow, PartlyRefused, ReplyLost, Shared
from mongoq.protocol.push import push as shared_push
from mongoq.protocol.push.push import Draft, push
from mongoq.protocol.state.context import BrokerContext, QueueContext
from tests.unit.protocol.test_group_commit_flows import OPTIONS, shared_context
from tests.unit.scripted import NOW, context, matched, play


def asking(queue: QueueContext[Any], payload: Any, **own_options: Any) -> tuple[Flow[ObjectId], Any]:
    """A caller who waits in the batcher, and what it asks for there."""
    flow = push(queue, payload, **OPTIONS | own_options)
    shared = next(flow)
    assert isinstance(shared, Shared)
    return flow, shared.entry


def ended(flow: Flow[ObjectId]) -> ObjectId:
    with pytest.raises(StopIteration) as stop:
        flow.send(None)
    assert isinstance(stop.value.value, ObjectId)
    return stop.value.value


def documents(command: Command[Any]) -> list[dict[str, Any]]:
    inserted = command.arguments["documents"]
    return [bson.decode(bson.encode(document, codec_options=codec_options()), codec_options()) for document in inserted]


GIVEN = ObjectId("000000000000000000000000")
"""An id that the producer gave, and that sorts before those of now."""


def test_they_are_inserted_as_each_by_itself_would_be() -> None:
    queue, other_queue = shared_context(), context("others")
    other_queue.broker = queue.broker
    calls: list[tuple[Any, Any, dict[str, Any]]] = [
        (queue, {"n": 1}, {}),
        (queue, 7, {"priority": 5}),
        (queue, {"n": 2}, {"headers": {"by": "web"}}),
        (other_queue, {"n": 2}, {}),
        (queue, {"n": 3}, {"delay": 5}),
        (queue, [1], {"when": NOW + timedelta(days=1)}),
        (queue, "text", {"id": GIVEN}),
        (queue, None, {}),
        *((queue, {"n": n}, {"priority": n % 2}) for n in range(10)),
    ]
    callers = [asking(handle, payload, **options) for handle, payload, options in calls]
    (insert,), _ = play(shared_push._insert_drafts([entry for _, entry in callers]), [None])
    ids = [ended(flow) for flow, _ in callers]
    new_ids = [id for id in ids if id != GIVEN]
    assert new_ids == sorted(set(new_ids)), "in the order of the callers"
    assert ids[6] == GIVEN
    alone, queue.broker.batchers = [], None
    for (handle, payload, options), id in zip(calls, ids, strict=True):
        (command,), _ = play(push(handle, payload, **OPTIONS | options), [None])
        alone.append({**command.arguments["document"], "_id": id})
    assert documents(insert) == documents(Command("insert_many", {"documents": alone}))
    assert [document["headers"] for document in documents(insert) if "headers" in document] == [{"by": "web"}]


@given(
    queue=st.text(st.characters(codec="utf-8", exclude_characters="\0$"), min_size=1, max_size=20),
    payload=st.one_of(st.none(), st.integers(-5, 5), st.text("aß"), st.dictionaries(st.text("ab"), st.floats())),
    priority=st.integers(-100, 100),
    delay=st.one_of(st.none(), st.timedeltas(timedelta(0), timedelta(days=9_000))),
)
def test_an_envelope_that_is_made_of_bytes_is_what_the_driver_would_make_of_it(
    queue: str, payload: Any, priority: int, delay: timedelta | None
) -> None:
    handle = context(queue)
    wrapped = handle.codec.wrap(payload)
    draft = Draft(handle, wrapped, priority, None, delay, None, None, timedelta(days=7))
    draft.stamp()
    assert draft.encode().raw == bson.encode(draft.envelope(), codec_options=codec_options())


def test_they_stand_in_the_order_of_their_calls() -> None:
    """Whatever their options, and however long they waited: others may have gone by themselves meanwhile."""
    queue = shared_context()
    calls: list[dict[str, Any]] = [{}, {"headers": {"a": 1}}, {}, {"id": GIVEN}, {"delay": 0}, {}]
    callers = []
    for options in calls:
        callers.append(asking(queue, {"n": 1}, **options))
        queue.broker.clock.advance(1)
    (insert,), _ = play(shared_push._insert_drafts([entry for _, entry in callers]), [None])
    inserted = documents(insert)
    assert [document["when"] for document in inserted] == [
        NOW + timedelta(seconds=place) for place in range(len(calls))
    ]
    ids = [document["_id"] for document in inserted if document["_id"] != GIVEN]
    assert ids == sorted(ids)


def test_a_lone_one_sends_what_it_would_send_anyway() -> None:
    queue = shared_context()
    flow, entry = asking(queue, {"n": 1})
    (insert,), _ = play(shared_push._insert_drafts([entry]), [None])
    queue.broker.batchers = None
    (alone,), _ = play(push(queue, {"n": 1}, **OPTIONS), [None])
    assert insert.method == alone.method == "insert_one"
    assert {**insert.arguments["document"], "_id": 0} == {**alone.arguments["document"], "_id": 0}
    assert ended(flow) == insert.arguments["document"]["_id"]


@pytest.mark.parametrize("there", [True, False])
def test_who_lost_the_reply_looks_for_its_own_item(there: bool) -> None:
    queue = shared_context()
    callers = [asking(queue, n) for n in range(3)]
    lost_reply = ReplyLost(AutoReconnect("gone"))
    (insert,), errors = play(shared_push._insert_drafts([entry for _, entry in callers]), [lost_reply])
    ids = [document["_id"] for document in documents(insert)]
    for (flow, _), error, id in zip(callers, errors, ids, strict=True):
        look = flow.throw(error)
        assert isinstance(look, Command)
        assert look.arguments["filter"] == {"_id": id}
        with pytest.raises(StopIteration if there else ReplyLost) as end:
            flow.send(look.parse(matched(int(there))))
        if there:
            assert end.value.value == id


def test_each_gets_its_own_error() -> None:
    queue, refused = shared_context(), Duplicate(ValueError("dup"))
    callers = [asking(queue, n) for n in range(3)]
    entries = [entry for _, entry in callers]
    _, errors = play(shared_push._insert_drafts(entries), [PartlyRefused(ValueError(), {1: refused}, 2)])
    assert errors == [None, refused, None]


@pytest.mark.parametrize("listener", ["who waits", "what was read ahead", None])
def test_what_was_inserted_is_counted_and_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, listener: str | None
) -> None:
    """Those alike together; each by itself to who waits, who meets it again in the change stream."""
    reports: list[tuple[Any, ...]] = []

    def record_put(broker: Any, name: str, when: Any, priority: int, *, id: Any = None, number: int = 1) -> None:
        reports.append((name, when, id, number, priority))
        broker.counters.add(name, "put", number)

    monkeypatch.setattr(BrokerContext, "record_put", record_put)
    queue = shared_context()
    if listener == "who waits":
        queue.broker.registry.wait_queues["orders"] = None  # type: ignore[assignment]  # only its name is looked for
    elif listener:
        queue.state.prefetch.items = [{"_id": GIVEN}]
    options: list[dict[str, Any]] = [{}, {}, {"priority": 5}, {}, {"delay": 5}]
    entries = [asking(queue, n, **each)[1] for n, each in enumerate(options)]
    play(shared_push._insert_drafts(entries), [PartlyRefused(ValueError(), {1: Duplicate(ValueError("dup"))}, 4)])
    assert queue.broker.counters.take() == {"orders": {"put": 4}}
    later = NOW + timedelta(seconds=5)
    first, _, urgent, second, delayed = [entry.id for entry in entries]
    expected: dict[str | None, list[Any]] = {
        "who waits": [(NOW, first, 1, 0), (NOW, second, 1, 0), (NOW, urgent, 1, 5), (later, delayed, 1, 0)],
        "what was read ahead": [(NOW, None, 2, 0), (NOW, None, 1, 5), (later, None, 1, 0)],
        None: [],
    }
    assert reports == [("orders", *each) for each in expected[listener]]


def test_large_ones_do_not_go_in_one_command() -> None:
    queue = shared_context()
    entries = [asking(queue, {"t": "x" * 6_000_000})[1] for _ in range(4)]
    inserts, errors = play(shared_push._insert_drafts(entries), [None, None])
    assert [len(insert.arguments["documents"]) for insert in inserts] == [2, 2]
    assert errors == [None] * 4


def test_what_is_bad_is_refused_before_it_meets_others() -> None:
    queue = shared_context()
    for payload, options in ((object(), {}), (1, {"priority": 1_000}), (1, {"on_duplicate": "never"})):
        with pytest.raises(mongoq.ArgumentInvalid):
            asking(queue, payload, **options)


def test_a_topic_gets_its_copies() -> None:
    queue = shared_context()
    queue.broker.topics.store({"orders": ("mail",)}, time.monotonic() + 3600, is_written=True)
    flow = push(queue, {"n": 1}, **OPTIONS)
    insert = next(flow)
    assert isinstance(insert, Command)
    assert insert.arguments["document"]["q"] == "mail"
    payload = insert.arguments["document"]["payload"]
    assert (dict(payload) if isinstance(payload, RawBSONDocument) else payload) == {"n": 1}
