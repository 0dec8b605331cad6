"""BSON values converted to values of one Spark type, without loss or with an error that does not quote them."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyspark.sql.types as spark
from bson import Decimal128, ObjectId
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from mongoq.spark.documents import Garbled
from mongoq.spark.types.json_text import TextGarbled, json_text

FAIL, PERMISSIVE, DROP = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
MODES = (FAIL, PERMISSIVE, DROP)
"""Treatments of values that do not fit their columns."""

NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (str, "a string"),
    (int, "an integer"),
    (float, "a double"),
    (datetime, "a date"),
    (bytes, "binary data"),
    (dict, "a document"),
    (list, "an array"),
    (ObjectId, "an ObjectId"),
    (Decimal128, "a Decimal128"),
    (uuid.UUID, "a UUID"),
    (Garbled, "text that is not UTF-8"),
)


class ConversionError(Exception):
    """A value that does not fit; ``steps`` has the path to it, innermost first."""

    def __init__(self, type: DataType, problem: str) -> None:
        super().__init__(problem)
        self.type = type.simpleString()
        self.problem = problem
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        """Path from the column to the value, for example ``[2].price``."""
        return "".join(reversed(self.steps))


def name_of(value: Any) -> str:
    """Return the kind of a value in words, without quoting it."""
    for kind, name in NAMES:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


ARROW_LEVELS = 64
OF_SPARK = 2
"""Levels above a column: Spark sends each batch as a struct, and the values inside have one level."""
COLUMN_LEVELS = ARROW_LEVELS - OF_SPARK
MAP_LEVELS = 2
"""Levels of a map: Arrow stores it as a list of structs."""


def too_deep(name: str, type: DataType) -> str | None:
    """Return which part of a column nests too deep for Arrow, if any, as a sentence; a string can replace this part."""
    path = next(_beyond(name, type, 0), None)
    if path is None:
        return None
    return f"{path!r} nests deeper than the {COLUMN_LEVELS} levels that Arrow brings from Python to Spark and back"


def _beyond(path: str, type: DataType, above: int) -> Iterator[str]:
    """Yield the paths of the outermost parts that are too deep."""
    match type:
        case StructType():
            parts = [(f"{path}.{field.name}", field.dataType) for field in type.fields]
        case ArrayType():
            parts = [(f"{path}[]", type.elementType)]
        case MapType():
            parts = [(f"{path}[]", type.valueType)]
        case _:
            return
    level = above + (MAP_LEVELS if isinstance(type, MapType) else 1)
    if level > COLUMN_LEVELS:
        yield path
        return
    for inner, part in parts:
        yield from _beyond(inner, part, level)


JSON_MARK = {"mongoq": "json"}
"""Metadata of a string field whose values are all JSON, strings in quotation marks. An inferred schema sets it where
values have no common type.
"""

Convert = Callable[[Any], Any]

STRING = spark.StringType()
NUMBER = re.compile(r"\A[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?\Z")
FLOAT_MAX = 3.4028234663852886e38
INTEGER_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}


def is_json(field: spark.StructField) -> bool:
    """Return whether a field shows each value as JSON."""
    return isinstance(field.dataType, spark.StringType) and JSON_MARK.items() <= (field.metadata or {}).items()


def as_json(value: Any) -> str:
    """Return a value as JSON; raises ``ConversionError`` for text that is not UTF-8."""
    try:
        return json_text(value)
    except TextGarbled:
        raise ConversionError(STRING, "text that is not UTF-8") from None


def converter(field: spark.StructField, forgiven: list[ConversionError] | None = None) -> Convert:
    """Return the function that converts a stored value to this field's type, or raises ``ConversionError``.

    With a list ``forgiven``, a value that does not fit becomes null, as deep inside as nulls are allowed, and is added
    to the list.

    Raises:
        TypeError: the format does not read into this type.
    """
    type, nullable = field.dataType, field.nullable
    convert = as_json if is_json(field) else _converter(type, forgiven)

    def optional(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if nullable:
            return None
        raise ConversionError(type, "a null or missing value, being NOT NULL")

    def forgiving(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except ConversionError as misfit:
            assert forgiven is not None
            forgiven.append(misfit)
            return None

    return optional if forgiven is None or not nullable else forgiving


def _converter(type: spark.DataType, forgiven: list[ConversionError] | None) -> Convert:
    if bits := INTEGER_BITS.get(type.__class__):
        return _integers(type, bits)
    if isinstance(type, spark.DecimalType):
        return _decimals(type)
    if isinstance(type, spark.ArrayType):
        return _arrays(type, converter(spark.StructField("", type.elementType, type.containsNull), forgiven))
    if isinstance(type, spark.StructType):
        return _structs(type, {each.name: converter(each, forgiven) for each in type.fields})
    if isinstance(type, spark.MapType):
        return _maps(type, converter(spark.StructField("", type.valueType, type.valueContainsNull), forgiven))
    if function := SIMPLE.get(type.__class__):
        return lambda value: function(type, value)
    raise TypeError(f"type {type.simpleString()} cannot be read; ask for a string")


def _string(type: spark.DataType, value: Any) -> str:
    if isinstance(value, str | ObjectId | uuid.UUID | Decimal128):
        return str(value)
    if isinstance(value, dict | list):
        return as_json(value)
    raise ConversionError(type, name_of(value))


def _boolean(type: spark.DataType, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConversionError(type, name_of(value))


def _integers(type: spark.DataType, bits: int) -> Convert:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int:
        # Some producers, such as JavaScript, write all numbers as doubles.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConversionError(type, "a double with a fraction" if isinstance(value, float) else name_of(value))
        if not -limit <= value < limit:
            raise ConversionError(type, f"an integer beyond {bits} bits")
        return int(value)

    return convert


def _double(type: spark.DataType, value: Any) -> float:
    if isinstance(value, float):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConversionError(type, name_of(value))
    if int(float(value)) != value:
        raise ConversionError(type, "an integer that a double does not hold exactly")
    return float(value)


def _float(type: spark.DataType, value: Any) -> float:
    double = _double(type, value)
    if math.isfinite(double) and abs(double) > FLOAT_MAX:
        raise ConversionError(type, "a double beyond 32 bits")
    return double


def _decimals(type: spark.DecimalType) -> Convert:
    # The traps raise where digits would be lost.
    context = Context(prec=type.precision, traps=[Inexact, InvalidOperation])
    step = Decimal(1).scaleb(-type.scale)

    def convert(value: Any) -> Decimal:
        number = _number(type, value)
        if not number.is_finite():
            raise ConversionError(type, "NaN or Infinity")
        try:
            return context.quantize(number, step)
        except (Inexact, InvalidOperation):
            raise ConversionError(type, "a number with more digits") from None

    return convert


def _number(type: spark.DataType, value: Any) -> Decimal:
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(int(value))
    if not isinstance(value, str):
        raise ConversionError(type, name_of(value))
    # Decimal itself accepts underscores, spaces and digits of other scripts.
    if not NUMBER.match(value):
        raise ConversionError(type, "a string that is no number")
    try:
        return Decimal(value)
    except InvalidOperation:  # an exponent too large for Decimal
        raise ConversionError(type, "a number with more digits") from None


def _date(type: spark.DataType, value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ConversionError(type, "a string that is no ISO 8601 date") from None
    raise ConversionError(type, _name_of_date(value))


def _timestamp(type: spark.DataType, value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ConversionError(type, _name_of_date(value))
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ConversionError(type, "a string that is no ISO 8601 time") from None
    if moment.tzinfo is None:
        raise ConversionError(type, "a string with a time and no offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ConversionError(type, "a string with a time outside the years 1 to 9999") from None


def _name_of_date(value: Any) -> str:
    return "a date outside the years 1 to 9999" if type(value).__name__ == "DatetimeMS" else name_of(value)


def _binary(type: spark.DataType, value: Any) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    raise ConversionError(type, name_of(value))


SIMPLE: dict[type[spark.DataType], Callable[[spark.DataType, Any], Any]] = {
    spark.StringType: _string,
    spark.BooleanType: _boolean,
    spark.FloatType: _float,
    spark.DoubleType: _double,
    spark.DateType: _date,
    spark.TimestampType: _timestamp,
    spark.TimestampNTZType: lambda type, value: _timestamp(type, value).replace(tzinfo=None),
    spark.BinaryType: _binary,
}


def _arrays(type: spark.ArrayType, element: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ConversionError(type, name_of(value))
        return [_step(f"[{place}]", element, part) for place, part in enumerate(value)]

    return convert


def _structs(type: spark.StructType, parts: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConversionError(type, name_of(value))
        return {name: _step(f".{name}", part, value.get(name)) for name, part in parts.items()}

    return convert


def _maps(type: spark.MapType, part: Convert) -> Convert:
    if not isinstance(type.keyType, spark.StringType):
        raise TypeError(f"type {type.simpleString()} cannot be read: the keys of a document are strings")

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise ConversionError(type, name_of(value))
        return [(key, _step(f"[{key!r}]", part, each)) for key, each in value.items()]

    return convert


def _step(step: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except ConversionError as misfit:
        misfit.steps.append(step)
        raise
