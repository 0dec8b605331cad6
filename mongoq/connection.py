"""``connect`` and ``connect_async``: return a checked broker from a URI, or raise an error with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidName, OperationFailure, PyMongoError

from mongoq.aio import AsyncBroker
from mongoq.data.arguments import Duration, duration
from mongoq.data.settings import SettingsFrom, check_source
from mongoq.drivers.backend import find_primary
from mongoq.drivers.connection_string import (
    advise_escaping,
    explain_refusal,
    has_option,
    list_connection_errors,
    list_hosts,
    make_client,
    redact_error,
)
from mongoq.drivers.counter_flush import FLUSH_TIMEOUT_SECONDS
from mongoq.drivers.errors import LOGIN_REFUSED_CODES, UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import ArgumentInvalid, AuthenticationFailed, MongoqError, ServerUnavailable
from mongoq.sync import Broker

__all__ = ["connect", "connect_async"]

DATABASE = "mongoq"
COLLECTION = "mongoq"
CONNECT_TIMEOUT_SECONDS = 10.0
MIN_TIMEOUT_SECONDS = 0.001
"""Shortest limit in seconds; the driver would read 0 as no limit."""


def connect(
    uri: str,
    *,
    database: str | None = None,
    collection: str = COLLECTION,
    timeout: Duration | None = None,
    group_commit: bool = False,
    settings: SettingsFrom = "stored",
) -> Broker:
    """Connect to MongoDB, check that mongoq can work there, and return a broker.

    Use the broker as a context manager, or call ``close``: this closes the client that the call makes. To share a
    client of your own, make ``mongoq.Broker(client[database][collection])``.

    Args:
        uri: a MongoDB connection string. It is passed to the driver and not kept.
        database: the database; default the one in the URI, else ``mongoq``.
        collection: the collection that holds the queues.
        timeout: how long this call may take, a ``timedelta`` or seconds; default the URI's ``timeoutMS``, else 10 s.
            The search for a server ends after the ``serverSelectionTimeoutMS`` of the URI at the latest. Later
            commands wait as long as the URI allows (30 s by default).
        group_commit: let threads share commands, as for ``Broker``; ``connect_async`` does so by default.
        settings: which settings of a queue win, ``"stored"`` or those given in ``"code"``, as for ``Broker``.

    Raises:
        ArgumentInvalid: the URI or a name is invalid. The message has the driver's sentence, and no credentials.
        ServerUnavailable: no server answered in time.
        AuthenticationFailed: the server refused the credentials, or the user lacks a right; the message names it.
        CollectionSharded, SchemaTooNew: the collection cannot be used.
    """
    source = check_source(settings)
    client: MongoClient[Any] = _client(MongoClient, uri, timeout)
    trial = _Trial(client, uri, timeout)
    try:
        broker = Broker(
            open_collection(client, database, collection),
            group_commit=group_commit,
            settings=source,
            on_close=partial(_close, client),
        )
        # Two limits: the search for a server may have to end earlier than the whole call.
        with pymongo.timeout(trial.seconds):
            with pymongo.timeout(trial.search_seconds):
                _ = client.is_primary  # waits until a server is found
            trial.found = True
            broker.ping()
    except BaseException as error:
        explained, cause = trial.explain(error)
        _close(client)
        if explained is None:
            raise
    else:
        return broker
    # Outside of the except block, so that the driver's error does not become the context of this one.
    raise explained from cause


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
        timeout: Duration | None = None,
        group_commit: bool = True,
        settings: SettingsFrom = "stored",
    ) -> None:
        self._uri = uri
        self._database = database
        self._collection = collection
        self._timeout = timeout
        self._group_commit = group_commit
        self._settings: SettingsFrom = check_source(settings)
        self._broker: AsyncBroker | None = None

    def __repr__(self) -> str:
        """Return a text without the URI, which may hold credentials."""
        return f"<connect_async {self._collection!r}>"

    if not TYPE_CHECKING:  # a type checker finds missing attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that explains a forgotten ``await``."""
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
        client: AsyncMongoClient[Any] = _client(AsyncMongoClient, self._uri, self._timeout)
        trial = _Trial(client, self._uri, self._timeout)
        try:
            broker = AsyncBroker(
                open_collection(client, self._database, self._collection),
                group_commit=self._group_commit,
                settings=self._settings,
                on_close=partial(_close_async, client),
            )
            # Two limits: the search for a server may have to end earlier than the whole call.
            with pymongo.timeout(trial.seconds):
                with pymongo.timeout(trial.search_seconds):
                    await client.is_primary  # waits until a server is found
                trial.found = True
                await broker.ping()
        except BaseException as error:
            explained, cause = trial.explain(error)
            await _close_async(client)
            if explained is None:
                raise
        else:
            return broker
        raise explained from cause


