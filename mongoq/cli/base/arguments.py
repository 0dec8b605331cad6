"""Types of arguments: ids, times, filters, JSON values and names of queues; a bad one ends the command with code 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import click
import pymongo
from bson import ObjectId
from click.shell_completion import CompletionItem

from mongoq.cli.base.connection import Ago, connect
from mongoq.cli.base.durations import ParameterType
from mongoq.cli.base.output import printable
from mongoq.errors import ArgumentInvalid, FilterInvalid
from mongoq.model.arguments import queue_name
from mongoq.model.encoding.codec import Encoding, codec_options
from mongoq.model.encoding.extended_json import read_json, read_time
from mongoq.model.operators import where_filter

__all__ = ["COUNT", "FILTER", "JSON_VALUE", "MAX_COUNT", "MOMENT", "OBJECT_ID", "QUEUE"]

MAX_COUNT = 2**31 - 1
"""Largest number of items, letters or documents that a command takes: what the server counts with."""
COMPLETION_SECONDS = 2.0
"""Seconds that a shell waits for names of queues, at most."""
COMPLETED = re.compile(r"[\w.+@%,=:/][\w.+@%,=:/-]*")
"""Names of queues that a shell completes. It puts the name into the line as it is: ``$(…)`` in it would be executed."""


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
        try:
            read = read_time(str(value).strip())
        except ValueError as error:
            return self.fail(str(error), param, ctx)
        return Ago(read) if isinstance(read, timedelta) else read


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
