"""Values of payloads as columns: what each type takes, what becomes of the rest by the mode, and JSON."""

from __future__ import annotations

import json
import math
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

import mongoq
from mongoq.errors import ArgumentInvalid
from mongoq.spark import ColumnMismatch

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
    (b"\0\xff", "binary", b"\0\xff"),
    (Binary(b"x", 128), "binary", b"x"),
    (UUID, "binary", bytes(UUID.bytes)),
    ([1, None, 3], "array<int>", [1, None, 3]),
    ([], "array<string>", []),
    ([["a"], []], "array<array<string>>", [["a"], []]),
    ({"a": 1, "b": None, "x.y": 2}, "map<string,int>", {"a": 1, "b": None, "x.y": 2}),
    ({}, "map<string,string>", {}),
    ({"k": [MOMENT]}, "map<string,array<date>>", {"k": [date(2026, 11, 20)]}),
    ({"a": 1, "more": 2}, "struct<a:int,b:string>", {"a": 1, "b": None}),
    ({"s": {"d": Decimal128("1")}}, "struct<s:struct<d:decimal(2,1)>>", {"s": {"d": Decimal("1.0")}}),
    ([{"a": b"x"}, None], "array<struct<a:binary>>", [{"a": b"x"}, None]),
]


def test_each_type_of_the_table_takes_its_values(store: Any, rows: Any) -> None:
    store.add({f"c{place}": value for place, (value, _, _) in enumerate(FITS)})
    store.add({})
    store.add({f"c{place}": None for place in range(len(FITS))})
    schema = ", ".join(f"c{place} {type}" for place, (_, type, _) in enumerate(FITS))
    full, missing, null = sorted(rows(f"_id string, {schema}"))
    for place, (value, type, expected) in enumerate(FITS, 1):
        got = dict(full[place]) if type.startswith("map") else full[place]
        assert got == expected, (value, type)
        assert missing[place] is null[place] is None


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


def test_a_value_that_does_not_fit_names_item_column_and_type(store: Any, rows: Any) -> None:
    schema = ", ".join(f"c{place} {type}" for place, (_, type, _, _) in enumerate(MISFITS))
    store.add({})
    for place, (value, type, words, suffix) in enumerate(MISFITS):
        item = store.add({f"c{place}": value})
        path = f"c{place}{suffix[1:]}"
        with pytest.raises(ColumnMismatch) as caught:
            rows(f"c{place} {type}", mode="FailFast" if place % 2 else None)
        error = caught.value
        assert (error.item_id, error.column, error.problem) == (item, path, words)
        for part in (str(item), path, error.type, words):
            assert part in str(error).replace('"', "'").replace("\\'", "'")
        store.collection.delete_one({"_id": item})
    for place, (value, _, _, _) in enumerate(MISFITS):
        store.add({f"c{place}": value})
    read = rows(f"_corrupt string, {schema}", mode="permissive")
    assert [row[0] is not None for row in read] == [False] + [True] * len(MISFITS)
    assert rows(schema, mode="dropmalformed") == [(None,) * len(MISFITS)]


def test_permissive_makes_null_of_what_does_not_fit_and_keeps_the_payload(store: Any, rows: Any) -> None:
    good, bad = {"n": 1, "s": "a"}, {"n": "private", "s": "b", "more": [1.5]}
    for payload in (good, bad, {"s": "c"}, "text", [{"n": 1}], None):
        store.add(payload)
    read = rows("n int, s string, _corrupt string", mode="permissive")
    assert [row[:2] for row in read] == [(1, "a"), (None, "b"), (None, "c"), *[(None, None)] * 3]
    assert [row[2] and json.loads(row[2]) for row in read] == [None, bad, None, "text", [{"n": 1}], None]
    assert read[-1][2] == "null"
    assert rows("n int", mode="dropmalformed") == [(1,), (None,)]
    assert rows("n int, _corrupt string", mode="dropmalformed")[0] == (1, None)


def test_permissive_makes_null_as_far_inside_as_it_can(store: Any, rows: Any) -> None:
    store.add({"a": {"n": "x", "m": 1}, "l": [1, "x", 3], "d": {"k": 1, "j": "x"}})
    [row] = rows("a struct<n:int,m:int>, l array<int>, d map<string,int>", mode="permissive")
    assert row == ({"n": None, "m": 1}, [1, None, 3], [("k", 1), ("j", None)])


def test_a_column_that_is_not_null_fails_the_read_in_permissive_too(store: Any, rows: Any) -> None:
    item = store.add({"m": 1})
    for mode in ("failfast", "permissive"):
        with pytest.raises(ColumnMismatch, match=f"item {item}: column 'n' of type int cannot hold a null or missing"):
            rows("n int NOT NULL, m int", mode=mode)
    assert rows("n int NOT NULL", mode="dropmalformed") == []


