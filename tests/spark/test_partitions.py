from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import InvalidOperation

import mongoq.spark.scan as scans
from mongoq.spark.read import reader as planning
from mongoq.spark.read.reader import id_ranges, prefer_ids


def ids_of(source: Any, partition: Any) -> list[str]:
    return [each for batch in source.read(partition) for each in batch.column("_id").to_pylist()]


def sizes(source: Any) -> list[int]:
    return [len(ids_of(source, partition)) for partition in source.partitions()]


@pytest.fixture
def by_id(reader: Any) -> Any:
    """Make a reader of ids only."""
    from pyspark.sql.types import StringType, StructType

    return lambda **options: reader(StructType().add("_id", StringType()), **options)


STRANGE = [None, -1, 2**40, 0.5, "text", b"x", {"a": 1}, True, ObjectId("0" * 24), ObjectId("f" * 24)]


@pytest.mark.parametrize("boundaries", [0, 1, 2, 5])
def test_every_id_of_every_type_is_in_one_range(store: Any, boundaries: int) -> None:
    plain = store.add_many(20)
    store.collection.insert_many([{"_id": each, "q": "orders"} for each in STRANGE])
    ranges = id_ranges(plain[2 : 2 + 3 * boundaries : 3])
    assert len(ranges) == boundaries + 1
    counts: Counter[str] = Counter()
    for each in ranges:
        counts.update(repr(item["_id"]) for item in store.collection.find({"_id": each} if each else {}))
    assert counts == Counter({repr(each): 1 for each in [*plain, *STRANGE]})


@pytest.mark.parametrize("view", ["live", "history", "all"])
def test_partitions_are_equal_and_cover_everything_once(store: Any, by_id: Any, view: str) -> None:
    expected = []
    for _ in range(10):
        store.add_many(90, queue="other")
        if view != "history":
            expected += store.add_many(100)
        if view != "live":
            expected += store.add_many(100, when=None, processed=store.now)
    source = by_id(view=view, partitions=7)
    partitions = source.partitions()
    read = [ids_of(source, partition) for partition in partitions]
    assert sorted(chain.from_iterable(read)) == sorted(map(str, expected))
    assert [partition.place for partition in partitions] == [f"{place} of 7" for place in range(1, 8)]
    assert max(map(len, read)) <= 1.1 * len(expected) / 7


def sizes_of(ranges: list[list[str]]) -> tuple[float, float]:
    """Return the smallest and the largest part, as shares of their mean."""
    mean = sum(map(len, ranges)) / len(ranges)
    return min(map(len, ranges)) / mean, max(map(len, ranges)) / mean


@pytest.fixture(scope="module")
def large_store(server: Any, client: Any) -> Iterator[Any]:
    """200,000 items of small and of large payloads, unevenly distributed, every third of them in another queue."""
    from tests.spark.conftest import Store

    collection = client.get_database("spark_tests").get_collection("large")
    collection.drop()
    keys = [(key, 1) for key in ("q", "processed", "_id")]
    collection.create_index(keys, partialFilterExpression={"processed": {"$exists": True}})
    store = Store(server.uri, collection, datetime.now(UTC).replace(microsecond=0))
    for start in range(0, 200_000, 10_000):
        text = "x" * (400 if 100_000 <= start < 150_000 else 0)
        in_other_queue = [bool(n % 3 == 0) ^ (start >= 150_000) for n in range(10_000)]
        collection.insert_many(
            {"_id": ObjectId(), "q": "other" if is_other else "orders", "payload": {"t": text}, "processed": store.now}
            for is_other in in_other_queue
        )
    yield store
    collection.drop()


