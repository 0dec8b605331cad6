"""One column of a table: the stored field that it needs, and the conversion of values to an Arrow array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from struct import Struct
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
from bson import Decimal128, Int64

from mongoq.errors import ArgumentInvalid
from mongoq.spark.errors import ColumnMismatch
from mongoq.spark.types.convert import FAIL, PERMISSIVE, ConversionError, as_json, converter, is_json, too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, Document

# Decimals are read by their bits: decimal.Decimal takes several times as long for each value.
HALVES = Struct("<QQ")
"""The 128 bits, from the lowest: 113 of the coefficient, 14 of the exponent, and the sign."""
EXPONENT_PLACE, EXPONENT_MASK, EXPONENT_BIAS = 49, 0x3FFF, 6176
HIGH_MASK = (1 << EXPONENT_PLACE) - 1
MAX_COEFFICIENT = 10**34 - 1
SPECIAL_BITS = 3
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
    if high >> 61 & SPECIAL_BITS == SPECIAL_BITS or coefficient > MAX_COEFFICIENT or not -len(TENS) < shift < len(TENS):
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
INTEGERS = frozenset({int, Int64, NONE})
NONE_TYPES = frozenset({NONE})
SIMPLE: dict[type[spark.DataType], tuple[pa.DataType, frozenset[type]]] = {
    spark.StringType: (pa.string(), frozenset({str, NONE})),
    spark.BooleanType: (pa.bool_(), frozenset({bool, NONE})),
    spark.ByteType: (pa.int8(), INTEGERS),
    spark.ShortType: (pa.int16(), INTEGERS),
    spark.IntegerType: (pa.int32(), INTEGERS),
    spark.LongType: (pa.int64(), INTEGERS),
    spark.FloatType: (pa.float32(), NONE_TYPES),
    spark.DoubleType: (pa.float64(), frozenset({float, NONE})),
    spark.DateType: (pa.date32(), NONE_TYPES),
    spark.TimestampType: (pa.timestamp("us", tz="UTC"), frozenset({datetime, NONE})),
    spark.TimestampNTZType: (pa.timestamp("us"), NONE_TYPES),
    spark.BinaryType: (pa.binary(), frozenset({bytes, NONE})),
}
"""Arrow types, and the Python types that Arrow converts by itself, with range checks; it reads naive times as UTC."""


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
    if type.__class__ in SIMPLE:
        return SIMPLE[type.__class__][0]
    raise TypeError(f"type {type.simpleString()} cannot be read; ask for a string")


def arrow_field(field: spark.StructField) -> pa.Field:
    """Return the Arrow field of a Spark field."""
    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)


def as_it_is(values: list[Any], field: spark.StructField, arrow: pa.DataType) -> pa.Array | None:
    """Return the values as an array if Arrow can take them unconverted, else ``None``.

    Checking the set of their types is much faster than checking each value.
    """
    # Classes, not isinstance: a subclass such as a Code or a Binary needs conversion.
    types = {each.__class__ for each in values}
    if not field.nullable and NONE in types:
        return None
    if isinstance(field.dataType, spark.DecimalType):
        return decimal_array(values, field.dataType) if types <= {Decimal128, NONE} else None
    _, plain = SIMPLE.get(field.dataType.__class__, (None, NONE_TYPES))
    if not types <= plain:
        return None
    try:
        return pa.array(values, arrow)
    except (pa.ArrowInvalid, OverflowError):
        return None


class ParseMode:
    """Documents of one batch that do not fit.

    Attributes:
        places: their positions in the batch; grows with ``meet``, and with values that the mode makes null.
    """

    def __init__(self, mode: str, documents: Sequence[Document]) -> None:
        self.places: set[int] = set()
        self._mode = mode
        self._documents = documents

    def meet(self, place: int, column: str, misfit: ConversionError, *, nullable: bool) -> None:
        """Record a document, or raise ``ColumnMismatch`` if the mode or the column requires a value."""
        if self._mode == FAIL or (self._mode == PERMISSIVE and not nullable):
            raise ColumnMismatch(
                self._documents[place]["_id"], column + misfit.path, misfit.type, misfit.problem
            ) from None
        self.places.add(place)


NO_PAYLOAD = object()
"""Stands for the payload of a document that has none; ``None`` is a payload."""


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Documents of one batch, prepared for its columns.

    Attributes:
        documents: the documents.
        payloads: their payloads.
        fields: their payloads for columns of fields: a payload that is no document is empty here.
        now: time at which states are computed.
    """

    documents: Sequence[Document]
    payloads: Sequence[Any]
    fields: Sequence[Document]
    now: datetime