def test_a_payload_without_fields_is_never_a_row_of_nulls(store: Any, rows: Any) -> None:
    for payload, words in [(5, "no document"), (None, "no document"), ("text", "no document"), ([{"n": 1}], "an arr")]:
        item = store.add(payload)
        with pytest.raises(ColumnMismatch, match=f"item {item}: column 'n' .* cannot hold a payload that is {words}"):
            rows("n int")
        store.collection.delete_one({"_id": item})


def test_a_foreign_value_in_the_envelope_follows_the_mode(store: Any, rows: Any) -> None:
    store.add({"n": 1}, priority="high", key=5, when=DatetimeMS(2**50))
    for column in ("_priority int", "_key string", "_when timestamp"):
        with pytest.raises(ColumnMismatch, match=f"column '{column.split()[0]}' of type "):
            rows(column)
    schema = "_priority int, _key string, _when timestamp, _state string, n int, _corrupt string"
    assert rows(schema, mode="permissive") == [(None, None, None, "scheduled", 1, '{"n":1}')]
    assert rows(schema, mode="dropmalformed") == []


def test_text_that_is_not_utf8_follows_the_mode(store: Any, rows: Any) -> None:
    store.add({"n": 1, "s": "a"})
    item = {"_id": ObjectId(), "q": "orders", "payload": {"n": 2, "s": "XYZ"}, "when": MOMENT}
    store.collection.insert_one(RawBSONDocument(bson.encode(item).replace(b"XYZ", b"\xff\xfe.")))
    for schema in ("s string", "payload string", "payload struct<s:string>", "_payload binary"):
        with pytest.raises(ColumnMismatch, match=f"item {item['_id']}: .* cannot hold text that is not UTF-8"):
            rows(schema)
    assert sorted(rows("n int")) == [(1,), (2,)]
    read = sorted(rows("n int, s string, _corrupt string", mode="permissive"))
    assert [row[:2] for row in read] == [(1, "a"), (2, None)]
    assert json.loads(read[1][2]) == {"n": 2, "s": "\ufffd\ufffd."}
    assert rows("n int, s string", mode="dropmalformed") == [(1, "a")]


def test_names_of_fields_are_taken_literally(store: Any, rows: Any) -> None:
    store.add({"a.b": 1, "$set": 2, "a": {"b": 3}, "with space": 5, "ä`'": 6})
    assert rows("`a.b` int, `$set` int, a struct<b:int>, `with space` int, `ä``'` int") == [(1, 2, {"b": 3}, 5, 6)]


def test_the_payload_itself_can_have_a_type(store: Any, rows: Any) -> None:
    for value in (1, None, 3):
        store.add(value)
    assert rows("payload int") == [(1,), (None,), (3,)]


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


def test_a_payload_as_json_is_plain(store: Any, rows: Any) -> None:
    for value, _ in JSON:
        store.add(value)
    assert [json.loads(text) for _, text in sorted(rows("_id string, payload string"))] == [plain for _, plain in JSON]


def test_a_type_deeper_than_arrow_brings_is_refused_and_a_string_there_holds_the_rest(
    store: Any, rows: Any, reader: Any
) -> None:
    for opening, closing, levels, step, steps in [
        ("struct<a:", ">", 63, ".a", 62),
        ("array<", ">", 63, "[]", 62),
        ("map<string,", ">", 32, "[]", 31),
    ]:
        path = re.escape(repr("c" + step * steps))
        with pytest.raises(ArgumentInvalid, match=f"schema: field {path} nests deeper than the 62 levels"):
            reader("n int, c " + opening * levels + "int" + closing * levels)
    value: Any = {"n": 7}
    for _ in range(80):
        value = {"a": value}
    store.add(value)
    [(inner,)] = rows("a " + "struct<a:" * 62 + "string" + ">" * 62)
    for _ in range(62):
        inner = inner["a"]
    assert inner == '{"a":' * 17 + '{"n":7}' + "}" * 17


TRAIL = (
    "array<struct<queue:string,stage:string,by:string,taken:timestamp,settled:timestamp,"
    "attempts:int,ended:string,to:string>>"
)


def test_the_hops_of_a_trail_are_read_as_the_stages_wrote_them(store: Any, rows: Any) -> None:
    pipeline = mongoq.Pipeline("orders", errors="orders.errors", trail="payloads")
    pipeline.stage("raw", to="checked", name="check")(lambda order: order)
    pipeline.sink("checked", name="bill")(lambda order: None)
    with mongoq.Broker(store.collection) as broker:
        broker.queue("checked").configure(history=60)
        id = broker.queue("raw").push({"sku": "bolt"})
        pipeline.drain(broker)
        hops = broker.trail(id)
    [(read_id, trail)] = rows(f"_id string, _trail {TRAIL}", queue="checked", view="history")
    assert (read_id, len(trail)) == (str(id), 2)
    for read, expected in zip(trail, hops or (), strict=True):
        assert read == {name: getattr(expected, name) for name in read}
    store.add(1, trail=["scribble", {"queue": "raw"}])
    store.add(2)
    assert rows(f"_trail {TRAIL}") == [([],), (None,)]
