"""Filters that the server evaluates first: the same rows, fewer of them sent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId

from mongoq.spark import ColumnMismatch

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def read(reader: Any) -> Any:
    """Read with filters, and return rows and partitions: ``read("n int", EqualTo(("n",), 1))``."""

    def read(ddl: str, *filters: Any, **options: Any) -> tuple[list[Any], list[Any]]:
        source = reader(ddl, pushdown="true", **options)
        assert list(source.pushFilters([*filters])) == [*filters]  # Spark evaluates all of them again
        partitions = source.partitions()
        batches = [batch for partition in partitions for batch in source.read(partition)]
        return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=str), partitions

    return read


def test_what_does_not_fit_the_column_is_shown_whatever_the_filter(store: Any, read: Any) -> None:
    from pyspark.sql.datasource import GreaterThan

    for value in (1, 9, "9", [9], {"a": 9}, 9.5, None, 2**40):
        store.add({"n": value})
    store.add({})
    store.add("no document")
    store.add([{"n": 1}])
    rows, _ = read("n int, _corrupt string", GreaterThan(("n",), 5), mode="permissive")
    values = {row[1] for row in rows}
    assert values == {
        None, '{"n":"9"}', '{"n":[9]}', '{"n":{"a":9}}', '{"n":9.5}', '{"n":1099511627776}', '"no document"',
        '[{"n":1}]',
    }  # fmt: skip
    assert [row[0] for row in rows if row[1] is None] == [9]
    with pytest.raises(ColumnMismatch):
        read("n int", GreaterThan(("n",), 5))


HOSTILE = ["$where", "$$NOW", "a.b", "{$gt: ''}", "^x", ".*", "x\0y", "$q", "\\E.*", "é\n"]


def test_texts_are_texts_and_names_are_names(store: Any, read: Any) -> None:
    for text in HOSTILE:
        check_text(store, read, text)
        store.collection.delete_many({"q": "orders"})


def check_text(store: Any, read: Any, text: str) -> None:
    from pyspark.sql.datasource import EqualTo, In, Not, StringContains, StringEndsWith, StringStartsWith

    for value in ("a", text, f"<{text}>", "z"):
        store.add({"s": value, text.replace("\0", ""): 1})
    for filter in (EqualTo(("s",), text), In(("s",), (text,)), Not(In(("s",), ("a", "z", f"<{text}>")))):
        assert read("s string", filter)[0] == [(text,)]
    for filter in (StringStartsWith(("s",), text), StringEndsWith(("s",), text + ">"), StringContains(("s",), text)):
        assert (text,) in read("s string", StringStartsWith(("s",), text))[0]
        assert (f"<{text}>",) in read("s string", StringContains(("s",), text))[0]
        read("s string", filter)
    name = text.replace("\0", "").replace("`", "``")
    assert len(read(f"`{name}` int", EqualTo((text.replace("\0", ""),), 1))[0]) == 4


@pytest.fixture
def examined(store: Any) -> Iterator[Callable[[], list[int]]]:
    """The numbers of documents that reads of items have looked at, as the profiler saw them."""
    database = store.collection.database
    database.command("profile", 2, filter={"ns": store.collection.full_name})
    yield lambda: [
        each["docsExamined"]
        for each in database["system.profile"].find({"ns": store.collection.full_name, "command.find": {"$exists": 1}})
        if each["command"].get("projection", {"_id": 1}) != {"_id": 1}
    ]
    database.command("profile", 0)
    database.drop_collection("system.profile")


def test_ranges_of_what_is_indexed_cost_what_they_hold(store: Any, read: Any, examined: Any) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In

    moments = [store.now - timedelta(seconds=n) for n in range(500)]
    for offset, field in ((0, "when"), (4096, "processed")):
        store.collection.insert_many(
            {"_id": ObjectId(f"{n + offset:024x}"), "q": "orders", "priority": 0, "payload": {"n": n}, field: moment}
            for n, moment in enumerate(moments)
        )
    store.add_many(500, queue="other")
    late = store.now - timedelta(seconds=9.5)
    for view, column, filter, expected in [
        ("live", "_when timestamp", GreaterThan(("_when",), late), 10),
        ("history", "_processed timestamp", GreaterThan(("_processed",), late), 10),
        ("live", "_id string", EqualTo(("_id",), f"{8:024x}"), 1),
        ("history", "_id string", In(("_id",), (f"{4100:024x}", f"{4101:024x}")), 2),
        ("live", "_q string", EqualTo(("_q",), "nobody"), 0),
        ("live", "_priority int", GreaterThan(("_priority",), 3), 0),
    ]:
        rows, _ = read(f"{column}, n int", filter, view=view)
        assert len(rows) == expected
        assert examined()[-1] <= expected + 5, column
    rows, partitions = read("_when timestamp", GreaterThan(("_when",), late), partitions=2)
    assert (len(rows), len(partitions)) == (10, 2)


def test_times_finer_than_a_millisecond_are_compared_as_spark_does(store: Any, read: Any) -> None:
    from pyspark.sql.datasource import EqualTo, LessThan, LessThanOrEqual, Not

    store.add("x")
    half = store.now - timedelta(hours=1) + timedelta(microseconds=500)
    for filter in (LessThan(("_when",), half), LessThanOrEqual(("_when",), half), Not(EqualTo(("_when",), half))):
        assert len(read("_when timestamp", filter)[0]) == 1


def test_days_are_compared_as_spark_does(store: Any, read: Any) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThanOrEqual

    store.add({"d": datetime(2026, 11, 20, 23, 59, tzinfo=UTC)})
    store.add({"d": datetime(9999, 12, 31, 12, tzinfo=UTC)})
    day = date(2026, 11, 20)
    for filter in (
        EqualTo(("d",), day),
        LessThanOrEqual(("d",), day),
        GreaterThanOrEqual(("d",), day),
        In(("d",), (day,)),
    ):
        assert (day,) in read("d date", filter)[0]
    assert read("d date", GreaterThan(("d",), date(2027, 1, 1)))[0] == [(date(9999, 12, 31),)]
    assert len(read("d date", LessThanOrEqual(("d",), date.max))[0]) == 2


VALUES: list[Any] = [
    0, 1, -1, 127, 128, 2**31, 2**53 + 1, Int64(5), 0.5, 5.0, float("nan"), float("inf"), 2.0**53, Decimal128("5.00"),
    Decimal128("NaN"), Decimal128("99999999.99"), "", "a", "ab", "A", "5", "true", "x\0y", "2026-11-20", None, True,
    False, ObjectId("0" * 24), b"a", datetime(2026, 11, 20, 12, tzinfo=UTC), {}, {"n": 5}, [], [5],
]  # fmt: skip
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "i": ("int", [0, 5, -1]),
    "l": ("bigint", [0, 2**53 + 1]),
    "d": ("double", [0.5, 5.0, float("nan")]),
    "m": ("decimal(10,2)", [Decimal("5.00"), Decimal("99999999.99")]),
    "s": ("string", ["", "a", "5", "true", "x\0y"]),
    "b": ("boolean", [True, False]),
    "t": ("timestamp", [datetime(2026, 11, 20, 12, tzinfo=UTC)]),
    "y": ("date", [date(2026, 11, 20)]),
}
SIGNS: dict[str, Callable[[int], bool]] = {
    "EqualTo": lambda sign: sign == 0,
    "GreaterThan": lambda sign: sign > 0,
    "GreaterThanOrEqual": lambda sign: sign >= 0,
    "LessThan": lambda sign: sign < 0,
    "LessThanOrEqual": lambda sign: sign <= 0,
}


def order(left: Any, right: Any) -> int:
    """Compare as Spark does: texts by their bytes, NaN above all numbers and equal to itself."""
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float):
        left, right = ((math.isnan(each), 0 if math.isnan(each) else each) for each in (left, right))
    return (left > right) - (left < right)


def test_the_server_never_leaves_out_what_the_filters_keep(store: Any, rows: Any, read: Any) -> None:
    from pyspark.sql import datasource

    rng = random.Random(7)
    schema = ", ".join(f"{name} {type}" for name, (type, _) in COLUMNS.items()) + ", _id string, _corrupt string"
    for _ in range(200):
        store.add({name: rng.choice(VALUES) for name in COLUMNS if rng.random() < 0.9})
    everything = [dict(zip([*COLUMNS, "_id"], row, strict=False)) for row in rows(schema, mode="permissive")]
    left_out = 0
    for name, (_, literals) in COLUMNS.items():
        literal = rng.choice(literals)
        for kind, holds in SIGNS.items():
            filter = getattr(datasource, kind)((name,), literal)
            for asked, wanted in ((filter, True), (datasource.Not(filter), False)):
                kept = {
                    row["_id"]
                    for row in everything
                    if row[name] is not None and holds(order(row[name], literal)) is wanted
                }
                found = {row[-2] for row in read(schema, asked, mode="permissive")[0]}
                assert kept <= found, (asked, literal)
                left_out += len(everything) - len(found)
    assert left_out > len(everything)


def test_spark_hands_its_filters_to_the_server_if_it_may(spark: Any, store: Any, load: Any, examined: Any) -> None:
    for n in range(10):
        store.add({"n": n, "s": f"text {n}"})
    frame = load("n int, s string, _q string", pushdown="true")
    with pytest.raises(Exception, match=rf"filter pushdown is disabled .*'?{CONF}'? is false. Set") as caught:
        frame.filter("n = 1").collect()
    assert "Job aborted" not in str(caught.value)
    spark.conf.set(CONF, "true")
    try:
        rows = frame.filter("n > 3 AND s LIKE 'text%' AND n IN (2, 4, 5) AND n + 0 < 5").collect()
    finally:
        spark.conf.unset(CONF)
    assert [tuple(row) for row in rows] == [(4, "text 4", "orders")]
    database = store.collection.database
    finds = [each for each in database["system.profile"].find() if "payload.s" in each["command"].get("projection", {})]
    assert [each["nreturned"] for each in finds] == [2]
