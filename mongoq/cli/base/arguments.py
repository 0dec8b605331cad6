"""Types of arguments, and the options that commands share; a bad value ends the command with code 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pymongo
from bson import ObjectId
from click.shell_completion import CompletionItem

from mongoq.cli.base.connection import SETTINGS, Ago, connect
from mongoq.cli.base.output import printable
from mongoq.data.arguments import queue_name, read_duration
from mongoq.data.encoding.codec import Encoding, codec_options
from mongoq.data.encoding.extended_json import NONE, read_json, read_time
from mongoq.data.operators import where_filter
from mongoq.errors import ArgumentInvalid

if TYPE_CHECKING:
    ParameterType = click.ParamType[Any]
else:
    # It has no type parameter before click 8.4.
    ParameterType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

MAX_COUNT = 2**31 - 1
"""Largest number of items, letters or documents that a command takes: what the server counts with."""
COMPLETION_SECONDS = 2.0
"""Seconds that a shell waits for names of queues, at most."""
COMPLETED = re.compile(r"[\w.+@%,=:/][\w.+@%,=:/-]*")
"""Names of queues that a shell completes. It puts the name into the line as it is: ``$(…)`` in it would be executed."""
DEFAULT_HOST = "127.0.0.1"


class ReadType(ParameterType):
    """Values that a function reads from their texts; the text of its ``ValueError`` says why it cannot.

    Args:
        name: name of the type, which help pages show.
        read: the function.
        none: accept ``none`` too, and return it unchanged.
    """

    def __init__(self, name: str, read: Callable[[str], Any], *, none: bool = False) -> None:
        self.name = name
        self._read = read
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; one that was read already stays as it is."""
        if not isinstance(value, str):
            return value
        if self._none and value.strip().lower() == NONE:
            return NONE
        try:
            return self._read(value)
        except ValueError as error:
            return self.fail(printable(str(error)) + (", or none" if self._none else ""), param, ctx)


class QueueType(ReadType):
    """The name of a queue; shells complete it from the server."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with the typed characters; none if the server does not answer in time."""
        place: dict[str, Any] = {name: ctx.params.get(name) for name in SETTINGS}
        try:
            with ctx.scope(cleanup=False), pymongo.timeout(COMPLETION_SECONDS), connect(**place) as broker:
                names = [name for name in broker.queues() if COMPLETED.fullmatch(name)]
        except Exception:
            # An error would be printed into the line that the user is typing.
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _read_id(text: str) -> ObjectId:
    """Return an id of 24 hex digits; shorter forms are refused, because they could name another item."""
    if not re.fullmatch(r"[0-9a-fA-F]{24}", text):
        raise ValueError(f"{text!r:.60} is no id of an item: it has 24 hex digits")
    return ObjectId(text)


def _read_moment(text: str) -> datetime | Ago:
    """Return a time, in UTC unless it says otherwise, or a time ago, which ``with_broker`` makes a time."""
    read = read_time(text.strip())
    return Ago(read) if isinstance(read, timedelta) else read


def _read_filter(text: str) -> Mapping[str, Any]:
    """Return a filter on payloads in JSON, with the operators of ``where=``, checked."""
    where: Mapping[str, Any] = read_json(text)
    where_filter(where, Encoding(codec_options()))
    return where


def _read_queue(text: str) -> str:
    try:
        return queue_name(text)
    except ArgumentInvalid as error:
        raise ValueError(error.problem) from None


def _read_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; without a host, that of this machine alone."""
    host, colon, port = text.rpartition(":")
    if not colon and not text.isdecimal():
        raise ValueError(f"{text!r} has no port; give HOST:PORT, such as {DEFAULT_HOST}:8080")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{port!r:.60} is no port, a number from 0 to 65535")
    return host.removeprefix("[").removesuffix("]") or DEFAULT_HOST, int(port)


def to_url(host: str, port: int) -> str:
    """Return the URL of a server; the host is the name that the user has given."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


OBJECT_ID = ReadType("id", _read_id)
MOMENT = ReadType("time", _read_moment)
DURATION = ReadType("duration", read_duration)
FILTER = ReadType("json", _read_filter)
QUEUE = QueueType("queue", _read_queue)
ADDRESS = ReadType("HOST:PORT", _read_address)
COUNT = click.IntRange(1, MAX_COUNT)

queue_argument = click.argument("queue", type=QUEUE)
queues_argument = click.argument("names", metavar="[QUEUE]...", nargs=-1, type=QUEUE)
where_option = click.option("--where", type=FILTER, help='Filter on payloads in JSON, such as \'{"city": "Paris"}\'.')


def examples(*commands: str) -> str:
    """Return the end of a help page, with one example in each line."""
    # The mark keeps the line breaks of what follows.
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)
