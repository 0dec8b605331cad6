"""Filters of Spark as conditions for the server, which exclude fewer items than the filters, never more.

Spark evaluates every filter itself as well. So the server may return items that a filter excludes: all values that it
does not compare as Spark does, for example values of another type than the column's. Such a value then fails, or
becomes null, as it does without pushdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import bson
import pyspark.sql.datasource as spark
from pyspark.sql.types import StructType

from mongoq.model.encoding.codec import codec_options
from mongoq.spark.read.filter_target import Condition, Target, target_of
from mongoq.spark.read.literals import HEX, Unsuited
from mongoq.spark.read.queue_selection import beginning_with
from mongoq.spark.types.envelope_columns import CORRUPT

__all__ = ["ServerFilter", "pushed"]

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


def pushed(filters: Sequence[spark.Filter], schema: StructType, view: str) -> ServerFilter:
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


def _condition(filter: spark.Filter, schema: StructType, view: str) -> tuple[Target, Condition]:
    negated = isinstance(filter, spark.Not)
    inner: Any = filter.child if isinstance(filter, spark.Not) else filter
    make = (NEGATED if negated else PLAIN).get(type(inner))
    if make is None or inner.attribute[0] == CORRUPT:
        raise Unsuited
    target = target_of(inner.attribute, schema, view)
    if negated:  # an index does not help it, and an array in place of a number meets no condition
        target = replace(target, indexed=False)
    if target.steps == ("_id",):
        make = OF_IDS.get(make, make)
    condition = {target.path: make(target, getattr(inner, "value", None))}
    return target, condition if target.indexed else {"$or": [condition, *target.left_to_spark()]}


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
PLAIN: dict[type[spark.Filter], Make] = {
    spark.EqualTo: _equal,
    spark.EqualNullSafe: _equal,
    spark.GreaterThan: _not_below,
    spark.GreaterThanOrEqual: _not_below,
    spark.LessThan: _not_above,
    spark.LessThanOrEqual: _not_above,
    spark.In: _among,
    spark.IsNull: _is_null,
    spark.IsNotNull: _is_not_null,
    spark.StringStartsWith: _starts,
    spark.StringEndsWith: _ends,
    spark.StringContains: _contains,
}
NEGATED: dict[type[spark.Filter], Make] = {
    spark.EqualTo: _unequal,
    spark.EqualNullSafe: _unequal,
    spark.In: _not_among,
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
