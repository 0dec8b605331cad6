"""Frame stages by Spark itself: what becomes of items, what fails alone, and what crashes leave behind."""

from __future__ import annotations

import decimal
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Decimal128, ObjectId

import mongoq
from mongoq.errors import ArgumentInvalid, StageStopped
from mongoq.model.item import Item, delivery_hash
from mongoq.model.trail import trail_of
from mongoq.pipeline.on_spark.frame_settler import StageSettings
from tests.awkward import awkward
from tests.spark.frame_station import Frames, dropping_pipeline

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def frames(spark: Any, store: Any, tmp_path: Path) -> Iterator[Frames]:
    frames = Frames(spark, store, tmp_path)
    yield frames
    for query in frames.started:
        query.stop()
    frames.broker.close()


def functions() -> Any:
    from pyspark.sql import functions

    return functions


def test_rows_go_on_with_what_the_function_made_of_them(frames: Frames) -> None:
    ids = frames.push({"tail": "A", "delay": 1}, {"tail": "B", "delay": 2})
    planes = frames.spark.createDataFrame([("A", 180)], "tail string, seats int")
    pipeline = frames.pipeline(outputs="enriched")

    @pipeline.frame_stage("checked", to="enriched", schema="tail string, delay int")
    def enrich(flights: Any) -> Any:
        return flights.join(planes, "tail", "left")

    assert frames.worked_off(pipeline) == {"moved": 2}
    payloads = {each["_id"]: each["payload"] for each in frames.documents("enriched")}
    assert payloads == {
        ids[0]: {"tail": "A", "delay": 1, "seats": 180},
        ids[1]: {"tail": "B", "delay": 2, "seats": None},
    }


def test_routes_drops_retries_and_dead_letters(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(6)))
    frames.broker.queue("checked").configure(history=60)
    pipeline = frames.pipeline(outputs=["even", "odd"])
    f = functions()

    @pipeline.frame_stage("checked", to=["even", "odd"], schema="n int", retry=mongoq.Fixed(3600))
    def route(flights: Any) -> Any:
        return (
            flights.where("n <> 5")
            .withColumn("_to", f.when(f.col("n") % 2 == 0, "even").otherwise("odd"))
            .withColumn("_retry", f.when(f.col("n") == 3, "not yet"))
            .withColumn("_dead", f.when(f.col("n") == 4, "too old"))
        )

    assert frames.worked_off(pipeline) == {"moved": 3, "dropped": 1, "retried": 1, "dead": 1}
    assert frames.payloads("even") == [{"n": 0}, {"n": 2}]
    assert frames.payloads("odd") == [{"n": 1}]
    [buried] = frames.documents("errors")
    assert (buried["payload"], buried["origin"]["reason"], buried["origin"]["stage"]) == ({"n": 4}, "too old", "route")
    [dropped] = [each for each in frames.documents("checked") if "processed" in each]
    assert dropped["payload"] == {"n": 5}
    [waiting] = [each for each in frames.documents("checked") if "processed" not in each]
    assert (waiting["payload"], waiting["attempts"], waiting["error"]["message"]) == ({"n": 3}, 1, "not yet")


def test_several_rows_of_an_item_are_a_fork_wherever_they_come_from(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(5)))
    pipeline = frames.pipeline(outputs="legs", trail=True)
    f = functions()

    @pipeline.frame_stage("checked", to="legs", schema="n int", partitions=2)
    def split(flights: Any) -> Any:
        return flights.where("n < 4").union(flights.where("n < 2").withColumn("n", f.col("n") + 100))

    assert frames.worked_off(pipeline) == {"moved": 4, "dropped": 1}
    assert frames.payloads("legs") == [{"n": n} for n in (0, 100, 101, 1, 2, 3)]
    assert {each["hops"] for each in frames.documents("legs")} == {1}
    assert frames.documents("checked") == []


@pytest.mark.prove
def test_payloads_stay_as_they_are_where_no_column_makes_one(frames: Frames) -> None:
    payload = {"n": 1, "id": mongoq.Broker.__name__, "at": frames.store.now, "raw": b"\0"}
    frames.push(payload)
    pipeline = frames.pipeline(outputs="kept")

    @pipeline.frame_stage("checked", to="kept", schema="n int")
    def keep(flights: Any) -> Any:
        return flights.select("_id")

    assert frames.worked_off(pipeline) == {"moved": 1}
    assert frames.payloads("kept") == [payload]


