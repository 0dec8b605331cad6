"""HTTP server for probes and scrapes: whether the process works, whether it is ready, and its metrics."""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

from mongoq.data.encoding.error_text import name_of
from mongoq.data.process import Health
from mongoq.errors import ArgumentInvalid

logger = logging.getLogger("mongoq.health")

READ_SECONDS = 5.0
"""Seconds that a client may be silent."""
CONNECTION_SECONDS = 15.0
"""Seconds that a connection may last: a client that sends a byte now and then is not silent."""
MAX_CONNECTIONS = 32
"""Connections at the same time, each of which has a thread; beyond them the one that is silent longest is closed."""
MAX_CHECKS = MAX_CONNECTIONS // 2
"""Requests other than ``/healthz`` at the same time: checks that hang, and clients that do not read, leave room."""
POLL_SECONDS = 0.25
"""Seconds between two checks for connections that last too long, and for the end of the server."""
MAX_HEADER_BYTES = 64 * 1024
"""Bytes of all headers of a request together; the line of each may be as long by itself."""
MAX_PORT = 65_535

JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of metrics in the text format of Prometheus."""


class HealthServer:
    """Answers probes by HTTP, from a thread of its own.

    ```python
    with HealthServer("127.0.0.1", 8080, worker.health):
        worker.run()
    ```

    - ``/healthz``: 200 while this process answers.
    - ``/readyz``: 200 while ``ready()`` is healthy, else 503; the health as JSON.
    - ``/metrics``: what ``metrics()`` returns; 404 without it.

    It takes GET and HEAD. Names of queues and stages may be in the reasons, and there is no authentication: listen on
    the loopback interface, or in a network of your own. On the loopback interface it answers requests to an address,
    to ``localhost`` or to ``host``, and refuses other names: a page of another site can give its own name the address
    of this machine, and read the answer (DNS rebinding).

    Args:
        host: name or address of the interface to listen on, such as ``"127.0.0.1"``.
        port: number of the port; 0 for any free one.
        ready: called for each ``/readyz``, such as ``worker.health``; from threads, several at a time.
        metrics: called for each ``/metrics``; returns the text format of Prometheus.

    Raises:
        ArgumentInvalid: an argument cannot be used; it is named.
    """

    def __init__(
        self, host: str, port: int, ready: Callable[[], Health], metrics: Callable[[], bytes] | None = None
    ) -> None:
        given: tuple[Any, Any] = host, port
        if not isinstance(given[0], str) or not host:
            raise ArgumentInvalid("host", f"a name or an address such as '127.0.0.1', not {host!r:.60}")
        if not isinstance(given[1], int) or isinstance(port, bool) or not 0 <= port <= MAX_PORT:
            raise ArgumentInvalid("port", f"a whole number from 0 to {MAX_PORT:,}, not {port!r:.60}")
        for name, function in (("ready", ready), ("metrics", metrics)):
            if not callable(function) and not (name == "metrics" and function is None):
                raise ArgumentInvalid(name, f"a function, not {type(function).__name__}")
        self._host = host
        self._asked_port = port
        self._ready = ready
        self._metrics = metrics
        self._server: _Server | None = None

    def __repr__(self) -> str:
        """Return the address, as text."""
        return f"<{type(self).__name__} {self._host}:{self.port}>"

    @property
    def port(self) -> int:
        """Port that the server listens on; before ``start`` the given one."""
        return self._asked_port if self._server is None else int(self._server.server_address[1])

    def list_paths(self) -> str:
        """Return the paths that the server answers, as part of a sentence."""
        return "/healthz and /readyz" if self._metrics is None else "/healthz, /readyz and /metrics"

    def start(self) -> Self:
        """Listen and answer, until ``stop``; returns the server.

        Raises:
            ArgumentInvalid: the server cannot listen there, or has been started already.
        """
        if self._server is not None:
            raise ArgumentInvalid("host", f"the server listens on {self._host}:{self.port} already")
        try:
            self._server = _Server(self._host, self._asked_port, self._answer)
        except OSError as error:
            problem = f"this process cannot listen on {self._host}:{self._asked_port}: {error.strerror or error}"
            raise ArgumentInvalid("host", problem) from error
        work = self._server.serve_forever
        threading.Thread(target=work, args=(POLL_SECONDS,), name="mongoq-http", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening, and close all connections. Idempotent; the server may be started again."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.close_connections()

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body for a path."""
        if path == "/healthz":
            return _to_json(HTTPStatus.OK, Health(healthy=True).to_document())
        if path == "/readyz":
            try:
                health = self._ready()
            except Exception as error:  # a text of the error may hold private data
                logger.warning("the health cannot be checked: %s", name_of(error))
                health = Health.of([f"the check itself has failed: {name_of(error)}"])
            status = HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE
            return _to_json(status, health.to_document())
        if path == "/metrics" and self._metrics is not None:
            try:
                return HTTPStatus.OK, METRICS_TYPE, self._metrics()
            except Exception as error:
                logger.warning("the metrics cannot be read: %s", name_of(error))
                return _to_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"the metrics failed: {name_of(error)}"})
        return _to_json(HTTPStatus.NOT_FOUND, {"error": f"there are {self.list_paths()}"})


