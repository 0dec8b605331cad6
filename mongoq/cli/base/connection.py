"""Connection of the command line: options, environment and pyproject.toml, in this order."""

from __future__ import annotations

import functools
import logging
import os
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

import mongoq
from mongoq.cli.base.output import Output
from mongoq.drivers.connection_string import list_unknown_options
from mongoq.sync import Broker

logger = logging.getLogger("mongoq.cli")

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = ("uri", "database", "collection")
SECRET_OPTIONS = ("password", "session_token")
"""Parts of the names of options of a connection string, in lower case, whose values are secret."""
TIMEOUT_SECONDS = 5.0
"""Seconds that a command waits for a server."""


@dataclass(frozen=True, slots=True)
class Ago:
    """A time before now, as an argument of a command; ``with_broker`` replaces it by a time on the server's clock."""

    length: timedelta


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


with_connection = with_options(
    click.option("--uri", envvar="MONGOQ_URI", help="MongoDB connection string, without a password."),
    click.option("--database", envvar="MONGOQ_DATABASE", help="Default: the one of the URI, else mongoq."),
    click.option("--collection", envvar="MONGOQ_COLLECTION", help="Collection of the queues; default mongoq."),
)
with_json = click.option(
    "--json",
    "output",
    is_flag=True,
    callback=lambda _context, _option, value: Output(as_json=value),
    help="Print JSON, one document a line.",
)
"""Adds the option ``--json`` to a command; its argument ``output`` prints in that form."""


def with_broker(function: F) -> F:
    """Add the options of the connection and ``--json`` to a command; it is called with ``broker`` and ``output``.

    Arguments of the type ``Ago`` become times, by the server's clock: that of this machine may be wrong.
    """

    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        place = {name: options.pop(name) for name in SETTINGS}
        with connect(**place) as broker:
            for name, value in options.items():
                if isinstance(value, Ago):
                    try:
                        options[name] = broker.inspect().now() - value.length
                    except OverflowError:
                        options[name] = datetime.min.replace(tzinfo=UTC)
            return function(*args, broker=broker, **options)

    return with_connection(with_json(command))  # type: ignore[return-value]


def connect(*, timeout: float = TIMEOUT_SECONDS, **place: str | None) -> Broker:
    """Connect to the server that the options name, or else the environment or pyproject.toml."""
    return mongoq.connect(timeout=timeout, **find_place(**place))  # type: ignore[arg-type]


def new_queue_text(broker: Broker) -> str:
    """Return what follows the name of a queue that does not exist yet: its name, or the collection's, may be wrong."""
    return f", a new queue in {broker.namespace}"


def find_place(**given: str | None) -> dict[str, str]:
    """Return URI, database and collection; what no option and no variable gives comes from pyproject.toml.

    Raises:
        click.UsageError: there is no URI, or pyproject.toml has one that cannot be read, or the command line shows a
            password to every user of the machine.
    """
    place = read_place(**given)
    if "uri" not in place:
        raise click.UsageError(
            "no server is named: give --uri mongodb://HOST, or set MONGOQ_URI, or put uri into [tool.mongoq] of "
            "pyproject.toml"
        )
    for name in list_unknown_options(place["uri"]):
        logger.warning("the URI has an unknown option %r, which is left out", name)
        # The driver's own warning shows a file of the driver, and no name.
        warnings.filterwarnings("ignore", "Unknown option", UserWarning)
    return place


def read_place(**given: str | None) -> dict[str, str]:
    """Return URI, database and collection as ``find_place``; a URI may be missing as well."""
    refuse_shown_password(given["uri"])
    place = {**_read_project(), **{name: value for name, value in given.items() if value}}
    return {name: value for name, value in place.items() if value}


def refuse_shown_password(uri: str | None) -> None:
    """Raise ``click.UsageError`` if the command line shows a password to every user of the machine."""
    source = click.get_current_context().get_parameter_source("uri")
    if not uri or source is not click.core.ParameterSource.COMMANDLINE:
        return
    # Without urlsplit: it refuses some addresses, and a password that is not escaped may hold any character.
    login, at, _ = (uri.partition("://")[2] or uri).rpartition("@")
    options = uri.partition("?")[2].lower()
    if (at and ":" in login) or any(secret in options for secret in SECRET_OPTIONS):
        raise click.UsageError(
            "--uri with a password would show it in the list of processes; put the connection string into the "
            "variable MONGOQ_URI"
        )


def _read_project() -> dict[str, str]:
    """Return the settings of ``[tool.mongoq]`` in the nearest pyproject.toml of this folder or of one above.

    Raises:
        click.UsageError: the file cannot be read, or belongs neither to this user nor to root.
    """
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # the folder was deleted; options and variables still name a server
        return {}
    for path in (directory / "pyproject.toml" for directory in (folder, *folder.parents)):
        if path.is_file():
            break
    else:
        return {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    for name in ("tool", "mongoq"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise click.UsageError(f"{path}: {name} is to be a table, [tool.mongoq]")
    if table and hasattr(os, "geteuid") and path.stat().st_uid not in (0, os.geteuid()):
        raise click.UsageError(
            f"{path} belongs to another user, who would decide where this command works: run it in another folder, or "
            "make the file yours"
        )
    unknown = sorted(table.keys() - set(SETTINGS))
    if unknown:
        raise click.UsageError(f"[tool.mongoq] in {path} takes {', '.join(SETTINGS)}, and not {', '.join(unknown)}")
    return {name: str(value) for name, value in table.items()}
