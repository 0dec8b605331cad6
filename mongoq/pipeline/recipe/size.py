"""Size limits of recipes: reading and checking takes a bounded time, also for a hostile recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["MOST_VALUES", "NESTING_LIMIT", "TOO_DEEP", "TOO_MANY", "TooMuch", "check_size"]

MOST_VALUES = 20_000
"""Values of a recipe, at most; each is counted at every place where it occurs: a few YAML aliases make billions."""
MOST_TEXT = 1024 * 1024
"""Characters and bytes of all values and keys, at most, counted in the same way."""
MOST_STAGES = 1_000
"""Entries of ``stages`` and of ``sources``, at most: checks compare stages with each other."""
NESTING_LIMIT = 60
INTEGER_BITS = 1024
"""Bits of an integer, at most: Python refuses to write very large integers in digits, so no error could show them."""
TOO_MANY = f"more than {MOST_VALUES:,} values, aliases counted as what they stand for; write less"
TOO_DEEP = f"nested deeper than {NESTING_LIMIT} levels"


class TooMuch(Exception):
    """The recipe is larger than its limits."""


class _Size(NamedTuple):
    """Size of a value.

    Attributes:
        values: number of values: itself, and all values inside.
        levels: depth of nesting.
        text: number of characters and bytes in them.
    """

    values: int = 1
    levels: int = 1
    text: int = 0


def check_size(content: Any) -> None:
    """Raise ``TooMuch`` if the content is larger than a recipe may be."""
    size = _size(content, 1, {})
    if size.values > MOST_VALUES:
        raise TooMuch(TOO_MANY)
    if size.levels > NESTING_LIMIT:
        raise TooMuch(TOO_DEEP)
    if size.text > MOST_TEXT:
        raise TooMuch(f"more than {MOST_TEXT:,} characters, aliases counted as what they stand for; write less")
    for part in ("stages", "sources"):
        listed = content.get(part) if isinstance(content, Mapping) else None
        if isinstance(listed, list | tuple) and len(listed) > MOST_STAGES:
            raise TooMuch(f"{len(listed):,} {part}, and {MOST_STAGES:,} is the limit; make several pipelines of it")


def _size(value: Any, level: int, known: dict[int, _Size]) -> _Size:
    """Measure a value; a part that occurs at several places is measured once."""
    if level > NESTING_LIMIT:
        raise TooMuch(TOO_DEEP)
    if isinstance(value, str | bytes):
        return _Size(text=len(value))
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        raise TooMuch(f"an integer of more than {INTEGER_BITS:,} bits; write a smaller one")
    parts = _parts(value)
    if parts is None:
        return _Size()
    # By identity: an alias of YAML is the same object at each place, and measuring it again would take exponential
    # time.
    if id(value) not in known:
        sizes = [_size(part, level + 1, known) for part in parts]
        keys = sum(len(key) for key in value if isinstance(key, str)) if isinstance(value, Mapping) else 0
        known[id(value)] = _Size(
            1 + sum(size.values for size in sizes),
            1 + max((size.levels for size in sizes), default=0),
            keys + sum(size.text for size in sizes),
        )
    return known[id(value)]


def _parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else None