@pytest.mark.prove
@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (lambda rows: (row for row in rows.columns), "mongoq.errors.OutcomeInvalid"),
        (lambda _: ValueError("no"), "ValueError"),
    ],
)
def test_what_has_not_run_and_what_is_wrong_is_a_failure_of_a_sink(frames: Frames, returned: Any, kind: str) -> None:
    frames.push({"n": 1}, {"n": 2})
    pipeline = frames.pipeline()
    pipeline.frame_stage("checked", schema="n int", max_retries=0, name="load")(returned)
    assert frames.worked_off(pipeline) == {"dead": 2}
    assert {each["error"]["type"] for each in frames.documents("errors")} == {kind}


@pytest.mark.prove
def test_without_a_schema_the_payload_is_json(frames: Frames) -> None:
    frames.push({"n": 1}, [1, 2], None)
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out")
    def same(flights: Any) -> Any:
        assert flights.columns == ["_id", "_attempts", "_delivery_hash", "payload"]
        return flights

    assert frames.worked_off(pipeline) == {"moved": 3}
    assert frames.payloads("out") == [None, [1, 2], {"n": 1}]


@pytest.mark.prove
def test_the_trail_and_the_delivery_hash_are_those_of_workers(frames: Frames) -> None:
    frames.push({"n": 1}, queue="raw")
    pipeline = frames.pipeline(outputs="out", trail="payloads")
    delivery_hashes: list[str] = []
    hashes: list[str] = []

    @pipeline.stage("raw", to="checked")
    def check(flight: Any) -> Any:
        return flight

    @pipeline.frame_stage("checked", to="out", schema="n int")
    def enrich(flights: Any) -> Any:
        delivery_hashes.extend(row._delivery_hash for row in flights.collect())
        return flights.withColumn("seats", functions().lit(180))

    workers = frames.pipeline(outputs="checked", trail="payloads")
    workers.stage("raw", to="checked", name="check")(check)
    workers.drain(frames.broker)
    [item] = frames.broker.queue("checked").peek(1)
    hashes.append(delivery_hash("enrich", [item]))
    assert frames.worked_off(pipeline) == {"moved": 1}
    assert delivery_hashes == hashes
    [moved] = frames.documents("out")
    assert moved["hops"] == 2
    first, second = trail_of(moved["trail"])
    assert (first.stage, first.queue, first.to) == ("check", "raw", "checked")
    assert (second.stage, second.queue, second.to, second.ended) == ("enrich", "checked", "out", "moved")
    assert (second.payload, second.attempts) == ({"n": 1}, 1)


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.prove), "America/New_York"])
def test_values_come_back_as_they_were_stored(frames: Frames, zone: str) -> None:
    payload = {
        "at": datetime(2026, 7, 1, 23, 30, tzinfo=UTC),
        "total": Decimal128("12.50"),
        "legs": [{"from": "JFK", "minutes": None}, {"from": "LAX", "minutes": 5}],
        "raw": b"\0\1",
        "ratio": 0.5,
        "late": True,
    }
    frames.push(payload)
    pipeline = frames.pipeline(outputs="out")
    ddl = "at timestamp, total decimal(10,2), legs array<struct<from: string, minutes: int>>, raw binary, ratio double"

    @pipeline.frame_stage("checked", to="out", schema=f"{ddl}, late boolean")
    def same(flights: Any) -> Any:
        return flights.withColumn("_delay", functions().lit(3600))

    frames.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert frames.worked_off(pipeline) == {"moved": 1}
    finally:
        frames.spark.conf.set("spark.sql.session.timeZone", "UTC")
    [moved] = frames.documents("out")
    assert moved["payload"] == payload
    assert moved["when"] > frames.store.now + timedelta(minutes=50)


