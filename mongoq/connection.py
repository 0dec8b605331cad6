"""``connect`` and ``connect_async``: a broker from a URI, checked, or a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)

from mongoq.aio import AsyncBroker
from mongoq.drive.background import PATIENCE
from mongoq.drive.numbered import numbering
from mongoq.errors import ArgumentInvalid, AuthenticationFailed, ServerUnavailable
from mongoq.model.arguments import Duration, duration
from mongoq.model.settings import SettingsFrom, checked_source
from mongoq.sync import Broker

__all__ = ["connect", "connect_async"]

DATABASE = "mongoq"
COLLECTION = "mongoq"
TIMEOUT = 10.0
UNAUTHORISED = frozenset({13, 18, 8000})


def connect(
    uri: str,
    *,
    database: str | None = None,
    collection: str = COLLECTION,
    timeout: Duration = TIMEOUT,
    group_commit: bool = False,
    settings: SettingsFrom = "stored",
) -> Broker:
    """Connect to MongoDB and return a broker, having checked that it can work there.

    Use it as a context manager, or call ``close``: it closes the client that this call makes. To share a client of
    your own, make ``mongoq.Broker(client[database][collection])``.

    Args:
        uri: a MongoDB connection string. It is handed to the driver and not kept.
        database: the database; default the one in the URI, else ``mongoq``.
        collection: the collection that holds the queues.
        timeout: how long to look for a server now, a ``timedelta`` or seconds. Later commands wait as long as the
            URI says (``serverSelectionTimeoutMS``, 30 s by default).
        group_commit: let threads share commands, as for ``Broker``; ``connect_async`` does so by default.
        settings: which settings of a queue win, ``"stored"`` or those given in ``"code"``, as for ``Broker``.

    Raises:
        ArgumentInvalid: the URI or a name cannot be used. The URI is never quoted.
        ServerUnavailable: no server answered in time.
        AuthenticationFailed: the server refused the credentials, or the user may not use the database.
        CollectionSharded, SchemaTooNew: the collection cannot be used.
    """
    seconds = duration(timeout, "timeout", zero=False).total_seconds()
    source = checked_source(settings)
    client: MongoClient[Any] = _client(MongoClient, uri)
    try:
        broker = Broker(
            _collection(client, database, collection),
            group_commit=group_commit,
            settings=source,
            on_close=partial(_close, client),
        )
        with pymongo.timeout(seconds):
            broker.ping()
    except BaseException as error:
        _close(client)
        _explain(error, client, seconds)
        raise
    return broker


class connect_async:  # noqa: N801  # reads as the function it is to its caller
    """Connect to MongoDB from asyncio: ``broker = await connect_async(uri)``, or ``async with connect_async(uri)``.

    Arguments and errors are those of ``mongoq.connect``. The broker belongs to the running event loop.
    """

    def __init__(
        self,
        uri: str,
        *,
        database: str | None = None,
        collection: str = COLLECTION,
        timeout: Duration = TIMEOUT,
        group_commit: bool = True,
        settings: SettingsFrom = "stored",
    ) -> None:
        self._uri = uri
        self._database = database
        self._collection = collection
        self._timeout = timeout
        self._group_commit = group_commit
        self._settings: SettingsFrom = checked_source(settings)
        self._broker: AsyncBroker | None = None

    def __repr__(self) -> str:
        """Show no URI, since it may hold credentials."""
        return f"<connect_async {self._collection!r}>"

    if not TYPE_CHECKING:  # a type checker knows by itself what it lacks

        def __getattr__(self, name: str) -> NoReturn:
            """Tell who forgot to await it."""
            problem = f"no broker yet, so it has no {name!r}: await connect_async(uri), or use it as async with"
            raise AttributeError(problem, name=name, obj=self)

    def __await__(self) -> Generator[Any, None, AsyncBroker]:
        """Connect."""
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncBroker:
        """Connect, and close the broker at the end of the block."""
        self._broker = await self._connect()
        return self._broker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the broker."""
        if self._broker is not None:
            await self._broker.close()

    async def _connect(self) -> AsyncBroker:
        seconds = duration(self._timeout, "timeout", zero=False).total_seconds()
        client: AsyncMongoClient[Any] = _client(AsyncMongoClient, self._uri)
        try:
            broker = AsyncBroker(
                _collection(client, self._database, self._collection),
                group_commit=self._group_commit,
                settings=self._settings,
                on_close=partial(_close_async, client),
            )
            with pymongo.timeout(seconds):
                await broker.ping()
        except BaseException as error:
            await _close_async(client)
            _explain(error, client, seconds)
            raise
        return broker


