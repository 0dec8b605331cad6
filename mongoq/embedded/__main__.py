"""Runs a private MongoDB for tries at a terminal: ``python -m mongoq.embedded``."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from mongoq.embedded.server import EmbeddedServer
from mongoq.errors import EmbeddedServerUnavailable

CHECK_SECONDS = 0.5
"""Seconds between two checks that the server still runs."""


def main() -> None:
    """Start a server, print its URI, and stop it on Ctrl-C or SIGTERM."""
    argparse.ArgumentParser(
        prog="python -m mongoq.embedded",
        description="Start a private MongoDB, print its URI, and stop it on Ctrl-C or SIGTERM. Its data is gone then.",
    ).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with EmbeddedServer() as server:
            print(server.uri, flush=True)  # noqa: T201 - a command of its own
            while server.pid is not None:
                time.sleep(CHECK_SECONDS)
            sys.exit("mongoq: the embedded server has ended by itself")
    except EmbeddedServerUnavailable as error:
        sys.exit(f"mongoq: {error}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