def test_an_item_of_a_join_has_the_hash_that_workers_know_it_by() -> None:
    from mongoq.spark.types.envelope_columns import DELIVERY, ENVELOPE

    inputs = [{"id": ObjectId(), "hops": 2}, {"id": ObjectId()}]
    document = {"_id": ObjectId(), "q": "q", "hops": 3, "joined": {"queue": "j", "inputs": inputs}}
    now = datetime.now(UTC)
    [parts] = ENVELOPE[DELIVERY].take([document], now)
    digest = hashlib.sha256(f"enrich\0{parts}".encode()).hexdigest()
    assert digest == delivery_hash("enrich", [Item(document, None, now, "namespace")])


@pytest.mark.prove
def test_a_function_that_raises_fails_the_items_and_not_the_query(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(3)))
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int", max_retries=0)
    def broken(flights: Any) -> Any:
        raise LookupError("no planes today")

    assert frames.worked_off(pipeline) == {"dead": 3}
    errors = frames.documents("errors")
    assert {(each["error"]["type"], each["error"]["message"]) for each in errors} == {
        ("LookupError", "no planes today")
    }
    assert sorted(each["payload"]["n"] for each in errors) == [0, 1, 2]


@pytest.mark.parametrize(
    "name",
    [
        "no traceback",
        "system exit",
        *(pytest.param(name, marks=pytest.mark.prove) for name in ("no name", "no text", "no class", "odd name")),
        pytest.param("huge text", marks=pytest.mark.prove),
    ],
)
def test_a_function_fails_its_items_whatever_it_raises_and_leaves_nothing_behind(frames: Frames, name: str) -> None:
    frames.push(*({"n": n} for n in range(3)))
    pipeline = frames.pipeline(outputs="out")
    precisions = []

    @pipeline.frame_stage("checked", to="out", schema="n int", max_retries=0)
    def broken(flights: Any) -> Any:
        precisions.append(decimal.getcontext().prec)
        decimal.getcontext().prec = 3
        raise awkward(name)

    assert frames.worked_off(pipeline) == {"dead": 3}
    assert len(frames.documents("errors")) == 3
    assert len(precisions) > 1
    assert set(precisions) == {decimal.getcontext().prec}


@pytest.mark.prove
def test_a_task_that_fails_for_one_row_fails_that_item_alone(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(12)))
    pipeline = frames.pipeline(outputs="out")
    f = functions()

    @f.udf("int")
    def picky(n):  # type: ignore[no-untyped-def]  # Spark reads annotations
        if n == 7:
            raise ValueError(f"no flight {n}")
        return n + 1

    @pipeline.frame_stage("checked", to="out", schema="n int", max_retries=0)
    def convert(flights: Any) -> Any:
        return flights.withColumn("n", picky("n"))

    assert frames.worked_off(pipeline) == {"moved": 11, "dead": 1}
    [buried] = frames.documents("errors")
    assert buried["payload"] == {"n": 7}
    assert (buried["error"]["type"], buried["error"]["message"]) == ("ValueError", "no flight 7")
    assert sorted(each["payload"]["n"] for each in frames.documents("out")) == sorted(set(range(1, 13)) - {8})


@pytest.mark.prove
def test_what_does_not_fit_the_schema_is_a_dead_letter(frames: Frames) -> None:
    frames.push({"n": 1}, {"n": "one"})
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int NOT NULL")
    def same(flights: Any) -> Any:
        return flights

    assert frames.worked_off(pipeline) == {"moved": 1, "dead": 1}
    [buried] = frames.documents("errors")
    assert buried["origin"]["reason"] == "the payload does not fit the columns of the stage"
    assert buried["payload"] == {"n": "one"}


ODD = [
    (lambda flights: None, "stage 'odd' returned a NoneType; return a DataFrame"),
    (lambda flights: flights.drop("_id"), "stage 'odd' returned no column '_id'"),
    (lambda flights: flights.selectExpr("'5' AS _id", "n"), "a row with the _id '5', which no item of this frame has"),
    (lambda flights: flights.selectExpr("_id", "'{' AS payload"), "column 'payload': text that is no JSON"),
    (lambda flights: flights.withColumnRenamed("n", "_m"), "stage 'odd' returned a column '_m', which is none of"),
    (
        lambda flights: flights.withColumn("payload", flights.n),
        "columns 'n', 'payload', which make several payloads",
    ),
    (lambda flights: flights.withColumn("_retry", flights.n), "a column '_retry' of type int; it is to be a string"),
    (
        lambda flights: flights.selectExpr("_id", "'there' AS _to"),
        "moved an item to 'there', which is not one of its",
    ),
    (
        lambda flights: flights.union(flights).withColumn("_dead", functions().lit("x")),
        "it is said to be dead, and has 2 rows",
    ),
    (
        lambda flights: flights.selectExpr("_id", "'a' AS _retry", "'b' AS _dead"),
        "a row says _retry and _dead; say one of them",
    ),
]
"""What no stage can return, and what is said of it: a sample first, one of each kind."""
SAMPLE = 1


