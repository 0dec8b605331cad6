"""Extended JSON: values of BSON as people write and read them, in the command line and by HTTP."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError

from mongoq.data.arguments import UNIT_MILLISECONDS, moment

JSON_OPTIONS = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, tz_aware=True, uuid_representation=UuidRepresentation.STANDARD
)
WEEK_MILLISECONDS = 7 * UNIT_MILLISECONDS["d"]
NONE: Final = "none"
"""Text of a setting without a value."""
AGO = re.compile(r"(\d{1,9})([smhdw])")
PARSE_OPTIONS = JSON_OPTIONS.with_options(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
JSON_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, BSONError)
"""Errors that the driver raises for extended JSON that means no value; those of ``decimal`` are arithmetic errors."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON; extended JSON such as ``{"$oid": …}`` and ``{"$date": …}`` gives BSON values.

    ``{"$regex": …}`` stays a document: it is an operator of filters. A regular expression as a value is written
    ``{"$regularExpression": …}``.

    Raises:
        ValueError: the text is no JSON, a name occurs twice in one document, or extended JSON means no value.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_read_document, parse_constant=_refuse_constant, parse_float=_read_float
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read_document(pairs: list[tuple[str, Any]]) -> Any:
    document = dict(pairs)
    if len(document) < len(pairs):
        # The last one would win, and a filter would match more than its author thinks.
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, number in counted.items() if number > 1)
        raise ValueError(f"name {twice!r:.120} occurs twice in one document")
    if "$regex" in document:
        return document
    try:
        return json_util.object_hook(document, PARSE_OPTIONS)
    except JSON_ERRORS as error:
        raise ValueError(f"extended JSON that means no value: {error}") from None


def _read_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f'{text:.40} is too large for a number; write {{"$numberDecimal": "…"}}')
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'{name} is no JSON; write {{"$numberDouble": "{name}"}}')


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as relaxed extended JSON, with letters of all alphabets as they are."""
    return json_util.dumps(value, json_options=JSON_OPTIONS, ensure_ascii=False, indent=indent)


def time_text(at: datetime, precision: str = "milliseconds") -> str:
    """Return a time in ISO 8601 and UTC; ``--since`` and ``--until`` read it."""
    return at.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def duration_text(length: timedelta) -> str:
    """Return a duration in its two largest units, such as ``2h 5m``."""
    seconds = length.total_seconds()
    if seconds < 0:
        return "-" + duration_text(-length)
    if seconds and seconds < 1:
        return f"{seconds:.3g}s"
    rest = int(seconds)
    parts: list[str] = []
    for unit in "dhms":
        number, rest = divmod(rest, UNIT_MILLISECONDS[unit] // 1000)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return " ".join(filter(None, parts[:2])) or "0s"


def setting_text(length: timedelta | None) -> str:
    """Return a duration as ``read_duration`` reads it, in the largest unit that divides it; ``none`` without one."""
    if length is None:
        return NONE
    whole = length // timedelta(milliseconds=1)
    units = ((unit, size) for unit, size in UNIT_MILLISECONDS.items() if whole and whole % size == 0)
    unit, size = next(units, ("s", 1))
    return f"{whole // size}{unit}"


def read_time(text: str) -> datetime | timedelta:
    """Return the time that a text in ISO 8601 names, in UTC unless it says otherwise.

    For a time ago, such as ``30m``, it is the length of that time.

    Raises:
        ValueError: the text names no time.
    """
    if ago := AGO.fullmatch(text):
        try:
            return timedelta(milliseconds=int(ago[1]) * UNIT_MILLISECONDS.get(ago[2], WEEK_MILLISECONDS))
        except OverflowError:
            raise ValueError(f"{text!r} is too long ago") from None
    try:
        read = datetime.fromisoformat(text)
        return moment(read if read.tzinfo else read.replace(tzinfo=UTC), "time")
    except ValueError:
        hint = "write it as 2026-11-26T14:30:00Z, or as a time ago: 90s, 30m, 2h, 3d, 1w"
        raise ValueError(f"{text!r:.60} is no time; {hint}") from None
