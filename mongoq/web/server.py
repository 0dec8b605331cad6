"""Server: serves the app until a signal comes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from mongoq.errors import ArgumentInvalid
from mongoq.worker.signals import stop_on_signals

END_SECONDS = 2
"""Seconds that open connections have at the end."""
CHECK_SECONDS = 0.2
"""Seconds between two checks whether the server has ended: a signal ends no wait of another thread."""


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
    # The header X-Forwarded-For would let each caller on this machine choose its address.
    options: dict[str, Any] = {"log_config": None, "access_log": False, "proxy_headers": False}
    config = uvicorn.Config(app, **options, timeout_graceful_shutdown=END_SECONDS)
    server = uvicorn.Server(config)

    def stop() -> None:
        app.state.feed.close()
        server.should_exit = True

    with _listen(host, port) as listening, stop_on_signals(stop):
        # In a thread, because uvicorn in the main thread ends the process by the signal that it got.
        thread = threading.Thread(target=server.run, args=([listening],), name="mongoq-dashboard", daemon=True)
        thread.start()
        announce(listening.getsockname()[1])
        while thread.is_alive():
            thread.join(CHECK_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        problem = f"this process cannot listen on {host}:{port}: {error.strerror or error}"
        raise ArgumentInvalid("host", problem) from error
