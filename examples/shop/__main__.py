"""``python -m examples.shop``: the app on uvicorn, which ends on the first SIGTERM with exit code 0.

``uvicorn --factory examples.shop.app:create_app`` drains the worker too. Two things differ: uvicorn kills itself by the
signal that it has heard, which a shell shows as 143; and it closes its port before the worker has ended.
"""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from types import FrameType

import uvicorn

from examples.shop.app import create_app
from examples.shop.service import Service
from examples.shop.settings import Settings, SettingsInvalid

__all__ = ["main"]

REQUEST_SECONDS = 5
"""Seconds that running requests may take when the server stops."""


class Server(uvicorn.Server):
    """Answers until the worker has ended: ``/readyz`` says 503 meanwhile, so that no new requests come."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the worker on a signal, and then the server."""
        self._service.stop(partial(super().handle_exit, sig, frame))


def main() -> int:
    """Serve until SIGTERM or Ctrl-C; return 2 if the settings cannot be used."""
    # uvicorn raises the signal again when it has ended; this handler is there then. And it is there before uvicorn's:
    # the first process of a container does not end by SIGTERM unless it has a handler for it.
    signal.signal(signal.SIGTERM, _exit)
    try:
        settings = Settings.from_environment()
    except SettingsInvalid as error:
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")  # mongoq's worker logs
    app = create_app(settings)
    options = {"host": settings.host, "port": settings.port, "timeout_graceful_shutdown": REQUEST_SECONDS}
    Server(uvicorn.Config(app, **options), app.state.service).run()  # type: ignore[arg-type]
    return 0


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
