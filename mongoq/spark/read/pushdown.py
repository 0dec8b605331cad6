"""Filters of Spark as conditions for the server, which exclude fewer items than the filters, never more.

Spark evaluates every filter itself as well. So the server may return items that a filter excludes: all values that it
does not compare as Spark does, for example values of another type than the column's. Such a value then fails, or
becomes null, as it does without pushdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Any

import bson
import pyspark.sql.types as spark
from bson import Decimal128, ObjectId
from pyspark.sql import datasource
from pyspark.sql.types import DataType, StructType

from mongoq.model.encoding.codec import codec_options
from mongoq.spark.read.queue_selection import beginning_with
from mongoq.spark.types.column import path_in_payload
from mongoq.spark.types.convert import is_json
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY, ENVELOPE, PAYLOAD

__all__ = ["Condition", "Kind", "ServerFilter", "Target", "push_down"]

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
OUT_OF_RANGE = ({"$lt": FIRST}, {"$gt": LAST})
HEX = Kind(("objectId",), _hex, _is_id)
"""Ids as text: columns of the envelope."""
LONGS = Kind(("int", "long"), _integer)
KINDS: dict[type[spark.DataType], Kind] = {
    spark.LongType: LONGS,
    spark.DoubleType: Kind(("int", "double"), _double, beside=({"$eq": math.nan},)),
    spark.DecimalType: Kind(("int", "long", "decimal"), _decimal, beside=NO_NUMBERS, complete=False),
    spark.StringType: Kind(("string",), _of(str)),
    spark.BooleanType: Kind(("bool",), _of(bool)),
    spark.TimestampType: Kind(("date",), _moment, _in_whole, None, OUT_OF_RANGE),
    spark.TimestampNTZType: Kind(("date",), _wall_time, _in_whole, None, OUT_OF_RANGE),
    spark.DateType: Kind(("date",), _day, lambda _value: False, _next_day, beside=OUT_OF_RANGE),
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


IDS = {("_id",), ("_token",), ("_settled",), ("_origin", "id")}
COMPUTED = {"_state", "_pushed", "_headers", DELIVERY}
INDEXED = {"_id", "q", "priority"}
DATE_FIELDS = {"history": "processed", "all": ""}
ARRAY = {"$type": "array"}
"""Condition on an array in place of a field: the server compares its elements instead of the field."""

Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Stored field behind a column.

    Attributes:
        steps: names of the fields that lead to it.
        kind: comparison that the server uses for it.
        indexed: True if an index of the view holds it, and the field only has values of its own type.
    """

    steps: tuple[str, ...]
    kind: Kind
    indexed: bool

    @property
    def path(self) -> str:
        """Path of the field, as the server writes it."""
        return ".".join(self.steps)

    def conditions_for_spark(self) -> list[Condition]:
        """Return conditions that match all values which the server does not compare as Spark does."""
        own = [_other_than(*self.kind.types), ARRAY, *self.kind.beside]
        return [*self._above(), *({self.path: condition} for condition in own)]

    def _above(self) -> list[Condition]:
        """Return conditions on the documents around the field: one is no document, or is inside an array."""
        paths = [".".join(self.steps[:end]) for end in range(1, len(self.steps))]
        around = [{path: condition} for path in paths for condition in (_other_than("object"), ARRAY)]
        return [*around, {PAYLOAD: {"$eq": None}}] if self.steps[0] == PAYLOAD else around


def target_of(column: Sequence[str], schema: StructType, view: str) -> Target:
    """Return the stored field behind a column, or behind a field of a struct; raises ``Unsuited`` if there is none.

    Args:
        column: names that lead to it.
        schema: columns of the table.
        view: name of the view.
    """
    name, *within = column
    type = _within(schema, column)
    kind = HEX if (name, *within) in IDS else kind_of(type)
    steps = (*_root(name), *within)
    if kind is None or name in COMPUTED or (steps == (PAYLOAD,) and kind.types == ("string",)):
        raise Unsuited
    if any(path_in_payload(step) is None for step in steps):
        raise Unsuited
    return Target(steps, kind, len(steps) == 1 and steps[0] in INDEXED | {DATE_FIELDS.get(view, "when")})


def _root(column: str) -> tuple[str, ...]:
    if column in ENVELOPE:
        return ENVELOPE[column].stored
    return (PAYLOAD,) if column == PAYLOAD else (PAYLOAD, column)


def _within(schema: StructType, column: Sequence[str]) -> DataType:
    """Return the type of a column, or of a field of a struct."""
    type: DataType = schema
    for name in column:
        fields = type.fields if isinstance(type, StructType) else []
        field = next((each for each in fields if each.name == name), None)
        if field is None or is_json(field):
            raise Unsuited
        type = field.dataType
    return type


def _other_than(*types: str) -> Condition:
    return {"$exists": True, "$not": {"$type": [*types, "null"]}}


LONGEST = 1024 * 1024
"""Bytes of one condition, at most; a longer list is left to Spark."""
PATTERN = 1_000
"""Characters of a text to search for in other texts, at most."""


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """Conditions for the server; all of them must hold.

    Attributes:
        keys: conditions that the index of the view decides.
        others: conditions that need the documents.
        ids: True if a condition is on ids.
    """

    keys: tuple[Condition, ...] = ()
    others: tuple[Condition, ...] = ()
    ids: bool = False