@pytest.mark.prove
@pytest.mark.parametrize("ways", ["sorted", "sampled"])
@pytest.mark.parametrize("partitions", [2, 7, 20])
def test_partitions_of_many_items_are_balanced_within_a_tenth(
    large_store: Any, monkeypatch: pytest.MonkeyPatch, ways: str, partitions: int
) -> None:
    from pyspark.sql.types import StringType, StructType

    from mongoq.spark.source import MongoqDataSource

    monkeypatch.setattr(scans, "MIN_SAMPLED_DOCUMENTS", 1_000 if ways == "sampled" else 10**9)
    monkeypatch.setattr(scans.Scan, "_exact" if ways == "sampled" else "_sample", None)
    source = MongoqDataSource(large_store.options(view="history", partitions=partitions))
    reader = source.reader(StructType().add("_id", StringType()))
    read = [ids_of(reader, partition) for partition in reader.partitions()]
    assert len(read) == partitions
    ids = list(chain.from_iterable(read))
    assert len(ids) == len(set(ids)) == large_store.collection.count_documents({"q": "orders"})
    smallest, largest = sizes_of(read)
    assert smallest >= 0.9
    assert largest <= 1.1


def test_the_number_of_partitions_follows_the_items(store: Any, by_id: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(by_id(missing="empty")) == [0]
    store.add_many(250)
    assert sizes(by_id()) == [250]
    monkeypatch.setattr(planning, "PARTITION_ITEMS", 100)
    assert len(sizes(by_id())) == 3
    monkeypatch.setattr(planning, "MAX_PARTITIONS", 2)
    assert len(sizes(by_id())) == 2
    assert len(sizes(by_id(partitions=5))) == 5


def test_more_partitions_than_items_are_not_made(store: Any, by_id: Any) -> None:
    store.add_many(3)
    assert sum(sizes(by_id(partitions=50))) == 3
    assert len(sizes(by_id(partitions=50))) <= 3
    assert sizes(by_id(partitions=4, queue="empty", missing="empty")) == [0]
    assert sizes(by_id(partitions=4, view="history")) == [0]


@pytest.fixture
def churn(store: Any) -> Iterator[None]:
    """Producers and consumers at work: pushes, claims, moves into and out of the queue."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            mine = store.add_many(20, name="churn")
            store.collection.update_many({"_id": {"$in": mine[::2]}}, {"$set": {"q": "other"}})
            store.collection.update_many({"q": "orders"}, {"$inc": {"attempts": 1}, "$currentDate": {"when": True}})

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.prove
def test_what_stays_is_read_once_while_others_come_and_go(store: Any, by_id: Any, churn: None) -> None:
    stay = {str(each) for each in store.add_many(1500)}
    for _ in range(10):
        source = by_id(partitions=5)
        partitions = source.partitions()
        later = {str(each) for each in store.add_many(3)}
        read = Counter(each for partition in partitions for each in ids_of(source, partition))
        assert set(read.values()) == {1}
        assert stay | later <= set(read)


def test_a_commit_during_the_read_shows_an_item_once(store: Any, by_id: Any) -> None:
    ids = store.add_many(600)
    source = by_id(view="all", partitions=3)
    partitions = source.partitions()
    read = ids_of(source, partitions[0])
    store.collection.update_many({}, {"$set": {"processed": store.now}, "$unset": {"when": 1}})
    for partition in partitions[1:]:
        read += ids_of(source, partition)
    assert sorted(read) == sorted(str(each) for each in ids)


def test_record_batches_are_bounded_by_rows(store: Any, by_id: Any) -> None:
    for _ in range(5):
        store.add_many(5_000)
    source = by_id(partitions=1)
    rows = [batch.num_rows for batch in source.read(source.partitions()[0])]
    assert sum(rows) == 25_000
    assert max(rows) <= 10_000


def test_record_batches_are_bounded_by_bytes(store: Any, reader: Any) -> None:
    for _ in range(40):
        store.add({"blob": "x" * 1_000_000})
    store.add({"blob": "x" * 15_000_000})
    source = reader()
    batches = [batch.nbytes for batch in source.read(source.partitions()[0])]
    assert sum(batches) > 55_000_000
    assert sorted(batches)[-2] < 5_000_000
    assert max(batches) < 17_000_000  # one item is more than a batch should hold


@pytest.mark.prove
def test_spark_reads_large_payloads(store: Any, load: Any) -> None:
    for _ in range(20):
        store.add({"blob": "x" * 1_000_000})
    assert load("blob string", partitions=2).selectExpr("sum(length(blob)) AS n").collect()[0].n == 20_000_000


def test_spark_gets_each_partition_and_item_once(store: Any, load: Any) -> None:
    ids = store.add_many(1_000)
    frame = load("_id string, n int", partitions=4)
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert sorted(row._id for row in rows) == [str(each) for each in ids]
    assert sum(row.n for row in rows) == sum(range(1_000))


def test_planning_looks_at_keys_only(store: Any) -> None:
    from mongoq.spark.read.views import Period, QueueSelection, view_of

    store.add_many(50)
    store.add_many(50, when=None, processed=store.now)
    for name in ("live", "history"):
        view = view_of(name, QueueSelection(("orders",)), Period(), store.now)
        query = {"find": store.collection.name, "filter": view.keys(), "projection": {"_id": 1}}
        hint = dict.fromkeys(view.branches[0].index.keys, 1)
        explained = store.collection.database.command("explain", query | {"hint": hint}, verbosity="executionStats")
        assert explained["executionStats"]["nReturned"] == 50
        assert explained["executionStats"]["totalDocsExamined"] == 0


@pytest.mark.parametrize(("view", "index"), [("live", "mongoq1_claim"), ("history", "mongoq1_history")])
def test_the_index_is_chosen_by_what_it_costs(store: Any, by_id: Any, view: str, index: str) -> None:
    fields = {} if view == "live" else {"when": None, "processed": store.now}
    store.add_many(100, **fields)

    def hints(partitions: int) -> set[str]:
        return {partition.hint for partition in by_id(view=view, partitions=partitions).partitions()}

    assert hints(1) == {index}
    assert hints(3) == {"_id_"}
    store.add_many(1_000, queue="other")
    assert hints(3) == {index}
    source = by_id(view=view, partitions=3)
    for partition in source.partitions():
        query = {"find": store.collection.name, "filter": partition.filter, "hint": partition.hint}
        explained = store.collection.database.command("explain", query, verbosity="executionStats")
        assert explained["executionStats"]["totalDocsExamined"] == explained["executionStats"]["nReturned"]
    assert sum(sizes(source)) == 100


def test_preferring_ids_needs_several_partitions_and_a_fair_share() -> None:
    assert not prefer_ids(100, 100, 1)
    assert prefer_ids(100, 100, 2)
    assert not prefer_ids(1_000, 100, 8)
    assert prefer_ids(800, 100, 20)
    assert not prefer_ids(900, 100, 20)


def test_a_partition_travels_with_all_it_needs(store: Any, by_id: Any) -> None:
    ids = store.add_many(100)
    partitions = by_id(partitions=4).partitions()
    travelled = pickle.loads(pickle.dumps(partitions))
    elsewhere = by_id(queue="another", view="history", mode="permissive")
    read = [each for partition in travelled for each in ids_of(elsewhere, partition)]
    assert sorted(read) == [str(each) for each in ids]


@pytest.mark.parametrize("abandon", [True, False])
def test_a_read_closes_its_client_also_when_abandoned(
    store: Any, by_id: Any, monkeypatch: pytest.MonkeyPatch, abandon: bool
) -> None:
    opened: list[scans.Scan] = []
    enter = scans.Scan.__enter__
    monkeypatch.setattr(scans.Scan, "__enter__", lambda self: (opened.append(self), enter(self))[1])
    store.add_many(12_000)
    source = by_id()
    batches = source.read(source.partitions()[0])
    next(batches)
    assert opened[1].size() > 0
    batches.close() if abandon else list(batches)
    for scan in opened:
        with pytest.raises(InvalidOperation, match="after close"):
            scan.size()
