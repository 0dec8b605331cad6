"""A stream over history: every item once, in batches that are the same when they are read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mongoq.errors import ArgumentInvalid
from tests.spark.ddl import schema_of
from tests.spark.queries import start_query

SCHEMA = "_id string, n int"


def ReadAllAvailable() -> Any:  # Spark's name, of a module that takes long to import
    from pyspark.sql.streaming import datasource

    return datasource.ReadAllAvailable()


def ReadMaxRows(number: int) -> Any:
    from pyspark.sql.streaming import datasource

    return datasource.ReadMaxRows(number)


@pytest.fixture
def processed(store: Any) -> Callable[..., list[str]]:
    """Store items that were processed so many seconds ago, and return their ids."""

    def processed(*seconds: float, **fields: Any) -> list[str]:
        ids = []
        for place, ago in enumerate(seconds):
            date = store.now - timedelta(seconds=ago)
            ids.append(store.add({"n": place}, **{"when": None, "processed": date} | fields))
        return [str(id) for id in ids]

    return processed


@pytest.fixture
def stream(store: Any) -> Iterator[Callable[..., Any]]:
    """Make the reader itself, for what needs no Spark session."""
    from pyspark_mongoq import DefaultSource

    streams: list[Any] = []

    def stream(**options: Any) -> Any:
        arguments = {"view": "history", "lag": 10, **options}
        streams.append(DefaultSource(store.options(**arguments)).streamReader(schema_of(SCHEMA)))
        return streams[-1]

    yield stream
    for each in streams:
        each.stop()


def rows(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    batches = [batch for each in stream.partitions(start, end) for batch in stream.read(each)]
    return [id for batch in batches for id in batch.column(0).to_pylist()]


def batches(stream: Any, limit: Any) -> list[list[str]]:
    """Read to the end, as Spark does."""
    start, results = stream.initialOffset(), []
    stream.prepareForTriggerAvailableNow()
    while (end := stream.latestOffset(start, limit)) != start:
        results.append(rows(stream, start, end))
        start = end
    return results


@pytest.fixture
def run(spark: Any, store: Any, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Run a query until it has read what is there; return the ids of each batch, in the order of their batches."""

    def run(*, fails: int | None = None, schema: str = SCHEMA, **options: Any) -> list[list[str]]:
        batch_ids: list[list[str]] = []

        def keep(frame: Any, number: int) -> None:
            batch_ids.append(sorted(row._id for row in frame.collect()))
            if number == fails:
                raise RuntimeError("the sink fails")

        arguments = {"view": "history", "lag": 0, **options}
        reader = spark.readStream.format("mongoq").options(**store.options(**arguments)).schema(schema)
        writer = reader.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        try:
            query.awaitTermination(100)
        except Exception:
            if fails is None:
                raise
        assert not query.isActive
        return batch_ids

    return run


def test_a_query_reads_each_item_once_and_goes_on_where_it_ended(run: Any, processed: Any, store: Any) -> None:
    store.add({"n": 1})  # live
    old = processed(400, 300, 200)
    assert run(maxItems=2) == [sorted(old[:2]), old[2:]]
    new = processed(0, 0, processed=datetime.now(UTC))
    assert run(maxItems=100) == [sorted(new)]
    assert run() == []


def test_batches_hold_no_more_than_max_items(stream: Any, processed: Any) -> None:
    ids = processed(*range(70, 20, -1))
    results = batches(stream(maxItems=20), ReadMaxRows(20))
    assert [len(batch) for batch in results] == [20, 20, 10]
    assert [id for batch in results for id in sorted(batch)] == ids


def test_items_of_one_moment_stay_together(stream: Any, processed: Any) -> None:
    early, together, late = processed(60), processed(50, 50, 50, 50, 50), processed(40, 39, 38)
    assert batches(stream(), ReadMaxRows(3)) == [early, together, late]


def test_all_that_is_there_is_one_batch_where_spark_asks_for_it(stream: Any, processed: Any) -> None:
    ids = processed(60, 50, 40, 30)
    assert batches(stream(maxItems=2), ReadAllAvailable()) == [ids]


