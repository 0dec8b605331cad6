"""Columns that nobody wrote down: inferred from a sample."""

from __future__ import annotations

import json
import math
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS

from mongoq.errors import ArgumentInvalid

NOW = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
UUID = uuid.UUID(int=7)
ID = ObjectId("0" * 24)
JSON = "json"


@pytest.fixture
def inferred(store: Any) -> Any:
    """Return the inferred columns of payloads by name, without those of the envelope."""
    from pyspark_mongoq import DefaultSource

    def inferred(**options: Any) -> dict[str, str]:
        schema = DefaultSource(store.options(inferSchema="true", **options)).schema()
        last = schema.names.index("_expires") + 1
        fields = schema.fields[last:]
        # a string that holds JSON says so to the reader
        return {field.name: JSON if field.metadata else field.dataType.simpleString() for field in fields}

    return inferred


TYPES: list[tuple[list[Any], str]] = [
    ([True, False], "boolean"),
    ([1, 2**40, Int64(5)], "bigint"),
    ([1.5, math.nan], "double"),
    ([1, 1.5], "double"),
    ([2**53, 0.5], "double"),
    ([2**53 + 1, 0.5], JSON),
    (["a", "b"], "string"),
    (["a", ID, UUID, Decimal128("1")], "string"),
    ([NOW], "timestamp"),
    ([NOW, DatetimeMS(2**60)], JSON),
    ([NOW, "2026-11-20"], JSON),
    ([b"x"], "binary"),
    ([Decimal128("1.50"), Decimal128("12345.6")], "decimal(38,2)"),
    ([Decimal128("1.2E+2"), Decimal128("0")], "decimal(38,0)"),
    ([Decimal128("1.5"), 7], "decimal(38,1)"),
    ([Decimal128("9" * 34), Decimal128("0.00001")], "string"),
    ([Decimal128("9" * 34), Decimal128("0.00001"), 1], JSON),
    ([Decimal128("1"), Decimal128("NaN")], "string"),
    ([Decimal128("1"), 1.5], JSON),
    ([1, "1"], JSON),
    ([True, 1], JSON),
    ([Regex("^a")], JSON),
    ([None], JSON),
    ([{"a": 1}, {"b": "x"}, None], "struct<a:bigint,b:string>"),
    ([{"a": 1}, {"a": "x"}], "struct<a:string>"),
    ([{"a": {"b": 1}}, {"a": {"b": 0.5}}], "struct<a:struct<b:double>>"),
    ([{"a": 1}, [1]], JSON),
    ([{}], JSON),
    ([{"a": 1, "A": 2}], JSON),
    ([{"": 1}], JSON),
    ([[1, 2], [None, 3], []], "array<bigint>"),
    ([[1], [0.5]], "array<double>"),
    ([[1, "x"]], JSON),
    ([[]], JSON),
    ([[[NOW]], []], "array<array<timestamp>>"),
    ([[{"a": 1}, {"b": [b"x"]}]], "array<struct<a:bigint,b:array<binary>>>"),
]


def test_each_type_holds_all_values_of_the_sample(store: Any, inferred: Any, rows: Any) -> None:
    for place in range(max(len(values) for values, _ in TYPES)):
        store.add({f"c{n}": values[place] for n, (values, _) in enumerate(TYPES) if place < len(values)})
    assert inferred() == {f"c{n}": type for n, (_, type) in enumerate(TYPES)}
    read = rows(inferSchema="true")  # all of them, failing for the first that does not fit
    assert len(read) == 4
    cells = {cell for row in read for cell in row if isinstance(cell, str | Decimal)}
    assert {Decimal("1.50"), "1", '"1"', "true"} <= cells


def test_the_sample_is_of_both_ends_of_each_queue(store: Any, inferred: Any) -> None:
    for n in range(10):
        store.add({f"n{n}": n}, when=store.now + timedelta(seconds=n))
        store.add({f"m{n}": n}, queue="refunds", when=store.now + timedelta(seconds=n))
    queues = {"queue": None, "queues": '["orders", "refunds"]'}
    assert set(inferred(sampleSize=4, **queues)) == {"n0", "n9", "m0", "m9"}
    assert set(inferred(sampleSize=8, **queues)) == {"n0", "n1", "n8", "n9", "m0", "m1", "m8", "m9"}
    assert set(inferred(sampleSize=4)) == {"n0", "n1", "n8", "n9"}
    assert len(inferred(**queues)) == 20


