"""Rates: how often items of a queue may start, such as ``100/m``, and the slots of a rate (GCRA).

A rate is a sequence of slots, one interval apart. One start uses one slot, at its time or up to ``tolerance`` later, so
that any window of length T contains at most ``burst + T * rate`` starts. A bucket is the time of the first slot that is
not given away. Processes take slots from it, and use them by their clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple

import bson
from bson import Decimal128, Int64
from bson.decimal128 import create_decimal128_context

from mongoq.data.encoding.codec import PLAIN_OPTIONS
from mongoq.data.item import Item
from mongoq.errors import ArgumentInvalid

UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds of the units of a period."""
EXAMPLE = "write it as a number of starts and a period, such as '100/m', '5/s', '1000/h' or '10/30s'"
MAX_PER_SECOND = 10_000
"""Starts in a second, at most."""
MAX_PERIOD_MS = 30 * UNITS["d"]
"""Longest period, in milliseconds."""
BURST_MS = 250
"""Default burst: the starts of so many milliseconds, at least one."""
_PATTERN = re.compile(r"\A\s*+([^/\s]++)\s*+/\s*+([0-9]*+)\s*+([A-Za-z]++)\s*+\Z", re.ASCII)

INTERVAL_MARGIN = 0.01
"""Share by which slots are further apart than the rate says: a handler begins a moment after its slot was used."""
MIN_INTERVAL_MARGIN_MS, MAX_INTERVAL_MARGIN_MS = 1.0, 20.0
"""The least and the largest such margin, in milliseconds."""
TOLERANCE_MARGIN_MS = 10.0
"""Milliseconds by which slots end early: the clocks of two processes differ a little."""
LATE_SHARE, MIN_LATE_MS, MAX_LATE_MS = 0.015, 5.0, 1_000.0
"""Share of the interval, and milliseconds, by which a start may be late without the loss of its slot."""
LONG_TOLERANCE_MS = 100.0
"""Tolerance in milliseconds from which on no margin between slots is needed."""
LEAD_MS = 20.0
"""Milliseconds, at least, in which a process learns of a slot that is free now, and gets ready to use it."""
AHEAD_MS = 1_000.0
"""Milliseconds ahead of time, at most, at which a slot can be taken."""
MAX_PUT_OFF_MS = 60_000.0
"""Milliseconds for which an item is put off, at most: whatever becomes of the items before it, it looks again then."""
SOON_SHARE = 0.9
"""Share of its interval before which a slot of a key can be taken."""
MIN_EARLY_MS, MAX_EARLY_MS, EARLY_SQUARE_MS = 50.0, 200.0, 100_000.0
"""Milliseconds before its slot at which an item comes back, at least and at most, and their product with the interval.

It occupies a place of the worker until its slot; and if it is late, that costs more of a short interval.
"""
ROUNDING_MS = 0.01
"""Milliseconds by which sums of intervals may differ from each other."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A checked rate.

    Attributes:
        number: starts in each period.
        period: length of the period in milliseconds.
        text: the rate as it is stored, such as ``100/m``.
    """

    number: int
    period: int
    text: str

    @property
    def interval(self) -> float:
        """Milliseconds between two starts."""
        return self.period / self.number

    @property
    def default_burst(self) -> int:
        """Starts that may come at once where no burst is given."""
        return max(1, int(BURST_MS / self.interval))


def parse_rate(text: Any) -> Rate:
    """Return a rate from its text; raises ``ArgumentInvalid`` that names the wrong part."""
    if not isinstance(text, str):
        raise ArgumentInvalid("rate", f"a text, not {type(text).__name__}; {EXAMPLE}")
    match = _PATTERN.match(text)
    if match is None:
        raise ArgumentInvalid("rate", f"{text!r:.60} is no rate; {EXAMPLE}")
    number_text, multiple_text, unit = match.groups()
    if not re.fullmatch(r"[0-9]{1,9}", number_text) or int(number_text) == 0:
        raise ArgumentInvalid("rate", f"{number_text!r:.40} in {text!r:.60} is no whole number from 1 up; {EXAMPLE}")
    if unit not in UNITS:
        hint = f"the units are {', '.join(UNITS)}"
        raise ArgumentInvalid("rate", f"{unit!r:.40} in {text!r:.60} is no unit of time: {hint}; {EXAMPLE}")
    if multiple_text and (len(multiple_text) > 9 or int(multiple_text) == 0):
        raise ArgumentInvalid("rate", f"{multiple_text + unit!r:.40} in {text!r:.60} is no period; {EXAMPLE}")
    number, multiple = int(number_text), int(multiple_text or 1)
    period = multiple * UNITS[unit]
    if period > MAX_PERIOD_MS:
        raise ArgumentInvalid("rate", f"{text!r:.60} has a period of more than 30 days; {EXAMPLE}")
    if number > period * MAX_PER_SECOND // 1000:
        raise ArgumentInvalid("rate", f"{text!r:.60} is more than {MAX_PER_SECOND:,} in a second, which is the most")
    return Rate(number, period, f"{number}/{'' if multiple == 1 else multiple}{unit}")


