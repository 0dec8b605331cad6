"""The driver's side of a stream without Spark: options, who runs, what is kept, how a claim is split and read."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

import mongoq
from mongoq.protocol.coordination import streams
from mongoq.spark import clients

ROOT = Path(__file__).parents[2]
EARLY = datetime(2020, 2, 2, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
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
    ({"lease": "0"}, "lease: a number of seconds"),
    ({"since": "2026-11-20T08:30:00Z"}, "since: not an option"),
]


def source(store: Any, **options: Any) -> Any:
    from mongoq.spark.source import MongoqDataSource

    return MongoqDataSource(store.options(**{"consumer": "etl", **options}))


def columns(**types: str) -> Any:
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, type in types.items():
        schema.add(name, type)
    return schema


@pytest.mark.parametrize(("options", "problem"), PROBLEMS, ids=[problem for _, problem in PROBLEMS])
def test_what_cannot_be_used_is_reported_before_anything_is_sent(
    store: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(mongoq.ArgumentInvalid) as caught:
        source(store, **options).streamReader(columns(n="integer"))
    assert str(caught.value).startswith(problem)


def test_a_column_that_cannot_be_read_is_reported_with_the_options(store: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="'_when' of the envelope is timestamp"):
        source(store).streamReader(columns(_when="string"))


@pytest.fixture
def run(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Make what one process knows of its query; another call is another process."""
    from mongoq.spark.stream import queue_run
    from mongoq.spark.stream.stream_options import QueueStreamOptions

    monkeypatch.setattr(queue_run, "LAST_EXTENSION_SECONDS", 0.1)
    monkeypatch.setattr(queue_run, "RUN_LEASE", timedelta(seconds=1))
    runs = []

    def run(**options: Any) -> Any:
        arguments = store.options(**{"consumer": "etl", "missing": "empty", **options})
        runs.append(queue_run.QueueRun(QueueStreamOptions.parse(arguments)))
        return runs[-1]

    yield run
    for each in runs:
        each.end()
    for broker in clients._brokers.values():
        broker.close()
    clients._brokers.clear()


def control(store: Any) -> Any:
    return store.collection.find_one({"_id": "stream:etl"})


