"""From a mongod that listens to a primary that accepts writes: replica set and user."""

from __future__ import annotations

import time
from typing import Any, cast

import pymongo
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

from mongoq.embedded.node import Options
from mongoq.errors import EmbeddedServerUnavailable

_AUTHENTICATION_FAILED = 18
_ALREADY_INITIALIZED = 23
_USER_EXISTS = 51003

Client = MongoClient[dict[str, Any]]


def prepare(port: int, options: Options, *, key: str | None, deadline: float) -> None:
    """Make the server at ``port`` writable.

    Sends ``replSetInitiate`` or, if the data was a replica set at another port, a forced ``replSetReconfig``; then
    ``createUser``. A repetition does no harm, so the next start repairs a crash in between.

    Args:
        port: port of a mongod that listens on 127.0.0.1.
        options: the replica set to form and the user to make.
        key: content of mongod's key file, if authentication is on.
        deadline: on ``time.monotonic()``.

    Raises:
        EmbeddedServerUnavailable: the data belongs to a set of another name or has another password, or there is no
            primary by the deadline.
        pymongo.errors.PyMongoError: the server went away, or refused.
    """
    with pymongo.timeout(max(deadline - time.monotonic(), 0.001)):
        while True:
            try:
                return _prepare(port, options, key=key, deadline=deadline)
            except ServerSelectionTimeoutError:
                raise  # the server listened before, so it is gone now
            except AutoReconnect:
                # mongod drops its connections when it finds that its own replica set is at another port.
                if time.monotonic() >= deadline:
                    raise


def _prepare(port: int, options: Options, *, key: str | None, deadline: float) -> None:
    # The key gives access as ``__system``, independent of users and passwords.
    administrator = ("__system", key, "local") if key is not None else ()
    if options.replica_set is not None:
        with _connect(port, *administrator) as client:
            _form(client, options.replica_set, f"127.0.0.1:{port}")
    with _connect(port, *administrator) as client:
        while not client.admin.command("hello")["isWritablePrimary"]:
            if time.monotonic() >= deadline:
                raise EmbeddedServerUnavailable("mongod runs, but did not become primary in time; try again")
            time.sleep(0.005)
        if options.auth is None:
            return
        user, password = options.auth
        try:
            client.admin.command("createUser", user, pwd=password, roles=["root"])  # mongod keeps it out of its log
        except OperationFailure as error:
            if error.code != _USER_EXISTS:
                raise
    with _connect(port, user, password) as client:
        try:
            client.admin.command("ping")
        except OperationFailure as error:
            if error.code != _AUTHENTICATION_FAILED:
                raise
            raise EmbeddedServerUnavailable(
                f"the data in this path knows the user {user!r} with another password; give that one in auth="
            ) from error


def _connect(port: int, user: str | None = None, password: str | None = None, source: str = "admin") -> Client:
    """Connect for one step: a client from before ``replSetInitiate`` would keep a stale view of the server."""
    options: dict[str, Any] = {"directConnection": True, "serverSelectionTimeoutMS": 5000}
    return MongoClient("127.0.0.1", port, username=user, password=password, authSource=source, **options)


def _form(client: Client, name: str, host: str) -> None:
    """Make the server the only member of its set, under its current address."""
    try:
        client.admin.command("replSetInitiate", {"_id": name, "members": [{"_id": 0, "host": host}]})
        return
    except OperationFailure as error:
        if error.code != _ALREADY_INITIALIZED:
            raise
    config = cast("dict[str, Any]", client.admin.command("replSetGetConfig")["config"])
    if config["_id"] != name:
        raise EmbeddedServerUnavailable(
            f"the data in this path was made as replica set {config['_id']!r}, not {name!r}; "
            f"open it with replica_set={config['_id']!r}"
        )
    # The port changes with each start, but the stored configuration has the one of the last start.
    member = config["members"][0]
    if member["host"] != host:
        # Forced, because a member that does not find itself in the set has no primary to ask.
        config |= {"members": [{**member, "host": host}], "version": config["version"] + 1}
        client.admin.command("replSetReconfig", config, force=True)