def test_the_sample_is_of_the_view_and_the_period(store: Any, inferred: Any) -> None:
    hour = timedelta(hours=1)
    store.add({"live": 1})
    store.add({"done": 1}, when=None, processed=store.now - hour)
    store.add({"old": 1}, when=None, processed=store.now - 3 * hour)
    store.add({"dead": 1}, queue="orders.dead")
    assert set(inferred()) == {"live"}
    assert set(inferred(view="history")) == {"done", "old"}
    assert set(inferred(view="history", since=(store.now - 2 * hour).isoformat())) == {"done"}
    assert set(inferred(view="all")) == {"live", "done", "old"}
    assert set(inferred(view="dead")) == {"dead"}


def test_a_sample_of_many_queues_takes_some_of_each_or_of_some(store: Any, inferred: Any) -> None:
    for n in range(20):
        store.add({f"n{n:02}": n}, queue=f"many.{n:02}")
    assert len(inferred(queue=None, prefix="many.")) == 20
    assert list(inferred(queue=None, prefix="many.", sampleSize=8)) == ["n00", "n05", "n10", "n15"]


def test_a_sample_of_large_items_ends_early(store: Any, inferred: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mongoq.spark import scan

    monkeypatch.setattr(scan, "INDEX_END_BYTES", 1_000_000)
    monkeypatch.setattr(scan, "INDEX_END_ROWS", 2)
    for n in range(40):
        store.add({f"n{n}": "x" * 400_000}, when=store.now + timedelta(seconds=n))
    assert 4 <= len(inferred()) < 20


def test_payloads_that_are_no_documents_are_json(store: Any, inferred: Any) -> None:
    store.add({"a": 1})
    store.add([1])
    assert inferred() == {"payload": "string"}
    with pytest.raises(ArgumentInvalid, match="fields: an item's payload is no document"):
        inferred(fields='["a"]')


def test_nothing_to_infer_from_is_the_default(store: Any, inferred: Any) -> None:
    assert inferred(missing="empty") == {"payload": "string"}
    store.add({})
    assert inferred() == {"payload": "string"}


def test_names_that_are_taken_are_fields_of_the_payload(store: Any, rows: Any, inferred: Any) -> None:
    item = store.add({"_id": 5, "payload": {"k": 1}, "_Corrupt": "x", "a": 1, "b.c": 2, "$d": 3})
    assert inferred() == {
        "a": "bigint", "b.c": "bigint", "$d": "bigint",
        "payload": "struct<_id:bigint,payload:struct<k:bigint>,_Corrupt:string>"
    }  # fmt: skip
    [row] = rows(inferSchema="true")
    assert row[0] == str(item)
    assert row[-4:] == (1, 2, 3, {"_id": 5, "payload": {"k": 1}, "_Corrupt": "x"})
    store.collection.delete_many({})
    store.add({"Name": 1, "name": 2, "a": 3, "": 4})
    assert inferred() == {"a": "bigint", "payload": "string"}
    assert json.loads(rows(inferSchema="true")[0][-1]) == {"Name": 1, "name": 2, "a": 3, "": 4}


def test_names_that_are_data_are_json_within_and_an_error_at_the_top(store: Any, inferred: Any) -> None:
    prices = {f"k{n}": n for n in range(1_001)}
    store.add({"prices": prices})
    assert inferred() == {"prices": JSON}
    store.add(prices)
    with pytest.raises(ArgumentInvalid, match="inferSchema: the payloads have more than 1,000 different fields"):
        inferred()
    assert inferred(fields='["k7", "prices"]') == {"prices": JSON, "k7": "bigint"}


def test_permissive_adds_a_column_for_what_does_not_fit_and_fields_narrow_it(store: Any, inferred: Any) -> None:
    store.add({"a": 1, "b": "x", "c.d": 2})
    assert inferred(mode="permissive", fields='["a"]') == {"a": "bigint", "_corrupt": "string"}
    assert inferred(fields='["c.d", "b"]') == {"c.d": "bigint", "b": "string"}


def test_more_levels_are_refused_with_the_path_and_what_to_do(store: Any, inferred: Any, rows: Any) -> None:
    value: Any = 7
    for _ in range(62):
        value = [value]
    store.add({"n": 1, "c": value})
    assert len(rows(inferSchema="true")) == 1
    store.collection.delete_many({})
    store.add({"n": 1, "c": [value]})
    sentence = re.escape(f"field {'c' + '[]' * 62!r} nests deeper than the 62 levels")
    with pytest.raises(ArgumentInvalid, match=f"inferSchema: {sentence} .*; give a schema in which it, or 'c', is a"):
        inferred()
    assert inferred(fields='["n"]') == {"n": "bigint"}
