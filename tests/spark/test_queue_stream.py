"""Streams that read a queue, by Spark itself: batches, checkpoints, crashes, and that nothing stays reserved."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq

SCHEMA = "_id string, _token string, _state string, _attempts int, n int"


class Streams:
    """Starts queries on the store, all with one checkpoint unless told otherwise, and stops what is left."""

    def __init__(self, spark: Any, store: Any, home: Path) -> None:
        self.spark = spark
        self.store = store
        self.home = home
        self.started: list[Any] = []

    def load(self, schema: str | None = SCHEMA, **options: Any) -> Any:
        given = self.store.options(consumer="etl", **options)
        reader = self.spark.readStream.format("mongoq").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()

    def each(self, function: Callable[[Any, int], None], *, frame: Any = None, **trigger: Any) -> Any:
        writer = (self.load() if frame is None else frame).writeStream.foreachBatch(function)
        return self.start(writer, **trigger)

    def start(self, writer: Any, *, checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        writer = writer.option("checkpointLocation", str(self.home / checkpoint))
        self.started.append((writer.trigger(**trigger) if trigger else writer).start())
        return self.started[-1]

    def held(self) -> int:
        return self.store.collection.count_documents({"reserved": True})

    def left(self) -> int:
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
    assert streams.left() == 0


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
        assert streams.held() == (4 if len(batches) == 1 else 2)
    assert streams.each(failing, frame=streams.load(maxItems=4), availableNow=True).awaitTermination(60)
    assert [number for number, _ in batches] == [0, 0, 1, 1]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert streams.left() == 0


def test_available_now_takes_nothing_that_came_later(streams: Streams) -> None:
    streams.store.add_many(3)
    seen: list[int] = []

    def pushing(frame: Any, _: int) -> None:
        seen.extend(row.n for row in frame.collect())
        mongoq.Broker(streams.store.collection).queue("orders").push({"n": 99})

    assert streams.each(pushing, frame=streams.load(maxItems=1), availableNow=True).awaitTermination(60)
    assert (sorted(seen), streams.held(), streams.left()) == ([0, 1, 2], 0, 3)


def test_a_query_goes_on_after_a_stop_and_only_one_runs_under_a_name(streams: Streams) -> None:
    seen: list[int] = []
    collect = lambda frame, _: seen.extend(row.n for row in frame.collect())  # noqa: E731
    store = streams.store
    store.add_many(3)
    query = streams.each(collect)
    query.processAllAvailable()
    assert sorted(seen) == [0, 1, 2]
    other = streams.start(streams.load().writeStream.foreachBatch(collect), checkpoint="another")
    with pytest.raises(Exception, match="consumer 'etl' is busy: .* choose another name for this one"):
        other.awaitTermination(60)
    query.stop()
    store.add_many(2)
    again = streams.each(collect)
    again.processAllAvailable()
    assert (sorted(seen), streams.held(), streams.left()) == ([0, 0, 1, 1, 2], 0, 0)
