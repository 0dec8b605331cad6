from __future__ import annotations

import json
import math
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from mongoq.errors import ArgumentInvalid

MOMENT = datetime(2026, 11, 20, 8, 30, 0, 250_000, tzinfo=UTC)
WALL = MOMENT.replace(tzinfo=None)
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
ID = ObjectId("0123456789abcdef01234567")
LONG = 2**63 - 1

# stored value, Spark type, what collect() gives
FITS: list[tuple[Any, str, Any]] = [
    ("text", "string", "text"),
    ("", "string", ""),
    ("żółw \U0001f422 \0", "string", "żółw \U0001f422 \0"),
    (ID, "string", str(ID)),
    (UUID, "string", str(UUID)),
    (Decimal128("1.50"), "string", "1.50"),
    ({"a": [1, {}]}, "string", '{"a":[1,{}]}'),
    ([1, "x"], "string", '[1,"x"]'),
    (True, "boolean", True),
    (False, "boolean", False),
    (-128, "byte", -128),
    (32767, "short", 32767),
    (-(2**31), "int", -(2**31)),
    (Int64(5), "int", 5),
    (5.0, "int", 5),
    (LONG, "bigint", LONG),
    (-LONG - 1, "bigint", -LONG - 1),
    (0.5, "float", 0.5),
    (3, "float", 3.0),
    (math.inf, "float", math.inf),
    (0.1, "double", 0.1),
    (7, "double", 7.0),
    (-math.inf, "double", -math.inf),
    (Decimal128("12.3"), "decimal(10,2)", Decimal("12.30")),
    (Decimal128("1.2E+2"), "decimal(5,2)", Decimal("120.00")),
    (Decimal128("9" * 34), "decimal(38,0)", Decimal("9" * 34)),
    ("-0.05", "decimal(4,2)", Decimal("-0.05")),
    ("9" * 36 + ".99", "decimal(38,2)", Decimal("9" * 36 + ".99")),
    (12, "decimal(4,2)", Decimal("12.00")),
    (MOMENT, "date", date(2026, 11, 20)),
    ("2013-01-31", "date", date(2013, 1, 31)),
    (datetime(1, 1, 1, tzinfo=UTC), "date", date(1, 1, 1)),
    (MOMENT, "timestamp_ntz", WALL),
    ("2026-11-20T09:30:00.25+01:00", "timestamp_ntz", WALL),
    (b"\0\xff", "binary", bytearray(b"\0\xff")),
    (Binary(b"x", 128), "binary", bytearray(b"x")),
    (UUID, "binary", bytearray(UUID.bytes)),
    ([1, None, 3], "array<int>", [1, None, 3]),
    ([], "array<string>", []),
    ([["a"], []], "array<array<string>>", [["a"], []]),
    ({"a": 1, "b": None, "x.y": 2}, "map<string,int>", {"a": 1, "b": None, "x.y": 2}),
    ({}, "map<string,string>", {}),
    ({"k": [MOMENT]}, "map<string,array<date>>", {"k": [date(2026, 11, 20)]}),
    ({"a": 1, "more": 2}, "struct<a:int,b:string>", {"a": 1, "b": None}),
    ({"s": {"d": Decimal128("1")}}, "struct<s:struct<d:decimal(2,1)>>", {"s": {"d": Decimal("1.0")}}),
    ([{"a": b"x"}, None], "array<struct<a:binary>>", [{"a": bytearray(b"x")}, None]),
]


def test_each_type_of_the_table_arrives_in_spark(store: Any, load: Any) -> None:
    store.add({f"c{place}": value for place, (value, _, _) in enumerate(FITS)})
    store.add({})
    store.add({f"c{place}": None for place in range(len(FITS))})
    schema = ", ".join(f"c{place} {type}" for place, (_, type, _) in enumerate(FITS))
    rows = load(f"{schema}, _id string").orderBy("_id").collect()
    full, missing, null = (row.asDict(recursive=True) for row in rows)
    for place, (value, type, expected) in enumerate(FITS):
        assert full[f"c{place}"] == expected, (value, type)
        assert missing[f"c{place}"] is None
        assert null[f"c{place}"] is None


