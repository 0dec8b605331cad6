"""Durations as arguments of commands and in their output: ``90s``, ``5m``, ``2h``, ``7d``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from mongoq.model.arguments import read_duration
from mongoq.model.encoding.extended_json import NONE

if TYPE_CHECKING:
    ParameterType = click.ParamType[Any]
else:
    # It has no type parameter before click 8.4.
    ParameterType = click.ParamType


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
        if self._none and str(value).strip().lower() == NONE:
            return NONE
        try:
            return read_duration(str(value))
        except ValueError as error:
            return self.fail(f"{error}, or none" if self._none else str(error), param, ctx)


DURATION = DurationType()
DURATION_OR_NONE = DurationType(none=True)
