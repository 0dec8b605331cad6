"""Streams that read a queue, by Spark itself: batches, checkpoints, crashes, and that nothing stays reserved."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.queries import start_query

SCHEMA = "_id string, _token string, _state string, _attempts int, n int"


class Streams:
    """Starts queries on the store, all with one checkpoint unless another is given, and stops what is left."""

    def __init__(self, spark: Any, store: Any, home: Path) -> None:
        self.spark = spark
        self.store = store
        self.home = home
        self.started: list[Any] = []

    def load(self, schema: str | None = SCHEMA, **options: Any) -> Any:
        arguments = self.store.options(consumer="etl", **options)
        reader = self.spark.readStream.format("mongoq").options(**arguments)
        return (reader if schema is None else reader.schema(schema)).load()

    def each(self, function: Callable[[Any, int], None], *, frame: Any = None, **trigger: Any) -> Any:
        writer = (self.load() if frame is None else frame).writeStream.foreachBatch(function)
        return self.start(writer, **trigger)

    def start(self, writer: Any, *, checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        writer = writer.option("checkpointLocation", str(self.home / checkpoint))
        self.started.append(start_query(writer.trigger(**trigger) if trigger else writer))
        return self.started[-1]

    def counted(self) -> dict[str, int]:
        counters = self.store.collection.find_one({"_id": "stats:orders"}) or {}
        return {event: counters[event] for event in ("reserve", "commit") if event in counters}

    def count_reserved(self) -> int:
        return self.store.collection.count_documents({"reserved": True})

    def count_remaining(self) -> int:
        return self.store.collection.count_documents({"q": "orders"})


@pytest.fixture
def streams(spark: Any, store: Any, tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(spark, store, tmp_path)
    yield streams
    for query in streams.started:
        query.stop()


def test_available_now_reads_all_there_is_once_and_leaves_nothing_reserved(streams: Streams, spark: Any) -> None:
    ids = streams.store.add_many(25)
    name = f"t{uuid.uuid4().hex[:8]}"
    writer = streams.load(maxItems=10).writeStream.format("memory").queryName(name)
    query = streams.start(writer, availableNow=True)
    assert query.awaitTermination(60)
    rows = spark.table(name).collect()
    assert sorted(row.n for row in rows) == list(range(25))
    assert {row._id for row in rows} == {str(id) for id in ids}
    assert {(row._state, row._attempts) for row in rows} == {("reserved", 1)}
    assert len({row._token for row in rows}) == 3
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [10, 10, 5]
    assert streams.count_remaining() == 0
    _until(lambda: streams.counted() == {"reserve": 25, "commit": 25})


@pytest.mark.prove
def test_a_batch_that_failed_is_read_again_the_same_by_the_next_start(streams: Streams) -> None:
    streams.store.add_many(6)
    batches: list[tuple[int, list[tuple[str, str]]]] = []

    def failing(frame: Any, number: int) -> None:
        batches.append((number, [(row._id, row._token) for row in frame.collect()]))
        if len(batches) in (1, 3):
            raise RuntimeError("not today")

    for _ in range(2):
        query = streams.each(failing, frame=streams.load(maxItems=4), availableNow=True)
        with pytest.raises(Exception, match="not today"):
            query.awaitTermination(60)
        assert streams.count_reserved() == (4 if len(batches) == 1 else 2)
    assert streams.each(failing, frame=streams.load(maxItems=4), availableNow=True).awaitTermination(60)
    assert [number for number, _ in batches] == [0, 0, 1, 1]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert streams.count_remaining() == 0


@pytest.mark.prove
def test_a_query_goes_on_after_a_stop_and_only_one_runs_under_a_name(streams: Streams) -> None:
    numbers: list[int] = []
    collect = lambda frame, _: numbers.extend(row.n for row in frame.collect())  # noqa: E731
    store = streams.store
    store.add_many(3)
    query = streams.each(collect)
    query.processAllAvailable()
    assert sorted(numbers) == [0, 1, 2]
    second_query = streams.start(streams.load().writeStream.foreachBatch(collect), checkpoint="another")
    with pytest.raises(Exception, match="consumer 'etl' is busy: .* choose another name for this one"):
        second_query.awaitTermination(60)
    query.stop()
    store.add_many(2)
    again = streams.each(collect)
    again.processAllAvailable()
    assert (sorted(numbers), streams.count_reserved(), streams.count_remaining()) == ([0, 0, 1, 1, 2], 0, 0)


@pytest.mark.prove
def test_a_new_checkpoint_begins_with_what_the_old_one_left(streams: Streams) -> None:
    ids = streams.store.add_many(3)
    with pytest.raises(Exception, match="not today"):
        streams.each(_failing, availableNow=True).awaitTermination(60)
    assert streams.count_reserved() == 3
    streams.store.add_many(1)
    batches: list[list[str]] = []
    writer = streams.load().writeStream.foreachBatch(
        lambda frame, _: batches.append([row._id for row in frame.collect()])
    )
    assert streams.start(writer, checkpoint="another", availableNow=True).awaitTermination(60)
    assert batches[0] == [str(id) for id in ids]
    assert (len(batches), len(batches[1]), streams.count_remaining()) == (2, 1, 0)


def _failing(frame: Any, _: int) -> None:
    frame.collect()
    raise RuntimeError("not today")


def _until(fulfilled: Callable[[], bool], *, looks: int = 2_000) -> None:
    for _ in range(looks):
        if fulfilled():
            return
        time.sleep(0.03)
    raise AssertionError("it did not come to that")


@pytest.mark.prove
def test_what_does_not_fit_is_separated_and_moved_where_it_belongs(streams: Streams) -> None:
    fits, misfit = (streams.store.add({"n": n}) for n in (1, "one"))
    frame = streams.load("_id string, _token string, n int, _corrupt string", mode="permissive")
    moved = frame.selectExpr("_id", "_token", "CASE WHEN _corrupt IS NULL THEN 'good' ELSE 'bad' END AS _to")
    writer = moved.writeStream.format("mongoq").options(**streams.store.options(queue=None))
    assert streams.start(writer, availableNow=True).awaitTermination(60)
    there = {item["_id"]: (item["q"], item["payload"]) for item in streams.store.collection.find({"q": {"$exists": 1}})}
    assert there == {fits: ("good", {"n": 1}), misfit: ("bad", {"n": "one"})}
