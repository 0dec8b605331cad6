"""Streams of queues: claims in numbers, taken up again after any crash, settled once, never anybody else's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Int64, ObjectId

import mongoq
from tests.integration.query import Query
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PAST = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def begin(uri: str, database: str) -> Iterator[Callable[..., Query]]:
    """Begin a query."""
    queries: list[Query] = []

    def begin(**options: str) -> Query:
        queries.append(Query(uri, database, **options))
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


def payloads(raw: Any, ids: list[str]) -> list[Any]:
    return [raw.find_one({"_id": ObjectId(id)})["payload"] for id in ids]


def test_a_query_that_dies_on_its_way_loses_nothing_and_counts_nothing(
    uri: str, database: str, client: Any, begin: Callable[..., Query]
) -> None:
    """Between commands of a claim and of its settlement; the next query under the name goes on."""
    ids = {}
    for command in (4, 5, 6, 8):
        with mongoq.Broker(client[database][f"c{command}"]) as broker:
            queue = broker.queue("orders", history=3600)
            ids[command] = [str(id) for id in queue.push_many(range(3))]
    deaths = [f"c{command}:{command}" for command in ids]
    dying = [sys.executable, "-m", "tests.integration.dying", uri, database, *deaths]
    subprocess.run(dying, cwd=ROOT, check=True, timeout=PATIENCE)
    for command, pushed in ids.items():
        raw = client[database][f"c{command}"]
        raw.update_one({"_id": "stream:etl"}, {"$set": {"until": PAST}})  # its lease has ended
        settled = raw.count_documents({"processed": {"$exists": True}})
        heir = begin(collection=f"c{command}")
        assert heir.claim() == ([] if settled else pushed), command
        assert [item["attempts"] for item in raw.find({"q": "orders"})] == [1, 1, 1]
        heir.settle()
        assert raw.count_documents({"q": "orders", "processed": {"$exists": True}}) == 3
        assert "claim" not in raw.find_one({"_id": "stream:etl"})


def test_what_somebody_else_did_with_an_item_stands(begin: Callable[..., Query], broker: Any, raw: Any) -> None:
    queue = broker.queue("orders")
    moved, committed, taken, untouched = queue.push_many(range(4))
    query = begin()
    assert query.claim() == [str(id) for id in (moved, committed, taken, untouched)]
    raw.update_one({"_id": moved}, {"$set": {"q": "next", "when": PAST}, "$unset": {"token": ""}})
    raw.delete_one({"_id": committed})
    raw.update_one({"_id": taken}, {"$set": {"when": PAST}})
    item = queue.reserve()
    assert item.id == taken
    query.settle()
    assert {document["_id"] for document in raw.find({"q": {"$exists": True}})} == {moved, taken}
    queue.commit(item)


def test_only_the_claim_of_that_number_is_settled(begin: Callable[..., Query], broker: Any, raw: Any) -> None:
    queue = broker.queue("orders")
    first = queue.push(1)
    query = begin(maxItems="1")
    assert query.claim() == [str(first)]
    second = queue.push(2)
    assert query.claim() == [str(second)]
    assert raw.count_documents({"q": "orders"}) == 1
    query.settle_before()
    assert raw.count_documents({"q": "orders", "reserved": True}) == 1
    query.settle()
    assert raw.count_documents({"q": "orders"}) == 0


def test_ids_and_dates_of_other_programs_are_claimed_and_settled(begin: Callable[..., Query], raw: Any) -> None:
    plain = {"q": "orders", "when": PAST, "priority": 0, "attempts": 0}
    raw.insert_many([{**plain, "_id": id} for id in (7, "text", Int64(2**40), ObjectId(), {"k": 1})])
    raw.insert_one({**plain, "_id": "list", "when": [PAST]})
    query = begin()
    found: list[str] = []
    while raw.count_documents({"q": "orders"}):
        found += query.claim()
        query.settle()
    assert len(found) == 6


@pytest.mark.parametrize("on_expired", ["history", "dead"])
def test_a_claim_leaves_out_items_that_were_not_started_in_time(
    begin: Callable[..., Query], broker: Any, raw: Any, on_expired: Any
) -> None:
    queue = broker.queue("orders", on_expired=on_expired)
    ids = queue.push_many(range(8), sequences=["a", "b", None, None] * 2, expires=600)
    raw.update_many({"_id": {"$in": ids[:4]}}, {"$set": {"start_by": PAST}})
    query = begin()
    read: list[Any] = []
    while queue.counts().total:
        read += payloads(raw, query.claim())
        query.settle()
    assert sorted(read) == [4, 5, 6, 7]
    letters = queue.dead.peek(9)
    assert sorted(letter.payload for letter in letters) == ([0, 1, 2, 3] if on_expired == "dead" else [])
    assert {letter.origin.attempts for letter in letters} <= {0}
    assert not list(raw.find({"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}]}))


@pytest.mark.parametrize("history", [None, 3600])
def test_the_next_items_of_sequences_follow_a_settled_claim(
    begin: Callable[..., Query], broker: Any, raw: Any, history: Any
) -> None:
    queue = broker.queue("orders", history=history)
    queue.push_many(range(9), sequences=["a", "b", None] * 3)
    query = begin()
    read: list[int] = []
    while queue.counts().total:
        read += payloads(raw, query.claim())
        query.settle()
    assert [number for number in read if number % 3 == 0] == [0, 3, 6]
    assert [number for number in read if number % 3 == 1] == [1, 4, 7]
    assert len(read) == 9
    assert not list(raw.find({"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}]}))


def test_an_item_that_lapsed_too_often_gets_a_batch_of_its_own_and_is_then_buried(
    begin: Callable[..., Query], broker: Any, raw: Any
) -> None:
    queue = broker.queue("orders", max_retries=1)
    queue.push_many(range(2))
    sizes = []
    for turn in range(10):
        query = begin(consumer=f"consumer {turn}")  # each of them ends with what it holds
        sizes.append(len(query.claim()))
        query.stop()
        raw.update_many({"reserved": True}, {"$set": {"when": PAST}})
        if not queue.size():
            break
    assert sizes[:4] == [2, 2, 1, 1]
    assert queue.dead.size() == 2


async def test_claims_are_given_back_at_once(
    begin: Callable[..., Query], broker: Any, raw: Any, uri: str, database: str
) -> None:
    broker.queue("orders").push_many(range(3))
    query = begin()
    query.claim()
    assert broker.release_claims("etl") == 3
    assert broker.release_claims("etl") == 0
    assert raw.count_documents({"reserved": True}) == 0
    assert {item["attempts"] for item in raw.find({"q": "orders"})} == {0}
    with pytest.raises(mongoq.ConsumerBusy):
        query.settle()
    assert len(begin(partitions="2").claim()) == 3
    async with mongoq.connect_async(uri, database=database) as own:
        assert await own.release_claims("etl") == 3
    with pytest.raises(mongoq.ArgumentInvalid, match="consumer"):
        broker.release_claims(" ")
