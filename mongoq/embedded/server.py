"""The embedded server: a private mongod that ends with its owner."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymongo
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError

from mongoq.data.process import Local
from mongoq.embedded.binary import find_mongod
from mongoq.embedded.node import Node, Options
from mongoq.errors import ArgumentInvalid, EmbeddedServerUnavailable

_AUTHENTICATION_FAILED = 18
_ALREADY_INITIALIZED = 23
_USER_EXISTS = 51003


class EmbeddedServer(Local):
    """A private MongoDB on a free loopback port, for demos and tests.

    ```python
    with EmbeddedServer() as server:
        broker = mongoq.connect(server.uri)
    ```

    It is a replica set of one node, so transactions, retryable writes and change streams work. Several may run at the
    same time, in one process and in many. Linux and macOS.

    The server belongs to the process that starts it, not to the thread. It is stopped at exit at the latest, and a
    small watchdog process ends it within a few seconds if the owner is killed. In a forked child this object does
    nothing: only the owner can stop it. Nothing is left behind, unless owner and watchdog are both killed; then mongod
    runs on, and a temporary directory stays.

    Args:
        path: the directory of data and log, made when missing. Its data is there again at the next start, also after
            owner or server were killed. By default a temporary directory (mode 0700), which is removed when the server
            stops.
        mongod: the binary to run; by default the one on PATH, else the one of the extra ``embedded``.
        replica_set: the name of the set; ``None`` for a standalone server, without transactions. A path keeps the name
            of its first start. Standalone, a path shows the data of the set's last clean stop.
        cache_mb: the maximum size of WiredTiger's cache, in MiB; MongoDB needs at least 256.
        history_window_seconds: how long deleted index entries are kept for snapshot reads
            (``minSnapshotHistoryWindowInSeconds``). MongoDB's own default is 300; 0 keeps claims fast under churn.
        parameters: further server parameters (``--setParameter``), such as ``{"enableTestCommands": 1}``.
        auth: user and password. The server then requires authentication; the user is made with the role ``root`` at the
            first start and kept in the path. The password is in ``uri`` only: not in process arguments, logs or
            ``repr``.
        timeout: how long ``start`` may take; a number means seconds.

    Raises:
        ArgumentInvalid: no server could be started with an option.
    """

    _elsewhere = "it belongs to the process that started it; hand on its uri, and connect to that"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        mongod: str | os.PathLike[str] | None = None,
        replica_set: str | None = "mongoq",
        cache_mb: int = 256,
        history_window_seconds: int = 0,
        parameters: Mapping[str, str | int] | None = None,
        auth: tuple[str, str] | None = None,
        timeout: timedelta | float = 60,
    ) -> None:
        self._given = None if path is None else Path(path).absolute()
        self._mongod = mongod
        self._timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not self._timeout > 0:
            raise ArgumentInvalid("timeout", "a duration above zero")
        self._options = Options(
            replica_set=replica_set,
            cache_mb=cache_mb,
            history_window_seconds=history_window_seconds,
            parameters=dict(parameters or {}),
            auth=auth,
        )
        self._node: Node | None = None
        self._lock = threading.RLock()

    def start(self) -> Self:
        """Start the server and wait until it is a primary that accepts writes; does nothing if it runs.

        A server that has crashed is started again, on the same data if it has a path. If the server of a killed owner
        is still about to end in the same path, the call waits for it.

        Returns:
            This server.

        Raises:
            EmbeddedServerUnavailable: there is no mongod, it cannot run here, another server has the path, or it did
                not start in time. The message has the reason, and quotes the end of the log.
        """
        if os.name != "posix":
            raise EmbeddedServerUnavailable(
                "the embedded server runs on Linux and macOS only; start a MongoDB and connect to its URI"
            )
        if self._node is not None and self._node.owner != os.getpid():
            raise EmbeddedServerUnavailable(
                f"this embedded server belongs to process {self._node.owner}; make another one in this one"
            )
        with self._lock:
            if self.pid is None:
                self.stop()
                self._start()
        return self

    def stop(self) -> None:
        """Stop the server and wait until it is gone, with its watchdog and a temporary directory.

        Does nothing when the server does not run, and in a forked child of its owner. With a path it is a clean
        shutdown, which takes about a second.
        """
        if self._node is not None and self._node.owner != os.getpid():
            return
        with self._lock:
            if self._node is not None:
                node, self._node = self._node, None
                node.stop()
                atexit.unregister(self.stop)

    @property
    def uri(self) -> str:
        """Connection string of the running server, including the password if it has one.

        It names the replica set, so that a driver finds the primary again after a step-down.

        Raises:
            EmbeddedServerUnavailable: the server has not been started.
        """
        return self._options.uri(self.port)

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; it changes with each start.

        Raises:
            EmbeddedServerUnavailable: the server has not been started.
        """
        return self._running_node().port

    @property
    def path(self) -> Path:
        """Directory of all files that the server writes; its log is ``mongod.log``.

        Raises:
            EmbeddedServerUnavailable: it is a temporary one, and the server has not been started.
        """
        return self._given if self._given is not None else self._running_node().path

    @property
    def pid(self) -> int | None:
        """Pid of mongod; ``None`` when it does not run, for example after a crash."""
        node = self._node
        return None if node is None else node.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        node = self._node
        where = f"path={str(self._given)!r}" if self._given is not None else "temporary"
        if node is None:
            return f"<EmbeddedServer stopped {where}>"
        state = f"pid={node.pid}" if node.pid is not None else "crashed"
        return f"<EmbeddedServer port={node.port} replica_set={self._options.replica_set!r} {state} {where}>"

    def _start(self) -> None:
        deadline = time.monotonic() + self._timeout
        mongod = find_mongod(self._mongod)
        try:
            self._node = Node(mongod, self._given, self._options, deadline=deadline)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a path or a parameter
            raise EmbeddedServerUnavailable(f"the embedded server could not be started: {error}") from error
        atexit.register(self.stop)
        try:
            _prepare(self._node.port, self._options, key=self._node.key, deadline=deadline)
        except PyMongoError as error:
            message = f"the embedded server did not become ready ({error}); {self._node.last_words()}"
            self.stop()
            raise EmbeddedServerUnavailable(message) from error
        except BaseException:
            self.stop()
            raise

    def _running_node(self) -> Node:
        if self._node is None:
            raise EmbeddedServerUnavailable("the embedded server is not running; call start() first")
        return self._node


