"""A stream over a queue as Spark asks for it, without Spark: options, claims, and what of them is read by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

import mongoq
from mongoq.spark import ColumnMismatch
from tests.spark.ddl import schema_of
from tests.waiting import until

EARLY = datetime(2020, 2, 2, tzinfo=UTC)
PROBLEMS = [
    ({"consumer": None}, "consumer: this option is missing"),
    ({"consumer": " "}, "consumer: a name that is not empty"),
    ({"consumer": "x" * 121}, "consumer: 121 bytes"),
    ({"queue": None}, "queue: this option is missing"),
    ({"queue": ""}, "queue"),
    ({"queue": None, "queues": '["a"]'}, "queues: a stream reads one queue"),
    ({"prefix": "a"}, "prefix: a stream reads one queue"),
    ({"view": "reserved"}, "view: a stream takes what is ready"),
    ({"mode": "dropmalformed"}, "mode: FAILFAST or PERMISSIVE, not DROPMALFORMED: what a stream leaves out"),
    ({"lease": "0.5"}, "lease: 1 second at least, not '0.5'"),
    ({"missing": "maybe"}, "missing: one of fail, empty"),
    ({"view": "dead"}, "view: a stream takes what is ready"),
    ({"uri": None}, "uri: this option is missing"),
    ({"maxItems": "0"}, "maxItems: a whole number from 1 to 500,000"),
    ({"maxItems": "500001"}, "maxItems: a whole number from 1 to 500,000"),
    ({"partitions": "none"}, "partitions: a whole number"),
    ({"lease": "0"}, "lease: must be a millisecond"),
    ({"since": "2026-11-20T08:30:00Z"}, "since: not an option"),
]


class Stream:
    """What Spark does with the reader of a stream."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.start = self.end = reader.initialOffset()

    def claim(self, most: int | None = None) -> list[list[Any]]:
        """Claim a batch, which settles the one before, and return the first column of each of its parts."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        self.start = self.end
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        self.end = self.reader.latestOffset(self.start, limit)
        return self.read()

    def read(self) -> list[list[Any]]:
        parts = self.reader.partitions(self.start, self.end)
        return [[cell for batch in self.reader.read(part) for cell in batch.column(0).to_pylist()] for part in parts]


@pytest.fixture
def stream(store: Any) -> Iterator[Callable[..., Stream]]:
    """Start a stream: ``stream("n int", maxItems=3)``."""
    started: list[Any] = []

    def stream(schema: str = "n int", **options: Any) -> Stream:
        from pyspark_mongoq import DefaultSource

        given = {"consumer": f"etl {store.collection.name}", "missing": "empty", **options}
        started.append(DefaultSource(store.options(**given)).streamReader(schema_of(schema)))
        return Stream(started[-1])

    yield stream
    for reader in started:
        reader.stop()


def test_what_cannot_be_used_is_reported_before_anything_is_sent(store: Any) -> None:
    from pyspark_mongoq import DefaultSource

    for options, problem in PROBLEMS:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            DefaultSource(store.options(**{"consumer": "etl", **options})).streamReader(schema_of("n int"))
        assert str(caught.value).startswith(problem)
    with pytest.raises(mongoq.ArgumentInvalid, match="'_when' of the envelope is timestamp"):
        DefaultSource(store.options(consumer="etl")).streamReader(schema_of("_when string"))


def test_the_default_columns_of_a_stream_are_those_of_a_table(store: Any) -> None:
    from pyspark_mongoq import DefaultSource

    assert DefaultSource(store.options(consumer="etl")).schema() == DefaultSource(store.options()).schema()


@pytest.mark.parametrize(("partitions", "sizes"), [(None, [7]), (3, [2, 2, 3]), (20, [1] * 7)])
def test_a_claim_is_split_evenly_and_read_in_its_order(
    store: Any, stream: Any, partitions: int | None, sizes: list[int]
) -> None:
    for n in range(7):
        store.add({"n": n}, priority=-n)
    work = stream(partitions=partitions)
    parts = work.claim()
    assert [len(part) for part in parts] == sizes
    assert list(chain(*parts)) == [6, 5, 4, 3, 2, 1, 0]
    assert work.reader.partitions(work.end, work.end) == []
    assert store.uri not in repr(work.reader) + repr(work.reader.partitions(work.start, work.end))
    assert store.collection.count_documents({"reserved": True}) == 7
    work.reader.commit(work.end)
    assert store.collection.count_documents({"q": "orders"}) == 0


def test_spark_may_ask_for_fewer_items_than_the_option(store: Any, stream: Any) -> None:
    store.add_many(5)
    work = stream(maxItems=3)
    assert [len(part) for part in work.claim(2)] == [2]
    assert [len(part) for part in work.claim(100)] == [3]
    assert store.collection.count_documents({"q": "orders"}) == 3, "the next claim settles the one before"


def test_an_item_that_another_settled_is_left_out_and_the_others_stay_in_their_parts(store: Any, stream: Any) -> None:
    for n in range(9):
        store.add({"n": n})
    work = stream(partitions=3)
    assert work.claim() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    moved = {"$set": {"q": "next", "reserved": False}, "$unset": {"token": ""}}
    store.collection.update_many({"payload.n": {"$in": [0, 1, 2, 4]}}, moved)
    assert work.read() == [[], [3, 5], [6, 7, 8]]
    work.reader.commit(work.end)
    assert (store.collection.count_documents({"q": "next"}), store.collection.count_documents({"q": "orders"})) == (
        4,
        0,
    )


def test_a_query_whose_claims_are_released_cannot_go_on(store: Any, stream: Any) -> None:
    store.add_many(2)
    work = stream()
    work.claim()
    with mongoq.Broker(store.collection) as broker:
        assert broker.release_claims(f"etl {store.collection.name}") == 2
    with pytest.raises(mongoq.ConsumerBusy, match="release_claims.*start the query again"):
        work.claim()
    assert store.collection.count_documents({"q": "orders", "reserved": False}) == 2


def test_the_lease_of_a_claim_goes_on(store: Any, stream: Any) -> None:
    store.add_many(2)
    stream(lease=1).claim()
    [lease_end] = store.collection.distinct("when", {"q": "orders"})
    until(lambda: min(store.collection.distinct("when", {"q": "orders"})) > lease_end)


def test_a_queue_that_does_not_exist_is_refused_until_the_consumer_has_read_it(store: Any, stream: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="there is no queue 'orders'"):
        stream(missing="fail", consumer="new").claim()
    store.add({"n": 1})
    assert stream(missing="fail", consumer="other").claim() == [[1]]


def test_a_checkpoint_of_another_consumer_settles_nothing_that_it_has_not_read(store: Any, stream: Any) -> None:
    store.add_many(2)
    work = stream()
    work.claim()
    theirs = {"claim": 1, "token": str(ObjectId())}
    assert work.reader.partitions({"claim": 0}, theirs) == []
    work.end = theirs
    assert sorted(chain(*work.claim())) == [0, 1]


def test_a_checkpoint_of_another_kind_is_refused(stream: Any) -> None:
    work = stream()
    work.end = {"before": "2026-11-20T08:30:00.250Z"}
    with pytest.raises(mongoq.ArgumentInvalid, match="checkpointLocation: this checkpoint belongs to another kind"):
        work.claim()


def test_the_time_at_which_an_item_came_is_noted_by_its_claim(store: Any, stream: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        raw = broker.queue("raw")
        before = store.now - timedelta(seconds=5)
        broker.queue("orders").push({"n": 0}, id=ObjectId.from_datetime(EARLY))
        moved = raw.push({"n": 1})
        store.collection.update_one({"_id": moved}, {"$set": {"pushed": EARLY}})  # of a stream on the queue before
        item = raw.reserve()
        assert item is not None
        raw.move(item, "orders")
        work = stream("_pushed timestamp")
        first = sorted(chain(*work.claim()))
        assert all(before < at for at in first)
        broker.release_claims(f"etl {store.collection.name}")
        assert sorted(each["pushed"] for each in store.collection.find({"q": "orders"})) == first


def test_what_was_moved_and_had_by_a_worker_does_not_tell_of_the_queue_before(store: Any, stream: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        raw, orders = broker.queue("raw"), broker.queue("orders")
        id = raw.push({"n": 1})
        store.collection.update_one({"_id": id}, {"$set": {"pushed": EARLY}})  # of a stream there
        item = raw.reserve()
        assert item is not None
        raw.move(item, "orders")
        item = orders.reserve()
        assert item is not None
        orders.rollback(item, delay=0)
        work = stream("_pushed timestamp")
        [at] = until(lambda: [*chain(*work.claim())])
        assert at is None or at > store.now - timedelta(hours=1)


def test_an_item_with_text_that_is_not_utf_8_is_named(store: Any, stream: Any) -> None:
    garbled = store.collection.find_one_and_delete({"_id": store.add({"t": "XYZ"})})
    store.collection.insert_one(RawBSONDocument(bson.encode(garbled).replace(b"XYZ", b"\xff\xfe\xfd")))
    with pytest.raises(ColumnMismatch, match=f"item {garbled['_id']}: .* text that is not UTF-8"):
        stream("t string").claim()