@pytest.mark.parametrize(
    "value",
    [MOMENT, "2026-11-20T09:30:00.25+01:00", "2026-11-20T08:30:00.250Z"],
)
def test_timestamps_are_moments(store: Any, load: Any, value: Any) -> None:
    store.add({"at": value})
    row = load("at timestamp").selectExpr("at", "unix_millis(at) AS ms", "string(at) AS text").collect()[0]
    assert row.ms == int(MOMENT.timestamp() * 1000)
    assert row.text == "2026-11-20 08:30:00.25"


def test_a_nan_is_a_nan(store: Any, load: Any) -> None:
    store.add({"x": math.nan})
    assert math.isnan(load("x double").collect()[0].x)


# stored value, Spark type, words of the error; the path of the column where it goes deeper
MISFITS: list[tuple[Any, str, str, str]] = [
    (5, "string", "an integer", "c"),
    (True, "string", "a boolean", "c"),
    (MOMENT, "string", "a date", "c"),
    (b"x", "string", "binary data", "c"),
    (1, "boolean", "an integer", "c"),
    ("true", "boolean", "a string", "c"),
    (128, "tinyint", "an integer beyond 8 bits", "c"),
    (2**15, "smallint", "an integer beyond 16 bits", "c"),
    (2**31, "int", "an integer beyond 32 bits", "c"),
    (1e30, "bigint", "an integer beyond 64 bits", "c"),
    (1.5, "int", "a double with a fraction", "c"),
    (math.nan, "int", "a double with a fraction", "c"),
    (True, "int", "a boolean", "c"),
    ("5", "int", "a string", "c"),
    ("0.5", "double", "a string", "c"),
    (2**53 + 1, "double", "an integer that a double does not hold exactly", "c"),
    (Decimal128("1"), "double", "a Decimal128", "c"),
    (1e300, "float", "a double beyond 32 bits", "c"),
    (Decimal128("1.234"), "decimal(10,2)", "a number with more digits", "c"),
    (Decimal128("100"), "decimal(4,2)", "a number with more digits", "c"),
    (Decimal128("NaN"), "decimal(4,2)", "NaN or Infinity", "c"),
    ("1,5", "decimal(4,2)", "a string that is no number", "c"),
    ("NaN", "decimal(4,2)", "a string that is no number", "c"),
    (1.5, "decimal(4,2)", "a double", "c"),
    ("yesterday", "date", "a string that is no ISO 8601 date", "c"),
    (20131231, "date", "an integer", "c"),
    (1700000000, "timestamp", "an integer", "c"),
    ("2026-11-20T08:30:00", "timestamp", "a string with a time and no offset", "c"),
    ("soon", "timestamp_ntz", "a string that is no ISO 8601 time", "c"),
    (DatetimeMS(2**60), "timestamp", "a date outside the years 1 to 9999", "c"),
    ("x", "binary", "a string", "c"),
    ({"a": 1}, "array<int>", "a document", "c"),
    ([1, 2, "x"], "array<int>", "a string", "c[2]"),
    ([1], "struct<a:int>", "an array", "c"),
    ({"lines": [{"price": 1}, {"price": "x"}]}, "struct<lines:array<struct<price:int>>>", "a string",
     "c.lines[1].price"),
    ({"k": 1, "l": "x"}, "map<string,int>", "a string", "c['l']"),
    ("text", "map<string,int>", "a string", "c"),
]  # fmt: skip


