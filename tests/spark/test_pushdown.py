"""Filters that the server evaluates first: the same rows, fewer of them sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import ObjectId
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from mongoq.spark import ColumnMismatch
from mongoq.spark.read.reader import FilteringReader, MongoqReader

pytestmark = pytest.mark.usefixtures("spark")  # which reads the DDL of schemas
CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    """The setting without which Spark hands no filters to Python."""
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


@pytest.fixture
def finds(store: Any) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The filters of the queries that readers have sent, as the profiler saw them."""
    database = store.collection.database
    database.command("profile", 2)

    def sent() -> list[dict[str, Any]]:
        commands = [entry.get("command", {}) for entry in database["system.profile"].find().sort("ts")]
        reads = [command for command in commands if command.get("find") == store.collection.name]
        return [command["filter"] for command in reads if command.get("projection", {"_id": 1}) != {"_id": 1}]

    yield sent
    database.command("profile", 0)
    database.drop_collection("system.profile")


def test_the_server_gets_the_filters_of_a_query(store: Any, load: Any, pushing: None, finds: Any) -> None:
    for n in range(10):
        store.add({"n": n, "s": f"text {n}"})
    frame = load("n int, s string, _q string", pushdown="true")
    rows = frame.filter("n > 3 AND s LIKE 'text%' AND n IN (2, 4, 5) AND n + 0 < 5").collect()
    assert [tuple(row) for row in rows] == [(4, "text 4", "orders")]
    [query] = finds()
    assert {"payload.n": {"$gte": 3}} in [part for each in query["$and"] for part in each.get("$or", ())]
    assert {"payload.s": {"$gte": "text", "$lt": "texu"}} in [p for each in query["$and"] for p in each.get("$or", ())]
    assert {"payload.n": {"$in": [2, 4, 5]}} in [part for each in query["$and"] for part in each.get("$or", ())]


def test_without_a_filter_all_is_read(store: Any, load: Any, pushing: None) -> None:
    store.add({"n": 1})
    assert load("n int", pushdown="true").collect() == [(1,)]
    assert load("n int").filter("n = 1").collect() == [(1,)]


def test_without_the_setting_spark_says_which_it_is(store: Any, load: Any) -> None:
    store.add({"n": 1})
    with pytest.raises(
        Exception, match=rf"FilteringReader.* filter pushdown is disabled .*'?{CONF}'? is false. Set"
    ) as e:
        load("n int", pushdown="true").filter("n = 1").collect()
    assert "Job aborted" not in str(e.value)


def test_it_is_a_reader_of_its_own(reader: Any) -> None:
    schema = StructType.fromDDL("n int")
    assert type(reader(schema, pushdown="TRUE")) is FilteringReader
    assert type(reader(schema)) is type(reader(schema, pushdown="false")) is MongoqReader
    assert "pushFilters" not in vars(MongoqReader)


@pytest.fixture
def read(reader: Any) -> Any:
    """Read with filters, and return rows and partitions: ``read("n int", EqualTo(("n",), 1))``."""

    def read(ddl: str, *filters: Filter, **options: Any) -> tuple[list[Any], list[Any]]:
        source = reader(StructType.fromDDL(ddl), pushdown="true", **options)
        assert list(source.pushFilters([*filters])) == [*filters]  # Spark evaluates all of them again
        partitions = source.partitions()
        batches = [batch for partition in partitions for batch in source.read(partition)]
        return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=str), partitions

    return read


def test_what_does_not_fit_the_column_is_shown_whatever_the_filter(store: Any, read: Any) -> None:
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


@pytest.mark.parametrize("payload", [None, 5, "text", [], [{"n": 1}], {"n": "9"}, {"n": [1]}, {"n": 0.5}], ids=repr)
def test_a_filter_hides_no_misfit_of_its_own_column(store: Any, read: Any, payload: Any) -> None:
    store.add({"n": 1})
    store.add(payload)
    with pytest.raises(ColumnMismatch):
        read("n int", GreaterThan(("n",), 5))