def path_in_payload(name: str) -> str | None:
    """Return the path of a payload's field, or ``None`` if a path cannot name it: for dots, a leading ``$`` and NUL."""
    return None if not name or name.startswith("$") or set(name) & set(".\0") else f"{PAYLOAD}.{name}"


def only(fields: Sequence[str], payload: Any) -> Any:
    """Return some fields of a payload, in its own order; a payload that is no document is returned as it is."""
    if not isinstance(payload, dict) or payload.keys() <= set(fields):
        return payload
    return {name: value for name, value in payload.items() if name in fields}


class Column:
    """One column of the table. Its name selects the values: the envelope, the payload, or a field of the payload.

    Raises:
        ArgumentInvalid: the column has an unsupported type.
    """

    def __init__(self, field: spark.StructField, mode: str) -> None:
        self.name = field.name
        self.field = field
        self._envelope = ENVELOPE.get(field.name)
        self.is_corrupt = field.name == CORRUPT
        self.is_payload = field.name == PAYLOAD
        self.of_payload = self._envelope is None and not self.is_corrupt and not self.is_payload
        self._check()
        self._is_text = self.is_payload and isinstance(field.dataType, spark.StringType)
        self._plain = not self._is_text and not is_json(field)
        self._forgiven: list[ConversionError] | None = [] if mode == PERMISSIVE else None
        try:
            self._convert = self._payload_text if self._is_text else converter(field, self._forgiven)
            self.arrow = arrow_type(field.dataType)
        except TypeError as error:
            raise ArgumentInvalid("schema", f"column {field.name!r}: {error}") from None

    def _check(self) -> None:
        if problem := too_deep(self.name, self.field.dataType):
            raise ArgumentInvalid("schema", f"field {problem}; make it a string, which holds it as JSON")
        type_name = self.field.dataType.simpleString()
        if self._envelope is not None and self._envelope.type.simpleString() != type_name:
            problem = f"column {self.name!r} of the envelope is {self._envelope.type.simpleString()}, not {type_name}"
            raise ArgumentInvalid("schema", problem)
        if self.is_corrupt and (type_name != "string" or not self.field.nullable):
            null = "" if self.field.nullable else " NOT NULL"
            raise ArgumentInvalid("schema", f"column {CORRUPT!r} holds payloads as JSON: string, not {type_name}{null}")

    @property
    def stored(self) -> tuple[str, ...]:
        """Stored fields that the column needs."""
        if self._envelope is not None:
            return self._envelope.stored_fields
        return (path_in_payload(self.name) or PAYLOAD if self.of_payload else PAYLOAD,)

    def array(self, batch: DocumentBatch, misfits: ParseMode) -> pa.Array:
        """Return the column of these documents; a value that does not fit becomes null and is noted, or raises."""
        values = self._values(batch)
        # Fast path; a value that Arrow refuses is converted one by one, for an error that names it.
        array = as_it_is(values, self.field, self.arrow) if self._plain else None
        return pa.array(self._convert_values(values, misfits), self.arrow) if array is None else array

    def _values(self, batch: DocumentBatch) -> list[Any]:
        if self.of_payload:
            name = self.name
            return [payload.get(name) for payload in batch.fields]
        if self._envelope is not None:
            return self._envelope.take(batch.documents, batch.now)
        if self._is_text:
            return list(batch.payloads)
        return [None if payload is NO_PAYLOAD else payload for payload in batch.payloads]

    def _convert_values(self, values: list[Any], misfits: ParseMode) -> list[Any]:
        converted = []
        for place, value in enumerate(values):
            try:
                converted.append(self._convert(value))
            except ConversionError as misfit:
                misfits.meet(place, self.name, misfit, nullable=self.field.nullable)
                converted.append(None)
            if self._forgiven:
                # The list is shared by all values of the column: empty it for the next one.
                self._forgiven.clear()
                misfits.places.add(place)
        return converted

    def _payload_text(self, value: Any) -> str | None:
        if value is not NO_PAYLOAD:
            return as_json(value)
        if self.field.nullable:
            return None
        raise ConversionError(self.field.dataType, "a null or missing value, being NOT NULL")
