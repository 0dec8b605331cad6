"""Conversion between columns of payloads and a ``pyarrow.Table``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate, chain, pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
from bson import Decimal128, ObjectId

from mongoq.pipeline.frames.rows import ABSENT, fits_double, kinds_of, moment, plain_values
from mongoq.spark.types.json_text import json_shown

KIND = pa.Table
NESTED = True
"""True: Arrow returns documents and lists as new objects, not as the objects it was given."""

MOMENT = pa.timestamp("us", tz="UTC")
TYPES: Mapping[frozenset[type], pa.DataType] = {
    frozenset(): pa.null(),
    frozenset({bool}): pa.bool_(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({str}): pa.string(),
    frozenset({bytes}): pa.binary(),
}
DIGITS, MORE_DIGITS = 38, 76
"""Decimal digits that Arrow's 128-bit and 256-bit decimals hold."""
Typed = tuple[pa.DataType, list[Any]]


def make_frame(columns: Mapping[str, list[Any]]) -> tuple[Any, Mapping[str, list[Any]]]:
    """Return a table of these columns, and the values that the table returns when the function changes nothing."""
    typed = {
        name: _as_one_type([None if value is ABSENT else value for value in values]) for name, values in columns.items()
    }
    arrays = [pa.array(values, type) for type, values in typed.values()]
    return pa.table(arrays, names=list(typed)), {name: values for name, (_, values) in typed.items()}


def _as_one_type(values: list[Any]) -> Typed:
    """Return the common Arrow type of all values, and the values in it; values of several types become text."""
    kinds = kinds_of(values)
    if kinds in TYPES:
        return TYPES[kinds], values
    there = [value for value in values if value is not None]
    if kinds == {int, float} and fits_double(there):
        return pa.float64(), [None if value is None else float(value) for value in values]
    if kinds == {datetime} and all(value.tzinfo for value in there):
        return MOMENT, values
    if kinds == {Decimal128}:
        numbers = [None if value is None else value.to_decimal() for value in values]
        exact = [number for number in numbers if number is not None]
        if all(number.is_finite() for number in exact):
            # One type for all values: the largest number of digits on each side of the decimal point.
            scale = max(0, *(-number.as_tuple().exponent for number in exact))
            precision = scale + max(1, *(number.adjusted() + 1 for number in exact))
            if precision <= MORE_DIGITS:
                make = pa.decimal128 if precision <= DIGITS else pa.decimal256
                return make(precision, scale), numbers
    if kinds == {list}:
        # One Arrow type for the elements of all lists: convert them as one flat column, and cut that again.
        type_, flat = _as_one_type(list(chain.from_iterable(there)))
        ends = accumulate((len(value or ()) for value in values), initial=0)
        parts = [flat[start:end] for start, end in pairwise(ends)]
        return pa.list_(type_), [None if value is None else part for value, part in zip(values, parts, strict=True)]
    if all(issubclass(kind, Mapping) for kind in kinds):
        fields = dict.fromkeys(chain.from_iterable(there))
        typed = {
            field: _as_one_type([None if value is None else value.get(field) for value in values]) for field in fields
        }
        structs = [
            None if value is None else {field: typed[field][1][place] for field in value}
            for place, value in enumerate(values)
        ]
        return pa.struct([pa.field(field, type) for field, (type, _) in typed.items()]), structs
    return pa.string(), [None if value is None else _text(value) for value in values]


def _text(value: Any) -> str:
    return str(value) if type(value) is str or isinstance(value, ObjectId | UUID | Decimal128) else json_shown(value)


def columns(frame: Any) -> list[tuple[Any, list[Any]]]:
    """Return the columns of a table with their values, as BSON holds them; raises ``ValueError`` for other values."""
    return [(name, _values(frame.column(place))) for place, name in enumerate(frame.column_names)]


def _values(column: Any) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)  # Python's datetime has no nanoseconds
        if column.type.tz is not None:
            return [moment(each) for each in column.cast(pa.int64()).to_pylist()]
    # Without this option a map becomes a list of pairs; "strict" raises for a key that occurs twice.
    maps = {"maps_as_pydicts": "strict"} if _has_maps(column.type) else {}
    return plain_values(column.to_pylist(**maps))


def _has_maps(type: Any) -> bool:
    return pa.types.is_map(type) or any(_has_maps(type.field(place).type) for place in range(type.num_fields))
