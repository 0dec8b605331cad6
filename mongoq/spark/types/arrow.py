"""Columns of Python values as Arrow arrays of exactly the type that Spark expects."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
from bson import Decimal128, Int64

from mongoq.spark.types.decimals import decimal_array

__all__ = ["arrow_field", "arrow_type", "as_it_is"]

NONE = type(None)

SIMPLE: dict[type[spark.DataType], pa.DataType] = {
    spark.StringType: pa.string(),
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.BinaryType: pa.binary(),
}

PLAIN: dict[type[spark.DataType], frozenset[type]] = {
    spark.StringType: frozenset({str, NONE}),
    spark.BooleanType: frozenset({bool, NONE}),
    spark.ByteType: frozenset({int, Int64, NONE}),
    spark.ShortType: frozenset({int, Int64, NONE}),
    spark.IntegerType: frozenset({int, Int64, NONE}),
    spark.LongType: frozenset({int, Int64, NONE}),
    spark.DoubleType: frozenset({float, NONE}),
    spark.TimestampType: frozenset({datetime, NONE}),
    spark.BinaryType: frozenset({bytes, NONE}),
}
"""Python types that Arrow converts to a Spark type by itself, with range checks; it reads naive times as UTC."""
DECIMALS = frozenset({Decimal128, NONE})
NOTHING = frozenset({NONE})


def arrow_type(type: spark.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type, with names and nullability of the parts."""
    if isinstance(type, spark.DecimalType):
        return pa.decimal128(type.precision, type.scale)
    if isinstance(type, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(type.elementType), nullable=type.containsNull))
    if isinstance(type, spark.MapType):
        value = pa.field("value", arrow_type(type.valueType), nullable=type.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(type.keyType), nullable=False), value)
    if isinstance(type, spark.StructType):
        return pa.struct([arrow_field(each) for each in type.fields])
    for kind, arrow in SIMPLE.items():
        if isinstance(type, kind):
            return arrow
    raise TypeError(f"type {type.simpleString()} cannot be read; ask for a string")


def arrow_field(field: spark.StructField) -> pa.Field:
    """Return the Arrow field of a Spark field."""
    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)


def as_it_is(values: list[Any], field: spark.StructField, arrow: pa.DataType) -> pa.Array | None:
    """Return the values as an array if Arrow can take them unconverted, else ``None``.

    Checking the set of their types is much faster than checking each value.
    """
    # Classes, not isinstance: a subclass such as a Code or a Binary needs conversion.
    found = {each.__class__ for each in values}
    if not field.nullable and NONE in found:
        return None
    if isinstance(field.dataType, spark.DecimalType):
        return decimal_array(values, field.dataType) if found <= DECIMALS else None
    if not found <= PLAIN.get(field.dataType.__class__, NOTHING):
        return None
    try:
        return pa.array(values, arrow)
    except (pa.ArrowInvalid, OverflowError):
        return None