@pytest.mark.parametrize("case", MISFITS, ids=str)
def test_a_value_that_does_not_fit_names_item_column_and_type(
    spark: Any, store: Any, reader: Any, case: tuple[Any, str, str, str]
) -> None:
    from pyspark.sql.types import StructType

    from mongoq.spark import ColumnMismatch

    value, type, words, path = case
    schema = StructType.fromDDL(f"c {type}")
    store.add({})
    item = store.add({"c": value})
    source = reader(schema)
    with pytest.raises(ColumnMismatch) as caught:
        list(source.read(source.partitions()[0]))
    error = caught.value
    assert error.item_id == item
    assert error.column == path
    assert error.problem == words
    assert path != "c" or error.type == schema["c"].dataType.simpleString()
    for part in (str(item), path, error.type, words):
        assert part in str(error).replace('"', "'").replace("\\'", "'")


def test_a_misfit_fails_the_query_with_its_sentence(store: Any, load: Any) -> None:
    store.add({"n": 1})
    item = store.add({"n": "private"})
    with pytest.raises(Exception, match=f"item {item}: column 'n' of type int cannot hold a string") as caught:
        load("n int").collect()
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "words"),
    [(5, "no document"), (None, "no document"), ("text", "no document"), ([{"n": 1}], "an array")],
)
def test_a_payload_without_fields_is_never_a_row_of_nulls(
    spark: Any, store: Any, reader: Any, payload: Any, words: str
) -> None:
    from pyspark.sql.types import StructType

    from mongoq.spark import ColumnMismatch

    store.add({"n": 1})
    item = store.add(payload)
    source = reader(StructType.fromDDL("n int"))
    with pytest.raises(ColumnMismatch, match=f"item {item}: column 'n' .* cannot hold a payload that is {words}"):
        list(source.read(source.partitions()[0]))


def test_a_column_that_admits_no_null_refuses_a_missing_value(store: Any, reader: Any) -> None:
    from pyspark.sql.types import IntegerType, StructType

    from mongoq.spark import ColumnMismatch

    store.add({})
    source = reader(StructType().add("n", IntegerType(), nullable=False))
    with pytest.raises(ColumnMismatch, match="'n' of type int cannot hold a null or missing value"):
        list(source.read(source.partitions()[0]))


def test_a_column_declared_not_null_is_read(store: Any, load: Any) -> None:
    store.add({"n": 1, "tags": ["x"]})
    assert [tuple(row) for row in load("n int NOT NULL, tags array<string>").collect()] == [(1, ["x"])]


def test_the_payload_itself_can_have_a_type(store: Any, load: Any) -> None:
    for value in (1, None, 3):
        store.add(value)
    assert sorted((row.payload or 0) for row in load("payload int").collect()) == [0, 1, 3]
    assert load("payload string").filter("payload = 'null'").count() == 1


def test_names_of_fields_are_taken_literally(store: Any, load: Any) -> None:
    store.add({"a.b": 1, "$set": 2, "a": {"b": 3}, "_id": 4, "with space": 5, "ä`'": 6})
    rows = load("`a.b` int, `$set` int, a struct<b:int>, `with space` int, `ä``'` int").collect()
    assert [tuple(row) for row in rows] == [(1, 2, (3,), 5, 6)]


def test_only_what_the_schema_needs_is_fetched(spark: Any, reader: Any) -> None:
    from pyspark.sql.types import StructType

    from mongoq.spark.read.schema import Columns

    def projection(schema: str) -> set[str]:
        return set(Columns(StructType.fromDDL(schema)).projection())

    assert projection("a int, b string, _when timestamp") == {"_id", "payload.a", "payload.b", "when"}
    assert projection("_state string") == {"_id", "when", "reserved", "processed"}
    assert projection("a int, payload string") == {"_id", "payload"}
    assert projection("a int, `b.c` int") == {"_id", "payload"}


