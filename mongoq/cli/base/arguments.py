"""Types of arguments: ids, times, filters, JSON values and names of queues; a bad one ends the command with code 2."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pymongo
from bson import ObjectId, json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from click.shell_completion import CompletionItem

from mongoq.cli.base.connection import Ago, connect
from mongoq.cli.base.durations import ParameterType
from mongoq.cli.base.output import JSON_OPTIONS, printable
from mongoq.errors import ArgumentInvalid, FilterInvalid
from mongoq.model.arguments import moment, queue_name
from mongoq.model.encoding.codec import Encoding, codec_options
from mongoq.model.filters import where_filter

__all__ = ["COUNT", "FILTER", "JSON_VALUE", "MAX_COUNT", "MOMENT", "OBJECT_ID", "QUEUE", "read_json"]

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
"""Unit of a time ago, by its letter."""
MAX_COUNT = 2**31 - 1
"""Largest number of items, letters or documents that a command takes: what the server counts with."""
AGO = re.compile(r"(\d{1,9})([smhdw])")
COMPLETION_SECONDS = 2.0
"""Seconds that a shell waits for names of queues, at most."""
COMPLETED = re.compile(r"[\w.+@%,=:/][\w.+@%,=:/-]*")
"""Names of queues that a shell completes. It puts the name into the line as it is: ``$(…)`` in it would be executed."""
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
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read_document(pairs: list[tuple[str, Any]]) -> Any:
    document = dict(pairs)
    if len(document) < len(pairs):
        # The last one would win, and a filter would match more than its author thinks.
        names = [name for name, _ in pairs]
        raise ValueError(f"name {next(name for name in names if names.count(name) > 1)!r} occurs twice in one document")
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


class ObjectIdType(ParameterType):
    """An id of 24 hex digits; shorter forms are refused, because they could name another item."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ObjectId:
        """Return the ObjectId."""
        if isinstance(value, ObjectId):
            return value
        if not re.fullmatch(r"[0-9a-fA-F]{24}", str(value)):
            self.fail(f"{str(value)!r:.60} is no id of an item: it has 24 hex digits", param, ctx)
        return ObjectId(value)


class MomentType(ParameterType):
    """A time in ISO 8601, in UTC unless it says otherwise, or a time ago, such as ``30m``.

    ``with_broker`` turns a time ago into a time on the server's clock, before it calls the command.
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | Ago:
        """Return an aware time, or the length of the time ago."""
        if isinstance(value, datetime | Ago):
            return value
        text = str(value).strip()
        if ago := AGO.fullmatch(text):
            try:
                return Ago(timedelta(**{UNITS[ago[2]]: int(ago[1])}))
            except OverflowError:
                self.fail(f"{text!r} is too long ago", param, ctx)
        try:
            read = datetime.fromisoformat(text)
            return moment(read if read.tzinfo else read.replace(tzinfo=UTC), "time")
        except ValueError:
            hint = "write it as 2026-11-26T14:30:00Z, or as a time ago: 90s, 30m, 2h, 3d, 1w"
            return self.fail(f"{text!r:.60} is no time; {hint}", param, ctx)


class JsonType(ParameterType):
    """A value in JSON or extended JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        if not isinstance(value, str):
            return value
        try:
            return read_json(value)
        except ValueError as error:
            return self.fail(printable(str(error)), param, ctx)


class FilterType(JsonType):
    """A filter on payloads in JSON, with the operators of ``where=``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, Any]:
        """Return the filter, checked."""
        where = super().convert(value, param, ctx)
        try:
            where_filter(where, Encoding(codec_options()))
        except FilterInvalid as error:
            self.fail(printable(str(error)), param, ctx)
        checked: Mapping[str, Any] = where
        return checked


class QueueType(ParameterType):
    """The name of a queue; shells complete it from the server."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        try:
            return queue_name(value)
        except ArgumentInvalid as error:
            return self.fail(printable(error.problem), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with the typed characters; none if the server does not answer in time."""
        try:
            return [CompletionItem(name) for name in _find_names(ctx) if name.startswith(incomplete)]
        except Exception:
            # An error would be printed into the line that the user is typing.
            return []


def _find_names(ctx: click.Context) -> Iterable[str]:
    place: dict[str, Any] = {name: ctx.params.get(name) for name in ("uri", "database", "collection")}
    with ctx.scope(cleanup=False), pymongo.timeout(COMPLETION_SECONDS), connect(**place) as broker:
        return [name for name in broker.queues() if COMPLETED.fullmatch(name)]


OBJECT_ID = ObjectIdType()
MOMENT = MomentType()
JSON_VALUE = JsonType()
FILTER = FilterType()
QUEUE = QueueType()
COUNT = click.IntRange(1, MAX_COUNT)
