"""Fields of the payload, projected on the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark import ColumnMismatch
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.schema import Columns, default_schema

pytestmark = pytest.mark.usefixtures("spark")  # which reads the DDL of schemas


@pytest.fixture
def payloads(reader: Any) -> Any:
    """Read payloads as JSON, without a query."""

    def payloads(**options: Any) -> list[Any]:
        source = reader(StructType.fromDDL("payload string"), **options)
        batches = [batch for partition in source.partitions() for batch in source.read(partition)]
        return [text and json.loads(text) for batch in batches for text in batch.column(0).to_pylist()]

    return payloads


@pytest.mark.prove
def test_the_payload_holds_these_fields_only(store: Any, payloads: Any, load: Any) -> None:
    store.add({"a": 1, "b": {"c": 2, "d": 3}, "big": "x" * 1000})
    store.add({"b": None})
    assert payloads(fields='["a", "b"]') == [{"a": 1, "b": {"c": 2, "d": 3}}, {"b": None}]
    assert payloads(fields='["nobody"]') == [{}, {}]
    rows = load(fields='["a"]').select("payload").collect()
    assert {row.payload for row in rows} == {"{}", '{"a":1}'}


def test_names_are_taken_literally(store: Any, payloads: Any) -> None:
    store.add({"a.b": 1, "a": {"b": 2}, "$set": 3, "": 4, "c": 5})
    assert payloads(fields='["a.b", "c"]') == [{"a.b": 1, "c": 5}]
    assert payloads(fields='["$set", ""]') == [{"$set": 3, "": 4}]
    assert payloads(fields='["a"]') == [{"a": {"b": 2}}]


@pytest.mark.parametrize("payload", [5, None, "text", [{"a": 1}]], ids=repr)
def test_a_payload_without_fields_follows_the_mode(store: Any, payloads: Any, payload: Any) -> None:
    store.add({"a": 1})
    store.add(payload)
    with pytest.raises(ColumnMismatch, match="column 'payload' of type string cannot hold a payload that is"):
        payloads(fields='["a"]')
    assert payloads(fields='["a"]', mode="permissive") == [{"a": 1}, None]
    assert payloads(fields='["a"]', mode="dropmalformed") == [{"a": 1}]


def test_the_server_sends_no_more() -> None:
    def projection(schema: StructType, *fields: str, mode: str = "FAILFAST") -> set[str]:
        return {path for path in Columns(schema, mode, fields).projection() if path.startswith("payload")}

    assert projection(default_schema(), "a", "b") == {"payload.a", "payload.b"}
    assert projection(default_schema(), "a", "b.c") == {"payload"}
    assert projection(StructType.fromDDL("a int, b int"), "a", "b", "c") == {"payload.a", "payload.b"}
    assert projection(StructType.fromDDL("payload string, _corrupt string"), "a", mode="PERMISSIVE") == {"payload"}


def test_a_schema_with_other_columns_is_refused(reader: Any) -> None:
    with pytest.raises(ArgumentInvalid, match="fields: it leaves out 'b', a column of the schema; leave out this opt"):
        reader(StructType.fromDDL("a int, b int, _id string"), fields='["a"]')
    reader(StructType.fromDDL("a int, _id string, _corrupt string"), fields='["a"]')


@pytest.mark.parametrize("text", ["a, b", "[]", '{"a": 1}', '["a", 1]', '"a"', ""])
def test_it_is_a_list_as_json(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match=r'fields: a list of names as JSON, such as \["customer", "total"\], not'):
        ReadOptions.parse({"uri": "mongodb://localhost", "queue": "orders", "fields": text})
