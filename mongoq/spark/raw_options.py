"""Options of a reader or a writer, read by name and checked before any command is sent."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from mongoq.data.arguments import duration
from mongoq.errors import ArgumentInvalid

T = TypeVar("T")

DEFAULT_COLLECTION = "mongoq"
LOCATION_OPTIONS = ("uri", "database", "collection")
"""Options with the location of the queues; every reader and writer has them."""
VARIABLES = ("MONGOQ_URI", "MONGOQ_DATABASE", "MONGOQ_COLLECTION")
"""Environment variables of the driver that are used when no option has a URI."""
SETUP = "setup"
"""Option with the function that Spark's Python processes call with their broker."""
PATH = "path"
"""Name under which Spark passes the argument of ``load``, ``save`` and ``start``."""
IMPORT_PATH = re.compile(r"\A[\w.]++:[\w.]++\Z")
TRUTHS = {"true": True, "false": False}
DIGITS = 18
LATEST_TIME = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
"""Latest time that both BSON and Python can hold."""


@dataclass(frozen=True, slots=True)
class Location:
    """Location of the queues. The URI holds credentials and is never shown.

    Attributes:
        uri: a MongoDB connection string.
        database: the database; default the one in the URI.
        collection: the collection that holds the queues.
        setup: import path of a function that a Python process of Spark calls with its broker, before it uses it.
    """

    uri: str = field(repr=False)
    database: str | None
    collection: str
    setup: str | None = None

    @property
    def of_driver(self) -> Location:
        """The location for the user's own program, which has set itself up."""
        return self if self.setup is None else replace(self, setup=None)


class RawOptions:
    """Options by their names in lower case; Spark accepts names in any case.

    Every method raises ``ArgumentInvalid``, with the option's name, for an invalid value.
    """

    def __init__(self, options: Mapping[str, str], known_names: Collection[str]) -> None:
        """Store the options; each must be known, in any case of letters."""
        self.options = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known_names}
        for name in self.options:
            if name not in names:
                raise ArgumentInvalid(name, f"not an option of format mongoq, which has {', '.join(known_names)}")

    def place(self) -> Location:
        """Return the location of the queues, from the options or the environment of the driver.

        The environment's database and collection hold only for the environment's URI, not for the option's.
        """
        uri, database, collection = (self.text(name) for name in LOCATION_OPTIONS)
        if uri is None:
            uri, named, of_them = (os.environ.get(name) or None for name in VARIABLES)
            # Only with the URI of the environment: its names may not exist where another URI leads.
            database, collection = database or named, collection or of_them
        if uri is None:
            problem = f"this option is missing: such as mongodb://localhost:27017; or set the variable {VARIABLES[0]}"
            raise ArgumentInvalid("uri", f"{problem} in the environment of the driver, before Spark is started")
        setup = self.text(SETUP)
        if setup is not None and not IMPORT_PATH.match(setup):
            raise ArgumentInvalid(SETUP, f"an import path such as shop.telemetry:configure, not {setup[:60]!r}")
        return Location(uri, database, collection or DEFAULT_COLLECTION, setup)

    def take_path(self, meaning: str) -> None:
        """Use the path of ``load``, ``save`` or ``start`` as the option that names the queue."""
        path = self.options.pop(PATH, None)
        if path is None:
            return
        # The same name by path and by option is no conflict.
        if self.options.setdefault(meaning, path) != path:
            other = f"the option {meaning} {self.options[meaning]!r}"
            raise ArgumentInvalid(PATH, f"{path!r} and {other} name both the queue; give one of them")

    def value(self, name: str) -> str | None:
        """Return the value of an option, or ``None``."""
        return self.options.get(name.lower())

    def text(self, name: str) -> str | None:
        """Return the value of an option that must not be blank, or ``None``."""
        value = self.value(name)
        if value is not None and not value.strip():
            raise ArgumentInvalid(name, "this option is empty")
        return value

    def required(self, name: str, meaning: str) -> str:
        """Return the value of an option that must be given."""
        value = self.value(name)
        if value is None:
            raise ArgumentInvalid(name, f"this option is missing: {meaning}")
        return value

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of several words, spelled as in ``choices``; users may write it in any case."""
        value = self.value(name)
        words = {choice.lower(): choice for choice in choices}
        word = words.get((default if value is None else value).lower())
        if word is None:
            raise ArgumentInvalid(name, f"one of {', '.join(choices)}, not {value!r}")
        return word

    def truth(self, name: str, *, default: T) -> bool | T:
        """Return the value of an option that is ``true`` or ``false``, or the default."""
        return default if self.value(name) is None else TRUTHS[self.choice(name, TRUTHS, "")]

    def whole(self, name: str, *, most: int | None = None) -> int | None:
        """Return a whole number of at least 1, or ``None``."""
        value = self.value(name)
        if value is None:
            return None
        # At most DIGITS digits: int takes quadratic time for very long texts. isascii, because isdigit accepts other
        # scripts.
        number = int(value) if value.isascii() and value.isdigit() and len(value) <= DIGITS else 0
        if number < 1 or (most is not None and number > most):
            limits = "from 1 up" if most is None else f"from 1 to {most:,}"
            raise ArgumentInvalid(name, f"a whole number {limits}, not {value!r}")
        return number

    def names(self, name: str, example: str) -> tuple[str, ...]:
        """Return a list of names as JSON, without repetitions, such as ``example``; empty if the option is missing."""
        value = self.value(name)
        if value is None:
            return ()
        try:
            names = json.loads(value)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
            raise ArgumentInvalid(name, f"a list of names as JSON, such as {example}, not {value[:60]!r}")
        return tuple(dict.fromkeys(names))

    def seconds(self, name: str, *, zero: bool = False) -> float | None:
        """Return the seconds of a duration such as ``30``, ``0.5`` or ``5m``, above zero or from zero up."""
        value = self.value(name)
        return None if value is None else duration(value, name, zero=zero).total_seconds()

    def moment(self, name: str) -> datetime | None:
        """Return a time with an offset, in UTC."""
        value = self.value(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value.strip())
            # A time without an offset would depend on the time zone of the driver, so it is refused.
            utc = None if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            utc = None
        if utc is None or utc > LATEST_TIME:
            raise ArgumentInvalid(
                name, f"a time in ISO 8601 with an offset, such as 2026-11-20T08:30:00Z, not {value!r}"
            )
        return utc