JSON: list[tuple[Any, Any]] = [
    (None, None),
    (0, 0),
    ("", ""),
    ([], []),
    ({}, {}),
    (LONG, LONG),
    (0.1, 0.1),
    (True, True),
    ("żółw \U0001f422 \0 \"'", "żółw \U0001f422 \0 \"'"),
    (MOMENT, "2026-11-20T08:30:00.250Z"),
    (ID, str(ID)),
    (UUID, str(UUID)),
    (Decimal128("1.50"), "1.50"),
    (b"\0\xff", "AP8="),
    (Binary(b"x", 128), "eA=="),
    (Regex("^a", "i"), "^a"),
    (Timestamp(5, 6), {"t": 5, "i": 6}),
    (MaxKey(), "MaxKey"),
    (DatetimeMS(2**60), 2**60),
    ([math.nan, math.inf, {"x": -math.inf, "y": ID}], ["NaN", "Infinity", {"x": "-Infinity", "y": str(ID)}]),
    ({"$set": {"a.b": "$$NOW"}, "": 1}, {"$set": {"a.b": "$$NOW"}, "": 1}),
]  # fmt: skip


def test_a_payload_as_json_is_plain(store: Any, load: Any) -> None:
    for value, _ in JSON:
        store.add(value)
    rows = load("payload string, _id string").orderBy("_id").collect()
    assert [json.loads(row.payload) for row in rows] == [plain for _, plain in JSON]


def test_spark_reads_the_json_back(store: Any, load: Any) -> None:
    store.add(
        {"n": LONG, "x": math.nan, "price": Decimal128("12.34"), "at": MOMENT, "raw": b"\0\xff", "s": {"k": [1, 2]}}
    )
    schema = "n bigint, x double, price decimal(10,2), at timestamp, raw binary, s struct<k:array<int>>"
    frame = load().selectExpr(f"from_json(payload, '{schema}') AS p", "get_json_object(payload, '$.s.k[1]') AS k")
    row = frame.selectExpr("p.n", "p.x", "p.price", "unix_millis(p.at) AS ms", "p.raw", "p.s.k AS ks", "k").collect()[0]
    assert math.isnan(row.x)
    assert (row.n, row.price, row.ms, row.raw, row.ks, row.k) == (
        LONG, Decimal("12.34"), int(MOMENT.timestamp() * 1000), bytearray(b"\0\xff"), [1, 2], "2",
    )  # fmt: skip


def of_levels(levels: int, kinds: str) -> str:
    type = "bigint"
    for level in reversed(range(levels)):
        kind = kinds[level % len(kinds)]
        type = {"s": f"struct<a: {type}>", "l": f"array<{type}>", "m": f"map<string, {type}>"}[kind]
    return type


@pytest.mark.parametrize(
    ("kinds", "levels", "steps"),
    [("s", 63, 62), ("s", 120, 62), ("l", 63, 62), ("sl", 80, 62), ("m", 32, 31), ("m", 60, 31), ("ms", 42, 41)],
)
def test_a_type_deeper_than_arrow_brings_is_refused_and_a_string_there_holds_the_rest(
    spark: Any, reader: Any, kinds: str, levels: int, steps: int
) -> None:
    from pyspark.sql.types import StructType

    path = "c" + "".join(".a" if kinds[level % len(kinds)] == "s" else "[]" for level in range(steps))
    with pytest.raises(ArgumentInvalid, match=f"schema: field {re.escape(repr(path))} nests deeper than the 62 lev"):
        reader(StructType.fromDDL(f"n int, c {of_levels(levels, kinds)}"))
    reader(StructType.fromDDL(f"c {of_levels(steps, kinds)}"))


def test_a_string_in_place_of_what_is_too_deep_holds_it_as_json(store: Any, load: Any) -> None:
    value: Any = {"n": 7}
    for _ in range(80):
        value = {"a": value}
    store.add(value)
    type = of_levels(62, "s").replace("bigint", "string")
    [(inner,)] = load(f"a {type}").collect()
    for _ in range(62):
        inner = inner["a"]
    assert inner == '{"a":' * 17 + '{"n":7}' + "}" * 17
