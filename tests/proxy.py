"""A proxy between a MongoDB client and a mongod that loses requests or replies on demand.

The ``failCommand`` fail point closes a connection *before* the command runs. Here a command can run on the server while
its client sees the connection close instead of the answer.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.uri_parser import parse_uri

__all__ = ["Kind", "Proxy"]

Kind = Literal["request", "reply"]

HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds after which a peer that stops in the middle of a message is given up, so that no test hangs on it."""
OP_MSG = 2013


class Proxy:
    """A proxy to the first server of a URI, on a port of its own, in a thread of its own.

    ```python
    with Proxy(server.uri) as proxy, MongoClient(proxy.uri) as client:
        proxy.lose("reply", "update", times=2)  # and that of the driver's retry
    ```
    """

    def __init__(
        self, uri: str, *, change: Callable[[dict[str, Any]], dict[str, Any]] | None = None, port: int = 0
    ) -> None:
        """``change`` gets each reply, and returns what is passed on in its place: a server says something else.

        ``port`` is that of a stopped proxy, whose server comes back.
        """
        self._behind = uri
        self._change = change
        self._server: tuple[str, int] = parse_uri(uri)["nodelist"][0]
        self._lock = threading.Lock()
        self._losses: list[_Loss] = []
        self._lost = 0
        self._passes = threading.Event()
        self._passes.set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((HOST, port))
        self._ending, self._end = socket.socketpair()
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"proxy {self.port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; nothing is left behind."""
        self.stop()

    def stop(self) -> None:
        """Close all connections, and accept no more, as a server does that was killed. Idempotent."""
        self.pass_on()
        self._end.close()
        self._thread.join()

    def hold(self) -> None:
        """Pass nothing on and keep all connections, as a network does that drops all packets; until ``pass_on``."""
        self._passes.clear()

    def pass_on(self) -> None:
        """End what ``hold`` has begun."""
        self._passes.set()

    @property
    def uri(self) -> str:
        """The connection string of the proxy, with the options of the server's."""
        return self.uri_with()

    def uri_with(self, **options: str) -> str:
        """Return the connection string with further options, such as ``retryWrites="false"``.

        The connection is direct, since the server would tell the client its own address.
        """
        parts = urlsplit(self._behind)
        user, at, _ = parts.netloc.rpartition("@")
        query = urlencode({**dict(parse_qsl(parts.query)), **options, "directConnection": "true"})
        address = f"{user}{at}{HOST}:{self.port}"
        return urlunsplit(parts._replace(netloc=address, path=parts.path or "/", query=query))

    def lose(self, kind: Kind, command: str, *, times: int = 1, skip: int = 0) -> None:
        """Lose so many requests or replies of a command in a row, after so many that pass.

        A lost request is not forwarded; of a lost reply the command has run. The client's connection is closed either
        way. A second order for the same command begins where the first one ends.
        """
        with self._lock:
            self._losses.append(_Loss(kind, command, times, skip))

    def calm(self) -> None:
        """Lose nothing more, and count anew."""
        with self._lock:
            self._losses.clear()
            self._lost = 0

    @property
    def lost(self) -> int:
        """How many requests and replies were really lost; each is counted before its client can notice."""
        with self._lock:
            return self._lost

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._ending, selectors.EVENT_READ)
        while self._served(self._selector.select()):
            pass
        for end in [key.fileobj for key in self._selector.get_map().values()]:
            _as_socket(end).close()
        self._selector.close()

    def _served(self, events: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Serve what can be read; say whether to go on."""
        for key, _ in events:
            if key.data is None:
                return False
            if _as_socket(key.fileobj).fileno() >= 0:  # else its link was closed a moment ago
                key.data()
        return True

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server, PATIENCE)
        except OSError:
            client.close()
            return
        link = _Link(client, server)
        for end, serve in ((client, self._request), (server, self._reply)):
            end.settimeout(PATIENCE)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, self._serving(link, serve))

    def _serving(self, link: _Link, serve: Callable[[_Link], bool]) -> Callable[[], None]:
        def served() -> None:
            self._passes.wait()
            try:
                goes_on = serve(link)
            except (OSError, EOFError):
                goes_on = False
            if not goes_on:
                self._close(link)

        return served

    def _close(self, link: _Link) -> None:
        for end in (link.client, link.server):
            self._selector.unregister(end)
            end.close()

    def _request(self, link: _Link) -> bool:
        """Pass a message of the client on, unless it is to be lost; say whether the link goes on."""
        message = _read(link.client)
        kind = self._order(message)
        if kind == "request":
            return self._count()
        if kind == "reply":
            link.swallows = message.id
        link.server.sendall(message.raw)
        return True

    def _reply(self, link: _Link) -> bool:
        """Pass a message of the server on, unless it is to be lost; say whether the link goes on."""
        message = _read(link.server)
        if message.response_to == link.swallows:
            return self._count()
        link.client.sendall(message.raw if self._change is None else message.changed(self._change))
        return True

    def _order(self, message: _Message) -> Kind | None:
        command = message.command()
        with self._lock:
            loss = next((loss for loss in self._losses if loss.times and loss.command == command), None)
            return loss.kind if loss is not None and loss.takes() else None

    def _count(self) -> Literal[False]:
        with self._lock:
            self._lost += 1
        return False


@dataclass(slots=True)
class _Loss:
    """An order: what to lose, and how often."""

    kind: Kind
    command: str
    times: int
    skip: int

    def takes(self) -> bool:
        """Count a command, and say whether it is to be lost."""
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class _Link:
    """A client's connection, the one to the server for it, and the request whose reply is to be lost."""

    client: socket.socket
    server: socket.socket
    swallows: int | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of the wire protocol."""

    raw: bytes

    @property
    def id(self) -> int:
        return self._integer(4)

    @property
    def response_to(self) -> int:
        return self._integer(8)

    def command(self) -> str | None:
        """Return the name of the command, the first key of the body; ``None`` for a message of another kind."""
        if self._integer(12) != OP_MSG:
            return None
        at = 20
        while self.raw[at]:  # a sequence of documents, which may come before the body
            at += 1 + self._integer(at + 1)
        body = self.raw[at + 1 : at + 1 + self._integer(at + 1)]
        return next(iter(RawBSONDocument(body)))

    def changed(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
        """Return the message of a server with another body; one of another kind as it is."""
        if self._integer(12) != OP_MSG:
            return self.raw
        body = bson.encode(change(bson.decode(self.raw[21:])))
        return struct.pack("<i", 21 + len(body)) + self.raw[4:21] + body

    def _integer(self, at: int) -> int:
        number: int = struct.unpack_from("<i", self.raw, at)[0]
        return number


def _read(end: socket.socket) -> _Message:
    size = _exactly(end, 4)
    return _Message(size + _exactly(end, struct.unpack("<i", size)[0] - 4))


def _exactly(end: socket.socket, size: int) -> bytes:
    buffer = bytearray()
    while len(buffer) < size:
        part = end.recv(size - len(buffer))
        if not part:
            raise EOFError
        buffer += part
    return bytes(buffer)


def _as_socket(end: Any) -> socket.socket:
    assert isinstance(end, socket.socket)
    return end
