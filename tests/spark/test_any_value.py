"""Whatever BSON holds is read: as JSON that parses, as columns or as a sentence."""

from __future__ import annotations

import json
import math
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mongoq.drivers.documents import decode
from mongoq.model.encoding.codec import codec_options
from mongoq.spark import ColumnMismatch
from mongoq.spark.read.infer_schema import ObservedValues
from mongoq.spark.read.schema import Columns, default_schema
from mongoq.spark.types.convert import JSON_MARK
from mongoq.spark.types.json_text import json_text

NOW = datetime(2026, 11, 20, tzinfo=UTC)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = texts.map(lambda text: text.replace("\0", ""))
scalars = st.one_of(
    st.none(), st.booleans(), texts, st.binary(max_size=8), st.uuids(), st.floats(),
    st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda moment: moment.replace(tzinfo=UTC)),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.binary(min_size=16, max_size=16).map(Decimal128.from_bid),
    st.decimals(allow_nan=True, places=2, min_value=-10**9, max_value=10**9).map(Decimal128),
    st.builds(Binary, st.binary(max_size=20), st.sampled_from([1, 2, 3, 5, 6, 128, 255])),
    st.builds(Binary, st.binary(max_size=20), st.just(4)),
    st.builds(Regex, keys, st.sampled_from([0, "i", "imsx"])),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    texts.map(Code), st.builds(lambda text: Code(text, {"x": 1}), texts), st.just(MinKey()), st.just(MaxKey()),
    st.builds(DBRef, keys.filter(bool), st.integers(0, 9)),
)  # fmt: skip
dollars = st.sampled_from(["$ref", "$id", "$db", "$set", "a.b", "_id", "payload"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | dollars, inner, max_size=4),
    max_leaves=12,
)
anything = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_back(*payloads: Any, naive: bool) -> list[dict[str, Any]]:
    """Return items with these payloads as a reader gets them."""
    items = [{"_id": n, "q": "orders", "payload": payload, "when": NOW} for n, payload in enumerate(payloads)]
    return decode(b"".join(bson.encode(item, codec_options=codec_options()) for item in items), naive=naive)


@pytest.mark.prove
@anything
@given(payloads=st.lists(values, min_size=1, max_size=4), naive=st.booleans())
def test_the_default_columns_take_every_value_and_its_json_parses(payloads: list[Any], naive: bool) -> None:
    documents = read_back(*payloads, naive=naive)
    batch = Columns(default_schema()).batch(documents, NOW)
    batch.validate(full=True)
    for text in batch.column("payload").to_pylist():
        json.loads(text, parse_constant=pytest.fail)
    assert batch.column("_state").to_pylist() == ["ready"] * len(payloads)


ELEMENTS: list[DataType] = [
    StringType(), BooleanType(), ByteType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(10, 2),
    DecimalType(38, 18), DateType(), TimestampType(), TimestampNTZType(), BinaryType(),
]  # fmt: skip
NESTED = [
    make for each in ELEMENTS for make in (ArrayType(each), MapType(StringType(), each), StructType().add("a", each))
]
FIELDS = [
    *(StructField("v", each) for each in [*ELEMENTS, *NESTED]),
    StructField("v", StringType(), metadata=JSON_MARK),
]


@pytest.mark.prove
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.dataType.simpleString() + "j" * bool(field.metadata))
def test_a_column_of_every_type_takes_or_refuses_every_value(field: StructField) -> None:
    refusing, nulling = Columns(StructType([field])), Columns(StructType([field]), "PERMISSIVE")

    @settings(anything, max_examples=60)
    @given(value=values, naive=st.booleans())
    def takes_or_refuses(value: Any, naive: bool) -> None:
        documents = read_back({"v": value}, naive=naive)
        nulls = nulling.batch(documents, NOW)
        nulls.validate(full=True)
        with suppress(ColumnMismatch):
            batch = refusing.batch(documents, NOW)
            assert batch.equals(nulls) or "nan" in repr(nulls.to_pylist())

    takes_or_refuses()


@pytest.mark.prove
@anything
@given(sample=st.lists(values, min_size=1, max_size=5), naive=st.booleans())
@example(sample=[{"\ufffd": Binary(b"", 4)}], naive=False)
def test_what_is_inferred_holds_the_sample(sample: list[Any], naive: bool) -> None:
    documents = read_back(*({"v": value} for value in sample), naive=naive)
    observed = ObservedValues()
    for document in read_back(*({"v": value} for value in sample), naive=False):
        observed.add(document["payload"]["v"])
    batch = Columns(StructType([observed.column("v")])).batch(documents, NOW)
    nulls = sum(document["payload"]["v"] is None for document in documents)
    assert batch.column("v").null_count == nulls
    for value, read in zip(sample, batch.column("v").to_pylist(), strict=True):
        if type(value) in (bool, str, bytes):
            assert read == value or read == json_text(value)
        if type(value) is Decimal128 and value.to_decimal().is_finite():
            assert Decimal(str(read).strip('"')) == value.to_decimal()


@pytest.mark.parametrize("strange", [{"$ref": 5, "$id": 1}, {"$ref": "a", "$id": 1, "$db": 7}, {"$ref": "a"}])
def test_documents_that_look_like_references_are_documents_in_json(strange: Any) -> None:
    raw = bson.encode({"_id": 1, "payload": strange, "when": NOW})
    [text] = Columns(default_schema()).batch(decode(raw, naive=True), NOW).column("payload").to_pylist()
    assert json.loads(text) == strange


def test_ids_of_any_type_are_texts() -> None:
    ids = [1, "a", ObjectId("0" * 24), uuid.UUID(int=1), {"a": math.nan}, None, b"x", Regex("a"), DatetimeMS(2**60)]
    documents = [{"_id": id, "payload": 1, "when": NOW} for id in ids]
    texts = Columns(default_schema()).batch(documents, NOW).column("_id").to_pylist()
    assert texts[:3] == ["1", "a", "0" * 24]
    assert all(json.loads(text) is not None or text == "null" for text in texts[3:])
