"""Identity of this process: the ``by`` of an envelope."""

from __future__ import annotations

import os
import secrets
import socket

__all__ = ["Identity"]

HOST_LENGTH = 100
"""Characters of the host's name, at most."""


class Identity:
    """``host:pid:random`` of this process; a forked child gets a new one."""

    def __init__(self) -> None:
        self._pid = -1
        self._text = ""

    def __str__(self) -> str:
        """Return the identity; cheap enough for every command."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._text = f"{socket.gethostname()[:HOST_LENGTH]}:{self._pid}:{secrets.token_hex(4)}"
        return self._text
