"""Where to measure: a server, and collections of our own in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient

from mongoq import Broker
from mongoq.embedded import EmbeddedServer

__all__ = ["Place", "place"]

CACHE_MB = 1024
"""So that a few million items do not turn a benchmark of commands into one of the disk."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and a collection with the indexes of mongoq that is ours alone, its name a prefix for others."""

    client: MongoClient[Any]
    uri: str
    database: str
    collection: str


@contextmanager
def place(uri: str | None, database: str, name: str) -> Iterator[Place]:
    """Make a place on the server of the URI, else on a private one; drop the collection at the end."""
    with ExitStack() as opened:
        where = uri or opened.enter_context(EmbeddedServer(cache_mb=CACHE_MB)).uri
        client: MongoClient[Any] = opened.enter_context(MongoClient(where))
        collection = client[database][f"{name}_{secrets.token_hex(4)}"]
        opened.callback(collection.drop)
        with Broker(collection) as broker:
            broker.ensure_indexes()
        yield Place(client, where, database, collection.name)