@dataclass(frozen=True, slots=True)
class Pace:
    """Slots of a rate, as a process uses them; all numbers are milliseconds.

    Attributes:
        interval: time between two slots.
        tolerance: time after a slot in which it can be used.
        lead: time for which the first slot that is taken from an idle bucket can still be used.
        ahead: time ahead of which a slot can be taken.
    """

    interval: float
    tolerance: float
    lead: float = LEAD_MS
    ahead: float = AHEAD_MS

    @property
    def early(self) -> float:
        """Time before its slot at which an item that was put off comes back."""
        longest, late = EARLY_SQUARE_MS / self.interval, self.tolerance
        early = min(longest, MAX_EARLY_MS - late, self.interval / 2 + late)
        return min(self.ahead, max(MIN_EARLY_MS, early))

    @property
    def max_together(self) -> int:
        """Number of starts that may come in one call of a handler, which takes a batch."""
        return int(self.tolerance / self.interval) + 1


@lru_cache(maxsize=256)
def make_pace(text: str, burst: int | None, *, exact: bool = False) -> Pace:
    """Return the pace of a rate; ``exact`` for a clock that stands still, where nothing is late."""
    rate = parse_rate(text)
    length = ((burst or rate.default_burst) - 1) * rate.interval
    if exact:
        return Pace(rate.interval, length, lead=0.0, ahead=0.0)
    tolerance, margin = length - min(TOLERANCE_MARGIN_MS, length / 2), 0.0
    if length < LONG_TOLERANCE_MS:
        margin = min(max(rate.interval * INTERVAL_MARGIN, MIN_INTERVAL_MARGIN_MS), MAX_INTERVAL_MARGIN_MS)
    late = min(max(rate.interval * LATE_SHARE, MIN_LATE_MS), MAX_LATE_MS)
    slack = max(late - tolerance, 0.0)  # left free behind each slot, so that a late start is no closer to the next one
    return Pace(rate.interval + margin + slack, tolerance + slack, lead=max(LEAD_MS, late))


@dataclass(frozen=True, slots=True)
class Bucket:
    """State of a rate in its control document.

    Attributes:
        next: time of the first slot that is not given away, in milliseconds since 1970.
        interval: time between two slots when it was written; another one then holds for the next slot.
        later: of a key, the place in the line that is free: items before it come back for the slots until then.
    """

    next: float
    interval: float
    later: float = -math.inf

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Bucket | None:
        """Return a bucket from its stored form; ``None`` where nothing is stored."""
        if document is None or "next" not in document:
            return None
        return cls(float(document["next"]), float(document["interval"]), float(document.get("later", -math.inf)))


class Slot(NamedTuple):
    """A slot that a process has taken.

    Attributes:
        since: time from which on it can be used.
        time: its time; the next slot is an interval later, and it can be used for the tolerance of the pace.
    """

    since: float
    time: float


def find_free(bucket: Bucket | None, pace: Pace, unused: Sequence[Slot] = ()) -> float:
    """Return the first slot that is not given away.

    ``unused`` are slots that this process has taken: those at the end of the bucket are free again.
    """
    if bucket is None:
        return -math.inf
    free = bucket.next - bucket.interval + pace.interval
    for slot in sorted(unused, reverse=True):
        if abs(free - pace.interval - slot.time) < ROUNDING_MS:
            free = slot.time
    return free


def take_free(bucket: Bucket | None, pace: Pace, now: float, n: int, unused: Sequence[Slot] = ()) -> list[Slot] | float:
    """Take up to ``n`` slots from a bucket; returns them, or the milliseconds until there is one."""
    planned = find_free(bucket, pace, unused)
    first = max(planned, now - pace.tolerance + pace.lead)
    if first > now + pace.ahead:
        return first - now - pace.ahead
    n = min(n, int((now + pace.ahead - first) / pace.interval) + 1)
    return _make_slots(max(planned, now - pace.tolerance), first, n, pace)


def _make_slots(since: float, first: float, n: int, pace: Pace) -> list[Slot]:
    """Return ``n`` slots: the first one can be used before its time, if the one before it was long ago."""
    times = [first + place * pace.interval for place in range(n)]
    return [Slot(since if time == first else time, time) for time in times]


