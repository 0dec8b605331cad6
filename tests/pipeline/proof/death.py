"""A listener that counts the commands of a client, and kills its process before or after one of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Literal

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

__all__ = ["Death", "Side"]

Side = Literal["before", "after"]

CHANGING = {
    "insert": "documents",
    "update": "updates",
    "delete": "deletes",
    "findAndModify": "query",
    "commitTransaction": None,
    "abortTransaction": None,
    "createIndexes": None,
}
"""Commands that change something. Between two of them it is all the same when a process dies."""
RECORDS = ("worker:", "lease:")
"""What belongs to the records of workers, which come by the clock."""


class Death(CommandListener):
    """Counts what changes something, and what reads back what a claim has taken; dies at the one in its place.

    Attributes:
        commands: the names of those so far.
    """

    def __init__(self, place: int | None = None, side: Side = "before") -> None:
        self._place, self._side = place, side
        self._lock = threading.Lock()
        self._last: int | None = None
        self.commands: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Count a command before it is sent."""
        if not _counts(event.command_name, event.command):
            return
        with self._lock:
            self.commands.append(event.command_name)
            if len(self.commands) - 1 == self._place:
                if self._side == "before":
                    _die()
                self._last = event.request_id

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Take note that a reply has come."""
        self._ended(event.request_id)

    def failed(self, event: CommandFailedEvent) -> None:
        """Take note that an error has come."""
        self._ended(event.request_id)

    def _ended(self, id: int) -> None:
        if id == self._last:
            _die()

    def write(self, path: Path) -> None:
        """Leave to others what was counted."""
        path.write_text(json.dumps(self.commands))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _counts(name: str, command: Any) -> bool:
    if name == "find":
        return "token" in command.get("filter", {})
    if name not in CHANGING:
        return False
    key = CHANGING[name]
    if key is None:
        return True
    part = command.get(key) or [{}]
    first = part if key == "query" else part[0]
    id = (first.get("q", first) if key in ("updates", "deletes") else first).get("_id")
    return not (isinstance(id, str) and id.startswith(RECORDS))
