"""What becomes of items that do not fit: fail, null with ``_corrupt``, or left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from mongoq.drivers.documents import decode
from mongoq.errors import ArgumentInvalid
from mongoq.spark import ColumnMismatch
from mongoq.spark.read.schema import Columns

pytestmark = pytest.mark.usefixtures("spark")  # which reads the DDL of schemas
NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def rows(reader: Any) -> Any:
    """Read rows as tuples, without a query: ``rows("n int", mode="permissive")``."""

    def rows(schema: Any, **options: Any) -> list[tuple[Any, ...]]:
        struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        source = reader(struct, **options)
        batches = [batch for partition in source.partitions() for batch in source.read(partition)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    return rows


@pytest.mark.parametrize("mode", [None, "FAILFAST", "failfast", "FailFast"])
def test_the_first_that_does_not_fit_fails_the_read_unless_another_mode_is_given(
    store: Any, rows: Any, mode: Any
) -> None:
    store.add({"n": "x"})
    with pytest.raises(ColumnMismatch, match="column 'n' of type int cannot hold a string.* or choose another mode"):
        rows("n int", mode=mode)


def test_permissive_makes_null_of_what_does_not_fit_and_keeps_the_payload(store: Any, rows: Any) -> None:
    good, bad = {"n": 1, "s": "a"}, {"n": "private", "s": "b", "more": [1.5]}
    store.add(good)
    store.add(bad)
    store.add({"s": "c"})
    read = rows("n int, s string, _corrupt string", mode="permissive")
    assert [row[:2] for row in read] == [(1, "a"), (None, "b"), (None, "c")]
    assert [row[2] and json.loads(row[2]) for row in read] == [None, bad, None]
    assert rows("n int, s string", mode="permissive") == [(1, "a"), (None, "b"), (None, "c")]


@pytest.mark.parametrize("payload", [5, None, "text", [{"n": 1}], [], True, ObjectId("0" * 24)], ids=repr)
def test_permissive_keeps_payloads_that_are_no_documents(store: Any, rows: Any, payload: Any) -> None:
    store.add(payload)
    plain = str(payload) if isinstance(payload, ObjectId) else payload
    [row] = rows("n int, _corrupt string, payload string", mode="permissive")
    assert (row[0], json.loads(row[1]), json.loads(row[2])) == (None, plain, plain)
    assert rows("n int", mode="permissive") == [(None,)]


def test_permissive_makes_null_as_far_inside_as_it_can(store: Any, rows: Any) -> None:
    payload = {"a": {"n": "x", "m": 1}, "l": [1, "x", 3], "d": {"k": 1, "j": "x"}}
    store.add(payload)
    schema = "a struct<n:int,m:int>, l array<int>, d map<string,int>, _corrupt string"
    [row] = rows(schema, mode="permissive")
    assert row[:3] == ({"n": None, "m": 1}, [1, None, 3], [("k", 1), ("j", None)])
    assert json.loads(row[3]) == payload


def test_permissive_makes_null_of_what_is_around_a_value_that_may_not_be_null(store: Any, rows: Any) -> None:
    store.add({"l": [1, "x", 3]})
    schema = StructType([StructField("l", ArrayType(IntegerType(), containsNull=False))])
    assert rows(schema, mode="permissive") == [(None,)]


@pytest.mark.parametrize("payload", [{"n": "x"}, {}, {"n": None}, "text"])
def test_a_column_that_is_not_null_fails_the_read_in_permissive_too(store: Any, rows: Any, payload: Any) -> None:
    item = store.add(payload)
    with pytest.raises(ColumnMismatch, match=f"item {item}: column 'n' of type int cannot hold"):
        rows("n int NOT NULL, _corrupt string", mode="permissive")
    assert rows("n int NOT NULL", mode="dropmalformed") == []


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ("0001-01-01T00:00:00+01:00", "timestamp"),
        ("0001-01-01T00:00:00+01:00", "timestamp_ntz"),
        ("9999-12-31T23:59:59-01:00", "timestamp_ntz"),
        ("1E99999999999999999999999", "decimal(38,2)"),
        ("1E-99999999999999999999999", "decimal(38,2)"),
    ],
)
def test_a_string_that_nothing_can_hold_does_not_fit_either(store: Any, rows: Any, value: str, type: str) -> None:
    item = store.add({"a": value})
    store.add({"a": None})
    with pytest.raises(ColumnMismatch, match=f"item {item}: column 'a' of type "):
        rows(f"a {type}")
    assert rows(f"a {type}, _corrupt string", mode="permissive") == [
        (None, json.dumps({"a": value}, separators=(",", ":"))),
        (None, None),
    ]
    assert rows(f"a {type}", mode="dropmalformed") == [(None,)]


def test_text_that_is_not_utf_8_does_not_fit_the_payload_as_bson(store: Any, rows: Any) -> None:
    item = {"_id": ObjectId(), "q": "orders", "payload": {"a": "XYZ"}, "when": store.now, "reserved": False}
    store.collection.insert_one(RawBSONDocument(bson.encode(item).replace(b"XYZ", b"\xff\xfe\xfd")))
    store.add({"a": 1})
    with pytest.raises(ColumnMismatch, match=f"item {item['_id']}: column '_payload' .* text that is not UTF-8"):
        rows("_payload binary")
    good = bson.encode({"payload": {"a": 1}})
    assert rows("_payload binary", mode="dropmalformed") == [(good,)]
    assert [row[0] for row in rows("_payload binary, _corrupt string", mode="permissive")] == [None, good]


def test_a_name_that_no_field_can_have_is_null(store: Any, rows: Any) -> None:
    store.add({"a": 1})
    assert rows("`a\0b` int, a int") == [(None, 1)]


def test_dropmalformed_leaves_out_the_row(store: Any, rows: Any) -> None:
    for payload in ({"n": 1}, {"n": "x"}, {"n": 3, "l": [1, "x"]}, "text", None, {}, {"n": 6, "l": [7]}):
        store.add(payload)
    assert rows("n int, l array<int>", mode="dropmalformed") == [(1, None), (None, None), (6, [7])]


@pytest.mark.parametrize("mode", ["failfast", "dropmalformed"])
def test_corrupt_is_null_in_the_other_modes(store: Any, rows: Any, mode: str) -> None:
    store.add({"n": 1})
    assert rows("_corrupt string, n int", mode=mode) == [(None, 1)]


@pytest.mark.parametrize("type", ["int", "string NOT NULL"])
def test_corrupt_is_a_string_that_may_be_null(reader: Any, type: str) -> None:
    with pytest.raises(ArgumentInvalid, match=f"schema: column '_corrupt' holds payloads as JSON: string, not {type}"):
        reader(StructType.fromDDL(f"_corrupt {type}"))


def test_corrupt_costs_the_whole_payload_only_where_it_is_filled(reader: Any) -> None:
    schema = StructType.fromDDL("n int, _corrupt string")
    assert Columns(schema).projection() == {"_id": 1, "payload.n": 1}
    assert Columns(schema, "DROPMALFORMED").projection() == {"_id": 1, "payload.n": 1}
    assert Columns(schema, "PERMISSIVE").projection() == {"_id": 1, "payload": 1}


def test_what_does_not_fit_is_left_out_or_becomes_null() -> None:
    documents: list[dict[str, Any]] = [{"_id": n, "payload": {"n": n if n % 2 else "x"}} for n in range(5)]
    schema = StructType.fromDDL("n int")
    assert Columns(schema, "DROPMALFORMED").batch(documents, NOW).to_pydict() == {"n": [1, 3]}
    assert Columns(schema, "PERMISSIVE").batch(documents, NOW).to_pydict() == {"n": [None, 1, None, 3, None]}


def test_a_foreign_value_in_the_envelope_follows_the_mode(store: Any, rows: Any) -> None:
    store.add({"n": 1}, priority="high", key=5)
    with pytest.raises(ColumnMismatch, match="column '_priority' of type int cannot hold a string"):
        rows("_priority int, n int")
    assert rows("_priority int, _key string, n int, _corrupt string", mode="permissive") == [(None, None, 1, '{"n":1}')]
    assert rows("_priority int, n int", mode="dropmalformed") == []


def test_dates_beyond_python_are_recognised_by_their_state_and_follow_the_mode(store: Any, rows: Any) -> None:
    store.add("far", when=DatetimeMS(2**50))
    store.add("long ago", when=DatetimeMS(-(2**50)))
    assert rows("_state string, payload string") == [("ready", '"long ago"'), ("scheduled", '"far"')]
    with pytest.raises(ColumnMismatch, match="column '_when' .* a date outside the years 1 to 9999"):
        rows("_when timestamp")
    assert rows("_when timestamp", mode="permissive") == [(None,), (None,)]


def raw(payload: Any, **changes: bytes) -> bytes:
    """Return an item whose payload is not what BSON should be: parts of its bytes are replaced."""
    encoded = bson.encode({"_id": ObjectId(), "q": "orders", "payload": payload, "when": NOW})
    for before, after in changes.items():
        encoded = encoded.replace(before.encode(), after)
    return encoded


@pytest.fixture
def garbled(store: Any) -> Any:
    """An item with text that is not UTF-8, as other drivers may write it, between two others."""
    store.add({"n": 1, "s": "a"})
    item = raw({"n": 2, "s": "before", "other": "text"}, before=b"b\xff\xfeore")
    store.collection.insert_one(RawBSONDocument(item))
    store.add({"n": 3, "s": "c"})
    return store


def test_text_that_is_not_utf8_is_named_with_its_item(garbled: Any, rows: Any) -> None:
    item = garbled.collection.with_options(
        codec_options=bson.CodecOptions(unicode_decode_error_handler="replace")
    ).find_one({"payload.n": 2})["_id"]
    words = f"item {item}: column '.*' of type string cannot hold text that is not UTF-8"
    for schema in ("s string", "payload string", "payload struct<s:string>"):
        with pytest.raises(ColumnMismatch, match=words):
            rows(schema)
    assert sorted(row[0] for row in rows("n int, other string")) == [1, 2, 3]


def test_text_that_is_not_utf8_follows_the_mode(garbled: Any, rows: Any) -> None:
    read = sorted(rows("n int, s string, _corrupt string", mode="permissive"))
    assert [row[:2] for row in read] == [(1, "a"), (2, None), (3, "c")]
    assert json.loads(read[1][2]) == {"n": 2, "s": "b\ufffd\ufffdore", "other": "text"}
    assert sorted(rows("n int, s string", mode="dropmalformed")) == [(1, "a"), (3, "c")]
    assert [row for row in rows("n int, payload string", mode="permissive") if row[1] is None] == [(2, None)]


def test_a_name_that_is_not_utf8_follows_the_mode(store: Any, rows: Any) -> None:
    store.collection.insert_one(RawBSONDocument(raw({"n": {"name": 5}}, name=b"n\xffme")))
    with pytest.raises(ColumnMismatch, match="column 'payload' of type string cannot hold text that is not UTF-8"):
        rows("payload string")
    [row] = rows("n struct<a:int>, _corrupt string", mode="permissive")
    assert row[0] is None
    assert "\ufffd" in json.loads(row[1])["n"]


def test_a_batch_that_must_be_decoded_by_hand_holds_the_same_values() -> None:
    payload = {
        "d": Decimal128("1.50"), "at": NOW, "far": DatetimeMS(2**60), "l": [1, {"x": [None, ObjectId("0" * 24)]}],
        "u": bson.Binary(bytes(range(16)), 4), "b": b"\0", "ref": {"$ref": "c", "$id": 1},
    }  # fmt: skip
    plain = bson.encode({"_id": 1, "payload": payload})
    broken = plain + bson.encode({"_id": 2, "payload": "bad"}).replace(b"bad", b"b\xffd")
    broken += bson.encode({"_id": 3, "u": bson.Binary(b"short", 4), "v": bson.Binary(bytes(16), 4), "s": "x"})
    for naive in (True, False):
        by_hand = decode(broken, naive=naive)
        assert by_hand[0] == decode(plain, naive=naive)[0]
        assert [each["_id"] for each in by_hand] == [1, 2, 3]
        assert by_hand[2]["u"] == bson.Binary(b"short", 4)
        assert by_hand[2]["v"].int == 0
        assert (by_hand[0]["payload"]["at"].tzinfo is None) is naive


def test_spark_shows_corrupt_rows_and_fails_with_a_sentence(store: Any, load: Any) -> None:
    store.add({"n": 1})
    store.add({"n": "x"})
    frame = load("n int, _corrupt string", mode="PERMISSIVE")
    assert [(row.n, row._corrupt) for row in frame.orderBy("_corrupt").collect()] == [(1, None), (None, '{"n":"x"}')]
    assert load("n int", mode="DROPMALFORMED").collect() == [(1,)]
    with pytest.raises(Exception, match="column 'n' of type int cannot hold a string"):
        load("n int").collect()
