"""Fixtures of the tests of the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

import mongoq
from tests.docs.crashing import Live, Mortal, Process
from tests.servers import drop


@pytest.fixture(autouse=True)
def _write_into_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own: a page may write a file by a relative path."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def dying(uri: str) -> Iterator[tuple[MongoClient[Any], Mortal]]:
    """A client whose process can die."""
    mortal = Mortal()
    options: dict[str, Any] = {"tz_aware": True, "uuidRepresentation": "standard", "event_listeners": [mortal]}
    with MongoClient[Any](uri, **options) as client:
        yield client, mortal


@pytest.fixture
def live(dying: tuple[MongoClient[Any], Mortal], raw: Any) -> Live:
    """Makes a process in an empty collection."""
    client, mortal = dying

    @contextmanager
    def begin() -> Iterator[Process]:
        raw.delete_many({})
        clock = mongoq.VirtualClock(datetime.now(UTC))
        own = client[raw.database.name][raw.name]
        with mongoq.Broker(own, clock=clock) as broker:
            broker.ensure_indexes()
            process = Process(broker, own, raw, clock, mortal)
            try:
                yield process
            finally:
                process.end_transactions()

    return begin


@pytest.fixture
def shared_server(client: MongoClient[Any], uri: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a page that starts a server get the server of the tests: to start one takes half of the page's time.

    Each page has a database of its own: a thread that a page has given up may still write for a while.
    """
    before = set(client.list_database_names())

    class SharedServer:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.uri = urlsplit(uri)._replace(path=f"/{database}").geturl()

        def start(self) -> SharedServer:
            return self

        __enter__ = start

        def __exit__(self, *_: object) -> None:
            pass

        def stop(self) -> None:
            pass

    monkeypatch.setattr("mongoq.embedded.EmbeddedServer", SharedServer)
    yield
    for name in set(client.list_database_names()) - before:
        drop(client, name)
