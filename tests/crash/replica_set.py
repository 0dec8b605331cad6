"""A replica set of embedded servers that lose their lives and come back, each on its data and its port."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from mongoq.embedded.binary import find_mongod
from mongoq.embedded.node import Node, Options

NAME = "crash"
HOST = "127.0.0.1"
ELECTION_TIMEOUT = 1.0
"""Seconds after which a primary that sends no heartbeats is replaced."""
PATIENCE = 150.0
"""Seconds for whatever the servers take; as good as for ever.

A member that has rolled back asks nobody for a minute who lacked what it needs (``kNoRequiredOpTimeDenylistDuration``,
``kTooStaleDenylistDuration`` in mongod's sync_source_resolver.cpp).
"""
STUCK = 75.0
"""Seconds after which a member that gets nowhere is started again: it has denied itself all others for longer."""
PORTS = range(20000, 30000)
"""Below the ports that systems give to connections, so that nobody gets the port of a server that is down."""


class ReplicaSet:
    """So many mongods as one set. They end with this process, however it ends.

    Their data is in a directory that is made within the one given, and removed in the end.

    ```python
    with ReplicaSet(Path("/tmp"), members=3) as replica_set:
        broker = mongoq.connect(replica_set.uri)
        replica_set.kill_primary()
        replica_set.restore()
    ```

    A member that stands still (SIGSTOP) keeps its connections, and says nothing.
    """

    def __init__(self, within: Path, *, members: int, parameters: Mapping[str, str | int] | None = None) -> None:
        self._directory = TemporaryDirectory(dir=within)
        self._ports = _free_ports(members)
        self._nodes: list[Node | None] = [None] * members
        self._still: set[int] = set()
        self._mongod = find_mongod()
        self._options = Options(
            replica_set=NAME,
            cache_mb=256,
            history_window_seconds=0,
            parameters={"enableTestCommands": 1, **(parameters or {})},
            auth=None,
        )

    def __enter__(self) -> Self:
        try:
            self.restore()
            self._initiate()
            self.wait_until_whole()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def uri(self) -> str:
        """The connection string: all members, and the name of the set."""
        return f"mongodb://{','.join(self._hosts)}/?replicaSet={NAME}"

    @property
    def ports(self) -> list[int]:
        """The port of each member, running or not; it keeps it for life."""
        return list(self._ports)

    def primary(self) -> int | None:
        """Return the place of the member that takes writes, ``None`` while there is none."""
        return next((place for place in self._running() if self._hello(place).get("isWritablePrimary")), None)

    def kill_primary(self) -> int:
        """Kill the present primary, having waited for one, and return its place."""
        place = self._awaited_primary()
        self._kill(place)
        return place

    def stall_primary(self) -> int:
        """Let the present primary stand still, having waited for one, and return its place."""
        place = self._awaited_primary()
        self._stop(place)
        return place

    def leave_primary_alone(self) -> None:
        """Let nobody copy from the present primary: what it writes now is on its disk alone, and has no majority."""
        primary = self._awaited_primary()
        self._set_copying([place for place in self._running() if place != primary], "alwaysOn")

    def follow(self) -> None:
        """Let everybody copy from the primary again."""
        self._set_copying(list(self._running()), "off")

    def restore(self) -> None:
        """Bring all members back: those that stand still, and those that were killed, on their data and their ports."""
        for place in self._still:
            os.kill(self._pid(place), signal.SIGCONT)
        self._still.clear()
        for place, node in enumerate(self._nodes):
            if node is None:
                self._nodes[place] = self._start(place)

    def wait_until_whole(self) -> None:
        """Wait until all members run, one of them is primary, and the others follow it.

        A member that gets nowhere beside a primary is killed and started again, as its operator would.
        """
        stuck = time.monotonic() + STUCK

        def is_whole() -> bool:
            nonlocal stuck
            whole = self._is_whole()
            if not whole and time.monotonic() > stuck and self.primary() is not None:
                stuck = math.inf
                self._start_again()
            return whole

        self.wait_until(is_whole)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (
                f"the set did not get there; it has {[*map(self._hello, self._running())]}"
            )
            time.sleep(0.05)

    def _start_again(self) -> None:
        """Start those again, on their data, that neither take writes nor follow who does."""
        for place in list(self._running()):
            reply = self._hello(place)
            if not (reply.get("isWritablePrimary") or reply.get("secondary")):
                self._kill(place)
                self._nodes[place] = self._start(place)

    def _start(self, place: int) -> Node:
        options = replace(self._options, port=self._ports[place])
        path = Path(self._directory.name, str(place))
        return Node(self._mongod, path, options, deadline=time.monotonic() + PATIENCE)

    def _initiate(self) -> None:
        members = [{"_id": place, "host": host} for place, host in enumerate(self._hosts)]
        settings = {"electionTimeoutMillis": int(ELECTION_TIMEOUT * 1000), "heartbeatTimeoutSecs": 1}
        with self._client(0) as client:
            client.admin.command("replSetInitiate", {"_id": NAME, "members": members, "settings": settings})

    def _is_whole(self) -> bool:
        replies = [self._hello(place) for place in self._running()]
        followers = sum(bool(reply.get("secondary")) for reply in replies)
        leaders = sum(bool(reply.get("isWritablePrimary")) for reply in replies)
        return (leaders, followers) == (1, len(self._nodes) - 1)

    def _hello(self, place: int) -> dict[str, Any]:
        try:
            with self._client(place) as client:
                return dict(client.admin.command("hello"))
        except PyMongoError:
            return {}

    def _client(self, place: int) -> MongoClient[Any]:
        return MongoClient(HOST, self._ports[place], directConnection=True, timeoutMS=2000)

    def _running(self) -> Iterator[int]:
        """The members that can answer."""
        return (place for place, node in enumerate(self._nodes) if node is not None and place not in self._still)

    def _awaited_primary(self) -> int:
        primaries: list[int] = []

        def look() -> bool:
            primaries.extend(place for place in [self.primary()] if place is not None)
            return bool(primaries)

        self.wait_until(look)
        return primaries[0]

    def _set_copying(self, places: list[int], mode: str) -> None:
        for place in places:
            with self._client(place) as client:
                client.admin.command({"configureFailPoint": "stopReplProducer", "mode": mode})

    def _kill(self, place: int) -> None:
        node = self._nodes[place]
        assert node is not None
        if node.pid is not None:
            os.kill(node.pid, signal.SIGKILL)
        node.stop()
        self._nodes[place] = None

    def _stop(self, place: int) -> None:
        os.kill(self._pid(place), signal.SIGSTOP)
        self._still.add(place)

    def _pid(self, place: int) -> int:
        node = self._nodes[place]
        assert node is not None
        assert node.pid is not None, f"the server in place {place} has ended by itself"
        return node.pid

    @property
    def _hosts(self) -> list[str]:
        return [f"{HOST}:{port}" for port in self._ports]

    def _close(self) -> None:
        """Kill them all: the data goes anyway, and a clean end would take a second each."""
        for place, node in enumerate(self._nodes):
            if node is not None:
                self._kill(place)
        self._directory.cleanup()


def _free_ports(count: int) -> list[int]:
    """Return different ports that nobody listens on, held all at once while they are looked for."""
    with contextlib.ExitStack() as listeners:
        ports: list[int] = []
        while len(ports) < count:
            with contextlib.suppress(OSError):
                listener = listeners.enter_context(socket.create_server((HOST, random.choice(PORTS))))
                ports.append(listener.getsockname()[1])
        return ports
