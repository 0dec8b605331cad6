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
from typing import Self

from pymongo.errors import PyMongoError

from mongoq.data.process import Local
from mongoq.embedded.binary import find_mongod
from mongoq.embedded.node import Node, Options
from mongoq.embedded.replica import prepare
from mongoq.errors import ArgumentInvalid, EmbeddedServerUnavailable


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
            prepare(self._node.port, self._options, key=self._node.key, deadline=deadline)
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
