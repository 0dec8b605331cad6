"""Frame stages by Spark itself: what becomes of items, what fails alone, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128

import mongoq
from mongoq.errors import StageStopped

pytestmark = pytest.mark.timeout(300)
PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def work(drained: Any, tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Run a function of frames on the queue ``checked`` until nothing is left, and return its counts."""

    def work(function: Any, *, errors: str | None = "errors", trail: bool = False, **options: Any) -> dict[str, int]:
        given: dict[str, Any] = {"to": "out", "schema": "n int", "name": "work", **options}
        ends = [name for name in ([given["to"]] if isinstance(given["to"], str) else given["to"] or []) if name]
        pipeline = mongoq.Pipeline("flights", errors=errors, outputs=ends, trail=trail)
        pipeline.frame_stage("checked", **given)(function)
        counts = drained(pipeline, checkpoint=tmp_path / "checkpoint").stages["work"]
        names = ("moved", "done", "dropped", "retried", "dead")
        return {name: getattr(counts, name) for name in names if getattr(counts, name)}

    return work


def payloads(broker: mongoq.Broker, queue: str) -> list[Any]:
    return sorted((item.payload for item in broker.queue(queue).peek(100)), key=repr)


def test_items_go_where_the_rows_of_the_frame_say(broker: mongoq.Broker, work: Any, spark: Any) -> None:
    from pyspark.sql import functions as f

    checked = broker.queue("checked")
    checked.configure(history=60)
    checked.push_many([{"n": n} for n in range(8)])
    checked.push({"n": "one"})
    seats = spark.createDataFrame([(0, 180)], "n int, seats int")

    def route(flights: Any) -> Any:
        rows = flights.where("n <> 5").join(seats, "n", "left")
        rows = rows.union(rows.where("n = 6").withColumn("n", f.col("n") + 100))  # a fork
        return (
            rows.withColumn("_to", f.when(f.col("n") % 2 == 0, "even").otherwise("odd"))
            .withColumn("_retry", f.when((f.col("n") == 3) & (f.col("_attempts") == 1), "not yet"))
            .withColumn("_dead", f.when(f.col("n") == 4, "too old"))
        )

    options = {"schema": "n int NOT NULL", "to": ["even", "odd"], "retry": mongoq.Fixed(0.01), "trail": True}
    counts = work(route, **options)
    assert counts == {"moved": 6, "dropped": 1, "retried": 1, "dead": 2}
    seat = {"n": 0, "seats": 180}
    others = [{"n": n, "seats": None} for n in (106, 2, 6)]
    assert payloads(broker, "even") == [seat, *others]
    assert payloads(broker, "odd") == [{"n": n, "seats": None} for n in (1, 3, 7)]
    letters = {item.origin.reason: item for item in broker.queue("errors").peek(9) if item.origin}
    assert letters["too old"].payload == {"n": 4}
    assert letters["the payload does not fit the columns of the stage"].payload == {"n": "one"}
    assert [item.payload for item in checked.history() if item.payload == {"n": 5}] == [{"n": 5}]
    [hop] = broker.trail(broker.queue("odd").peek(1)[0].id) or ()
    assert (hop.stage, hop.queue, hop.to) == ("work", "checked", "odd")


def test_values_come_back_as_they_were_stored(broker: mongoq.Broker, work: Any, spark: Any) -> None:
    payload = {
        "at": datetime(2026, 7, 1, 23, 30, tzinfo=UTC),
        "total": Decimal128("12.50"),
        "legs": [{"from": "JFK", "minutes": None}, {"from": "LAX", "minutes": 5}],
        "raw": b"\0\1",
        "ratio": 0.5,
    }
    kept = payload | {"n": 1}
    broker.queue("checked").push_many([payload, kept], expires=[None, 3600])
    broker.queue("checked").push({"n": 2}, expires=PAST)
    ddl = "n int, at timestamp, total decimal(10,2), legs array<struct<from: string, minutes: int>>, raw binary"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        counts = work(lambda rows: rows.selectExpr("*", "3600 AS _delay").drop("n"), schema=f"{ddl}, ratio double")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert counts == {"moved": 2}
    moved = broker.queue("out").peek(9, state=None)
    assert [item.payload for item in moved] == [payload, payload]
    assert broker.queue("out").counts().scheduled == 2


def test_what_fails_fails_its_items_and_says_why(broker: mongoq.Broker, work: Any) -> None:
    def broken(flights: Any) -> Any:
        raise LookupError("no planes today")

    broker.queue("checked").push_many([{"n": n} for n in range(3)])
    assert work(broken, max_retries=0) == {"dead": 3}
    errors = broker.queue("errors").peek(9)
    assert sorted(item.payload["n"] for item in errors) == [0, 1, 2]
    assert {(item.error.type, item.error.message) for item in errors if item.error} == {
        ("LookupError", "no planes today")
    }


