"""Values of every type that can be written come back equal when they are read with the same schema."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from bson import ObjectId
from hypothesis import given, settings
from hypothesis import strategies as st

from mongoq.errors import ArgumentInvalid
from mongoq.spark.read.schema import Columns
from mongoq.spark.types.column import arrow_field, arrow_type
from mongoq.spark.types.values import Unfit, values_of
from mongoq.spark.write.payloads import ENCODING, AsDocument, AsValue, Refusal

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3).filter(
    lambda name: not name.startswith("_")
)
Typed = tuple[spark.DataType, st.SearchStrategy[Any]]


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _milliseconds(wall: datetime) -> datetime:
    return wall.replace(microsecond=wall.microsecond // 1000 * 1000)


def _decimals(precision: int, scale: int, digits: int) -> Typed:
    numbers = _integers_of(digits).map(lambda number: Decimal(f"{number}E-{scale}"))
    return spark.DecimalType(precision, scale), numbers


def _integers_of(digits: int) -> st.SearchStrategy[int]:
    return st.integers(-(10**digits) + 1, 10**digits - 1)


walls = st.datetimes().map(_milliseconds)
LEAVES: list[Typed] = [
    (spark.StringType(), st.text()),
    (spark.BooleanType(), st.booleans()),
    (spark.ByteType(), _whole(8)),
    (spark.ShortType(), _whole(16)),
    (spark.IntegerType(), _whole(32)),
    (spark.LongType(), _whole(64)),
    (spark.FloatType(), st.floats(width=32)),
    (spark.DoubleType(), st.floats()),
    (spark.DateType(), st.dates()),
    (spark.TimestampType(), walls.map(lambda wall: wall.replace(tzinfo=UTC))),
    (spark.TimestampNTZType(), walls),
    (spark.BinaryType(), st.binary()),
    _decimals(1, 0, 1),
    _decimals(10, 2, 10),
    _decimals(34, 34, 34),
    _decimals(34, 0, 34),
    _decimals(38, 10, 34),
]


def _array(part: Typed) -> Typed:
    return spark.ArrayType(part[0]), st.lists(st.none() | part[1], max_size=3)


def _map(part: Typed) -> Typed:
    pairs = st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.none() | part[1])
    return spark.MapType(spark.StringType(), part[0]), pairs.filter(_is_plain).map(lambda pair: list(pair.items()))


def _is_plain(document: Any) -> bool:
    return not {"$ref", "$id"} <= set(document)


def _struct(parts: dict[str, Typed]) -> Typed:
    type = spark.StructType()
    for name, (part, _) in parts.items():
        type.add(name, part)
    return type, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in parts.items()})


def _nested(parts: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    structs = st.dictionaries(NAMES, parts, max_size=3).filter(_is_plain).map(_struct)
    return parts.map(_array) | parts.map(_map) | structs


types = st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=4)


def _stored(field: spark.StructField, values: list[Any]) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """Return a table of one column, and the documents that it is written as."""
    schema = pa.schema([arrow_field(field)])
    batch = pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)
    wrapped = AsDocument.of([field]).wrap_all(batch)
    return batch, [bson.decode(raw, ENCODING.options) for raw in wrapped]


@pytest.mark.prove
@settings(max_examples=300, deadline=None)
@given(types, NAMES, st.data())
def test_what_is_written_is_read_equal(typed: Typed, name: str, data: st.DataObject) -> None:
    type, values = typed
    field = spark.StructField("x" + name, type)
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=4))
    table, documents = _stored(field, rows)
    documents_with_ids = [{"_id": ObjectId(), **document} for document in documents]
    read = Columns(spark.StructType([field])).batch(documents_with_ids, datetime.now(UTC))
    assert repr(read.to_pydict()) == repr(table.to_pydict())


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=4), st.data())
def test_a_slice_of_a_column_is_the_slice_of_its_values(typed: Typed, data: st.DataObject) -> None:
    type, values = typed
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    start = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - start))
    convert, array = values_of(type), pa.array(rows, arrow_type(type))
    assert repr(convert(array.slice(start, length))) == repr(convert(array)[start : start + length])


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**55), 2**55))
def test_finer_digits_of_times_are_cut_as_in_a_push(micros: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    for type in (spark.TimestampType(), spark.TimestampNTZType()):
        [value] = values_of(type)(pa.array([micros], pa.int64()).view(pa.timestamp("us")))
        assert bson.encode({"": value}) == bson.encode({"": moment})


def test_nulls_are_stored_as_null() -> None:
    fields = [spark.StructField("a", spark.NullType()), spark.StructField("b", spark.StringType())]
    batch = pa.RecordBatch.from_arrays([pa.nulls(1), pa.array([None], pa.string())], ["a", "b"])
    assert AsDocument.of(fields).wrap_all(batch) == [bson.encode({"payload": {"a": None, "b": None}})]


def test_an_empty_struct_is_an_empty_document() -> None:
    type = spark.StructType()
    array = pa.array([{}, None], pa.struct([]))
    assert values_of(type)(array) == [{}, None]


@pytest.mark.parametrize(
    ("type", "bits"),
    [
        (spark.DateType(), pa.array([-719_163], pa.int32()).view(pa.date32())),
        (spark.DateType(), pa.array([2_932_897], pa.int32()).view(pa.date32())),
        (spark.TimestampType(), pa.array([253_402_300_800_000_000], pa.int64()).view(pa.timestamp("us", "UTC"))),
        (spark.TimestampNTZType(), pa.array([-62_135_596_800_000_001], pa.int64()).view(pa.timestamp("us"))),
    ],
    ids=["before", "after", "timestamp", "wall"],
)
def test_years_that_no_reader_takes_are_refused(type: spark.DataType, bits: pa.Array) -> None:
    with pytest.raises(Unfit, match="outside the years 1 to 9999"):
        values_of(type)(bits)


def test_the_years_1_to_9999_are_stored() -> None:
    days = values_of(spark.DateType())(pa.array([date.min, date.max]))
    assert days == ["0001-01-01", "9999-12-31"]


def test_the_row_is_found_that_does_not_fit() -> None:
    field = spark.StructField("a", spark.ArrayType(spark.DecimalType(38, 0)))
    values = [[Decimal(1)], None, [Decimal(1), Decimal("1" * 38)], []]
    with pytest.raises(Refusal, match="a decimal of more than 34 digits") as caught:
        _stored(field, values)
    assert (caught.value.row, caught.value.column) == (2, "a")


def test_long_decimals_fit_when_their_last_digits_are_zeros() -> None:
    number = Decimal("1" * 20 + "." + "5" + "0" * 17)
    [value] = values_of(spark.DecimalType(38, 18))(pa.array([number], pa.decimal128(38, 18)))
    assert value.to_decimal() == number


@pytest.mark.parametrize(
    ("type", "sentence"),
    [
        (spark.DayTimeIntervalType(), "type interval day to second cannot be written; make it a number of seconds"),
        (spark.YearMonthIntervalType(), "cannot be written; make it a number of seconds or months"),
        (spark.VariantType(), "type variant cannot be written; make it a struct, or JSON text with to_json"),
        (spark.MapType(spark.LongType(), spark.LongType()), "the keys of a document are strings"),
        (spark.StructType().add("a\0", spark.LongType()), "has a NUL in its name"),
        (spark.StructType().add("a", spark.LongType()).add("a", spark.LongType()), "field 'a' is there 2 times"),
        (spark.StructType().add("$id", spark.LongType()).add("$ref", spark.LongType()), "come back as a DBRef"),
    ],
    ids=["interval", "months", "variant", "map", "nul", "twice", "dbref"],
)
def test_types_that_cannot_be_written_say_what_to_do(type: spark.DataType, sentence: str) -> None:
    for nested in (type, spark.ArrayType(type), spark.StructType().add("x", type)):
        with pytest.raises(ArgumentInvalid, match=f"schema: column 'c': .*{sentence}"):
            AsValue.of(spark.StructField("c", nested))


@pytest.mark.parametrize("levels", [63, 64, 80, 100, 120])
def test_types_nested_deeper_than_arrow_brings_are_refused_with_the_path(levels: int) -> None:
    type: spark.DataType = spark.LongType()
    for _ in range(levels):
        type = spark.ArrayType(type)
    path = re.escape("'c" + "[]" * 62 + "'")
    with pytest.raises(ArgumentInvalid, match=f"schema: field {path} nests deeper than the 62 levels .*; .*to_json"):
        AsValue.of(spark.StructField("c", type))
    with pytest.raises(ArgumentInvalid, match=f"schema: field {path} nests deeper than the 62 levels .*; .*to_json"):
        AsDocument.of([spark.StructField("c", type)])


def test_doubles_keep_every_value() -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, 5e-324]
    assert repr(values_of(spark.DoubleType())(pa.array(values))) == repr(values)
