"""Searches: each command examines one slice, and together they find each item once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import bson
import mongomock
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

import mongoq
from mongoq.model.item import Document
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Flow
from mongoq.protocol.history.dead_letters import read_letters, selection
from mongoq.protocol.history.pages import BoundedCount, Range, history_range
from mongoq.protocol.history.search import Search, count_range, read_slice, search

DEPTH = 600
PRIORITIES = (-1, 0, 1)
STATES = ("ready", "scheduled", "reserved", "expired", "processed", None)
Queue = mongoq.Queue[Any]


@pytest.fixture(scope="module")
def deep(client: MongoClient[Any]) -> Iterator[Queue]:
    """A queue with hundreds of items in each state, but few under a lease, and some stubs."""
    name = f"test_search_{ObjectId()}"
    collection = client[name]["mongoq"]
    with mongoq.Broker(collection) as broker:
        queue = broker.queue("orders", history=3600)
        queue.push_many(range(DEPTH))
        queue.commit_many(queue.reserve_many(DEPTH))
        now = broker._context.clock.now()
        collection.update_many({"q": "orders", "payload": {"$lt": 9}}, {"$unset": {"payload": ""}})
        envelopes = [_envelope(number, now) for number in range(4 * DEPTH)]
        collection.insert_many(envelopes)
        yield queue
    client.drop_database(name)


def _envelope(number: int, now: Any) -> dict[str, Any]:
    """Return an item; dates and priorities repeat, so that slices end between items of one date."""
    is_due, is_held = number % 2 == 0, number % 97 == 0
    when = now + timedelta(hours=-1 if is_due else 1, seconds=number // 50)
    token = {"token": ObjectId(), "by": "host:1:aaaa"} if is_held else {}
    shared = {"_id": ObjectId(), "q": "orders", "payload": number, "attempts": 0, "reserved": is_held, **token}
    return {**shared, "priority": PRIORITIES[number % 3], "when": when}


@pytest.fixture
def examined(deep: Queue, client: MongoClient[Any]) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """Return the documents and keys that each command has examined since the last call, by the server's profiler."""
    database = client[deep._context.broker.namespace.partition(".")[0]]
    database.drop_collection("system.profile")
    database.command("profile", 2)

    def read() -> list[tuple[int, int]]:
        entries = list(database["system.profile"].find({"ns": deep._context.broker.namespace}).sort("ts", 1))
        assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
        return [(entry.get("docsExamined", 0), entry.get("keysExamined", 0)) for entry in entries]

    yield read
    database.command("profile", 0)


def wanted(queue: Queue, state: Any, *, where: Any = None, page: int = 50, **times: Any) -> Range:
    times = {"since": None, "until": None, **times}
    return history_range(queue._context, where=where, state=state, page=page, **times)


def slices(queue: Queue, whole: Range, examine: int) -> Iterator[list[Document]]:
    rest: Range | None = whole
    while rest is not None:
        part = queue._run(read_slice, rest, examine=examine)
        assert part.rest is None or part.examined > 0
        rest = part.rest
        yield part.documents


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("where", [None, {"$mod": [7, 3]}, {"$eq": -1}], ids=["all", "some", "none"])
def test_slices_together_are_the_whole(deep: Queue, state: Any, where: Any) -> None:
    found = [document for part in slices(deep, wanted(deep, state, where=where), 61) for document in part]
    ids = [document["_id"] for document in found]
    assert ids == [item.id for item in deep.history(state=state, where=where)]
    assert [each["_id"] for each in deep._run(search, wanted(deep, state, where=where), limit=10 * DEPTH)] == ids
    assert len(set(ids)) == len(ids)
    assert bool(ids) == (where != {"$eq": -1})


