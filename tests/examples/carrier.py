"""Carrier of the shop: an HTTP server that answers when the test opens its gate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import PATIENCE

__all__ = ["GateCarrier", "serve_carrier"]


class GateCarrier(ThreadingHTTPServer):
    """Carrier with a gate.

    Attributes:
        gate: event that lets calls end; set at first.
        calls: orders and keys of the calls, in the order of their beginning.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/parcels"


class _Handler(BaseHTTPRequestHandler):
    server: GateCarrier

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((body["order"], self.headers["Idempotency-Key"]))
        self.server.gate.wait(PATIENCE)
        try:
            self.send_response(204)
            self.end_headers()
        except ConnectionError:
            pass  # the process that has called was stopped

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serve_carrier() -> Iterator[GateCarrier]:
    """Serve a carrier for the length of a block."""
    carrier = GateCarrier()
    thread = threading.Thread(target=carrier.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield carrier
    finally:
        carrier.gate.set()
        carrier.shutdown()
        thread.join()
        carrier.server_close()
