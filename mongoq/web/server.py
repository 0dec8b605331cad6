"""Server: serves the app until a signal comes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from mongoq.errors import ArgumentInvalid
from mongoq.worker.signals import stop_on_signals

END_SECONDS = 2
"""Seconds that open connections have at the end."""
CHECK_SECONDS = 0.2
"""Seconds between two checks whether the server has ended: a signal ends no wait of another thread."""
MAX_CONNECTIONS = 256
"""Connections at the same time: with those that wait for acceptance, fewer than the 1,024 files of a process."""
BACKLOG = 128
"""Connections that wait for acceptance, at most; asyncio accepts as many before it looks at one."""
PATIENCE_SECONDS = 10.0
"""Seconds in which a client has to send the head of a request, or to read the next part of an answer."""


class PatientConnection(H11Protocol):
    """Connection of a client that keeps the server waiting for a limited time.

    The server waits for a client that has not sent the whole head of a request, or has not read what was sent. After
    ``patience`` the connection is cut off. When all places are taken, a new connection takes the one of the client that
    has been without a request longest.

    Args:
        max_connections: connections at the same time.
        patience: seconds.
        options: arguments of uvicorn.
    """

    def __init__(self, *, max_connections: int, patience: float, **options: Any) -> None:
        super().__init__(**options)
        self._max_connections = max_connections
        self._patience = patience
        self._cut: asyncio.TimerHandle | None = None

    @property
    def is_asked(self) -> bool:
        """True while the server has a request to answer."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for a request; if all places are taken, this or another client that keeps the server waiting goes."""
        transport.set_write_buffer_limits(high=0)  # so that each byte that is not read pauses writing
        super().connection_made(transport)
        self._wait_or_not()
        if len(self.connections) <= self._max_connections:
            return
        # One that is closing stays in the set until the loop has gone round.
        connections: Any = [each for each in self.connections if not each.transport.is_closing()]
        if len(connections) > self._max_connections:
            min((each for each in connections if not each.is_asked), key=PatientConnection._cut_at).transport.abort()

    def _cut_at(self) -> float:
        return 0.0 if self._cut is None else self._cut.when()

    def _wait_or_not(self) -> None:
        """Begin or go on to wait for the client, or cease to."""
        is_waiting = self.flow.write_paused or not self.is_asked
        if is_waiting and self._cut is None:
            self._cut = self.loop.call_later(self._patience, self.transport.abort)
        elif not is_waiting:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._wait_or_not()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._wait_or_not()

    def resume_writing(self) -> None:
        """Go on: the client has read all."""
        super().resume_writing()
        self._stop_waiting()
        self._wait_or_not()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._stop_waiting()


def make_server(
    app: FastAPI, *, max_connections: int = MAX_CONNECTIONS, patience: float = PATIENCE_SECONDS
) -> uvicorn.Server:
    """Return the server of an app, with limits for clients that send or read too slowly.

    Args:
        app: the app.
        max_connections: connections at the same time.
        patience: seconds in which a client has to send the head of a request, or to read the next part of an answer.
    """
    options: dict[str, Any] = {
        "http": partial(PatientConnection, max_connections=max_connections, patience=patience),
        "ws": "none",
        "backlog": BACKLOG,
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,  # the header X-Forwarded-For would let each caller on this machine choose its address
        "timeout_graceful_shutdown": END_SECONDS,
    }
    return uvicorn.Server(uvicorn.Config(app, **options))


def serve(app: FastAPI, host: str, port: int, announce: Callable[[int], None]) -> None:
    """Serve an app of ``create_app`` until SIGTERM or Ctrl-C; call it from the main thread.

    Args:
        app: the app.
        host: name or address of the interface to listen on.
        port: number of the port; 0 for any free one.
        announce: called with the number of the port when the server listens.

    Raises:
        ArgumentInvalid: this process cannot listen there.
    """
    server = make_server(app)

    def stop() -> None:
        app.state.queues.close()
        server.should_exit = True

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.create_server((host, port), family=family)
    except OSError as error:
        problem = f"this process cannot listen on {host}:{port}: {error.strerror or error}"
        raise ArgumentInvalid("host", problem) from error
    with opened as listening, stop_on_signals(stop):
        # In a thread, because uvicorn in the main thread ends the process by the signal that it got.
        thread = threading.Thread(target=server.run, args=([listening],), name="mongoq-dashboard", daemon=True)
        thread.start()
        announce(listening.getsockname()[1])
        while thread.is_alive():
            thread.join(CHECK_SECONDS)