def test_slices_of_a_time_are_the_whole(deep: Queue) -> None:
    times = [item.processed for item in deep.history()]
    between = {"since": times[10], "until": times[-1] + timedelta(seconds=1)}
    whole = [item.id for item in deep.history(**between, where={"$mod": [2, 1]})]
    found = [
        each["_id"]
        for part in slices(deep, wanted(deep, "processed", where={"$mod": [2, 1]}, **between), 7)
        for each in part
    ]
    assert whole
    assert found == whole


@pytest.mark.parametrize("state", [state for state in STATES if state is not None])
def test_a_slice_examines_no_more_than_its_limit(deep: Queue, examined: Any, state: Any) -> None:
    rest = wanted(deep, state, where={"$eq": -1})
    parts = list(slices(deep, rest, 100))
    assert len(parts) > 5
    documents, keys = zip(*examined(), strict=True)
    # The end of a slice is read from the keys alone.
    assert max(documents) <= 100
    assert sum(documents) <= 2 * DEPTH + 10
    # A scan of the index goes over each priority, and passes over dates in each that do not belong to the state.
    assert max(keys) <= 2 * 100 + 10 * len(PRIORITIES)


def test_a_search_that_finds_enough_examines_one_small_slice(deep: Queue, examined: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("mongoq.protocol.history.search.FIRST_SLICE", 100)
    progress: list[int] = []
    found = deep._run(search, wanted(deep, "ready"), limit=3, progress=progress.append)
    assert [document["_id"] for document in found] == [item.id for item in deep.peek(3, state="ready")]
    assert progress == [3]
    documents, keys = (max(numbers) for numbers in zip(*examined(), strict=True))
    assert documents <= 100
    assert keys <= 2 * 100 + 10


def test_pages_that_are_full_come_from_small_slices(deep: Queue, examined: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("mongoq.protocol.history.search.FIRST_SLICE", 60)
    pages, found = Search(deep._context, wanted(deep, "ready")), 0
    while pages.rest is not None:
        found += len(deep._run(lambda _: pages.read()))
    assert found == deep.size(state="ready")
    assert sum(documents for documents, _ in examined()) <= 3 * found


def test_a_search_reports_its_progress(deep: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mongoq.protocol.history.search.SLICE", 400)
    monkeypatch.setattr("mongoq.protocol.history.search.FIRST_SLICE", 100)
    progress: list[int] = []
    assert deep._run(search, wanted(deep, "ready", where={"$eq": -1}), limit=3, progress=progress.append) == []
    assert progress == [100, 500, 900, 1_300]


def test_items_that_leave_meanwhile_hide_no_others(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that leave between the two commands of a slice shift it: it must neither skip nor repeat an item."""
    queue = broker.queue("orders")
    ids = queue.push_many(range(40))
    gone = iter([ids[5], ids[15], ids[25]])

    def find_and_delete(*args: Any, **options: Any) -> Flow[list[Document]]:
        found = yield from find_few(*args, **options)
        raw.delete_one({"_id": next(gone, None)})
        return found

    monkeypatch.setattr("mongoq.protocol.history.search.find_few", find_and_delete)
    found = [document["_id"] for part in slices(queue, wanted(queue, "ready"), 10) for document in part]
    assert next(gone, None) is None
    assert len(found) == len(set(found))
    assert {document["_id"] for document in raw.find({"q": "orders"})} <= set(found)


def test_documents_of_other_programs_are_searched_as_well(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    when = raw.find_one({"q": "orders"})["when"]
    odd = [{"priority": priority} for priority in (None, float("nan"), 2.5, 5, "x", "y", float("nan"))] + [{}]
    ids: list[Any] = ["text", 7, {"a": 1}, ObjectId(), "more", "last", "nan", 3]
    raw.insert_many(
        {"_id": id, "q": "orders", "when": when, "payload": 1, **one} for id, one in zip(ids, odd, strict=True)
    )
    whole = [document["_id"] for document in queue._run(search, wanted(queue, "ready"), limit=100)]
    assert len(whole) == 9
    for examine in (1, 2, 3, 4, 8):
        found = [each["_id"] for part in slices(queue, wanted(queue, "ready"), examine) for each in part]
        assert found == whole


def test_a_document_that_cannot_be_decoded_does_not_end_a_search(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push(0, priority=-1)
    first = raw.find_one({"q": "orders"})
    damaged = {**first, "_id": ObjectId(), "payload": "ABC"}
    raw.insert_one(RawBSONDocument(bson.encode(damaged).replace(b"ABC", b"\xff\xfe\xfd")))
    queue.push_many(range(1, 20))
    found = queue._run(search, wanted(queue, "ready"), limit=10)
    assert len(found) == 11
    assert [item.payload for item in queue._context.items(found, first["when"])] == list(range(10))


def test_a_collection_without_its_indexes_is_not_searched(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    raw.drop_indexes()
    try:
        for state, index in (("ready", "mongoq1_claim"), ("processed", "mongoq1_history")):
            with pytest.raises(
                mongoq.CollectionUnsuitable, match=rf"lacks the index {index}; run broker.ensure_indexes"
            ):
                queue._run(search, wanted(queue, state), limit=1)
            with pytest.raises(mongoq.CollectionUnsuitable, match=index):
                queue._run(count_range, wanted(queue, state), limit=1)
    finally:
        broker.ensure_indexes()


def test_a_filter_that_the_server_refuses_is_an_error(deep: Queue) -> None:
    refused = wanted(deep, "ready", where={"a": {"$regex": "("}})
    with pytest.raises(mongoq.FilterInvalid, match="the server refuses it"):
        deep._run(search, refused, limit=1)
    with pytest.raises(mongoq.FilterInvalid, match="the server refuses it"):
        deep._run(count_range, refused, limit=1)


def test_a_count_examines_no_more_than_its_limit(deep: Queue, examined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mongoq.protocol.history.search.SLICE", 100)
    progress: list[int] = []
    counted = deep._run(count_range, wanted(deep, "ready"), limit=250, progress=progress.append)
    assert not counted.exact
    assert counted.number <= 250
    assert progress == [100, 200, 250]
    documents, keys = zip(*examined(), strict=True)
    assert max(documents) <= 100
    assert sum(documents) <= 250
    assert sum(keys) <= 2 * 250 + 6 * 10 * len(PRIORITIES)


@pytest.mark.parametrize("state", STATES)
def test_a_count_in_slices_is_exact(deep: Queue, monkeypatch: pytest.MonkeyPatch, state: Any) -> None:
    number = deep.size(state=state)
    for size in (61, 10_000):
        monkeypatch.setattr("mongoq.protocol.history.search.SLICE", size)
        assert deep._run(count_range, wanted(deep, state), limit=100_000) == BoundedCount(number)


def test_a_count_that_ends_with_its_limit_is_exact(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    assert queue._run(count_range, wanted(queue, "ready"), limit=10) == BoundedCount(10)
    assert queue._run(count_range, wanted(queue, "ready"), limit=9) == BoundedCount(9, exact=False)


def test_letters_of_a_filter_are_searched_in_slices(
    deep: Queue, examined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.protocol.history.search.FIRST_SLICE", 100)
    monkeypatch.setattr("mongoq.protocol.history.search.SLICE", 100)
    letters = deep._context
    chosen = selection(letters, ids=None, where=None, stage=None, reason="no such reason", error=None)
    assert deep._run(read_letters, chosen, limit=20) == []
    assert max(documents for documents, _ in examined()) <= 100


def test_a_virtual_broker_is_searched_as_well() -> None:
    with mongoq.Broker(mongomock.MongoClient()["app"]["mongoq"]) as virtual:
        queue = virtual.queue("orders")
        queue.push_many(range(10))
        queue.reserve()
        assert len(queue._run(search, wanted(queue, "ready", where={"$gte": 5}), limit=3)) == 3
        assert queue._run(count_range, wanted(queue, "ready"), limit=100) == BoundedCount(9)
