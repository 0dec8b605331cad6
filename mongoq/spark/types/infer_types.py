"""What was seen in one field of a sample, and the Spark type that holds all of it exactly."""

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
"""Fields of a document: with more of them their names are data."""

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
    """The values of one field; in which order they come makes no difference but to the order of nested fields.

    Attributes:
        kinds: what they are; nulls are nothing.
        beyond_double: whether one is an integer that a double does not hold exactly.
        whole: the most digits before the decimal point, of integers and decimals.
        scale: the most digits behind it.
        fields: of documents, what was seen in each field.
        element: of arrays, what was seen in them.
    """

    kinds: set[str] = field(default_factory=set)
    beyond_double: bool = False
    whole: int = 0
    scale: int = 0
    fields: dict[str, ObservedValues] = field(default_factory=dict)
    element: ObservedValues | None = None

    def add(self, value: Any) -> None:
        """See one more value."""
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
        """Return a field of the type that holds all: JSON where values have none in common, or there are none."""
        type = self.type()
        return StructField(name, StringType(), metadata=dict(JSON_MARK)) if type is None else StructField(name, type)

    def type(self) -> DataType | None:
        """Return the type that holds all exactly, if there is one."""
        if len(self.kinds) == 1:
            [kind] = self.kinds
            return ALONE[kind] if kind in ALONE else self._composed(kind)
        if self.kinds == {"integer", "double"}:
            return None if self.beyond_double else DoubleType()
        if self.kinds == {"integer", "decimal"}:
            return self._decimals()
        return StringType() if self.kinds == {"text", "decimal"} else None

    def _composed(self, kind: str) -> DataType | None:
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
    "integer": ObservedValues._integer,  # a table of its own methods
    "decimal": ObservedValues._decimal,
    "document": ObservedValues._document,
    "array": ObservedValues._array,
}


def alike(names: list[str]) -> set[str]:
    """Return the names that differ from another in case only: Spark does not tell them apart."""
    count: dict[str, int] = {}
    for name in names:
        count[name.lower()] = count.get(name.lower(), 0) + 1
    return {name for name in names if count[name.lower()] > 1}