ODD = [
    (lambda flights: None, "stage 'work' returned a NoneType; return a DataFrame"),
    (lambda flights: flights.drop("_id"), "stage 'work' returned no column '_id'"),
    (lambda flights: flights.selectExpr("'5' AS _id", "n"), "a row with the _id '5', which no item of this frame has"),
    (lambda flights: flights.withColumnRenamed("n", "_m"), "stage 'work' returned a column '_m', which is none of"),
    (lambda flights: flights.selectExpr("_id", "'there' AS _to"), "moved an item to 'there', which is not one of its"),
    (lambda flights: flights.selectExpr("_id", "'a' AS _retry", "'b' AS _dead"), "a row says _retry and _dead; say on"),
]


@pytest.mark.prove
@pytest.mark.parametrize(("returned", "problem"), ODD)
def test_what_no_stage_can_return_fails_the_items_and_loses_nothing(
    broker: mongoq.Broker, work: Any, returned: Any, problem: str
) -> None:
    broker.queue("checked").push_many([{"n": 1}, {"n": 2}])
    assert work(returned, max_retries=0) == {"dead": 2}
    for item in broker.queue("errors").peek(9):
        assert item.error is not None
        assert problem in item.error.message
        assert item.error.type == "mongoq.errors.OutcomeInvalid"


@pytest.mark.prove
def test_a_task_that_fails_for_one_row_fails_that_item_alone(broker: mongoq.Broker, work: Any) -> None:
    from pyspark.sql import functions as f

    @f.udf("int")
    def picky(n):  # type: ignore[no-untyped-def]  # Spark reads annotations
        if n == 7:
            raise ValueError(f"no flight {n}")
        return n + 1

    broker.queue("checked").push_many([{"n": n} for n in range(12)])
    assert work(lambda rows: rows.withColumn("n", picky("n")), max_retries=0) == {"moved": 11, "dead": 1}
    [buried] = broker.queue("errors").peek(2)
    assert buried.payload == {"n": 7}


@pytest.mark.prove
def test_without_an_error_queue_the_stage_stops_and_the_others_go_on(broker: mongoq.Broker, work: Any) -> None:
    broker.queue("checked").push_many([{"n": n} for n in range(3)])
    with pytest.raises(StageStopped, match="stage 'work' has stopped"):
        work(lambda rows: rows.selectExpr("*", "CASE n WHEN 1 THEN 'too old' END AS _dead"), errors=None)
    assert payloads(broker, "out") == [{"n": 0}, {"n": 2}]
    assert broker.queue("checked").counts().reserved == 0


@pytest.mark.prove
def test_a_sink_is_done_with_what_it_was_given(broker: mongoq.Broker, work: Any, tmp_path: Path, spark: Any) -> None:
    def load(flights: Any) -> None:
        flights.select("n").write.mode("append").parquet(str(tmp_path / "loaded"))

    broker.queue("checked").push_many([{"n": n} for n in range(4)])
    assert work(load, to=(), history=3600) == {"done": 4}
    assert sorted(item.payload["n"] for item in broker.queue("checked").history()) == [0, 1, 2, 3]
    assert spark.read.parquet(str(tmp_path / "loaded")).count() == 4


def test_outputs_are_in_the_sequence_that_the_stage_or_a_column_says(broker: mongoq.Broker, work: Any) -> None:
    from pyspark.sql import functions as f

    broker.queue("checked").push_many([{"n": n} for n in range(5)], sequences=["a", "b", "c", "a", None])
    names = f.when(f.col("n") == 1, "own").when(f.col("n") == 2, "x" * 1_025).otherwise(f.col("_sequence"))
    options = {"schema": "n int, _sequence string", "sequence": "keep", "max_retries": 0}
    assert work(lambda rows: rows.withColumn("_sequence", names), **options) == {"moved": 4, "dead": 1}
    arrived: dict[Any, list[int]] = {}
    while items := broker.queue("out").reserve_many(9):
        for item in items:
            arrived.setdefault(item.sequence, []).append(item.payload["n"])
        broker.queue("out").commit_many(items)
    assert arrived == {"a": [0, 3], "own": [1], None: [4]}


@pytest.mark.prove
@pytest.mark.parametrize("columns", ["made", "kept"])
def test_a_function_of_the_payload_chooses_the_sequence(broker: mongoq.Broker, work: Any, columns: str) -> None:
    def customer(payload: Any) -> str | None:
        assert type(payload) is dict
        return None if payload["who"]["name"] == "free" else payload["who"]["name"]

    names = ["ann", "bob", "free"]
    broker.queue("checked").push_many([{"n": n, "who": {"name": names[n % 3]}} for n in range(6)])
    schema = "n int, who struct<name:string>"
    counts = work(lambda rows: rows.select("_id") if columns == "kept" else rows, schema=schema, sequence=customer)
    assert counts == {"moved": 6}
    items = [item for state in (None, "blocked") for item in broker.queue("out").peek(9, state=state)]
    assert {item.payload["n"]: item.sequence for item in items} == dict(enumerate(["ann", "bob", None] * 2))
