"""Options of rows besides their payloads: the queue, the time when an item is due, its priority, key and headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import duration, moment, priority, queue_name
from mongoq.protocol.push.insert import check_key
from mongoq.protocol.push.push import check_headers
from mongoq.spark.types.values import Values, values_of
from mongoq.spark.write.payloads import ENCODING, Refusal, convert_column
from mongoq.spark.write.write_options import WriteOptions

__all__ = ["ORDERS", "Orders", "RowOrder"]

MOST_KNOWN = 10_000

TEXT = (spark.StringType,)
WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
LENGTH = (*WHOLE, spark.FloatType, spark.DoubleType, spark.DecimalType, spark.DayTimeIntervalType)


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Options that several rows share; ``None`` where the row leaves a value to the write's options.

    Attributes:
        said: values of the row, which distinguish this order from others.
        to: queue.
        delay: delay from now.
        when: or time when the item is due.
        priority: priority.
        key: key.
        headers: headers, in the form to send.
    """

    said: tuple[Any, ...]
    to: str | None = None
    delay: timedelta | None = None
    when: datetime | None = None
    priority: int | None = None
    key: str | None = None
    headers: Any = None


def _length(value: Any) -> timedelta:
    return duration(value if isinstance(value, timedelta) else float(value), "_delay")


def _headers(value: str | Sequence[tuple[str, Any]]) -> Any:
    headers = json.loads(value) if isinstance(value, str) else dict(value)
    if not isinstance(headers, dict):
        raise TypeError
    return check_headers(headers, ENCODING)


def _plain(array: pa.Array) -> list[Any]:
    return array.to_pylist()  # type: ignore[no-any-return]


def _pairs(array: pa.Array) -> list[Any]:
    # Sorted and hashable: equal maps share one order, in any sequence of their keys.
    return [each if each is None or isinstance(each, str) else tuple(sorted(each)) for each in array.to_pylist()]


@dataclass(frozen=True, slots=True)
class Kind:
    """A column of orders.

    Attributes:
        field: the field of an order that it sets.
        types: Spark types that it may have.
        called: expected type and value, for error messages.
        parse: converts a value; raises the errors of its checks.
        read: converts the column to values.
    """

    field: str
    types: tuple[type[spark.DataType], ...]
    called: str
    parse: Callable[[Any], Any]
    read: Values = _plain


ORDERS: Mapping[str, Kind] = {
    "_to": Kind("to", TEXT, "a string with the name of a queue: at most 120 bytes, not beginning with '$'", queue_name),
    "_delay": Kind(
        "delay", LENGTH, "seconds as a number, or an interval day to second; from 0 to 36,525 days", _length
    ),
    "_when": Kind(
        "when",
        (spark.TimestampType,),
        "a timestamp",
        partial(moment, argument="_when"),
        values_of(spark.TimestampType()),
    ),
    "_priority": Kind("priority", WHOLE, "an integer from -100 (first) to 100 (last)", priority),
    "_key": Kind("key", TEXT, "a string of 1 to 1,024 bytes", check_key),
    "_headers": Kind(
        "headers",
        (*TEXT, spark.MapType),
        "a map of strings to strings, or a string with a JSON object; at most 16 KiB as BSON",
        _headers,
        _pairs,
    ),
}


class Orders:
    """The columns of a table that set orders.

    Raises:
        ArgumentInvalid: a column has a wrong type.
    """

    def __init__(self, fields: Iterable[spark.StructField], options: WriteOptions) -> None:
        self._names = [
            field.name for field in map(_check_field, fields) if not isinstance(field.dataType, spark.NullType)
        ]
        self._default = RowOrder((), options.to, options.delay, options.when, options.priority)
        self._known: dict[tuple[Any, ...], RowOrder] = {}

    def of(self, batch: pa.RecordBatch) -> list[RowOrder]:
        """Return the order of each row; rows with equal values share one. Raises ``Refusal``."""
        if not self._names:
            return [self._default] * batch.num_rows
        columns = [convert_column(name, ORDERS[name].read, batch) for name in self._names]
        return [self._known.get(said) or self._order(row, said) for row, said in enumerate(zip(*columns, strict=True))]

    def _order(self, row: int, said: tuple[Any, ...]) -> RowOrder:
        given = {}
        for name, value in zip(self._names, said, strict=True):
            if value is not None:
                given[ORDERS[name].field] = _convert_value(row, name, value)
        if "delay" in given and "when" in given:
            raise Refusal(row, "_when", "says when the item is due, and so does '_delay'; leave one of them null")
        if "delay" not in given and "when" not in given:
            given |= {"delay": self._default.delay, "when": self._default.when}
        given = {"to": self._default.to, "priority": self._default.priority, **given}
        # A bound for memory: with a key for each row there are as many orders as rows.
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        order = self._known[said] = RowOrder(said, **given)
        return order


def _convert_value(row: int, name: str, value: Any) -> Any:
    """Return the converted value; an error does not quote it."""
    kind = ORDERS[name]
    try:
        return kind.parse(value)
    except (ArgumentInvalid, TypeError, ValueError, RecursionError):
        raise Refusal(row, name, f"it is to be {kind.called}") from None


def _check_field(field: spark.StructField) -> spark.StructField:
    kind, type = ORDERS[field.name], field.dataType
    if not isinstance(type, (*kind.types, spark.NullType)) or not _is_of_strings(type):
        given = type.simpleString()
        raise ArgumentInvalid("schema", f"column {field.name!r} is to be {kind.called}, not {given}")
    return field


def _is_of_strings(type: spark.DataType) -> bool:
    if not isinstance(type, spark.MapType):
        return True
    return isinstance(type.keyType, spark.StringType) and isinstance(type.valueType, spark.StringType | spark.NullType)