@pytest.mark.parametrize(
    ("returned", "problem"),
    [*ODD[:SAMPLE], *(pytest.param(*each, marks=pytest.mark.prove) for each in ODD[SAMPLE:])],
)
def test_what_no_stage_can_return_fails_the_items_and_loses_nothing(
    frames: Frames, returned: Any, problem: str
) -> None:
    frames.push({"n": 1}, {"n": 2})
    pipeline = frames.pipeline(outputs="out")
    pipeline.frame_stage("checked", to="out", schema="n int", max_retries=0, name="odd")(returned)
    assert frames.worked_off(pipeline) == {"dead": 2}
    errors = frames.documents("errors")
    assert sorted(each["payload"]["n"] for each in errors) == [1, 2]
    for each in errors:
        assert problem in each["error"]["message"]
        assert each["error"]["type"] == "mongoq.errors.OutcomeInvalid"


@pytest.mark.prove
def test_without_an_error_queue_the_stage_stops_and_the_others_go_on(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(3)))
    pipeline = frames.pipeline(errors=None, outputs="out")
    f = functions()

    @pipeline.frame_stage("checked", to="out", schema="n int")
    def judge(flights: Any) -> Any:
        return flights.withColumn("_dead", f.when(f.col("n") == 1, "too old"))

    query = frames.run(pipeline)
    assert isinstance(query.failure, StageStopped)
    assert (query.failure.stage, query.failure.queue) == ("judge", "checked")
    assert "too old" in str(query.failure.__cause__)
    assert frames.payloads("out") == [{"n": 0}, {"n": 2}]
    [back] = frames.documents("checked")
    assert (back["_id"], back["reserved"]) == (query.failure.item_id, False)


@pytest.mark.prove
def test_a_sink_is_done_with_what_it_was_given(frames: Frames, tmp_path: Path) -> None:
    frames.push(*({"n": n} for n in range(4)))
    pipeline = frames.pipeline()

    @pipeline.frame_stage("checked", schema="n int")
    def load(flights: Any) -> None:
        flights.select("n").write.mode("append").parquet(str(tmp_path / "loaded"))

    assert frames.worked_off(pipeline) == {"done": 4}
    assert frames.spark.read.parquet(str(tmp_path / "loaded")).count() == 4
    assert frames.documents("checked") == []


@pytest.mark.prove
def test_stop_ends_it_in_good_order_and_leaves_nothing_reserved(frames: Frames) -> None:
    frames.push(*({"n": n} for n in range(30)))
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int", items=5)
    def same(flights: Any) -> Any:
        return flights

    query = frames.query(pipeline)
    query.start()
    while not query.counts() and query.is_active:
        query.wait(0.05)
    query.stop()
    assert (query.is_active, query.failure) == (False, None)
    assert frames.count_reserved() == 0
    moved, waiting = len(frames.documents("out")), frames.documents("checked")
    assert moved == query.counts()["moved"] >= 5
    assert (moved + len(waiting), {each["attempts"] for each in waiting} <= {0}) == (30, True)
    assert frames.worked_off(pipeline)["moved"] == 30 - moved


