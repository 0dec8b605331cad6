"""With filters pushed down and without, the rows are the same, whatever is stored and whatever is asked."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from mongoq.model.encoding.codec import codec_options
from mongoq.spark.read.pushdown import push_down
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.reader import plan
from mongoq.spark.read.schema import Columns
from mongoq.spark.scan import Scan

pytestmark = pytest.mark.usefixtures("spark")  # which reads the DDL of schemas

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MOMENTS = [
    NOON, NOON + timedelta(milliseconds=1), datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(2026, 11, 21, tzinfo=UTC),
]  # fmt: skip
NUMBERS = [0, 1, -1, 5, 127, 128, -129, 2**31 - 1, 2**31, 2**53, 2**53 + 1, -(2**63), Int64(5), Int64(2**40)]
DOUBLES = [0.0, -0.0, 0.5, 5.0, math.nan, math.inf, -math.inf, 1e300, 127.0, 2.0**53, 5e-324]
DECIMALS = ["0", "-0", "5", "5.00", "5.001", "0.50", "1E+30", "NaN", "Infinity", "-Infinity", "99999999.99"]
TEXTS = ["", "a", "ab", "A", "é", "\U0001f422", "a.b", "$x", "5", "5.00", "2026-11-20", "2026-11-20T12:00:00Z", "true",
         "000000000000000000000005", "x\0y"]  # fmt: skip
OTHERS = [None, True, False, ObjectId("0" * 23 + "5"), uuid.UUID(int=5), b"a", b"", Regex("a"), DatetimeMS(2**60),
          DatetimeMS(-(2**60)), {}, {"n": 5}, {"n": "x"}, {"n": None}, {"n": {"k": 1}}, [], [5], ["a"], [None],
          [{"n": 5}], [[5]]]  # fmt: skip
VALUES: list[Any] = [*MOMENTS, *NUMBERS, *DOUBLES, *map(Decimal128, DECIMALS), *TEXTS, *OTHERS]

COLUMNS = {
    "i8": "tinyint", "i32": "int", "i64": "bigint", "d": "double", "f": "float", "dec": "decimal(10,2)", "s": "string",
    "b": "boolean", "day": "date", "ts": "timestamp", "ntz": "timestamp_ntz", "bin": "binary", "st": "struct<n:int>",
    "_id": "string", "_q": "string", "_when": "timestamp", "_priority": "int", "_attempts": "int",
    "_reserved": "boolean", "_token": "string", "_by": "string", "_key": "string", "_once": "timestamp",
    "_sequence": "string",
    "_processed": "timestamp",
    "_origin": "struct<queue:string,id:string,reason:string,attempts:int,key:string,at:timestamp>",
}  # fmt: skip
SCHEMA = ", ".join(f"`{name}` {type}" for name, type in COLUMNS.items()) + ", _corrupt string"


def document(rng: random.Random, n: int) -> dict[str, Any]:
    """Return an item as other programs may write it: any value in any place but those that make it one of a view."""
    payload: Any = {name: rng.choice(VALUES) for name in COLUMNS if not name.startswith("_") and rng.random() < 0.9}
    if rng.random() < 0.05:
        payload = rng.choice([5, None, "text", [payload], []])
    item = {
        "_id": rng.choice([ObjectId(f"{n:024x}")] * 8 + [n, f"{n:024x}", f"text {n}"]),
        "q": rng.choice(["orders", "refunds"]),
        "payload": payload, rng.choice(["when", "processed"]): rng.choice(MOMENTS),
    }  # fmt: skip
    foreign = ["priority", "attempts", "reserved", "token", "by", "key", "once", "origin", "sequence"]
    item |= {name: rng.choice(VALUES) for name in foreign if rng.random() < 0.4}
    item |= {"priority": rng.choice([-5, 0, 5])} if rng.random() < 0.7 else {}
    if rng.random() < 0.5:
        item["origin"] = {name: rng.choice(VALUES) for name in ("queue", "id", "attempts", "at")}
    return item


@pytest.fixture(scope="module")
def stored(server: Any, client: Any) -> Iterator[Any]:
    from tests.spark.conftest import Store

    collection = client.get_database("spark_tests").get_collection("any_values")
    collection.drop()
    for date_, keys in (("when", ("q", "priority", "when", "_id")), ("processed", ("q", "processed", "_id"))):
        collection.create_index([(key, 1) for key in keys], partialFilterExpression={date_: {"$exists": True}})
    rng = random.Random(7)
    collection.insert_many([document(rng, n) for n in range(800)])
    yield Store(server.uri, collection, NOON)
    collection.drop()


LITERALS: dict[str, list[Any]] = {
    "tinyint": [0, 5, -1, 127], "int": [0, 5, -1, 2**31 - 1], "bigint": [0, 5, 2**53 + 1, -(2**63)],
    "double": [0.0, -0.0, 0.5, 5.0, math.nan, math.inf, 2.0**53], "float": [0.5, 5.0],
    "decimal(10,2)": [Decimal("0.00"), Decimal("5.00"), Decimal("-1.00"), Decimal("99999999.99")],
    "string": TEXTS, "boolean": [True, False],
    "date": [date(2026, 11, 20), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [*MOMENTS, NOON + timedelta(microseconds=500), MOMENTS[2] + timedelta(microseconds=1)],
    "timestamp_ntz": [moment.replace(tzinfo=None) for moment in MOMENTS],
    "binary": [b"a", b""],
}  # fmt: skip
IDS = [f"{n:024x}" for n in (0, 5, 300, 799)] + ["0", "", "5", "text 5", "00000000000000000000", "ffff", "G", "0" * 30]
OF_THEIR_OWN = {"_id", "_token", "_q"}
PATHS: list[tuple[tuple[str, ...], list[Any]]] = [
    *(((name,), LITERALS[type]) for name, type in COLUMNS.items() if type in LITERALS and name not in OF_THEIR_OWN),
    (("_id",), IDS), (("_token",), IDS), (("_q",), ["orders", "refunds", "o", "z"]), (("st", "n"), [5, 0]),
    (("_origin", "queue"), TEXTS), (("_origin", "id"), IDS), (("_origin", "attempts"), [5, 0]),
]  # fmt: skip
COMPARE = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


@st.composite
def filters(draw: Any) -> Filter:
    path, literals = draw(st.sampled_from(PATHS))
    literal = st.sampled_from(literals)
    kinds: list[Callable[[], Filter]] = [
        *(lambda kind=kind: kind(path, draw(literal)) for kind in COMPARE),
        lambda: In(path, tuple(draw(st.lists(literal | st.none(), min_size=1, max_size=4)))),
        lambda: IsNull(path),
        lambda: IsNotNull(path),
        lambda: EqualNullSafe(path, None),
    ]
    if isinstance(literals[0], str):
        texts = [StringStartsWith, StringEndsWith, StringContains]
        kinds += [lambda kind=kind: kind(path, draw(literal)[: draw(st.integers(1, 24))]) for kind in texts]
    filter = draw(st.sampled_from(kinds))()
    return Not(filter) if draw(st.booleans()) else filter


def value_of(row: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = row
    for step in path:
        value = None if value is None else value[step]
    return value


def order(left: Any, right: Any) -> int:
    """Compare as Spark does: texts by their bytes, NaN above all numbers and equal to itself."""
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float):
        left, right = ((math.isnan(each), 0 if math.isnan(each) else each) for each in (left, right))
    return (left > right) - (left < right)


SIGNS: dict[type[Filter], Callable[[int], bool]] = {
    EqualTo: lambda sign: sign == 0,
    GreaterThan: lambda sign: sign > 0,
    GreaterThanOrEqual: lambda sign: sign >= 0,
    LessThan: lambda sign: sign < 0,
    LessThanOrEqual: lambda sign: sign <= 0,
}
MATCHES: dict[type[Filter], Callable[[str, str], bool]] = {
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: str.__contains__,
}


def holds(filter: Any, row: dict[str, Any]) -> bool | None:
    """Say what Spark makes of a filter: true, false, or null."""
    if isinstance(filter, Not):
        inner = holds(filter.child, row)
        return None if inner is None else not inner
    value = value_of(row, filter.attribute)
    if isinstance(filter, IsNull | IsNotNull):
        return (value is None) is isinstance(filter, IsNull)
    if isinstance(filter, EqualNullSafe) and None in (value, filter.value):
        return value is filter.value
    if isinstance(filter, EqualNullSafe):
        return order(value, filter.value) == 0
    if value is None:
        return None
    if isinstance(filter, In):
        if any(each is not None and order(value, each) == 0 for each in filter.value):
            return True
        return None if None in filter.value else False
    if type(filter) in MATCHES:
        return MATCHES[type(filter)](value, filter.value)
    return SIGNS[type(filter)](order(value, filter.value))


class FilterComparison:
    """The items as Spark would show them, and what the server shows of them."""

    def __init__(self, store: Any, scan: Scan) -> None:
        self._collection = store.collection
        self._options = store.options(queue=None, queues='["orders", "refunds"]')
        self._schema = StructType.fromDDL(SCHEMA)
        self._scan = scan
        documents = list(self._collection.with_options(codec_options=codec_options()).find())
        rows = Columns(self._schema, "PERMISSIVE").batch(documents, NOON).to_pylist()
        ids = [repr(document["_id"]) for document in documents]
        self.rows = {
            "all": dict(zip(ids, rows, strict=True)),
            "live": {id: row for id, row, each in zip(ids, rows, documents, strict=True) if "when" in each},
            "history": {id: row for id, row, each in zip(ids, rows, documents, strict=True) if "processed" in each},
        }

    def read_ids(self, view: str, *filters: Filter, parts: int = 1) -> list[str]:
        """Return the ids of what the server shows under these filters."""
        options = ReadOptions.parse(self._options | {"view": view, "partitions": str(parts)})
        partitions = plan(self._scan, options, push_down(filters, self._schema, view))
        cursors = [self._collection.find(each.filter, {"_id": 1}, hint=each.hint) for each in partitions]
        return [repr(document["_id"]) for cursor in cursors for document in cursor]


@pytest.fixture(scope="module")
def comparison(stored: Any, spark: Any) -> Iterator[FilterComparison]:
    with Scan(stored.uri, stored.collection.database.name, stored.collection.name) as scan:
        yield FilterComparison(stored, scan)


def each_filter(path: tuple[str, ...], literals: list[Any]) -> Iterator[Filter]:
    """Yield every filter on a column alone, with every value."""
    yield from (IsNull(path), IsNotNull(path), EqualNullSafe(path, None))
    for literal in literals:
        yield from (kind(path, literal) for kind in COMPARE)
        yield from (In(path, (literal,)), In(path, (None, literal)), In(path, (literals[0], literal)))
        if isinstance(literal, str):
            yield from (kind(path, literal) for kind in MATCHES)  # type: ignore[call-arg]


ALIKE = {"_by", "_key", "_sequence", "_once", "_processed", "_token", "_when", "_origin.queue", "_origin.id"}
"""Columns that are asked for the same as another one, in places of their own in an item."""


def column(path: tuple[str, ...], literals: list[Any]) -> Any:
    name = ".".join(path)
    return pytest.param(path, literals, id=name, marks=[pytest.mark.prove] if name in ALIKE else [])


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize(("path", "literals"), [column(*each) for each in PATHS])
def test_no_filter_leaves_out_what_it_keeps_in_spark(
    comparison: FilterComparison, path: tuple[str, ...], literals: list[Any]
) -> None:
    for plain in each_filter(path, literals):
        for filter in (plain, Not(plain)):
            expected = {id for id, row in comparison.rows["all"].items() if holds(filter, row)}
            assert expected - set(comparison.read_ids("all", filter)) == set(), filter


@pytest.mark.prove
@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    view=st.sampled_from(["live", "history", "all"]),
    asked=st.lists(filters(), min_size=1, max_size=3),
    parts=st.integers(1, 3),
)
def test_the_server_never_leaves_out_what_the_filters_keep(
    comparison: FilterComparison, view: str, asked: list[Filter], parts: int
) -> None:
    expected = {id for id, row in comparison.rows[view].items() if all(holds(filter, row) for filter in asked)}
    ids = comparison.read_ids(view, *asked, parts=parts)
    assert expected - set(ids) == set()
    assert len(ids) == len(set(ids))


SQL = [
    "i8 > 5", "NOT i64 = 5", "i64 IN (0, 5, 9007199254740993)", "i64 NOT IN (0, 5)", "d >= double('NaN')", "d = -0.0D",
    "NOT d < 5", "dec = 5", "s >= 'a'", "s = ''", "s LIKE '%.%'", "NOT s LIKE 'a%'", "s <=> NULL", "b", "NOT b",
    "day = DATE'2026-11-20'", "day <= DATE'1969-12-31'", "ts > TIMESTAMP'2026-11-20T12:00:00.000500Z'",
    "ntz = TIMESTAMP_NTZ'2026-11-20T12:00:00'", "f > 0.5", "bin = X'61'", "st.n = 5", "st.n IS NULL",
    "_sequence >= 'a'",
    "_id < '000000000000000000000100'", "_token = '000000000000000000000005'", "_when IS NULL", "_priority <> 0",
    "_origin.attempts = 5", "_corrupt IS NOT NULL", "i32 = 5 OR s = 'a'", "i32 = 5 AND s > 'a' AND _q = 'orders'",
]  # fmt: skip


@pytest.mark.prove
def test_spark_finds_the_same_rows(stored: Any, spark: Any) -> None:
    options = stored.options(queue=None, queues='["orders", "refunds"]', mode="permissive", view="all")
    reader = spark.read.format("mongoq").options(**options).schema(SCHEMA)
    asked = [f"({sql}) IS TRUE AS p{n}" for n, sql in enumerate(SQL)]
    everything = reader.load().selectExpr("_id", *asked).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushing = reader.option("pushdown", "true").load()
    for n, sql in enumerate(SQL):
        ids = [row._id for row in pushing.filter(sql).select("_id").collect()]
        assert sorted(ids) == sorted(row._id for row in everything if row[f"p{n}"]), sql
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_without_filters_it_shows_all(comparison: FilterComparison) -> None:
    for view, rows in comparison.rows.items():
        assert sorted(comparison.read_ids(view)) == sorted(rows)


def test_what_is_pushed_leaves_out_most_of_what_it_can(comparison: FilterComparison) -> None:
    ids = IDS[1], IDS[2]
    for filter in (EqualTo(("i32",), 5), GreaterThan(("s",), "a"), EqualTo(("_token",), ids[0]), In(("_id",), ids)):
        assert len(comparison.read_ids("all", filter)) < 0.9 * len(comparison.rows["all"])