def share_slots(
    bucket: Bucket | None, pace: Pace, now: float, turns: Sequence[bool], *, room: int, unused: Sequence[Slot] = ()
) -> tuple[list[Slot], list[tuple[float, bool] | None], Bucket | None]:
    """Share out the slots of a key among items that were claimed, of which ``room`` may start.

    ``turns`` says of each whether it comes back at its turn in the line, as the first ones do. ``unused`` are slots of
    items that have come too late for them. Returns the slots of the first items, the bucket if it has changed, and of
    each other item when it comes back, and whether that is its turn in the line; ``None``: at once, only room is
    missing.

    The line covers the next minute. Items behind it look again after a minute, and get a turn then: so a line that
    items have left heals by itself.
    """
    planned = find_free(bucket, pace, unused)
    first = max(planned, now - pace.tolerance + pace.lead)
    # One that comes early after late starts keeps its turn. Before a slot is over the next one is not taken, or else
    # the former could not be used again; and an item without a turn takes none for which another one is to come.
    soon = now + min(pace.ahead, max(pace.early, pace.interval * SOON_SHARE))
    limits = [soon if has_turn else now + pace.early for has_turn in turns]
    number, free, end = 0, first, now + MAX_PUT_OFF_MS
    while number < min(room, len(turns)) and free <= limits[number]:
        number += 1
        free = first + number * pace.interval
    later = -math.inf
    if bucket is not None and bucket.interval == pace.interval and bucket.later <= end + pace.interval:
        later = bucket.later + max(first - planned, 0.0)  # what comes late moves the slots of the whole line
    turn, is_changed, put_offs = free - pace.early, number > 0, list[tuple[float, bool] | None]()
    for has_turn, limit in zip(turns[number:], limits[number:], strict=True):
        if free <= limit:
            put_offs.append(None)
        elif has_turn:
            put_offs.append((min(turn, end), True))
            turn += pace.interval
        elif (place := max(turn, later)) <= end:
            put_offs.append((place, True))
            later, is_changed = place + pace.interval, True
        else:
            put_offs.append((end, False))
    slots = _make_slots(max(planned, now - pace.tolerance), first, number, pace)
    return slots, put_offs, Bucket(free, pace.interval, later) if is_changed else None


class Slots:
    """Slots that this process has taken and not used yet, in their order. Its callers hold the limiter's lock."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []

    def add(self, slots: Sequence[Slot]) -> None:
        """Add slots that were taken now, or are not given back."""
        self._slots = sorted([*self._slots, *slots])

    def count(self, since: float, until: float) -> int:
        """Return the number of slots that are after ``since``, and can be used at ``until``."""
        return sum(slot.time >= since and slot.since <= until for slot in self._slots)

    def first(self, since: float) -> float:
        """Return when the first slot after ``since`` can be used; infinite without any."""
        return next((slot.since for slot in self._slots if slot.time >= since), math.inf)

    def remove_until(self, end: float) -> list[Slot]:
        """Remove the slots before a time, and return them."""
        removed = [slot for slot in self._slots if slot.time < end]
        self._slots = [slot for slot in self._slots if slot.time >= end]
        return removed

    def use(self, since: float, now: float, n: int) -> float:
        """Use ``n`` slots after ``since``; returns 0, or the milliseconds until all of them can be used.

        Infinite if there are too few.
        """
        usable = [slot for slot in self._slots if slot.time >= since]
        if len(usable) < n:
            return math.inf
        if usable[n - 1].since > now + ROUNDING_MS:
            return usable[n - 1].since - now
        self._slots = [*(slot for slot in self._slots if slot.time < since), *usable[n:]]
        return 0.0


# --- keys of rates -------------------------------------------------------------------------------

MISSING = b"missing"
"""Key of the items without the field: they share a bucket."""
KEY_EXAMPLE = "give the name of a field, such as 'customer.id', or a function of the payload"


@dataclass(frozen=True, slots=True)
class RateKey:
    """The option ``rate_key`` of a consumer.

    Attributes:
        path: parts of the dotted name of a field; empty for a function.
        function: function of the payload; ``None`` for a field.
    """

    path: tuple[str, ...]
    function: Callable[[Any], Any] | None

    def read(self, item: Item[Any]) -> bytes:
        """Return the key of an item in the form that is hashed; raises what the function raises, or ``ValueError``."""
        if self.function is not None:
            return encode_key(self.function(item.payload))
        value = item.stored("payload")
        for part in self.path:
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        return encode_key(value)


def check_rate_key(value: Any) -> RateKey | None:
    """Return the option; raises ``ArgumentInvalid`` if it is neither a field's name nor a function."""
    if value is None:
        return None
    if isinstance(value, str):
        parts = tuple(value.split("."))
        if not all(parts):
            raise ArgumentInvalid("rate_key", f"{value!r:.60} has an empty part; {KEY_EXAMPLE}")
        return RateKey(parts, None)
    if callable(value):
        return RateKey((), value)
    raise ArgumentInvalid("rate_key", f"a field or a function, not {type(value).__name__}; {KEY_EXAMPLE}")


def encode_key(value: Any) -> bytes:
    """Return a key as BSON. Numbers that the server calls equal are one key, whatever their types; a bool is no number.

    Raises:
        ValueError: BSON cannot hold the value.
    """
    try:
        return bson.encode({"key": _normalize(value)}, codec_options=PLAIN_OPTIONS)
    except Exception as error:
        raise ValueError(f"the rate key {value!r:.60} cannot be stored as BSON: {error}") from None


def _normalize(value: Any) -> Any:
    """Return a value in which equal numbers have the same type: an int if it fits, else a float, else a decimal."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, float | Decimal):
        if value.is_nan() if isinstance(value, Decimal) else math.isnan(value):
            return math.nan
        if math.isfinite(value) and -(2**63) <= value < 2**63 and value == int(value):
            return int(value)
        if value == (double := float(value)):
            return double
        with localcontext(create_decimal128_context()) as context:
            return Decimal128(context.normalize(Decimal(value)))
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normalize(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(part) for part in value]
    return value
