"""BSON values as JSON that Spark's own functions read."""

from __future__ import annotations

import base64
import json
import math
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bson import Decimal128, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef

from mongoq.spark.documents import Garbled

SEPARATORS = (",", ":")


class TextGarbled(Exception):
    """A text is not UTF-8."""


def iso_text(value: datetime) -> str:
    """Return a time, aware in UTC or naive, in ISO 8601 with milliseconds."""
    return value.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


PLAIN: dict[type, Callable[[Any], Any]] = {
    datetime: iso_text,
    ObjectId: str,
    Decimal128: str,
    uuid.UUID: str,
    bytes: lambda value: base64.b64encode(value).decode(),
    DatetimeMS: int,
    Timestamp: lambda value: {"t": value.time, "i": value.inc},
    Regex: lambda value: value.pattern,
    DBRef: lambda value: _name_doubles(value.as_doc()),
}


def _plain(value: Any) -> Any:
    """Return a JSON value in place of a value that JSON does not have."""
    if plain := PLAIN.get(value.__class__):
        return plain(value)
    for kind, plain in PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, Garbled):
        raise TextGarbled
    return type(value).__name__  # MinKey and MaxKey have no content


def _make_plain(value: Any) -> Any:
    return value.text if isinstance(value, Garbled) else _plain(value)


def _encoder(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    # BSON has no cycles, so no check; NaN raises, and json_text replaces it by a string.
    return json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=SEPARATORS, default=default
    ).encode


_encode, _show = _encoder(_plain), _encoder(_make_plain)


def json_text(value: Any) -> str:
    """Return a BSON value as plain JSON; raises ``TextGarbled`` for text that is not UTF-8."""
    try:
        return _encode(value)
    except ValueError:  # NaN or an infinity, which JSON lacks; replaced only on this error
        return _encode(_name_doubles(value))


def json_shown(value: Any) -> str:
    """Return a BSON value as plain JSON, with U+FFFD in text that is not UTF-8."""
    return _show(_name_doubles(value))


def _name_doubles(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _name_doubles(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_name_doubles(part) for part in value]
    return value
