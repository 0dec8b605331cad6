"""Filters of Spark as conditions for the server, which exclude fewer items than the filters, never more.

Spark evaluates every filter itself as well. So the server may return items that a filter excludes: all values that it
does not compare as Spark does, for example values of another type than the column's. Such a value then fails, or
becomes null, as it does without pushdown.

``FilteringReader`` is the class that Spark calls. PySpark has filters since 4.1: only reads with the option
``pushdown`` import this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any

import bson
import pyspark.sql.types as spark
from bson import Decimal128, ObjectId
from pyspark.sql import datasource
from pyspark.sql.types import DataType, StructType

from mongoq.data.encoding.codec import codec_options
from mongoq.spark.read.reader import Condition, MongoqReader, ServerFilter
from mongoq.spark.read.views import beginning_with
from mongoq.spark.types.column import path_in_payload
from mongoq.spark.types.convert import is_json
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY, ENVELOPE, PAYLOAD

LONG_BITS = 64
DECIMAL_DIGITS = 34
HEX_DIGITS = 24
MAX_PATTERN_LENGTH = 1_000
"""Characters of a text to search for in other texts, at most."""
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

    def equal(self, value: Any) -> Condition:
        """Return a condition that every value equal to ``value`` meets."""
        return {"$eq": self.literal(value)} if self.exact(value) else self.not_below(value) | self.not_above(value)

    def not_above(self, value: Any) -> Condition:
        """Return a condition that every value equal to ``value`` or below it meets."""
        return {"$lte": (self.upper or self.literal)(value)}

    def not_below(self, value: Any) -> Condition:
        """Return a condition that every value equal to ``value`` or above it meets."""
        return {"$gte": self.literal(value)}

    def among(self, values: Sequence[Any]) -> Condition:
        """Return the condition of ``IN``; nulls in the list equal no value."""
        return {"$in": self._exact_literals(value for value in values if value is not None)}

    def unequal(self, value: Any) -> Condition:
        """Return the condition of ``!=``."""
        [literal] = self._exact_literals([value])
        return {"$ne": literal}

    def not_among(self, values: Sequence[Any]) -> Condition:
        """Return the condition of ``NOT IN``."""
        return {"$nin": self._exact_literals(values)}

    def _exact_literals(self, values: Iterable[Any]) -> list[Any]:
        """Return the server's values; raises ``Unsuited`` if one of them is only the next below."""
        literals = list(values)
        if not all(map(self.exact, literals)):
            raise Unsuited
        return [self.literal(value) for value in literals]

    def starts(self, value: str) -> Condition:
        """Return the condition of texts that begin with ``value``."""
        if self.types != ("string",) or not value:
            raise Unsuited
        return beginning_with(value)

    def matching(self, value: str, end: str = "") -> Condition:
        """Return the condition of texts that contain ``value``, before the pattern ``end``."""
        # A NUL cannot be in a regular expression of BSON, which ends with one.
        if self.types != ("string",) or not 0 < len(value) <= MAX_PATTERN_LENGTH or "\0" in value:
            raise Unsuited
        return {"$regex": re.escape(value) + end}


class TokenKind(Kind):
    """Comparison of ObjectIds as text: columns of the envelope."""

    __slots__ = ()

    def starts(self, value: str) -> Condition:
        """Return the range of ids that begin with ``value``."""
        return self.not_below(value) | self.not_above(value.ljust(HEX_DIGITS, "f"))


class IdKind(Kind):
    """Comparison of ids of items. They may have any type, and are shown as text.

    A negated comparison includes ids of other types, and is a range of the index.
    """

    __slots__ = ()

    def equal(self, value: Any) -> Condition:
        """Return the condition of one id."""
        return self.among([value])

    def among(self, values: Sequence[Any]) -> Condition:
        """Return the condition of some ids. Of other types only a string can look like 24 digits of an ObjectId."""
        texts = [value for value in values if value is not None]
        return {"$in": [*self._exact_literals(texts), *texts]}

    def not_below(self, value: Any) -> Condition:
        """Return a condition that every id equal to ``value`` or above it meets."""
        return {"$not": {"$lt": self.literal(value)}}

    def not_above(self, value: Any) -> Condition:
        """Return a condition that every id equal to ``value`` or below it meets."""
        return {"$not": {"$gt": self.literal(value)}}