def _close(client: MongoClient[Any]) -> None:
    """Close a client; it tells the server which sessions end, and does not wait long for one that has gone."""
    with pymongo.timeout(PATIENCE):
        for session in numbering(client):
            session.end_session()
        client.close()


async def _close_async(client: AsyncMongoClient[Any]) -> None:
    with pymongo.timeout(PATIENCE):
        for session in numbering(client):
            await session.end_session()
        await client.close()


def _client(kind: Callable[..., Any], uri: Any) -> Any:
    """Make the client; what is wrong with a URI is told without quoting it, since it may hold a password."""
    if not isinstance(uri, str):
        raise ArgumentInvalid("uri", f"a connection string such as 'mongodb://localhost', not {type(uri).__name__}")
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        raise ArgumentInvalid("uri", "a connection string begins with mongodb:// or mongodb+srv://")
    try:
        named = "appname=" in uri.partition("?")[2].lower()
        return kind(uri, driver=DriverInfo("mongoq"), **({} if named else {"appname": "mongoq"}))
    except (InvalidURI, ConfigurationError, ValueError, TypeError, OSError) as error:
        raise ArgumentInvalid(
            "uri",
            f"the driver cannot use this connection string ({_stumble(error)}); it reads "
            f"mongodb://[user:password@]host[:port][/database][?options], with user and password percent-encoded",
        ) from None


def _stumble(error: Exception) -> str:
    if isinstance(error, ValueError):
        return "what stands where the port belongs is no number from 1 to 65535"
    return "a file that it names cannot be read" if isinstance(error, OSError) else type(error).__name__


def _collection(client: Any, database: Any, collection: Any) -> Any:
    try:
        named = client.get_default_database(DATABASE) if database is None else client[_name(database, "database")]
        if _name(collection, "collection").startswith("system."):
            raise ArgumentInvalid("collection", f"{collection!r} is a name that MongoDB keeps for itself")
        return named[collection]
    except InvalidName as error:
        raise ArgumentInvalid("database or collection", str(error)) from error


def _name(value: Any, argument: str) -> str:
    if not isinstance(value, str):
        raise ArgumentInvalid(argument, f"a string, not {type(value).__name__}")
    return value


def _explain(error: BaseException, client: Any, seconds: float) -> None:
    """Raise the error that tells what to do; other errors than these pass through."""
    if not isinstance(error, PyMongoError):
        return
    hosts = ", ".join(f"{host}:{port}" for host, port in sorted(client.topology_description.server_descriptions()))
    if isinstance(error, OperationFailure) and error.code in UNAUTHORISED:
        raise AuthenticationFailed(
            f"MongoDB at {hosts} refused the user: check user, password and authSource in the URI, and that the user "
            f"may read and write the database"
        ) from error
    if isinstance(error, ConnectionFailure) and not hosts:
        raise ServerUnavailable(
            "servers of the URI answered, but none belongs to the replica set that it names: correct replicaSet in the "
            "URI, or leave it out"
        ) from error
    if isinstance(error, ConnectionFailure) or error.timeout:
        in_time = f" in time (timeout={seconds:g} s)" if error.timeout else ""
        raise ServerUnavailable(
            f"no usable MongoDB answered at {hosts}{in_time}: start one, or check host, port, replicaSet and TLS in "
            f"the URI ({type(error).__name__})"
        ) from error
