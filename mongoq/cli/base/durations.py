"""Durations as arguments of commands and in their output: ``90s``, ``5m``, ``2h``, ``7d``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    ParameterType = click.ParamType[Any]
else:
    # It has no type parameter before click 8.4.
    ParameterType = click.ParamType

UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""Seconds of each unit, the longest unit first."""
DURATION_TEXT = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d|)")
NONE: Final = "none"
"""Text of an option that removes a setting."""


class DurationType(ParameterType):
    """A number of seconds, or of another unit that it names.

    Args:
        none: accept ``none`` too, and return it unchanged.
    """

    name = "duration"

    def __init__(self, *, none: bool = False) -> None:
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """Return the duration."""
        if isinstance(value, timedelta):
            return value
        text = str(value).strip().lower()
        if self._none and text == NONE:
            return NONE
        parts = DURATION_TEXT.fullmatch(text)
        if parts is None:
            hint = "write it as 90s, 5m, 2h or 7d" + (", or none" if self._none else "")
            self.fail(f"{str(value)!r:.60} is no duration; {hint}", param, ctx)
        try:
            return timedelta(seconds=float(parts[1]) * UNITS[parts[2] or "s"])
        except OverflowError:
            return self.fail(f"{text!r} is too long", param, ctx)


DURATION = DurationType()
DURATION_OR_NONE = DurationType(none=True)


def setting_text(length: timedelta | None) -> str:
    """Return a duration as options take it, in the largest unit that divides it; ``none`` without one."""
    if length is None:
        return NONE
    seconds = length.total_seconds()
    for unit, size in UNITS.items():
        number = seconds / size
        if number >= 1 and number == int(number):
            return f"{int(number)}{unit}"
    return f"{seconds:g}s"