def _of(*kinds: type) -> Callable[[Any], Any]:
    def literal(value: Any) -> Any:
        if type(value) not in kinds:
            raise Unsuited
        return value

    return literal


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << LONG_BITS - 1) <= value < 1 << LONG_BITS - 1:
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


def _moment(value: Any, *, aware: bool = True) -> datetime:
    """Return an aware time, or a wall time in UTC, cut to whole milliseconds, the resolution of BSON dates."""
    if type(value) is not datetime or (value.tzinfo is not None) != aware:
        raise Unsuited
    utc = value.astimezone(UTC) if aware else value.replace(tzinfo=UTC)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


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
TOKENS, IDS = TokenKind(("objectId",), _hex, _is_id), IdKind(("objectId",), _hex, _is_id)
LONGS = Kind(("int", "long"), _integer)
KINDS: dict[type[spark.DataType], Kind] = {
    spark.LongType: LONGS,
    spark.DoubleType: Kind(("int", "double"), _double, beside=({"$eq": math.nan},)),
    spark.DecimalType: Kind(("int", "long", "decimal"), _decimal, beside=NO_NUMBERS, complete=False),
    spark.StringType: Kind(("string",), _of(str)),
    spark.BooleanType: Kind(("bool",), _of(bool)),
    spark.TimestampType: Kind(("date",), _moment, _in_whole, None, OUT_OF_RANGE),
    spark.TimestampNTZType: Kind(("date",), partial(_moment, aware=False), _in_whole, None, OUT_OF_RANGE),
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


OF_COLUMNS: dict[tuple[str, ...], Kind] = {
    ("_id",): IDS,
    ("_token",): TOKENS,
    ("_settled",): TOKENS,
    ("_origin", "id"): TOKENS,
}
COMPUTED = {"_state", "_pushed", "_headers", DELIVERY}
INDEXED = {"_id", "q", "priority"}
DATE_FIELDS = {"history": "processed", "all": ""}
ARRAY = {"$type": "array"}
"""Condition on an array in place of a field: the server compares its elements instead of the field."""


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
        # A document around the field is no document, or is inside an array.
        paths = [".".join(self.steps[:end]) for end in range(1, len(self.steps))]
        conditions = [{path: condition} for path in paths for condition in (_other_than("object"), ARRAY)]
        if self.steps[0] == PAYLOAD:
            conditions.append({PAYLOAD: {"$eq": None}})
        own = [_other_than(*self.kind.types), ARRAY, *self.kind.beside]
        return [*conditions, *({self.path: condition} for condition in own)]


def target_of(column: Sequence[str], schema: StructType, view: str) -> Target:
    """Return the stored field behind a column, or behind a field of a struct; raises ``Unsuited`` if there is none.

    Args:
        column: names that lead to it.
        schema: columns of the table.
        view: name of the view.
    """
    name, *within = column
    type = _within(schema, column)
    kind = OF_COLUMNS.get((name, *within)) or kind_of(type)
    root = ENVELOPE[name].stored_fields if name in ENVELOPE else (PAYLOAD,) if name == PAYLOAD else (PAYLOAD, name)
    steps = (*root, *within)
    if kind is None or name in COMPUTED or (steps == (PAYLOAD,) and kind.types == ("string",)):
        raise Unsuited
    if any(path_in_payload(step) is None for step in steps):
        raise Unsuited
    return Target(steps, kind, len(steps) == 1 and steps[0] in INDEXED | {DATE_FIELDS.get(view, "when")})


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


MAX_CONDITION_BYTES = 1024 * 1024
"""Bytes of one condition, at most; a longer list is left to Spark."""


class FilteringReader(MongoqReader):
    """Reader that passes the filters of the query to the server.

    A separate class, because Spark refuses a reader with ``pushFilters``, with an error on the driver, unless its
    setting ``spark.sql.python.filterPushdown.enabled`` is true.
    """

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Store the filters, and return all of them to Spark: the server excludes fewer items than they do."""
        self._pushed = push_down(filters, self._schema, self._options.view)
        return filters


def push_down(filters: Sequence[datasource.Filter], schema: StructType, view: str) -> ServerFilter:
    """Return the server's part of filters, all of which hold, on these columns of a view."""
    keys: list[Condition] = []
    conditions: list[Condition] = []
    for filter in filters:
        try:
            target, condition = _condition(filter, schema, view)
        except Unsuited:
            continue
        # A longer list is left to Spark, which applies every filter in any case.
        if len(bson.encode(condition, codec_options=codec_options())) <= MAX_CONDITION_BYTES:
            (keys if target.indexed else conditions).append(condition)
    return ServerFilter(tuple(keys), tuple(conditions), any("_id" in condition for condition in keys))


def _condition(filter: datasource.Filter, schema: StructType, view: str) -> tuple[Target, Condition]:
    negated = isinstance(filter, datasource.Not)
    inner: Any = filter.child if isinstance(filter, datasource.Not) else filter
    if type(inner) not in {*PLAIN, *NULLS} or inner.attribute[0] == CORRUPT:
        raise Unsuited
    target = target_of(inner.attribute, schema, view)
    if negated:  # an index does not help it, and an array in place of a number meets no condition
        target = replace(target, indexed=False)
    condition = {target.path: _condition_on(target, inner, negated=negated)}
    return target, condition if target.indexed else {"$or": [condition, *target.conditions_for_spark()]}


def _condition_on(target: Target, filter: Any, *, negated: bool) -> Condition:
    value = getattr(filter, "value", None)
    if value is None and not negated:
        condition = NULLS.get(type(filter))
        # Values that do not fit may become null in Spark: the server cannot tell.
        if condition is None or target.indexed or (condition == IS_NULL and not target.kind.complete):
            raise Unsuited
        return condition
    make = (NEGATED if negated else PLAIN).get(type(filter))
    if make is None:
        raise Unsuited
    return make(target.kind, value)


IS_NULL: Condition = {"$eq": None}
NULLS: dict[type[datasource.Filter], Condition] = {
    datasource.EqualTo: IS_NULL,
    datasource.EqualNullSafe: IS_NULL,
    datasource.IsNull: IS_NULL,
    datasource.IsNotNull: {"$ne": None},
}
Make = Callable[[Kind, Any], Condition]
PLAIN: dict[type[datasource.Filter], Make] = {
    datasource.EqualTo: lambda kind, value: kind.equal(value),
    datasource.EqualNullSafe: lambda kind, value: kind.equal(value),
    datasource.GreaterThan: lambda kind, value: kind.not_below(value),
    datasource.GreaterThanOrEqual: lambda kind, value: kind.not_below(value),
    datasource.LessThan: lambda kind, value: kind.not_above(value),
    datasource.LessThanOrEqual: lambda kind, value: kind.not_above(value),
    datasource.In: lambda kind, values: kind.among(values),
    datasource.StringStartsWith: lambda kind, value: kind.starts(value),
    # Not $, which also matches before a line break at the end.
    datasource.StringEndsWith: lambda kind, value: kind.matching(value, r"\z"),
    datasource.StringContains: lambda kind, value: kind.matching(value),
}
NEGATED: dict[type[datasource.Filter], Make] = {
    datasource.EqualTo: lambda kind, value: kind.unequal(value),
    datasource.EqualNullSafe: lambda kind, value: kind.unequal(value),
    datasource.In: lambda kind, values: kind.not_among(values),
}
"""Negated filters. On the server nulls meet them, in Spark only some nulls do."""
