"""Roles of the columns of a table that is written: payload, orders, fences, ids, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
from pyspark.sql.types import BinaryType, NullType, StringType, StructField, StructType

from mongoq.data.arguments import duration, moment, priority, queue_name
from mongoq.data.push_options import check_headers, check_key
from mongoq.data.sequence import check_sequence
from mongoq.errors import ArgumentInvalid
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, RAW
from mongoq.spark.types.values import INTEGERS, Values, values_of
from mongoq.spark.write.payloads import (
    ENCODING,
    Payloads,
    Refusal,
    convert_column,
    wrap_documents,
    wrap_json,
    wrap_raw,
    wrap_values,
)
from mongoq.spark.write.row_ids import canonical_of
from mongoq.spark.write.write_options import WriteOptions

ID, TOKEN, QUEUE = "_id", "_token", "_q"
CARRIED_BY_READERS = ("_when", "_key")
"""Columns with values of the item that was read, which the new item only takes over with ``carry``."""
MAX_CACHED_ORDERS = 10_000

TEXT, MOMENT = (spark.StringType,), (spark.TimestampType,)
DURATION_TYPES = (*INTEGERS, spark.FloatType, spark.DoubleType, spark.DecimalType, spark.DayTimeIntervalType)


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Options that several rows share; ``None`` where the row leaves a value to the write's options.

    Attributes:
        row_values: values of the row, which distinguish this order from others.
        to: queue.
        delay: delay from now.
        when: or time when the item is due.
        priority: priority.
        key: key.
        headers: headers, in the form to send.
        sequence: sequence that the item enters; rows of a sequence are written in the order of their partition.
        expires: time by which the item must be started, or how long it may wait for that.
    """

    row_values: tuple[Any, ...]
    to: str | None = None
    delay: timedelta | None = None
    when: datetime | None = None
    priority: int | None = None
    key: str | None = None
    headers: Any = None
    sequence: str | None = None
    expires: timedelta | datetime | None = None


def _length(value: Any) -> timedelta:
    return duration(value if isinstance(value, timedelta) else float(value), "_delay")


def _headers(value: str | Sequence[tuple[str, Any]]) -> Any:
    headers = json.loads(value) if isinstance(value, str) else dict(value)
    if not isinstance(headers, dict):
        raise TypeError
    return check_headers(headers, ENCODING)


_plain = values_of(spark.StringType())


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
        "delay", DURATION_TYPES, "seconds as a number, or an interval day to second; from 0 to 36,525 days", _length
    ),
    "_when": Kind("when", MOMENT, "a timestamp", partial(moment, argument="_when"), values_of(spark.TimestampType())),
    "_priority": Kind("priority", INTEGERS, "an integer from -100 (first) to 100 (last)", priority),
    "_key": Kind("key", TEXT, "a string of 1 to 1,024 bytes", check_key),
    "_sequence": Kind("sequence", TEXT, "a string of 1 to 1,024 bytes", partial(check_sequence, argument="_sequence")),
    "_start_by": Kind(
        "expires", MOMENT, "a timestamp", partial(moment, argument="_start_by"), values_of(spark.TimestampType())
    ),
    "_headers": Kind(
        "headers",
        (*TEXT, spark.MapType),
        "a map of strings to strings, or a string with a JSON object; at most 16 KiB as BSON",
        _headers,
        _pairs,
    ),
}


KNOWN_COLUMNS = frozenset({*ENVELOPE, *ORDERS, CORRUPT})


class Orders:
    """The columns of a table that set orders.

    Raises:
        ArgumentInvalid: a column has a wrong type.
    """

    def __init__(self, fields: Iterable[spark.StructField], options: WriteOptions) -> None:
        checked = map(_check_field, fields)
        self._names = [field.name for field in checked if not isinstance(field.dataType, spark.NullType)]
        self._default = RowOrder((), options.to, options.delay, options.when, options.priority, expires=options.expires)
        self._known: dict[tuple[Any, ...], RowOrder] = {}

    def of(self, batch: pa.RecordBatch) -> list[RowOrder]:
        """Return the order of each row; rows with equal values share one. Raises ``Refusal``."""
        if not self._names:
            return [self._default] * batch.num_rows
        columns = [convert_column(name, ORDERS[name].read, batch) for name in self._names]
        return [
            self._known.get(values) or self._order(row, values) for row, values in enumerate(zip(*columns, strict=True))
        ]

    def _order(self, row: int, values: tuple[Any, ...]) -> RowOrder:
        options = {}
        for name, value in zip(self._names, values, strict=True):
            if value is not None:
                options[ORDERS[name].field] = _convert_value(row, name, value)
        if "delay" in options and "when" in options:
            raise Refusal(row, "_when", "says when the item is due, and so does '_delay'; leave one of them null")
        if "key" in options and "sequence" in options:
            raise Refusal(
                row, "_sequence", "an item in a sequence has no key, and there is a '_key'; leave one of them null"
            )
        if "delay" not in options and "when" not in options:
            options |= {"delay": self._default.delay, "when": self._default.when}
        default = self._default
        options = {"to": default.to, "priority": default.priority, "expires": default.expires, **options}
        if not _can_start(options.get("delay"), options.get("when"), options["expires"]):
            name = "_start_by" if "_start_by" in self._names else "_delay"
            raise Refusal(row, name, "the item is due only after the time by which it must start; give a later time")
        # A bound for memory: with a key for each row there are as many orders as rows.
        if len(self._known) >= MAX_CACHED_ORDERS:
            self._known.clear()
        order = self._known[values] = RowOrder(values, **options)
        return order


