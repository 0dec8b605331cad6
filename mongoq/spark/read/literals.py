"""Values of Spark's filters as the server compares them, for each type of column that it can compare."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Any

import pyspark.sql.types as spark
from bson import Decimal128, ObjectId

__all__ = ["HEX", "Kind", "Unsuited", "kind_of"]

LONG = 64
DECIMAL_DIGITS = 34
HEX_DIGITS = 24
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC, microsecond=999_000)
BITS: dict[type[spark.DataType], int] = {spark.ByteType: 8, spark.ShortType: 16, spark.IntegerType: 32}


class Unsuited(Exception):
    """The server cannot decide this filter as Spark does."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Comparison of one column type with values of a filter, on the server.

    Attributes:
        types: BSON types that the server orders as Spark does; it must leave other types to Spark.
        literal: converts a filter's value to a server's value, equal or next below; raises ``Unsuited``.
        exact: returns whether the two values are equal.
        upper: converts a filter's value to a server's value that is not below any value that matches ``<=``.
        beside: conditions on values of these types that the server must leave to Spark all the same.
        complete: True if all other values of these types fit the column.
    """

    types: tuple[str, ...]
    literal: Callable[[Any], Any]
    exact: Callable[[Any], bool] = lambda _value: True
    upper: Callable[[Any], Any] | None = None
    beside: tuple[dict[str, Any], ...] = ()
    complete: bool = True

    def not_above(self, value: Any) -> dict[str, Any]:
        """Return a condition that every value equal to ``value`` or below it meets."""
        return {"$lte": (self.upper or self.literal)(value)}

    def not_below(self, value: Any) -> dict[str, Any]:
        """Return a condition that every value equal to ``value`` or above it meets."""
        return {"$gte": self.literal(value)}

    def equal(self, value: Any) -> dict[str, Any]:
        """Return a condition that every value equal to ``value`` meets."""
        return {"$eq": self.literal(value)} if self.exact(value) else self.not_below(value) | self.not_above(value)


def _of(*kinds: type) -> Callable[[Any], Any]:
    def literal(value: Any) -> Any:
        if type(value) not in kinds:
            raise Unsuited
        return value

    return literal


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << LONG - 1) <= value < 1 << LONG - 1:
        raise Unsuited
    return value


def _double(value: Any) -> float:
    if type(value) is not float or math.isnan(value):  # to Spark NaN is the largest number, to the server the smallest
        raise Unsuited
    return value


def _decimal(value: Any) -> Decimal128:
    if type(value) not in (int, Decimal):
        raise Unsuited
    try:
        number = Decimal(value)
        if len(number.as_tuple().digits) > DECIMAL_DIGITS:
            raise Unsuited
        return Decimal128(number)
    except DecimalException:
        raise Unsuited from None


def _moment(value: Any) -> datetime:
    if type(value) is not datetime or value.tzinfo is None:
        raise Unsuited
    return _whole(value.astimezone(UTC))


def _wall_time(value: Any) -> datetime:
    if type(value) is not datetime or value.tzinfo is not None:
        raise Unsuited
    return _whole(value.replace(tzinfo=UTC))


def _whole(value: datetime) -> datetime:
    """Return the time cut to whole milliseconds, the resolution of BSON dates."""
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def _in_whole(value: Any) -> bool:
    return isinstance(value, datetime) and value.microsecond % 1000 == 0


def _day(value: Any) -> datetime:
    if type(value) is not date:
        raise Unsuited
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _next_day(value: Any) -> datetime:
    try:
        return _day(value) + timedelta(days=1)
    except OverflowError:
        raise Unsuited from None


def _hex(value: Any) -> ObjectId:
    """Return the ObjectId that this text equals, or is a beginning of; texts of ids have the order of the ids."""
    if type(value) is not str or not re.fullmatch("[0-9a-f]*", value):
        raise Unsuited
    # A text that is shorter comes before all ids that begin with it: fill up with zeros.
    return ObjectId(value[:HEX_DIGITS].ljust(HEX_DIGITS, "0"))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == HEX_DIGITS


NO_NUMBERS = ({"$eq": Decimal128("NaN")}, {"$in": [Decimal128("Infinity"), Decimal128("-Infinity")]})
DATES = ({"$lt": FIRST}, {"$gt": LAST})
HEX = Kind(("objectId",), _hex, _is_id)
"""Ids as text: columns of the envelope."""
LONGS = Kind(("int", "long"), _integer)
KINDS: dict[type[spark.DataType], Kind] = {
    spark.LongType: LONGS,
    spark.DoubleType: Kind(("int", "double"), _double, beside=({"$eq": math.nan},)),
    spark.DecimalType: Kind(("int", "long", "decimal"), _decimal, beside=NO_NUMBERS, complete=False),
    spark.StringType: Kind(("string",), _of(str)),
    spark.BooleanType: Kind(("bool",), _of(bool)),
    spark.TimestampType: Kind(("date",), _moment, _in_whole, None, DATES),
    spark.TimestampNTZType: Kind(("date",), _wall_time, _in_whole, None, DATES),
    spark.DateType: Kind(("date",), _day, lambda _value: False, _next_day, beside=DATES),
}


def kind_of(type: spark.DataType) -> Kind | None:
    """Return the server's comparison of a column type, or ``None`` if it does not compare as Spark does.

    The server compares binary data by its length first. A 32-bit float differs from the stored double.
    """
    if bits := BITS.get(type.__class__):
        limit = 1 << (bits - 1)
        # Integers out of the column's range do not fit it, so Spark has to see them and fail or make null.
        return Kind(LONGS.types, LONGS.literal, beside=({"$lt": -limit}, {"$gte": limit}))
    return KINDS.get(type.__class__)