def push_down(filters: Sequence[datasource.Filter], schema: StructType, view: str) -> ServerFilter:
    """Return the server's part of filters, all of which hold, on these columns of a view."""
    keys: list[Condition] = []
    others: list[Condition] = []
    for filter in filters:
        try:
            target, condition = _condition(filter, schema, view)
        except Unsuited:
            continue
        # A longer list is left to Spark, which applies every filter in any case.
        if len(bson.encode(condition, codec_options=codec_options())) <= LONGEST:
            (keys if target.indexed else others).append(condition)
    return ServerFilter(tuple(keys), tuple(others), any("_id" in condition for condition in keys))


def _condition(filter: datasource.Filter, schema: StructType, view: str) -> tuple[Target, Condition]:
    negated = isinstance(filter, datasource.Not)
    inner: Any = filter.child if isinstance(filter, datasource.Not) else filter
    make = (NEGATED if negated else PLAIN).get(type(inner))
    if make is None or inner.attribute[0] == CORRUPT:
        raise Unsuited
    target = target_of(inner.attribute, schema, view)
    if negated:  # an index does not help it, and an array in place of a number meets no condition
        target = replace(target, indexed=False)
    if target.steps == ("_id",):
        make = OF_IDS.get(make, make)
    condition = {target.path: make(target, getattr(inner, "value", None))}
    return target, condition if target.indexed else {"$or": [condition, *target.conditions_for_spark()]}


def _equal(target: Target, value: Any) -> Condition:
    return _is_null(target, value) if value is None else target.kind.equal(value)


def _unequal(target: Target, value: Any) -> Condition:
    if not target.kind.exact(value):
        raise Unsuited
    return {"$ne": target.kind.literal(value)}


def _not_below(target: Target, value: Any) -> Condition:
    return target.kind.not_below(value)


def _not_above(target: Target, value: Any) -> Condition:
    return target.kind.not_above(value)


def _among(target: Target, values: Sequence[Any]) -> Condition:
    """Return the condition of ``IN``; nulls in the list equal no value. Raises ``Unsuited`` for inexact values."""
    told = [value for value in values if value is not None]
    if not all(target.kind.exact(value) for value in told):
        raise Unsuited
    return {"$in": [target.kind.literal(value) for value in told]}


def _not_among(target: Target, values: Sequence[Any]) -> Condition:
    if not all(target.kind.exact(value) for value in values):
        raise Unsuited
    return {"$nin": [target.kind.literal(value) for value in values]}


def _is_null(target: Target, _value: Any) -> Condition:
    if target.indexed or not target.kind.complete:
        raise Unsuited
    return {"$eq": None}


def _is_not_null(target: Target, _value: Any) -> Condition:
    if target.indexed:
        raise Unsuited
    return {"$ne": None}


def _starts(target: Target, value: str) -> Condition:
    if target.kind is HEX:
        return target.kind.not_below(value) | target.kind.not_above(value.ljust(24, "f"))
    if target.kind.types != ("string",) or not value:
        raise Unsuited
    return beginning_with(value)


def _ends(target: Target, value: str) -> Condition:
    # Not $, which also matches before a line break at the end.
    return _matching(target, value, r"\z")


def _contains(target: Target, value: str) -> Condition:
    return _matching(target, value, "")


def _matching(target: Target, value: str, end: str) -> Condition:
    # A NUL cannot be in a regular expression of BSON, which ends with one.
    if target.kind.types != ("string",) or not 0 < len(value) <= PATTERN or "\0" in value:
        raise Unsuited
    return {"$regex": re.escape(value) + end}


def _id_equal(target: Target, value: Any) -> Condition:
    return _id_among(target, [value])


def _id_among(target: Target, values: Sequence[Any]) -> Condition:
    """Return the condition of ``IN`` on ids. Ids of other types are shown as text too.

    Of these, only a string can look like the 24 digits of an ObjectId.
    """
    told = [value for value in values if value is not None]
    return {"$in": [*_among(target, told)["$in"], *told]}


def _id_not_below(target: Target, value: Any) -> Condition:
    return {"$not": {"$lt": target.kind.literal(value)}}


def _id_not_above(target: Target, value: Any) -> Condition:
    return {"$not": {"$gt": target.kind.literal(value)}}


def _id_starts(_target: Target, _value: Any) -> Condition:
    raise Unsuited


Make = Callable[[Target, Any], Condition]
PLAIN: dict[type[datasource.Filter], Make] = {
    datasource.EqualTo: _equal,
    datasource.EqualNullSafe: _equal,
    datasource.GreaterThan: _not_below,
    datasource.GreaterThanOrEqual: _not_below,
    datasource.LessThan: _not_above,
    datasource.LessThanOrEqual: _not_above,
    datasource.In: _among,
    datasource.IsNull: _is_null,
    datasource.IsNotNull: _is_not_null,
    datasource.StringStartsWith: _starts,
    datasource.StringEndsWith: _ends,
    datasource.StringContains: _contains,
}
NEGATED: dict[type[datasource.Filter], Make] = {
    datasource.EqualTo: _unequal,
    datasource.EqualNullSafe: _unequal,
    datasource.In: _not_among,
}
"""Negated filters. On the server nulls meet them, in Spark only some nulls do."""
OF_IDS: dict[Make, Make] = {
    _equal: _id_equal,
    _among: _id_among,
    _not_below: _id_not_below,
    _not_above: _id_not_above,
    _starts: _id_starts,
}
"""Filters on ids, which may be of any type: a negated comparison includes other types, and is a range of the index."""