HOSTILE = ["$where", "$$NOW", "a.b", "{$gt: ''}", "^x", ".*", "x\0y", "$q", "\\E.*", "é\n"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_texts_are_texts_and_names_are_names(store: Any, read: Any, text: str) -> None:
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


def plan_of(store: Any, partition: Any) -> dict[str, Any]:
    query = {"find": store.collection.name, "filter": partition.filter}
    if partition.hint:
        query["hint"] = partition.hint
    explained = store.collection.database.command("explain", query, verbosity="executionStats")
    stats: dict[str, Any] = explained["executionStats"]
    return stats


@pytest.fixture
def thousand(store: Any) -> Any:
    """1,000 items, each a second after the other, live and again in history."""
    moments = [store.now - timedelta(seconds=n) for n in range(1_000)]
    live = [{"when": moment, "priority": 0} for moment in moments]
    past = [{"processed": moment, "settled": ObjectId()} for moment in moments]
    store.collection.insert_many(
        {"_id": ObjectId(f"{n + offset:024x}"), "q": "orders", "payload": {"n": n}, **each}
        for offset, fields in ((0, live), (4096, past))
        for n, each in enumerate(fields)
    )
    store.add_many(1_000, queue="other")
    return store


RANGES: list[tuple[str, str, Any, int]] = [
    ("live", "_when timestamp", lambda now: GreaterThan(("_when",), now - timedelta(seconds=9.5)), 10),
    ("live", "_when timestamp", lambda now: LessThanOrEqual(("_when",), now - timedelta(seconds=990)), 10),
    ("history", "_processed timestamp", lambda now: GreaterThanOrEqual(("_processed",), now), 1),
    ("history", "_processed timestamp", lambda now: LessThan(("_processed",), now - timedelta(seconds=995)), 5),
    ("live", "_id string", lambda _now: LessThan(("_id",), f"{8:024x}"), 9),
    ("live", "_id string", lambda _now: EqualTo(("_id",), f"{8:024x}"), 1),
    ("history", "_id string", lambda _now: In(("_id",), (f"{4100:024x}", f"{4101:024x}")), 2),
    ("live", "_q string", lambda _now: EqualTo(("_q",), "nobody"), 0),
    ("live", "_priority int", lambda _now: GreaterThan(("_priority",), 3), 0),
]


@pytest.mark.parametrize("case", RANGES, ids=lambda case: f"{case[0]} {case[1]} {case[3]}")
def test_ranges_of_what_is_indexed_cost_what_they_hold(thousand: Any, read: Any, case: Any) -> None:
    view, column, filter, expected = case
    rows, partitions = read(column, filter(thousand.now), view=view)
    assert len(rows) == expected
    for partition in partitions:
        stats = plan_of(thousand, partition)
        assert stats["totalKeysExamined"] <= expected + 5
        assert stats["totalDocsExamined"] <= expected + 5
    rows, partitions = read(column, filter(thousand.now), view=view, partitions=3)
    assert len(rows) == expected


def test_partitions_are_planned_for_what_the_filters_leave(thousand: Any, read: Any) -> None:
    later = GreaterThan(("_processed",), thousand.now - timedelta(seconds=90.5))
    rows, partitions = read("_processed timestamp, n int", later, view="history", partitions=3)
    assert len(rows) == 91
    sizes = [plan_of(thousand, partition)["nReturned"] for partition in partitions]
    assert max(sizes) <= 1.1 * 91 / 3


def test_times_finer_than_a_millisecond_are_compared_as_spark_does(store: Any, read: Any) -> None:
    store.add("x")
    half = store.now - timedelta(hours=1) + timedelta(microseconds=500)
    for filter in (LessThan(("_when",), half), LessThanOrEqual(("_when",), half), Not(EqualTo(("_when",), half))):
        assert len(read("_when timestamp", filter)[0]) == 1


def test_days_are_compared_as_spark_does(store: Any, read: Any) -> None:
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


def test_a_long_list_is_left_to_spark(store: Any, read: Any) -> None:
    store.add({"s": "x"})
    rows, [partition] = read("s string", In(("s",), tuple("y" * 1000 + str(n) for n in range(2_000))))
    assert rows == [("x",)]
    assert "$and" not in partition.filter


def test_decimals_of_more_digits_than_the_server_has_are_left_to_spark(store: Any, read: Any) -> None:
    store.add({"n": "1." + "3" * 36})
    assert len(read("n decimal(38,36)", EqualTo(("n",), Decimal("1." + "3" * 36)))[0]) == 1