# --- a primary that accepts writes -----------------------------------------------------------------


def _prepare(port: int, options: Options, *, key: str | None, deadline: float) -> None:
    """Make the server at ``port`` writable.

    Sends ``replSetInitiate`` or, if the data was a replica set at another port, a forced ``replSetReconfig``; then
    ``createUser``. A repetition does no harm, so the next start repairs a crash in between.
    """
    with pymongo.timeout(max(deadline - time.monotonic(), 0.001)):
        while True:
            try:
                return _prepare_once(port, options, key=key, deadline=deadline)
            except ServerSelectionTimeoutError:
                raise  # the server listened before, so it is gone now
            except AutoReconnect:
                # mongod drops its connections when it finds that its own replica set is at another port.
                if time.monotonic() >= deadline:
                    raise


def _prepare_once(port: int, options: Options, *, key: str | None, deadline: float) -> None:
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


def _connect(
    port: int, user: str | None = None, password: str | None = None, source: str = "admin"
) -> MongoClient[Any]:
    """Connect for one step: a client from before ``replSetInitiate`` would keep a stale view of the server."""
    options: dict[str, Any] = {"directConnection": True, "serverSelectionTimeoutMS": 5000}
    return MongoClient("127.0.0.1", port, username=user, password=password, authSource=source, **options)


def _form(client: MongoClient[Any], name: str, host: str) -> None:
    """Make the server the only member of its set, under its current address."""
    try:
        client.admin.command("replSetInitiate", {"_id": name, "members": [{"_id": 0, "host": host}]})
        return
    except OperationFailure as error:
        if error.code != _ALREADY_INITIALIZED:
            raise
    config: dict[str, Any] = client.admin.command("replSetGetConfig")["config"]
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
