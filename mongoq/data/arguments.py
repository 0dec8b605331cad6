"""Checks of arguments. Each returns the value in the form used inside, or raises an error that names the argument."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, QueueNameInvalid

Duration = timedelta | float | str
"""A ``timedelta``, a number of seconds, or a text such as ``90s``, ``5m``, ``2h`` or ``7d``."""
Expires = Duration | datetime
"""A duration from now, or an aware time."""
UNIT_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Milliseconds of the units of durations, the longest unit first."""
DURATION_TEXT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|)")

Id = ObjectId | str
"""An ``ObjectId``, or its 24 hex digits."""
ID_TEXT = re.compile(r"[0-9A-Fa-f]{24}")

QUEUE_NAME_BYTES = 120
"""Bytes of a queue's name in UTF-8, at most, without ``DEAD_SUFFIX``."""
DEAD_SUFFIX = ".dead"
"""End of the name of a default dead queue."""
LONGEST_DURATION = timedelta(days=36_525)
"""Longest duration: about 100 years."""
REASON_BYTES = 512
"""Bytes of the reason of a burial in UTF-8, at most."""
MILLISECOND = timedelta(milliseconds=1)
PRIORITIES = range(-100, 101)
"""Valid priorities, the first to be claimed first."""


def queue_name(name: Any, argument: str = "queue") -> str:
    """Return the name of a queue, or raise ``QueueNameInvalid``.

    At most 120 bytes, and ``.dead`` on top, so that every queue has room for its dead queue.
    """
    if not isinstance(name, str):
        raise QueueNameInvalid(argument, f"a queue name is a string, not {type(name).__name__}")
    if not name:
        raise QueueNameInvalid(argument, "a queue name cannot be empty")
    if "\0" in name:
        raise QueueNameInvalid(argument, "a queue name cannot hold NUL")
    if name.startswith("$"):
        raise QueueNameInvalid(argument, f"a queue name cannot begin with '$': {name[:40]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise QueueNameInvalid(argument, "a queue name cannot hold lone surrogates") from None
    limit = QUEUE_NAME_BYTES + len(DEAD_SUFFIX) * name.endswith(DEAD_SUFFIX)
    if size > limit:
        raise QueueNameInvalid(argument, f"{size} bytes in UTF-8, and {limit} is the limit")
    return name


def duration(value: Any, argument: str, *, zero: bool = True) -> timedelta:
    """Return a duration in whole milliseconds, from a ``timedelta``, a number of seconds or a text; never negative."""
    if isinstance(value, timedelta):
        length = value
    elif isinstance(value, str):
        try:
            length = read_duration(value)
        except ValueError as error:
            raise ArgumentInvalid(argument, str(error)) from None
    else:
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "a timedelta, a number of seconds or a text such as '5m'"
            raise ArgumentInvalid(argument, f"{hint}, not {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ArgumentInvalid(argument, f"a finite number of seconds, not {value!r}")
        try:
            length = timedelta(seconds=value)
        except OverflowError:
            length = timedelta.min if value < 0 else timedelta.max
    if length < timedelta(0):
        raise ArgumentInvalid(argument, f"cannot be negative: {value!r}")
    if not zero and length < MILLISECOND:
        raise ArgumentInvalid(argument, f"must be a millisecond or longer: {value!r}")
    if length > LONGEST_DURATION:
        raise ArgumentInvalid(argument, f"cannot be longer than {LONGEST_DURATION.days} days: {value!r}")
    return length - length % MILLISECOND


def read_duration(text: str) -> timedelta:
    """Return the duration that a text such as ``90s``, ``5m``, ``2h`` or ``7d`` names; seconds without a unit.

    Raises:
        ValueError: the text names no duration.
    """
    parts = DURATION_TEXT.fullmatch(text.strip().lower())
    if parts is None:
        raise ValueError(f"{text!r:.60} is no duration; write it as 90s, 5m, 2h or 7d")
    try:
        return timedelta(milliseconds=float(parts[1]) * UNIT_MILLISECONDS[parts[2] or "s"])
    except OverflowError:
        raise ValueError(f"{text!r} is too long") from None


def wait_seconds(value: Any) -> float:
    """Return the time to wait, in seconds: 0 for ``None``, and ``math.inf`` is allowed."""
    if value is None:
        return 0.0
    if isinstance(value, float) and value == math.inf:
        return value
    return duration(value, "wait").total_seconds()


def moment(value: Any, argument: str) -> datetime:
    """Return an aware time in UTC, cut to the millisecond, as BSON holds it."""
    if not isinstance(value, datetime):
        raise ArgumentInvalid(argument, f"an aware datetime, not {type(value).__name__}")
    try:
        naive = value.utcoffset() is None
    except Exception as error:
        # ``pandas.NaT`` is a datetime, and a user's own time zone may raise anything.
        raise ArgumentInvalid(argument, f"{value!r} is no time; where there is none, give None: {error}") from error
    if naive:
        raise ArgumentInvalid(argument, "a naive datetime says no time zone; give it one, such as UTC")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise ArgumentInvalid(argument, f"lies beyond the years 1 to 9999 in UTC: {value!r}") from None
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def expires(value: Any, argument: str = "expires") -> timedelta | datetime:
    """Return how long an item may wait for its start, or until when (aware); a time may be over already."""
    if isinstance(value, datetime):
        return moment(value, argument)
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
        problem = f"a duration such as '5m' or 300 (seconds), or an aware datetime, not {type(value).__name__}"
        raise ArgumentInvalid(argument, problem)
    return duration(value, argument, zero=False)


def priority(value: Any) -> int:
    """Return a priority: an int from -100 (first) to 100 (last)."""
    if isinstance(value, bool) or not isinstance(value, int) or value not in PRIORITIES:
        raise ArgumentInvalid("priority", f"an int from -100 (first) to 100 (last), not {value!r}")
    return int(value)


def count(value: Any, argument: str, *, least: int = 1) -> int:
    """Return a whole number that is not below ``least`` and fits 31 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ArgumentInvalid(argument, f"a whole number from {least} up, not {value!r}")
    return int(value)


def choice(value: Any, argument: str, choices: Any) -> Any:
    """Return one of the values of a ``Literal``."""
    known = get_args(choices)
    if value not in known:
        names = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        raise ArgumentInvalid(argument, f"{names}, not {value!r:.60}")
    return value


def object_id(value: Any, argument: str = "id") -> ObjectId:
    """Return an ObjectId, from one or from its 24 hex digits, as logs and pages show it."""
    if isinstance(value, str) and ID_TEXT.fullmatch(value):
        return ObjectId(value)
    if not isinstance(value, ObjectId):
        given = f"{value!r:.40}" if isinstance(value, str) else type(value).__name__
        raise ArgumentInvalid(argument, f"a bson.ObjectId or its 24 hex digits, not {given}")
    return value


def read_list(value: Any, argument: str) -> list[Any]:
    """Return the values of an iterable, read once; refuse a text, bytes or a mapping, most likely a mistake."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | Mapping):
        raise ArgumentInvalid(argument, f"a list or another iterable, not {type(value).__name__}")
    return list(value)


def text(value: Any, argument: str, limit: int, *, whole: bool = False) -> str:
    """Return a string of at most ``limit`` bytes in UTF-8, ``whole`` without lone surrogates."""
    if not isinstance(value, str):
        raise ArgumentInvalid(argument, f"a string, not {type(value).__name__}")
    size = len(value.encode(errors="surrogatepass"))
    if size > limit:
        raise ArgumentInvalid(argument, f"{size:,} bytes in UTF-8, and {limit:,} is the limit")
    if whole and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ArgumentInvalid(argument, "cannot hold lone surrogates")
    return value
