"""The column ``_trail``: what stages have done with items, as Spark reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.types import StructType

import mongoq

TYPE = (
    "array<struct<queue:string,stage:string,by:string,taken:timestamp,settled:timestamp,"
    "attempts:int,ended:string,to:string>>"
)
SCHEMA = f"_id string, _trail {TYPE}"


def hop(store: Any, **fields: Any) -> dict[str, Any]:
    entry = {
        "queue": "raw",
        "stage": "check",
        "by": "host:1:ab",
        "taken": store.now,
        "settled": store.now + timedelta(milliseconds=250),
        "attempts": 1,
        "ended": "moved",
        "to": "checked",
    }
    return entry | fields


def test_hops_are_read_as_the_stages_wrote_them(store: Any, load: Any) -> None:
    pipeline = mongoq.Pipeline("orders", errors="orders.errors", trail="payloads")
    pipeline.stage("raw", to="checked", name="check")(lambda order: order)
    pipeline.sink("checked", name="bill")(lambda order: None)
    with mongoq.Broker(store.collection) as broker:
        broker.queue("checked").configure(history=60)
        id = broker.queue("raw").push({"sku": "bolt"})
        pipeline.drain(broker)
        hops = broker.trail(id)
    [row] = load(schema=SCHEMA, queue="checked", view="history").collect()
    assert row["_id"] == str(id)
    assert hops is not None
    assert [hop.kept for hop in hops] == [True, True]
    rows = [each.asDict() for each in row["_trail"]]
    assert len(rows) == 2
    for read, expected in zip(rows, hops, strict=True):
        for name, value in read.items():
            moment = isinstance(value, datetime)  # Spark shows it in the time zone of this machine
            assert (value.astimezone(UTC) if moment else value) == getattr(expected, name)


def test_what_is_no_hop_is_left_out_and_no_trail_is_null(store: Any, load: Any) -> None:
    item = store.add(1, trail=[hop(store), "scribble", {"queue": "raw"}, hop(store, taken="yesterday"), {}])
    empty = store.add(2, trail=[])
    strange = store.add(3, trail="scribble")
    none = store.add(4)
    trails = {row["_id"]: row["_trail"] for row in load(schema=SCHEMA).collect()}
    assert [(each["stage"], each["to"]) for each in trails.pop(str(item))] == [("check", "checked")]
    assert trails == {str(empty): [], str(strange): None, str(none): None}


def test_the_server_sends_no_payloads_for_it(spark: Any) -> None:
    from mongoq.spark.read.schema import Columns

    projection = Columns(StructType.fromDDL(SCHEMA)).projection()
    names = "attempts", "by", "ended", "queue", "settled", "stage", "taken", "to"
    assert projection == {"_id": 1} | {f"trail.{name}": 1 for name in names}


def test_a_trail_that_lies_about_its_numbers_follows_the_mode(store: Any, load: Any) -> None:
    item = store.add(1, trail=[hop(store, attempts=2**40)])
    with pytest.raises(Exception, match=f"item {item}: column '_trail\\[0\\].attempts'"):
        load(schema=SCHEMA).collect()
    [row] = load(schema=SCHEMA, mode="PERMISSIVE").collect()
    assert row["_trail"][0]["attempts"] is None
    assert row["_trail"][0]["stage"] == "check"


def test_a_table_without_a_schema_has_no_trail_and_another_type_is_refused(store: Any, load: Any) -> None:
    store.add({"_trail": 1}, trail=[hop(store)])
    assert "_trail" not in load().columns
    with pytest.raises(Exception, match="column '_trail' of the envelope is array<struct<queue:string"):
        load(schema="_trail string").collect()


def test_a_filter_on_it_is_left_to_spark(spark: Any, store: Any, load: Any) -> None:
    item = store.add(1, trail=[hop(store)])
    store.add(2, trail=[hop(store, stage="other")])
    store.add(3)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        table = load(schema=SCHEMA, pushdown="true")
        assert [row["_id"] for row in table.where("_trail IS NOT NULL AND _trail[0].stage = 'check'").collect()] == [
            str(item)
        ]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_with_it_can_be_written(store: Any, load: Any) -> None:
    store.add({"n": 1}, trail=[hop(store)])
    frame = load(schema=f"{SCHEMA}, _payload binary")
    frame.write.format("mongoq").options(**store.options(queue=None, to="copies", idColumn="_id")).mode("append").save()
    copy = store.collection.find_one({"q": "copies"})
    assert copy["payload"] == {"n": 1}
    assert "trail" not in copy