def _to_json(status: HTTPStatus, document: dict[str, Any]) -> tuple[HTTPStatus, str, bytes]:
    return status, JSON_TYPE, json.dumps(document).encode() + b"\n"


class _Server(ThreadingHTTPServer):
    """Listens on a port, and has a thread for each connection, up to ``MAX_CONNECTIONS`` of limited length.

    Attributes:
        answer: returns the answer for a path.
        checks: places for answers that may take long.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, answer: Callable[[str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.answer = answer
        self.checks = threading.BoundedSemaphore(MAX_CHECKS)
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, float] = {}
        self._silent: dict[socket.socket, None] = {}  # those without a whole request yet, the oldest first
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family = family
        self._name = host.lower()
        self._is_local = ip_address(str(address[0]).partition("%")[0]).is_loopback
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # the types do not say that it is TCP

    def server_bind(self) -> None:
        """Listen, without the look-up of the host's full name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "mongoq", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own; if there are too many, one that is silent gives up its place."""
        oldest = None
        with self._lock:
            self._silent[request] = None
            if len(self._connections) >= MAX_CONNECTIONS:
                oldest = next(iter(self._silent))
                self._silent.pop(oldest)
                self._connections.pop(oldest, None)
            if oldest is not request:
                self._connections[request] = time.monotonic()
        if oldest is request:  # all others have sent their requests
            self.shutdown_request(request)
            return
        if oldest is not None:
            _cut_off(oldest)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started just now
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._connections.pop(request, None)
            self._silent.pop(request, None)
        super().shutdown_request(request)

    def is_called(self, host: str | None) -> bool:
        """Return whether the header ``Host`` of a request is one that no other site's page can have sent."""
        if host is None or not self._is_local:
            return True
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        try:
            return name in ("localhost", self._name) or bool(ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return False

    def note_request(self, request: Any) -> None:
        """Let a connection keep its place: its request has come."""
        with self._lock:
            self._silent.pop(request, None)

    def service_actions(self) -> None:
        """Cut off the connections that last too long."""
        self.close_connections(CONNECTION_SECONDS)

    def close_connections(self, seconds: float = 0.0) -> None:
        """Cut off the connections that have lasted for so long; their threads then close them."""
        begun_before = time.monotonic() - seconds
        with self._lock:
            late = [connection for connection, begun in self._connections.items() if begun <= begun_before]
        for connection in late:
            _cut_off(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the failure of a connection; a client may go at any time."""
        logger.debug("a connection has failed: %r", sys.exc_info()[1])


def _cut_off(connection: socket.socket) -> None:
    """End what the thread of a connection waits for; it then closes the connection."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # the client was faster
        pass


class _LimitedReader:
    """Reads the lines of one request: the first one, and headers up to ``MAX_HEADER_BYTES``."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left: int | None = None
        self.close = file.close

    def readline(self, size: int = -1) -> bytes:
        """Return the next line; raises ``LineTooLong``, which the base class answers, beyond the limit."""
        line = self._file.readline(size)
        if self._left is None:
            self._left = MAX_HEADER_BYTES
            return line
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("headers")
        return line


class _Handler(BaseHTTPRequestHandler):
    """Answers one request for a connection, in HTTP 1.0: each connection is closed after its answer."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = READ_SECONDS
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def __getattr__(self, name: str) -> Any:
        """Return the method for any other verb than GET and HEAD."""
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name, name=name, obj=self)

    def setup(self) -> None:
        """Prepare the connection, with a limit for what a client may send."""
        super().setup()
        self.rfile = _LimitedReader(self.rfile)  # type: ignore[assignment]  # the base class reads lines only

    def parse_request(self) -> bool:
        """Read the request; the connection has a fixed place from now on."""
        is_read = super().parse_request()
        self.server.note_request(self.connection)
        return is_read

    def do_GET(self) -> None:  # the name that the base class looks for
        """Answer a probe; ``/healthz`` whatever the others wait for."""
        path = self.path.partition("?")[0]
        if not self.server.is_called(self.headers["Host"]):
            problem = "ask for localhost or 127.0.0.1: this server listens for this machine alone"
            self._send(*_to_json(HTTPStatus.FORBIDDEN, {"error": problem}))
        elif path == "/healthz":
            self._send(*self.server.answer(path))
        elif self.server.checks.acquire(blocking=False):
            try:
                self._send(*self.server.answer(path))
            finally:
                self.server.checks.release()
        else:
            problem = f"{MAX_CHECKS} requests wait for their answers already; ask again later"
            self._send(*_to_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": problem}))

    def do_HEAD(self) -> None:
        """Answer a probe, without the body."""
        self.do_GET()

    def _refuse_method(self) -> None:
        status, content_type, body = _to_json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"})
        self._send(status, content_type, body, Allow="GET, HEAD")

    def _send(self, status: HTTPStatus, content_type: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        options = {"Content-Type": content_type, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, value in {**options, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "mongoq"

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request."""
        logger.debug("%s: %s", self.client_address[0], format % args)
