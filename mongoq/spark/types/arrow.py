"""Columns of Python values as Arrow arrays of exactly the type that Spark expects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from struct import Struct
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
from bson import Decimal128, Int64

__all__ = ["arrow_field", "arrow_type", "as_it_is", "decimal_array"]

HALVES = Struct("<QQ")
"""The 128 bits, from the lowest: 113 of the coefficient, 14 of the exponent, and the sign."""
EXPONENT_PLACE, EXPONENT_MASK, EXPONENT_BIAS = 49, 0x3FFF, 6176
HIGH_MASK = (1 << EXPONENT_PLACE) - 1
LARGEST = 10**34 - 1
SPECIAL = 3
"""Value of the two bits below the sign in NaN, in infinities, and in encodings that no writer uses."""
TENS = [10**place for place in range(39)]
NULL = bytes(16)


def decimal_array(values: Sequence[Decimal128 | None], type: spark.DecimalType) -> pa.Array | None:
    """Return the numbers as an Arrow array, or ``None`` if one of them does not fit exactly."""
    scale, limit, parts = type.scale, TENS[type.precision], []
    for value in values:
        if value is None:
            parts.append(NULL)
            continue
        number = _scale_digits(value.bid, scale)
        if number is None or not -limit < number < limit:
            return None
        parts.append(number.to_bytes(16, "little", signed=True))
    return _array(values, pa.decimal128(type.precision, scale), b"".join(parts))


def _scale_digits(bid: bytes, scale: int) -> int | None:
    """Return the number in units of ``10 ** -scale``, or ``None`` if it is no whole number of them, or is special."""
    low, high = HALVES.unpack(bid)
    coefficient: int = (high & HIGH_MASK) << 64 | low
    shift = (high >> EXPONENT_PLACE & EXPONENT_MASK) - EXPONENT_BIAS + scale
    # All of these are left to the slow path, which converts or refuses them one by one.
    if high >> 61 & SPECIAL == SPECIAL or coefficient > LARGEST or not -len(TENS) < shift < len(TENS):
        return None
    if shift < 0:
        coefficient, rest = divmod(coefficient, TENS[-shift])
        if rest:
            return None
    elif shift:
        coefficient *= TENS[shift]
    return -coefficient if high >> 63 else coefficient


def _array(values: Sequence[Decimal128 | None], type: pa.DataType, numbers: bytes) -> pa.Array:
    valid = None if None not in values else pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type, len(values), [valid, pa.py_buffer(numbers)])


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
