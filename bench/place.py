"""The place of a measurement: a server, and collections of its own in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any

from pymongo import MongoClient

from mongoq import Broker
from mongoq.embedded import EmbeddedServer

__all__ = ["Address", "Place", "place"]

CACHE_MB = 1024
"""So that a few million items do not turn a benchmark of commands into one of the disk."""
SPACE = 4 * 1024**3
"""Bytes that a server in memory may need."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a place, for another process."""

    uri: str
    database: str
    collection: str


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and a new collection with mongoq's indexes, whose name is a prefix for others."""

    client: MongoClient[Any]
    uri: str
    database: str
    collection: str


@contextmanager
def place(
    uri: str | None, database: str, name: str, *, window: int = 0, memory: bool = False, cache_mb: int = CACHE_MB
) -> Iterator[Place]:
    """Make a place on the server of the URI, else on a private one; drop the collection at the end.

    A private server has a history window of so many seconds, and with ``memory`` no disk behind it, where the machine
    has room: then the server is as fast as it can be, and what is measured is not the disk.
    """
    with ExitStack() as opened:
        where = uri or opened.enter_context(_private(window, memory=memory, cache_mb=cache_mb)).uri
        client: MongoClient[Any] = opened.enter_context(MongoClient(where))
        collection = client[database][f"{name}_{secrets.token_hex(4)}"]
        opened.callback(collection.drop)
        with Broker(collection) as broker:
            broker.ensure_indexes()
        yield Place(client, where, database, collection.name)


@contextmanager
def _private(window: int, *, memory: bool, cache_mb: int) -> Iterator[EmbeddedServer]:
    shared = Path("/dev/shm")  # noqa: S108  # a file system in memory
    if not memory or not shared.is_dir() or disk_usage(shared).free < SPACE:
        with EmbeddedServer(cache_mb=cache_mb, history_window_seconds=window) as server:
            yield server
        return
    with (
        TemporaryDirectory(prefix="mongoq-bench-", dir=shared) as path,
        EmbeddedServer(path, cache_mb=cache_mb, history_window_seconds=window) as server,
    ):
        yield server
