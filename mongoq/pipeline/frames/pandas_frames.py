"""Conversion between columns of payloads and a ``pandas.DataFrame``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy
import pandas
from bson import Decimal128

from mongoq.pipeline.frames.rows import ABSENT, fits_double, is_missing, kinds_of, moment, plain_values

KIND = pandas.DataFrame
NESTED = False
"""False: pandas returns documents and lists as the very objects it was given."""


def make_frame(columns: Mapping[str, list[Any]]) -> tuple[Any, Mapping[str, list[Any]]]:
    """Return a frame of these columns, and the values that the frame returns when the function changes nothing."""
    frame_values = {name: [None if value is ABSENT else value for value in values] for name, values in columns.items()}
    return pandas.DataFrame({name: _array(values) for name, values in frame_values.items()}), frame_values


def _array(values: list[Any]) -> Any:
    """Return values as an array of a nullable type, even if no value is missing, so that types do not vary by batch."""
    kinds = kinds_of(values)
    # With numpy's own types, one missing value would turn integers into floats and booleans into objects.
    make = ARRAYS.get(kinds)
    if kinds == {int, float} and fits_double(values):
        make = _floats
    if make is None or (kinds == MOMENTS and not all(value is None or value.tzinfo for value in values)):
        objects = [value.to_decimal() if type(value) is Decimal128 else value for value in values]
        return pandas.Series(objects, dtype=object)
    return make(values)


def _make_masked(kind: Callable[..., Any], dtype: str, empty: Any) -> Callable[[list[Any]], Any]:
    def make(values: list[Any]) -> Any:
        mask = list(map(is_missing, values))
        if any(mask):
            values = [empty if missing else value for value, missing in zip(values, mask, strict=True)]
        return kind(numpy.array(values, dtype=dtype), numpy.array(mask, dtype=bool))

    return make


_floats = _make_masked(pandas.arrays.FloatingArray, "float64", 0.0)


def _moments(values: list[Any]) -> Any:
    # numpy has no time zones: convert to UTC first, and set the zone on the series.
    naive = [value and value.astimezone(UTC).replace(tzinfo=None) for value in values]
    return pandas.Series(numpy.array(naive, dtype="datetime64[us]")).dt.tz_localize("UTC")


MOMENTS = frozenset({datetime})
ARRAYS: Mapping[frozenset[type], Callable[[list[Any]], Any]] = {
    frozenset({int}): _make_masked(pandas.arrays.IntegerArray, "int64", 0),
    frozenset({float}): _floats,
    frozenset({bool}): _make_masked(pandas.arrays.BooleanArray, "bool", False),
    frozenset({str}): lambda values: pandas.array(values, dtype="string"),
    MOMENTS: _moments,
}


def columns(frame: Any) -> list[tuple[Any, list[Any]]]:
    """Return the columns of a frame with their values, as BSON holds them."""
    return [(name, _values(frame.iloc[:, place])) for place, name in enumerate(frame.columns)]


def _values(series: Any) -> list[Any]:
    if isinstance(series.dtype, pandas.DatetimeTZDtype):
        # By integers of microseconds: ``moment`` also handles times outside Python's years.
        micros = series.dt.tz_convert("UTC").dt.as_unit("us").astype("int64").tolist()
        missing = series.isna().tolist()
        return [None if gone else moment(each) for each, gone in zip(micros, missing, strict=True)]
    values = plain_values(series.tolist())
    # Only a float can be NaN, which pandas writes for a missing value.
    return [None if is_missing(value) else value for value in values] if float in map(type, values) else values
