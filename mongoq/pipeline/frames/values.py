"""Values of frames as BSON holds them, and the item's original values where the frame returned them unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, DecimalException
from math import isnan
from typing import Any, Final
from uuid import UUID

from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from mongoq.model.encoding.typed import NESTING_LIMIT

ABSENT: Final = object()
"""Stands for a field that an item does not have; a null is a value of its own."""
NONE_TYPE = type(None)
NUMBER_TYPES = frozenset({int, float, Int64})
PLAIN_TYPES = frozenset({str, int, float, bool, bytes, NONE_TYPE, datetime, Int64, ObjectId, Decimal128, UUID})
"""Types that BSON holds as they are; compared by identity, so subclasses are not included."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_document(payload: Any) -> bool:
    """Return whether a payload has fields."""
    return type(payload) is dict or isinstance(payload, Mapping)  # isinstance with an abstract class is slow


def is_missing(value: Any) -> bool:
    """Return whether a frame shows a value as missing; pandas shows null, NaN and an absent field alike."""
    return value is None or value is ABSENT or (type(value) is float and isnan(value))


def moment(micros: int | None) -> datetime | DatetimeMS | None:
    """Return the time that is ``micros`` microseconds after 1970."""
    if micros is None:
        return None
    try:
        return EPOCH + timedelta(0, 0, micros)
    except OverflowError:  # outside Python's years, but BSON holds it
        return DatetimeMS(micros // 1_000)


def plain_values(values: list[Any]) -> list[Any]:
    """Return the values of a column as BSON holds them."""
    return values if PLAIN_TYPES.issuperset(map(type, values)) else [plain(value) for value in values]


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value as BSON holds it; a value that BSON cannot hold stays, and the codec refuses it with its path."""
    kind = type(value)
    # Deeper values are left to the codec, which refuses them with their path.
    if kind in PLAIN_TYPES or depth > NESTING_LIMIT:
        return value
    # By the name of the package, so that neither pandas nor numpy is imported here.
    library = kind.__module__.partition(".")[0]
    if library == "pandas":
        return _of_pandas(value, kind.__name__)
    if library == "numpy":
        return _of_numpy(value, depth)
    return _of_python(value, depth)


def _of_python(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {key: plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, depth + 1) for part in value]
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, time) or (isinstance(value, date) and not isinstance(value, datetime)):
        return value.isoformat()
    return value


def _decimal(value: Decimal) -> Any:
    try:
        return Decimal128(value)
    except DecimalException:  # more than 34 digits: the codec refuses it
        return value


def _of_pandas(value: Any, name: str) -> Any:
    if name in ("NAType", "NaTType"):
        return None
    return value.to_pydatetime(warn=False) if name == "Timestamp" else value


def _of_numpy(value: Any, depth: int) -> Any:
    if not hasattr(value, "dtype"):
        return value
    if value.dtype.kind in "mM":
        value = value.astype(f"{value.dtype.name.partition('64')[0]}64[us]")  # Python's datetime has no nanoseconds
    listed = value.tolist()
    return listed if type(listed) is type(value) else plain(listed, depth + 1)


def restore_value(value: Any, shown: Any, original: Any, *, nested: bool) -> Any:
    """Return the item's original value where a frame returned it unchanged, else the new value.

    A number that is equal is unchanged, whatever its type. ``nested`` compares inside documents and lists, which Arrow
    returns as new objects; pandas returns the objects that it was given.
    """
    if value is None:
        return original if is_missing(shown) else None
    if type(value) in (dict, list):
        return _restore_parts(value, shown, original) if nested else value
    return original if _is_same(value, shown) else value


def _is_same(value: Any, shown: Any) -> bool:
    kind, other = type(value), type(shown)
    if kind is Decimal128:
        return _is_same_decimal(value, shown)
    if kind is str:  # a frame may turn a Code into a plain string, and a Binary into plain bytes
        return isinstance(shown, str) and str.__eq__(value, shown)
    if kind is bytes:
        return isinstance(shown, bytes) and bytes.__eq__(value, shown)
    return (kind is other or (kind in NUMBER_TYPES and other in NUMBER_TYPES)) and bool(value == shown)


def _is_same_decimal(value: Decimal128, shown: Any) -> bool:
    if isinstance(shown, Decimal128):
        if value == shown:
            return True
        shown = shown.to_decimal()
    return isinstance(shown, Decimal) and not shown.is_nan() and bool(value.to_decimal() == shown)


def _restore_parts(value: Any, shown: Any, original: Any) -> Any:
    if type(value) is dict and isinstance(shown, dict) and isinstance(original, Mapping):
        return _restore_document(value, shown, original)
    if type(value) is list and isinstance(shown, list) and len(value) == len(shown):
        triples = zip(value, shown, original, strict=True)
        return [restore_value(part, was, source, nested=True) for part, was, source in triples]
    return value


def _restore_document(value: dict[str, Any], shown: dict[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without the nulls that a struct adds for absent fields; fields keep their original order."""
    restored = {
        key: restore_value(value[key], shown[key], original[key], nested=True) for key in original if key in value
    }
    return restored | {key: part for key, part in value.items() if key not in original and part is not None}
