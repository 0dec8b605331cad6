"""Columns of Arrow as lists of the values that BSON stores for their Spark types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Inexact, InvalidOperation
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark
from bson import Decimal128

Values = Callable[[pa.Array], list[Any]]
"""Converts an array to values without any Arrow objects inside; raises ``Unfit``."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DAY, LAST_DAY = ((day - EPOCH.date()).days for day in (date.min, date.max))
DAY_SECONDS = 86_400
DIGITS = 34
"""Digits of a Decimal128, at most."""
EXPONENT_BIAS = 6176
EXPONENT_BITS = 113
"""Bits of the coefficient of a Decimal128; the exponent is above them."""
SIGN = 1 << 127
WIDTH = 16

INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
PLAIN_TYPES = (
    spark.StringType,
    spark.BooleanType,
    *INTEGERS,
    spark.FloatType,
    spark.DoubleType,
    spark.BinaryType,
    spark.NullType,
)
"""Types whose values BSON stores unchanged."""


class Unfit(Exception):
    """BSON cannot hold a value without loss; the message names its kind, without quoting it."""


def values_of(type: spark.DataType) -> Values:
    """Return the converter of columns of this type.

    Raises:
        TypeError: the format does not write this type; the message has the remedy.
    """
    if isinstance(type, PLAIN_TYPES):
        return lambda array: array.to_pylist()
    if make := CONVERTERS.get(type.__class__):
        return make(type)
    remedy = "cast it to a string"
    if isinstance(type, spark.VariantType):
        remedy = "make it a struct, or JSON text with to_json"
    if isinstance(type, spark.DayTimeIntervalType | spark.YearMonthIntervalType | spark.CalendarIntervalType):
        remedy = "make it a number of seconds or months"
    raise TypeError(f"type {type.simpleString()} cannot be written; {remedy}")


def _decimals(type: spark.DecimalType) -> Values:
    if type.precision > DIGITS:
        return _long_decimals
    # All values of a column have one scale, so one exponent.
    exponent = (EXPONENT_BIAS - type.scale) << EXPONENT_BITS

    def convert(array: pa.Array) -> list[Any]:
        # From their bits, which is twice as fast as with decimal.
        values: list[Any] = []
        for number in _read_unscaled(array):
            bits = None if number is None else abs(number) | exponent | (SIGN if number < 0 else 0)
            values.append(None if bits is None else Decimal128.from_bid(bits.to_bytes(WIDTH, "little")))
        return values

    return convert


def _read_unscaled(array: pa.Array) -> Iterator[int | None]:
    """Yield the decimals as integers, without their decimal points."""
    if array.null_count == len(array):
        yield from [None] * len(array)
        return
    # Arrow's buffer itself, 16 bytes a value; a slice of an array begins at its offset.
    bits = memoryview(array.buffers()[1])
    start = array.offset * WIDTH
    there = array.is_valid().to_pylist() if array.null_count else [True] * len(array)
    for place, valid in zip(range(start, start + len(array) * WIDTH, WIDTH), there, strict=True):
        yield int.from_bytes(bits[place : place + WIDTH], "little", signed=True) if valid else None


def _long_decimals(array: pa.Array) -> list[Any]:
    """Convert decimals if their digits fit; zeros at the end may be cut."""
    exact = Context(prec=DIGITS, traps=[Inexact, InvalidOperation])
    try:
        return [value if value is None else Decimal128(exact.plus(value)) for value in array.to_pylist()]
    except Inexact:
        raise Unfit(f"a decimal of more than {DIGITS} digits, which is what a Decimal128 holds") from None


def _dates(array: pa.Array) -> list[Any]:
    _check_range(array.view(pa.int32()), FIRST_DAY, LAST_DAY, "date")
    return array.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _timestamps(array: pa.Array) -> list[Any]:
    """Return aware datetimes. BSON cuts their microseconds, as in every push; wall times count as UTC."""
    micros = array.view(pa.int64())
    _check_range(micros, FIRST_DAY * DAY_SECONDS * 1_000_000, (LAST_DAY + 1) * DAY_SECONDS * 1_000_000 - 1, "timestamp")
    # Arrow's own conversion takes four times as long
    return [None if each is None else EPOCH + timedelta(0, 0, each) for each in micros.to_pylist()]


def _check_range(numbers: pa.Array, first: int, last: int, name: str) -> None:
    """Refuse years that neither Python nor ISO 8601 has: no reader accepts them as dates."""
    bounds = pc.call_function("min_max", [numbers]).as_py()
    if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] <= last:
        raise Unfit(f"a {name} outside the years 1 to 9999")


def _restore_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if there else None for value, there in zip(values, array.is_valid().to_pylist(), strict=True)]


def _spans(array: pa.Array) -> tuple[int, int, list[slice]]:
    """Return start and length of the lists' elements in their child array, and the slice of each list in that part."""
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    return first, last - first, [slice(start - first, end - first) for start, end in pairwise(offsets)]


def _arrays(type: spark.ArrayType) -> Values:
    parts = values_of(type.elementType)

    def convert(array: pa.Array) -> list[Any]:
        first, number, spans = _spans(array)
        # Convert the elements of all lists as one column, then cut it into the lists.
        flat = parts(array.values.slice(first, number))
        return _restore_nulls(array, [flat[span] for span in spans])

    return convert


def _maps(type: spark.MapType) -> Values:
    if not isinstance(type.keyType, spark.StringType):
        raise TypeError(f"type {type.simpleString()} cannot be written: the keys of a document are strings")
    parts = values_of(type.valueType)

    def convert(array: pa.Array) -> list[Any]:
        first, number, spans = _spans(array)
        keys = array.keys.slice(first, number).to_pylist()
        items = parts(array.items.slice(first, number))
        return _restore_nulls(array, [dict(zip(keys[span], items[span], strict=True)) for span in spans])

    return convert


def _structs(type: spark.StructType) -> Values:
    names = type.fieldNames()
    check_names(names)
    parts = [values_of(field.dataType) for field in type.fields]

    return lambda array: convert_structs(array, parts, lambda row: dict(zip(names, row, strict=True)))


def convert_structs(array: pa.Array, parts: Sequence[Values], make: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """Return what ``make`` makes of the values of each struct, and ``None`` for null; ``parts`` convert its fields."""
    columns = [part(child) for part, child in zip(parts, array.flatten(), strict=True)]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return _restore_nulls(array, [make(row) for row in rows])


CONVERTERS: dict[type[spark.DataType], Callable[[Any], Values]] = {
    spark.DecimalType: _decimals,
    spark.DateType: lambda _type: _dates,
    spark.TimestampType: lambda _type: _timestamps,
    spark.TimestampNTZType: lambda _type: _timestamps,
    spark.ArrayType: _arrays,
    spark.MapType: _maps,
    spark.StructType: _structs,
}


def check_names(names: list[str]) -> None:
    """Refuse field names that a document cannot have, or that change its meaning; raises ``TypeError``."""
    for name in names:
        if "\0" in name:
            raise TypeError(f"field {name!r} has a NUL in its name; rename it")
        if names.count(name) > 1:
            raise TypeError(f"field {name!r} is there {names.count(name)} times; rename it")
    if {"$ref", "$id"} <= set(names):
        raise TypeError("fields '$ref' and '$id' together would come back as a DBRef; rename one")


def has_maps(type: spark.DataType) -> bool:
    """Return whether values of this type have keys that are only known when they are read."""
    if isinstance(type, spark.ArrayType):
        return has_maps(type.elementType)
    if isinstance(type, spark.StructType):
        return any(has_maps(field.dataType) for field in type.fields)
    return isinstance(type, spark.MapType)