def parts(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[list[str]]:
    return [
        [id for batch in stream.read(each) for id in batch.column(0).to_pylist()]
        for each in stream.partitions(start, end)
    ]


def test_a_batch_is_split_as_its_offset_tells_whatever_has_come_or_gone(
    stream: Any, processed: Any, store: Any
) -> None:
    ids = processed(*range(70, 58, -1))
    reader = stream(partitions=4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert [sorted(part) for part in parts(reader, start, end)] == [sorted(ids[n : n + 3]) for n in (0, 3, 6, 9)]
    store.collection.delete_many({"processed": {"$lt": store.now - timedelta(seconds=66)}})
    late = processed(*[60.5] * 20)
    again = stream(partitions=2)
    assert [set(part) for part in parts(again, start, json.loads(json.dumps(end)))] == [
        set(),
        {*ids[4:6]},
        {*ids[6:9]},
        {*ids[9:], *late},
    ]


def test_what_is_younger_than_the_lag_is_read_later(stream: Any, processed: Any, store: Any) -> None:
    old, _ = processed(100, 20)
    reader = stream(lag=60)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert rows(reader, reader.initialOffset(), end) == [old]
    [late] = processed(55)  # shows up after the batch was planned, with a time of before
    again = stream(lag=15)
    following = again.latestOffset(end, ReadMaxRows(100))
    assert rows(again, end, following)[0] == late


def test_a_late_commit_of_a_transaction_is_read(stream: Any, store: Any, client: MongoClient[dict[str, Any]]) -> None:
    item = {"q": "orders", "payload": {"n": 1}, "processed": store.now - timedelta(seconds=30)}
    reader = stream(lag=60, missing="empty")
    start = reader.initialOffset()
    with client.start_session() as session, session.start_transaction():
        store.collection.insert_one(item, session=session)
        assert reader.latestOffset(start, ReadMaxRows(100)) == start
    hurried = stream(lag=0)
    assert rows(hurried, start, hurried.latestOffset(start, ReadMaxRows(100))) == [str(item["_id"])]


def test_since_and_until_bound_the_stream(stream: Any, processed: Any, store: Any) -> None:
    ids = processed(90, 60, 30)
    since = (store.now - timedelta(seconds=60)).isoformat()
    until = (store.now - timedelta(seconds=30)).isoformat()
    assert batches(stream(since=since), ReadMaxRows(100)) == [ids[1:]]
    assert batches(stream(until=until), ReadMaxRows(100)) == [ids[:2]]
    assert batches(stream(since=since, until=until), ReadMaxRows(100)) == [ids[1:2]]


def test_several_queues_are_one_stream(stream: Any, processed: Any) -> None:
    a, b = processed(60), processed(50, queue="refunds")
    processed(40, queue="others")
    results = batches(stream(queue=None, queues='["orders", "refunds"]'), ReadMaxRows(1))
    assert results == [a, b]


def test_remembered_ids_are_no_rows(stream: Any, processed: Any, store: Any) -> None:
    [id] = processed(60)
    store.collection.insert_one({"q": "orders", "processed": store.now - timedelta(seconds=50)})
    assert batches(stream(), ReadMaxRows(100)) == [[id]]


def test_a_batch_is_found_by_the_index_alone(stream: Any, store: Any, processed: Any) -> None:
    reader = stream()
    processed(60, 50, 40)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    database = store.collection.database
    database.command("profile", 2, filter={"ns": store.collection.full_name})
    try:
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    finally:
        database.command("profile", 0)
    finds = [each for each in database.system.profile.find({"ns": store.collection.full_name}) if "execStats" in each]
    database.system.profile.drop()
    assert [(each["docsExamined"], each.get("hasSortStage", False)) for each in finds] == [(0, False), (0, False)]


def test_reading_alone_is_enough(auth_server: Any, store: Any, stream: Any) -> None:
    with MongoClient[dict[str, Any]](auth_server.uri) as admin:
        name = store.collection.database.name
        admin.get_database(name).command("createUser", "reader", pwd="r-e-a-d", roles=["read"])
        collection = admin.get_database(name).get_collection(store.collection.name)
        collection.insert_one({"q": "orders", "payload": {"n": 1}, "processed": store.now - timedelta(seconds=60)})
        uri = auth_server.uri.replace("analyst:s3cret-p4ss", "reader:r-e-a-d")
        uri = uri.replace("authSource=admin", f"authSource={name}")
        assert len(batches(stream(uri=uri), ReadMaxRows(100))) == 1
        collection.drop()
        admin.get_database(name).command("dropUser", "reader")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lag": "-1"}, "lag: '-1' is no duration"),
    ({"lag": "soon"}, "lag: 'soon' is no duration; write it as 90s, 5m"),
    ({"lag": "999999999999"}, "lag: cannot be longer than 36525 days"),
    ({"maxItems": "0"}, "maxItems: a whole number from 1 up"),
    ({"queue": None, "prefix": "or"}, "prefix: a stream reads one queue"),
    ({"pushdown": "true"}, "pushdown: Spark hands filters to batch reads only"),
    ({"consumer": "me"}, "consumer: not an option"),
    ({"until": "yesterday"}, "until: a time in ISO 8601"),
]


def test_a_bad_option_is_named(stream: Any) -> None:
    for change, sentence in BAD:
        with pytest.raises(ArgumentInvalid, match=sentence):
            stream(**change)


def test_a_queue_that_does_not_exist_is_refused_at_the_start(stream: Any, processed: Any) -> None:
    processed(60)
    with pytest.raises(ArgumentInvalid, match="there is no queue 'odrers' in .*, which has 'orders'"):
        stream(queue="odrers").prepareForTriggerAvailableNow()
    assert batches(stream(queue="odrers", missing="empty"), ReadMaxRows(1)) == []


def test_the_checkpoint_of_another_kind_of_stream_is_refused(stream: Any) -> None:
    for offset in ({"claim": 7}, {"before": 7}, {"before": "x"}):
        with pytest.raises(ArgumentInvalid, match="belongs to another kind of stream"):
            stream().latestOffset(offset, ReadMaxRows(1))