def _close(client: MongoClient[Any]) -> None:
    """Close a client; it ends its sessions on the server, with a short timeout in case the server is gone."""
    with pymongo.timeout(_close_seconds(client)):
        client.close()


async def _close_async(client: AsyncMongoClient[Any]) -> None:
    with pymongo.timeout(_close_seconds(client)):
        await client.close()


def _close_seconds(client: Any) -> float:
    # The sessions of a server that is gone end there by themselves.
    return FLUSH_TIMEOUT_SECONDS if find_primary(client) is not None else MIN_TIMEOUT_SECONDS


def _client(kind: Callable[..., Any], uri: Any, timeout: Duration | None) -> Any:
    if timeout is not None:
        duration(timeout, "timeout", zero=False)
    # The name in the URI is the user's choice and wins.
    named = isinstance(uri, str) and has_option(uri, "appName")
    return make_client(kind, uri, driver=DriverInfo("mongoq"), **({} if named else {"appname": "mongoq"}))


def open_collection(client: Any, database: Any, collection: Any) -> Any:
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
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid(argument, "cannot hold lone surrogates") from None
    return value


class _Trial:
    """First commands of a new client: their time limits, and the meaning of their errors.

    Attributes:
        found: True once a server was found; set by the caller.
        seconds: time limit of all commands together.
        search_seconds: time limit of the search for a server.
    """

    def __init__(self, client: Any, uri: str, timeout: Duration | None) -> None:
        self.found = False
        self._client, self._uri = client, uri
        options = client.options
        search = options.server_selection_timeout if has_option(uri, "serverSelectionTimeoutMS") else None
        limits = [options.timeout] if options.timeout else []
        if timeout is not None:
            limits.append(duration(timeout, "timeout", zero=False).total_seconds())
        self.seconds = min(limits, default=max(CONNECT_TIMEOUT_SECONDS, search or 0.0))
        self.search_seconds = self.seconds if search is None else min(self.seconds, max(search, MIN_TIMEOUT_SECONDS))

    def explain(self, error: BaseException) -> tuple[MongoqError | None, BaseException | None]:
        """Return an error with the remedy, and its cause; ``None`` for an error that the caller raises unchanged."""
        if isinstance(error, ConfigurationError):  # found when the client connects: SRV, modules of a mechanism
            return ArgumentInvalid("uri", explain_refusal(error, self._uri)), None
        if isinstance(error, OperationFailure):
            if error.code == UNAUTHORIZED_CODE:
                return AuthenticationFailed(f"MongoDB at {self._hosts()} {describe_missing_right(error)}"), error
            if error.code not in LOGIN_REFUSED_CODES:
                return None, error
            problem = (
                f"MongoDB at {self._hosts()} refused the user: check user, password, authSource and authMechanism in "
                f"the URI ({redact_error(error, self._uri)})"
            )
            return AuthenticationFailed(problem), error
        if isinstance(error, ConnectionFailure) or (isinstance(error, PyMongoError) and error.timeout):
            return ServerUnavailable(self._unavailable(error)), error
        return None, None

    def _hosts(self) -> str:
        return list_hosts(self._client, self._uri)

    def _unavailable(self, error: PyMongoError) -> str:
        hosts = self._hosts()
        if not hosts:
            return (
                "servers of the URI answered, but none belongs to the replica set that it names: correct replicaSet "
                "in the URI, or leave it out"
            )
        seconds, limit = self.seconds if self.found else self.search_seconds, ""
        if error.timeout:
            name, unit = ("timeout", " s") if seconds == self.seconds else ("serverSelectionTimeoutMS", "")
            limit = f" in time ({name}={seconds if unit else seconds * 1000:g}{unit})"
        return (
            f"no usable MongoDB answered at {hosts}{limit}: start one, or check "
            f"host, port, replicaSet and TLS in the URI "
            f"({list_connection_errors(self._client, error, self._uri)}){advise_escaping(self._uri)}"
        )
