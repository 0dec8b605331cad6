"""Values observed in one field of a sample, and the Spark type that holds all of them exactly."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import Decimal128, ObjectId
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mongoq.spark.types.convert import JSON_MARK

__all__ = ["MOST_FIELDS", "ObservedValues", "alike"]

DIGITS = 38
MOST_FIELDS = 1_000
"""Fields of a document, at most: with more fields, their names are data."""

KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "double"),
    (str, "text"),
    (ObjectId, "text"),
    (uuid.UUID, "text"),
    (datetime, "date"),
    (Decimal128, "decimal"),
    (bytes, "binary"),
    (dict, "document"),
    (list, "array"),
)
ALONE: dict[str, DataType] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "double": DoubleType(),
    "text": StringType(),
    "date": TimestampType(),
    "binary": BinaryType(),
}


@dataclass(slots=True)
class ObservedValues:
    """Values of one field; their order only matters for the order of nested fields.

    Attributes:
        kinds: kinds of the values; nulls have none.
        beyond_double: True if an integer is not exactly representable as a double.
        whole: largest number of digits before the decimal point, of integers and decimals.
        scale: largest number of digits after it.
        fields: of documents, the values of each field.
        element: of arrays, the values of their elements.
    """

    kinds: set[str] = field(default_factory=set)
    beyond_double: bool = False
    whole: int = 0
    scale: int = 0
    fields: dict[str, ObservedValues] = field(default_factory=dict)
    element: ObservedValues | None = None

    def add(self, value: Any) -> None:
        """Add a value."""
        if value is None:
            return
        kind = next((kind for type, kind in KINDS if isinstance(value, type)), "other")
        self.kinds.add(kind)
        if look := LOOKS.get(kind):
            look(self, value)

    def _integer(self, value: int) -> None:
        self.beyond_double |= int(float(value)) != value
        self.whole = max(self.whole, len(str(abs(value))))

    def _decimal(self, value: Decimal128) -> None:
        number = value.to_decimal()
        if not number.is_finite():
            # NaN and infinities have no decimal in Spark, but a text.
            self.kinds.add("text")
        elif number:
            _, digits, exponent = number.as_tuple()
            self.whole = max(self.whole, len(digits) + int(exponent))
            self.scale = max(self.scale, -int(exponent))

    def _document(self, value: dict[str, Any]) -> None:
        for name, part in value.items():
            self.fields.setdefault(name, ObservedValues()).add(part)

    def _array(self, value: list[Any]) -> None:
        self.element = self.element or ObservedValues()
        for part in value:
            self.element.add(part)

    def column(self, name: str) -> StructField:
        """Return a field of the type that holds all values: JSON if they have no common type, or none exist."""
        type = self.type()
        return StructField(name, StringType(), metadata=dict(JSON_MARK)) if type is None else StructField(name, type)

    def type(self) -> DataType | None:
        """Return the type that holds all values exactly, or ``None``."""
        if len(self.kinds) == 1:
            [kind] = self.kinds
            return ALONE[kind] if kind in ALONE else self._compose_type(kind)
        if self.kinds == {"integer", "double"}:
            return None if self.beyond_double else DoubleType()
        if self.kinds == {"integer", "decimal"}:
            return self._decimals()
        return StringType() if self.kinds == {"text", "decimal"} else None

    def _compose_type(self, kind: str) -> DataType | None:
        if kind == "decimal":
            return self._decimals() or StringType()
        if kind == "array" and self.element is not None:
            element = self.element.type()
            return None if element is None else ArrayType(element)
        if kind == "document" and 0 < len(self.fields) <= MOST_FIELDS and "" not in self.fields:
            names = list(self.fields)
            return None if alike(names) else StructType([self.fields[name].column(name) for name in names])
        return None

    def _decimals(self) -> DecimalType | None:
        return DecimalType(DIGITS, self.scale) if self.whole + self.scale <= DIGITS else None


LOOKS: dict[str, Callable[[ObservedValues, Any], None]] = {
    "integer": ObservedValues._integer,  # methods of this class itself
    "decimal": ObservedValues._decimal,
    "document": ObservedValues._document,
    "array": ObservedValues._array,
}


def alike(names: list[str]) -> set[str]:
    """Return the names that differ from another name only in case: Spark treats them as equal."""
    count: dict[str, int] = {}
    for name in names:
        count[name.lower()] = count.get(name.lower(), 0) + 1
    return {name for name in names if count[name.lower()] > 1}