@pytest.mark.prove
def test_a_driver_that_is_killed_in_the_middle_does_the_same_with_each_item_once(
    frames: Frames, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    frames.push(*({"n": n, "ten": n // 10} for n in range(100)))
    station = [sys.executable, "-m", "tests.spark.frame_station", json.dumps(frames.store.options())]
    places = {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path}", "TMPDIR": str(tmp_path)}
    environment = {**os.environ, **spark_environment, **places}
    command = [*station, str(tmp_path / "checkpoint")]
    driver = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: len(frames.documents("enriched")) == 10 or driver.poll() is not None)
        assert driver.poll() is None
        assert len(frames.documents("checked")) == 90
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    enriched = frames.payloads("enriched")
    assert frames.worked_off(dropping_pipeline()) == {"dropped": 90}
    assert frames.payloads("enriched") == enriched
    assert sorted(each["ten"] for each in enriched) == list(range(10))
    assert frames.documents("checked") == []


def _until(fulfilled: Callable[[], bool]) -> None:
    for _ in range(4_000):
        if fulfilled():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


@pytest.mark.prove
def test_a_lost_checkpoint_loses_no_item(frames: Frames) -> None:
    frames.push({"n": 1}, {"n": 2})
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int")
    def same(flights: Any) -> Any:
        return flights

    broken = frames.query(pipeline, available_now=True)
    broken._batches._run_settler = _failing  # type: ignore[method-assign]
    broken.start()
    assert broken.wait(120)
    assert "not today" in str(broken.failure)
    assert frames.count_reserved() == 2
    assert frames.worked_off(pipeline, checkpoint="another") == {"moved": 2}
    assert frames.payloads("out") == [{"n": 1}, {"n": 2}]


def _failing(*_: Any) -> Any:
    raise RuntimeError("not today")


@pytest.mark.prove
def test_what_cannot_be_written_is_no_fault_of_the_items(frames: Frames) -> None:
    frames.push({"n": 1})
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int", max_retries=0)
    def same(flights: Any) -> Any:
        return flights

    query = frames.query(pipeline, available_now=True)
    object.__setattr__(query._part, "path", "nowhere://at/all")
    query.start()
    assert query.wait(120)
    assert "nowhere" in str(query.failure)
    assert frames.documents("errors") == []
    query.stop()
    [back] = frames.documents("checked")
    assert (back["attempts"], back["reserved"], "error" in back) == (0, False, False)


@pytest.mark.prove
def test_items_that_had_all_their_runs_go_to_the_errors_of_the_stage(frames: Frames) -> None:
    spent = frames.store.add({"n": 1}, queue="checked", attempts=3)
    frames.push({"n": 2})
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int", max_retries=2)
    def same(flights: Any) -> Any:
        return flights

    assert frames.worked_off(pipeline)["moved"] == 1
    assert [each["_id"] for each in frames.documents("errors")] == [spent]
    assert frames.documents("checked.dead") == []


@pytest.mark.prove
def test_ids_of_other_programs_are_settled_as_well(frames: Frames) -> None:
    for id in ("abc", 5, "0" * 24):
        frames.store.add({"n": 1}, queue="checked", _id=id)
    frames.push({"n": 1})
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int")
    def same(flights: Any) -> Any:
        return flights

    assert frames.worked_off(pipeline) == {"moved": 4}
    assert {"abc", 5, "0" * 24} < {each["_id"] for each in frames.documents("out")}


def test_no_credentials_are_stored_with_an_item(frames: Frames) -> None:
    from mongoq.pipeline.on_spark.frame_batch import cause
    from mongoq.spark.raw_options import Location

    uri = "mongodb://analyst:s3cret%2Dp4ss@host/app"
    kind, message = json.loads(cause(ValueError(f"{uri} s3cret-p4ss"), Location(uri, "app", "mongoq")))
    assert (kind, "s3cret" in message) == ("ValueError", False)


def test_a_schema_deeper_than_arrow_brings_is_refused_with_its_stage_and_path() -> None:
    from pyspark.sql.types import ArrayType, DataType, IntegerType, StructType

    from mongoq.pipeline.graph.graph import Frame
    from mongoq.pipeline.on_spark.frame_query import _schema_of

    deep: DataType = IntegerType()
    for _ in range(63):
        deep = ArrayType(deep)
    with pytest.raises(ArgumentInvalid, match=r"schema: stage 'enrich': field 'a(\[\]){62}' nests deeper"):
        _schema_of("enrich", Frame(StructType().add("a", deep), 10, 1))


def test_an_outcome_of_an_unknown_kind_settles_nothing() -> None:
    """The files of a batch may be of another version."""
    with pytest.raises(mongoq.OutcomeInvalid, match="no item can be settled by an outcome 'mended'"):
        StageSettings._read_result(SimpleNamespace(targets=("out",)), "mended", None, {"outputs": None})  # type: ignore[arg-type]
