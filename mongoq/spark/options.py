"""The options of a read, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import queue_name
from mongoq.spark.views import VIEWS

__all__ = ["ReadOptions"]

DEFAULT_COLLECTION = "mongoq"
DEFAULT_VIEW = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how to split it. The URI holds credentials and is never shown."""

    uri: str = field(repr=False)
    database: str | None
    collection: str
    queue: str
    view: str
    partitions: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check the options of a Spark reader; their names come in any case.

        Raises:
            ArgumentInvalid: an option that is unknown, missing, or has a value out of its range.
            QueueNameInvalid: no queue has this name.
        """
        options = {name.lower(): value for name, value in given.items()}
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                raise ArgumentInvalid(name, f"not an option of format mongoq, which has {', '.join(known)}")
        return cls(
            uri=_text(options, "uri") or _present(options, "uri", "such as mongodb://localhost:27017"),
            database=_text(options, "database"),
            collection=_text(options, "collection") or DEFAULT_COLLECTION,
            queue=queue_name(_present(options, "queue", "the name of the queue to read")),
            view=_view(options.get("view", DEFAULT_VIEW)),
            partitions=_partitions(options.get("partitions")),
        )


def _present(options: Mapping[str, str], name: str, what: str) -> str:
    if options.get(name) is None:
        raise ArgumentInvalid(name, f"this option is missing: {what}")
    return options[name]


def _text(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not value.strip():
        raise ArgumentInvalid(name, "this option is empty")
    return value


def _view(value: str) -> str:
    view = value.lower()
    if view not in VIEWS:
        raise ArgumentInvalid("view", f"one of {', '.join(VIEWS)}, not {value!r}")
    return view


def _partitions(value: str | None) -> int | None:
    if value is None:
        return None
    number = int(value) if value.isascii() and value.isdigit() else 0
    if number < 1:
        raise ArgumentInvalid("partitions", f"a whole number from 1 up, not {value!r}")
    return number