def _can_start(delay: timedelta | None, when: datetime | None, expires: timedelta | datetime | None) -> bool:
    """Return whether an item is due before it must be started, as far as that can be told without a clock."""
    if isinstance(expires, datetime):
        return when is None or when < expires
    return expires is None or not delay or delay < expires


def _convert_value(row: int, name: str, value: Any) -> Any:
    """Return the converted value; an error does not quote it."""
    kind = ORDERS[name]
    try:
        return kind.parse(value)
    except (ArgumentInvalid, TypeError, ValueError, RecursionError):
        raise Refusal(row, name, f"it is to be {kind.called}") from None


def _check_field(field: spark.StructField) -> spark.StructField:
    kind, type = ORDERS[field.name], field.dataType
    fits = isinstance(type, (*kind.types, spark.NullType))
    if isinstance(type, spark.MapType):
        texts = spark.StringType | spark.NullType
        fits = fits and isinstance(type.keyType, spark.StringType) and isinstance(type.valueType, texts)
    if not fits:
        raise ArgumentInvalid("schema", f"column {field.name!r} is to be {kind.called}, not {type.simpleString()}")
    return field


class ColumnRoles:
    """Role of each column, checked before a task starts.

    Attributes:
        payloads: converter of payloads; ``None`` where no column belongs to payloads.
        orders: converter of the columns with options of pushes and moves.
        fenced: True if rows may hold a reservation: there is a ``_token``, and an ``_id``.
        id_values: converter of ``idColumn`` to the bytes that ids are made of.

    Raises:
        ArgumentInvalid: a column cannot be written, or is unknown, missing, or of the wrong type.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._fields = _by_name(schema)
        self._options = options
        self._named = set(options.fields or ())
        envelope = [name for name in self._fields if name in KNOWN_COLUMNS and name not in self._named]
        self._refuse_unknown(envelope)
        self.fenced = options.settle is not False and {ID, TOKEN} <= set(envelope)
        if options.settle and TOKEN in envelope and not self.fenced:
            raise ArgumentInvalid("schema", f"column {TOKEN!r} settles nothing without {ID!r}; add it, or drop both")
        for name in (ID, TOKEN) if self.fenced else ():
            _check_type(self._fields[name], StringType())
        self.payloads = self._payloads(envelope)
        self.orders = Orders(self._ordering(envelope), options)
        self.id_values = self._id_values()
        if self.payloads is None and not self.fenced:
            raise ArgumentInvalid("schema", "no column makes the payload; add a column 'payload', or others, or fields")
        if options.to is None and "_to" not in envelope and not self.fenced:
            raise ArgumentInvalid("to", "this option is missing: the queue to push to; or add a column '_to'")

    def _refuse_unknown(self, envelope: Iterable[str]) -> None:
        mine = {*envelope, *self._named, self._options.id_column}
        # A misspelled control column would silently be left out.
        unknown = [name for name in self._fields if name.startswith("_") and name not in mine]
        if unknown:
            columns = ", ".join(sorted(KNOWN_COLUMNS))
            problem = f"no columns of the envelope: {', '.join(map(repr, unknown))}; it has {columns}"
            raise ArgumentInvalid("schema", f"{problem}; name payload columns in fields")

    def _payloads(self, envelope: list[str]) -> Payloads | None:
        if self._options.fields is not None:
            return wrap_documents([self._field(name, "fields") for name in self._options.fields])
        payload_fields = [name for name in self._fields if name not in envelope and not name.startswith("_")]
        whole = [name for name in (RAW, PAYLOAD) if name in self._fields]
        if whole and len({*whole, *payload_fields}) > 1:
            problem = f"columns {', '.join(map(repr, dict.fromkeys([*whole, *payload_fields])))} make several payloads"
            raise ArgumentInvalid("schema", f"{problem}; drop some, or name those that make one in fields")
        if not whole:
            return wrap_documents([self._fields[name] for name in payload_fields]) if payload_fields else None
        field = self._fields[whole[0]]
        if field.name == RAW:
            _check_type(field, BinaryType())
            return wrap_raw(RAW)
        return wrap_json(PAYLOAD) if isinstance(field.dataType, StringType) else wrap_values(field)

    def _ordering(self, envelope: list[str]) -> list[StructField]:
        """Return the columns of orders; a table that was read keeps some of them only with ``carry``."""
        was_read = self.fenced or QUEUE in envelope
        ignored = {name for name in CARRIED_BY_READERS if was_read and name[1:] not in self._options.carry}
        return [self._fields[name] for name in envelope if name in ORDERS and name not in ignored]

    def _id_values(self) -> Values | None:
        if self._options.id_column is None:
            return None
        field = self._field(self._options.id_column, "idColumn")
        try:
            return canonical_of(field.dataType)
        except TypeError as error:
            raise ArgumentInvalid("idColumn", f"column {field.name!r}: {error}") from None

    def _field(self, name: str, option: str) -> StructField:
        if name not in self._fields:
            raise ArgumentInvalid(option, f"there is no column {name!r}; there are {', '.join(self._fields)}")
        return self._fields[name]


def _by_name(schema: StructType) -> dict[str, StructField]:
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise ArgumentInvalid("schema", f"column {name!r} is there {names.count(name)} times; rename or drop it")
    return {field.name: field for field in schema.fields}


def _check_type(field: StructField, type: StringType | BinaryType) -> None:
    if not isinstance(field.dataType, (type.__class__, NullType)):
        type_name = field.dataType.simpleString()
        raise ArgumentInvalid("schema", f"column {field.name!r} is to be a {type.simpleString()}, not {type_name}")
