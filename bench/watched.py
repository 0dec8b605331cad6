"""A listener to a client that counts changed documents, and keeps the time of the last change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymongo.monitoring import CommandListener

__all__ = ["Watched"]


class Watched(CommandListener):
    """Counts the changes of certain commands; the time that a worker later looks for more items does not count.

    Args:
        counts: says of a command that is about to be sent whether it counts.

    Attributes:
        done: the documents that they changed, by their replies.
        last: when the last of them ended, on the monotonic clock.
    """

    def __init__(self, counts: Callable[[Any], bool]) -> None:
        self.done, self.last = 0, 0.0
        self._counts = counts
        self._sent: set[int] = set()

    def started(self, event: Any) -> None:
        if self._counts(event):
            self._sent.add(event.request_id)

    def failed(self, event: Any) -> None:
        self._sent.discard(event.request_id)

    def succeeded(self, event: Any) -> None:
        if event.request_id in self._sent:
            self._sent.remove(event.request_id)
            self.done += event.reply.get("n", 0)
            self.last = time.monotonic()
