"""Options of pushes and moves: when items are due and expire, their keys and headers, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from mongoq.data.arguments import Duration, duration, moment, text
from mongoq.data.arguments import expires as checked_expires
from mongoq.data.clock import Clock
from mongoq.data.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.errors import ArgumentInvalid, PayloadInvalid

DEFAULT_REMEMBER = timedelta(days=7)
"""How long an id given by the producer is remembered by default."""
OnDuplicate = Literal["keep", "replace", "raise"]
ON_DUPLICATE_VALUES: tuple[OnDuplicate, ...] = get_args(OnDuplicate)
MAX_KEY_BYTES = 1024
"""Bytes of a key in UTF-8, at most."""
KEYED = "cannot be given with key=: an item with a key may be replaced in its place; give one of the two"
"""Problem of a push or a move with both a sequence and a key."""


def due_time(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return the time from which on an item is eligible: now, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    try:
        return clock.now() + length if length else clock.stamp()
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("delay", f"ends beyond the year 9999: {delay!r}") from None


def last_start(
    clock: Clock, expires: timedelta | datetime, delay: Duration | None = None, when: datetime | None = None
) -> datetime:
    """Return the time by which an item must be started; refuse one before a delayed item is due.

    A time that is over is no error without a delay: then the first claim that meets the item settles it.
    """
    try:
        start_by = expires if isinstance(expires, datetime) else clock.now() + expires
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("expires", f"ends beyond the year 9999: {expires!r}") from None
    # The clock is read in this order, so that an expiry as long as the delay is always refused.
    due = due_time(clock, delay, when) if is_put_off(delay, when) else None
    if due is not None and due >= start_by:
        problem = f"the item is due at {due:%Y-%m-%d %H:%M:%S} UTC and must start before {start_by:%Y-%m-%d %H:%M:%S}"
        raise ArgumentInvalid("expires", f"{problem} UTC, so it could never start; give a longer time than the delay")
    return start_by


def check_expires(
    clock: Clock, expires: Any, delay: Duration | None, when: datetime | None
) -> timedelta | datetime | None:
    """Return how long an item that is pushed later may wait for its start, or until when, checked.

    ``delay`` and ``when`` were checked before. An item that could never start is refused, as far as that is known now.
    """
    if expires is None:
        return None
    lasts = checked_expires(expires)
    last_start(clock, lasts, delay, when)
    return lasts


def is_put_off(delay: Duration | None, when: datetime | None) -> bool:
    """Return whether an item waits before it is due; a delay of zero is none."""
    return when is not None or bool(delay)


def remember_time(once: Duration | None, identified: bool) -> timedelta:
    """Return how long ids are remembered; ``once`` needs a given id, since only its item is pushed again."""
    if once is None:
        return DEFAULT_REMEMBER
    if not identified:
        raise ArgumentInvalid("once", "says how long a given id is remembered; give the id as well")
    return duration(once, "once", zero=False)


def check_due(delay: Duration | None, when: datetime | None) -> None:
    """Refuse ``delay`` and ``when`` together, and either one when it is no valid time."""
    if delay is not None and when is not None:
        raise ArgumentInvalid("when", "give either delay= or when=, not both")
    if delay is not None:
        duration(delay, "delay")
    if when is not None:
        moment(when, "when")


def check_headers(headers: Mapping[str, Any] | None, encoding: Encoding) -> Any:
    """Return the headers in the form to send; raise ``PayloadInvalid`` or ``PayloadTooLarge``."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise PayloadInvalid("headers", f"a document, not {type(headers).__name__}")
    return encoding.encode("headers", headers, limit=HEADERS_LIMIT)


@dataclass(frozen=True, slots=True)
class Keyed:
    """Key of a push, and the action when a live item has that key."""

    key: str
    on_duplicate: OnDuplicate


def check_key(key: Any) -> str:
    """Return a key: a non-empty string of at most 1 KiB."""
    if not text(key, "key", MAX_KEY_BYTES):
        raise ArgumentInvalid("key", "cannot be empty; None is no key")
    if any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ArgumentInvalid("key", "cannot hold lone surrogates")
    return str(key)


def check_keyed(key: Any, on_duplicate: Any) -> Keyed | None:
    """Check the key and the action on a duplicate; refuse an action without a key."""
    if on_duplicate not in ON_DUPLICATE_VALUES:
        raise ArgumentInvalid("on_duplicate", f"one of {', '.join(ON_DUPLICATE_VALUES)}, not {on_duplicate!r}")
    if key is not None:
        return Keyed(check_key(key), on_duplicate)
    if on_duplicate != "keep":
        raise ArgumentInvalid("on_duplicate", "says what to do with an item of the same key; give key= as well")
    return None
