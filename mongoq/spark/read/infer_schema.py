"""Inferred schema of a table that has no schema: the types that hold all values of a sample exactly."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyspark.sql.types as spark
from bson import Decimal128, ObjectId
from pyspark.sql.types import DataType, StringType, StructField, StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.views import items_of, view_of
from mongoq.spark.scan import Scan
from mongoq.spark.types.column import NO_PAYLOAD, only, path_in_payload
from mongoq.spark.types.convert import JSON_MARK, PERMISSIVE, too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, default_schema, envelope_schema

RESERVED = {name.lower() for name in (*ENVELOPE, PAYLOAD, CORRUPT, "")}


def infer_schema(scan: Scan, options: ReadOptions) -> StructType:
    """Return the envelope's columns, and a column for each field that the payloads of a sample have.

    A field goes into the column ``payload``, a struct, if its name is that of another column, or differs from another
    field's name only in case. If a payload is no document, ``payload`` holds each payload as JSON.

    Raises:
        ArgumentInvalid: the payloads have more fields than a table should have columns, or nest deeper than a column
            can; or the option ``fields`` is given and a payload has no fields.
    """
    observed = ObservedValues()
    for payload in _payloads(scan, options):
        observed.add("no document" if payload is NO_PAYLOAD or payload is None else payload)
    if len(observed.fields) > MAX_FIELDS:
        raise ArgumentInvalid(
            "inferSchema", f"the payloads have more than {MAX_FIELDS:,} different fields; give a schema, or fields"
        )
    if observed.kinds == {"document"} and observed.fields:
        schema = _of_documents(observed)
    elif options.fields and observed.kinds not in (set(), {"document"}):
        raise ArgumentInvalid("fields", "an item's payload is no document, and has no fields; leave out this option")
    else:
        schema = default_schema()
    for column in schema.fields:
        if problem := too_deep(column.name, column.dataType):
            hint = f"give a schema in which it, or {column.name!r}, is a string, which holds it as JSON"
            raise ArgumentInvalid("inferSchema", f"field {problem}; {hint}")
    return schema.add(CORRUPT, StringType()) if options.mode == PERMISSIVE else schema


def _of_documents(observed: ObservedValues) -> StructType:
    names = list(observed.fields)
    doubles = alike(names)
    schema, other_values = envelope_schema(), ObservedValues()
    for name in names:
        if name.lower() in RESERVED or name in doubles:
            other_values.kinds.add("document")
            other_values.fields[name] = observed.fields[name]
        else:
            schema.add(observed.fields[name].column(name))
    if other_values.kinds:
        schema.add(PAYLOAD, other_values.type() or StringType())
    return schema


def _payloads(scan: Scan, options: ReadOptions) -> Iterator[Any]:
    """Yield the payloads of a sample: the first and the last items of each queue, in the order of its index.

    So the cost is that of the sample, each call has the same result, and old as well as new items are in it.
    """
    view = view_of(options.view, options.queues, options.period, scan.now())
    named = options.queues.names_of(dead=options.view == "dead") or items_of(scan, view.branches[0].queues)
    # With too many queues for the sample, some queues with two items each, evenly spread, instead of one item of each.
    most = max(1, (options.sample or 0) // 2)
    queues = named if len(named) <= most else [named[place * len(named) // most] for place in range(most)]
    rows = max(2, (options.sample or 0) // max(1, len(queues) * len(view.branches)))
    # Both ends of each index: old and new items may have different fields.
    for branch in view.branches:
        for queue in queues:
            filter = branch.documents() | {"q": queue}
            for document in scan.ends(filter, _projection(options.fields), branch.index.keys, rows=rows):
                payload = document.get(PAYLOAD, NO_PAYLOAD)
                yield only(options.fields, payload) if options.fields else payload


def _projection(fields: tuple[str, ...]) -> dict[str, int]:
    paths = {path_in_payload(name) or PAYLOAD for name in fields or ("",)}
    return dict.fromkeys({PAYLOAD} if PAYLOAD in paths else paths, 1)


def alike(names: list[str]) -> set[str]:
    """Return the names that differ from another name only in case: Spark treats them as equal."""
    count = Counter(name.lower() for name in names)
    return {name for name in names if count[name.lower()] > 1}


DIGITS = 38
MAX_FIELDS = 1_000
"""Fields of a document, at most: with more fields, their names are data."""

KINDS: tuple[tuple[type, str, DataType | None], ...] = (
    (bool, "boolean", spark.BooleanType()),
    (int, "integer", spark.LongType()),
    (float, "double", spark.DoubleType()),
    (str, "text", StringType()),
    (ObjectId, "text", StringType()),
    (uuid.UUID, "text", StringType()),
    (datetime, "date", spark.TimestampType()),
    (Decimal128, "decimal", None),
    (bytes, "binary", spark.BinaryType()),
    (dict, "document", None),
    (list, "array", None),
)
"""Kinds of values, and the Spark type of each; ``None``: it depends on the values."""
ALONE = {kind: type for _, kind, type in KINDS if type is not None}


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
        kind = next((kind for type, kind, _ in KINDS if isinstance(value, type)), "other")
        self.kinds.add(kind)
        match kind:
            case "integer":
                self.beyond_double |= int(float(value)) != value
                self.whole = max(self.whole, len(str(abs(value))))
            case "decimal":
                self._add_decimal(value)
            case "document":
                for name, part in value.items():
                    self.fields.setdefault(name, ObservedValues()).add(part)
            case "array":
                self.element = self.element or ObservedValues()
                for part in value:
                    self.element.add(part)

    def _add_decimal(self, value: Decimal128) -> None:
        number = value.to_decimal()
        if not number.is_finite():
            # NaN and infinities have no decimal in Spark, but a text.
            self.kinds.add("text")
        elif number:
            _, digits, exponent = number.as_tuple()
            self.whole = max(self.whole, len(digits) + int(exponent))
            self.scale = max(self.scale, -int(exponent))

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
            return None if self.beyond_double else spark.DoubleType()
        if self.kinds == {"integer", "decimal"}:
            return self._decimals()
        return StringType() if self.kinds == {"text", "decimal"} else None

    def _compose_type(self, kind: str) -> DataType | None:
        if kind == "decimal":
            return self._decimals() or StringType()
        if kind == "array" and self.element is not None:
            element = self.element.type()
            return None if element is None else spark.ArrayType(element)
        if kind == "document" and 0 < len(self.fields) <= MAX_FIELDS and "" not in self.fields:
            names = list(self.fields)
            return None if alike(names) else StructType([self.fields[name].column(name) for name in names])
        return None

    def _decimals(self) -> spark.DecimalType | None:
        return spark.DecimalType(DIGITS, self.scale) if self.whole + self.scale <= DIGITS else None