def until(fulfilled: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if fulfilled():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


def test_leases_of_the_run_and_of_its_items_go_on(store: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mongoq.protocol.coordination import streams

    extended, failures = streams.extend_lease, [ConnectionError("the network"), ConnectionError("again")]

    def failing(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return extended(*arguments)

    monkeypatch.setattr(streams, "extend_lease", failing)
    store.add_many(2)
    run = run(lease=1)
    assert run.latest(0, 10) == 1
    [lease_end] = store.collection.distinct("when", {"q": "orders"})
    until(
        lambda: all(
            each > lease_end + timedelta(seconds=1) for each in store.collection.distinct("when", {"q": "orders"})
        )
    )
    assert not failures
    ended = control(store)["until"]
    until(lambda: control(store)["until"] > ended)
    run.end()
    assert "token" not in control(store)
    assert store.collection.count_documents({"reserved": True}) == 2


def test_a_queue_that_does_not_exist_is_refused_until_the_consumer_has_read_it(store: Any, run: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="there is no queue 'orders'"):
        run(missing="fail").last()
    store.add("x")
    stream_run = run(missing="fail")
    assert stream_run.last() == 0
    stream_run.end()
    store.collection.delete_many({"q": "orders"})
    assert run(missing="fail").last() == 0


def test_a_run_that_is_alive_is_distinguished_from_a_dead_one(store: Any, run: Any) -> None:
    from mongoq.spark.stream import queue_run

    alive = run()
    assert alive.last() == 0
    with pytest.raises(mongoq.ConsumerBusy, match="choose another name") as caught:
        run().last()
    assert caught.value.held_by == control(store)["by"]
    alive.end()
    store.collection.update_one(
        {"_id": "stream:etl"},
        {"$set": {"token": ObjectId(), "by": "host:1:ab", "until": alive.now() + queue_run.RUN_LEASE}},
    )
    assert run().last() == 0


def test_a_query_whose_claims_are_released_cannot_go_on(store: Any, run: Any) -> None:
    store.add_many(2)
    run = run()
    assert run.latest(0, 10) == 1
    assert mongoq.Broker(store.collection).release_claims("etl") == 2
    with pytest.raises(mongoq.ConsumerBusy, match="release_claims.*start the query again"):
        run.latest(1, 10)
    assert store.collection.count_documents({"q": "orders", "reserved": False}) == 2


def test_a_batch_of_an_old_checkpoint_is_empty_and_the_next_one_is_what_is_held(
    store: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store.add_many(2)
    run = run()
    assert [run.latest(number, 1) for number in range(2)] == [1, 2]
    assert run.find_held(0, 1) == (None, ())
    assert "batch 1 of consumer 'etl' was settled before" in caplog.text
    assert run.latest(1, 1) == 2
    assert len(run.find_held(1, 2)[1]) == 1
    assert run.latest(7, 1) == 8
    assert len(run.find_held(7, 8)[1]) == 1
    assert run.latest(8, 1) == 8
    assert store.collection.count_documents({"q": "orders"}) == 0


def test_who_waits_for_an_empty_queue_is_woken_by_a_push(store: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mongoq.spark.stream import queue_run

    run = run()
    assert run.latest(0, 10) == 0
    monkeypatch.setattr(queue_run, "EMPTY_WAIT_SECONDS", 600.0)
    broker = mongoq.Broker(store.collection)
    timer = threading.Timer(0.5, lambda: broker.queue("orders").push({"n": 1}))
    timer.start()
    assert run.latest(0, 10) == 1
    timer.join()


def test_what_others_took_is_left_out_with_a_warning(store: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, second = store.add_many(2)
    stream_run = run()
    assert stream_run.latest(0, 10) == 1
    stream_run.end()
    store.collection.update_one({"_id": first}, {"$set": {"token": ObjectId()}})
    claim, ids = run().find_held(0, 1)
    assert claim is not None
    assert list(ids) == [second]
    assert "1 of 2 items of batch 1 of consumer 'etl' are left out" in caplog.text


@pytest.fixture
def reader(store: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make a reader on a run of its own."""
    from mongoq.spark.stream import queue_stream

    def reader(schema: Any = None, **options: Any) -> Any:
        source_reader, own = source(store, **options).streamReader(schema or columns(n="integer")), run(**options)
        monkeypatch.setattr(queue_stream, "run_of", lambda _: own)
        return source_reader

    return reader


@pytest.mark.parametrize(("partitions", "sizes"), [(None, [7]), (3, [2, 2, 3]), (20, [1] * 7)])
def test_a_claim_is_split_evenly_and_read_in_its_order(
    store: Any, reader: Any, partitions: int | None, sizes: list[int]
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    for n in range(7):
        store.add({"n": n}, priority=-n)
    reader = reader(partitions=partitions)
    assert reader.getDefaultReadLimit() == ReadMaxRows(10_000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (start, end["claim"]) == ({"claim": 0}, 1)
    parts = reader.partitions(start, end)
    rows = [[n for batch in reader.read(part) for n in batch.column("n").to_pylist()] for part in parts]
    assert [len(part) for part in rows] == sizes
    assert list(chain(*rows)) == [6, 5, 4, 3, 2, 1, 0]
    assert reader.partitions(end, end) == []
    assert store.uri not in repr(parts) + repr(reader)
    reader.commit(end)
    assert store.collection.count_documents({"q": "orders"}) == 0


def test_an_item_is_in_the_same_part_when_some_were_settled_before_the_batch_is_read_again(
    store: Any, reader: Any
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from mongoq.spark.stream import queue_stream

    def read(stream: Any) -> list[list[int]]:
        parts = stream.partitions({"claim": 0}, end)
        return [[n for batch in stream.read(part) for n in batch.column("n").to_pylist()] for part in parts]

    for n in range(9):
        store.add({"n": n})
    first_reader = reader(partitions=3)
    end = first_reader.latestOffset(first_reader.initialOffset(), ReadMaxRows(100))
    assert read(first_reader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    first_reader.stop()
    queue_stream.run_of(first_reader._options).end()
    moved = {"$set": {"q": "next", "reserved": False}, "$unset": {"token": ""}}
    store.collection.update_many({"payload.n": {"$in": [0, 1, 2, 4]}}, moved)
    assert read(reader(partitions=3)) == [[], [3, 5], [6, 7, 8]]


def test_spark_may_ask_for_fewer_items_than_the_option(store: Any, reader: Any) -> None:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadMaxRows

    store.add_many(5)
    reader = reader(maxItems=3)
    start = reader.initialOffset()
    first_end = reader.latestOffset(start, ReadMaxRows(2))
    assert len(reader.partitions(start, first_end)[0].ids[0]) == 2 * 12
    second = reader.latestOffset(first_end, ReadMaxRows(100))
    assert len(reader.partitions(first_end, second)[0].ids[0]) == 3 * 12
    assert list(reader.read(InputPartition(None))) == []


def test_a_checkpoint_of_another_consumer_settles_nothing_that_it_has_not_read(store: Any, reader: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    store.add_many(2)
    reader = reader()
    theirs = {"claim": 1, "token": str(ObjectId())}
    mine = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert mine["claim"] == theirs["claim"]
    assert reader.partitions({"claim": 0}, theirs) == []
    end = reader.latestOffset(theirs, ReadAllAvailable())
    assert end == {"claim": 2, "token": mine["token"]}
    assert len(reader.partitions(theirs, end)[0].ids[0]) == 2 * 12
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert store.collection.count_documents({"q": "orders"}) == 0


def test_a_checkpoint_of_another_kind_is_refused(reader: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    with pytest.raises(mongoq.ArgumentInvalid, match="checkpointLocation: this checkpoint belongs to another kind"):
        reader().latestOffset({"before": "2026-11-20T08:30:00.250Z"}, ReadAllAvailable())


def test_the_time_at_which_an_item_came_is_noted_by_its_claim_and_outlasts_all_others(store: Any, run: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        orders, raw = broker.queue("orders", history=timedelta(days=1)), broker.queue("raw")
        before = broker._driver.run(streams.server_time(broker._context))
        pushed = [orders.push({"n": n}, id=ObjectId.from_datetime(EARLY) if n else None) for n in range(2)]
        moved = raw.push({"n": 2}, id=ObjectId())
        store.collection.update_one({"_id": moved}, {"$set": {"pushed": EARLY}})  # of a stream on the queue before
        item = raw.reserve()
        assert item is not None
        raw.move(item, "orders")
        after = broker._driver.run(streams.server_time(broker._context))
        odd = store.add({"n": 3}, attempts=None, when=before)  # another program's
        times = {}
        for _ in range(3):  # claimed, given back, claimed, extended
            stream_run = run()
            stream_run.latest(stream_run.last(), 10)
            for each in store.collection.find({"q": "orders"}):
                assert each["reserved"]
                assert before - MILLISECOND <= each["pushed"] <= after
                assert times.setdefault(each["_id"], each["pushed"]) == each["pushed"]
            stream_run.end()
            broker.release_claims("etl")
        assert times.keys() == {*pushed, moved, odd}
        stream_run = run()
        number = stream_run.latest(stream_run.last(), 10)
        stream_run.settle(number)
        assert {each.id for each in orders.history()} == times.keys()
        assert {each["_id"]: each["pushed"] for each in store.collection.find({"q": "orders"})} == times


def test_what_was_moved_and_had_by_a_worker_does_not_tell_of_the_queue_before(store: Any, run: Any) -> None:
    with mongoq.Broker(store.collection) as broker:
        raw, orders = broker.queue("raw"), broker.queue("orders")
        id = raw.push({"n": 1})
        store.collection.update_one({"_id": id}, {"$set": {"pushed": EARLY}})  # of a stream there
        for queue in (raw, orders):
            item = queue.reserve()
            assert item is not None
            if queue is raw:
                raw.move(item, "orders")
            else:
                orders.rollback(item, delay=0)
        stream_run = run()
        while stream_run.latest(stream_run.last(), 10) == 0:
            time.sleep(0.05)
        assert store.collection.find_one({"_id": id})["pushed"] > store.now - timedelta(hours=1)


def test_an_item_with_text_that_is_not_utf_8_is_named(store: Any, reader: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from mongoq.spark import ColumnMismatch

    store.add_many(9)
    garbled = store.collection.find_one_and_delete({"_id": store.add({"t": "XYZ"})})
    store.collection.insert_one(RawBSONDocument(bson.encode(garbled).replace(b"XYZ", b"\xff\xfe\xfd")))
    reader = reader(columns(t="string"))
    start = reader.initialOffset()
    [part] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(ColumnMismatch, match=f"item {garbled['_id']}: .* text that is not UTF-8"):
        list(reader.read(part))


def test_large_items_come_in_smaller_batches(store: Any, reader: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    for n in range(6):
        store.add({"n": n, "text": "x" * 5_000_000})
    reader = reader(columns(n="integer", text="string"))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    [part] = reader.partitions({"claim": 0}, end)
    batches = [batch.column("n").to_pylist() for batch in reader.read(part)]
    assert list(chain(*batches)) == list(range(6))
    assert len(batches) > 2


ENDING = """
import time
from mongoq.spark.stream.queue_run import at_the_end
at_the_end(lambda: print("given back", flush=True))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_asked_to_end_does_the_last_thing_first() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDING], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "given back\n"
        assert process.wait() == 128 + signal.SIGTERM
