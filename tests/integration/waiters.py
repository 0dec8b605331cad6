"""Consumers that wait, for tests of what wakes them."""

from __future__ import annotations

import threading
from typing import Any

import mongoq
from tests.integration.commands import Commands
from tests.waiting import PATIENCE, until

__all__ = ["Waiter", "rest"]


def rest(commands: Commands, start: int = 0) -> None:
    """Wait until a broker reads its change stream: since the stream was opened, its waiters have asked once more."""
    until(lambda: commands.names()[start:].count("getMore") >= 2)
    until(lambda: not commands.is_under_way("findAndModify"))


class Waiter:
    """A thread that waits for one item; at rest when it is made, if it is told of the commands of its broker.

    It looks by itself so late that nothing but what wakes it can be in time.
    """

    def __init__(self, broker: mongoq.Broker, commands: Commands | None = None, queue: str = "orders") -> None:
        start = 0 if commands is None else len(commands.sent)
        self._item: Any = None
        self._error: BaseException | None = None
        self._queue = broker.queue(queue)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if commands is not None:
            rest(commands, start)

    def _run(self) -> None:
        try:
            self._item = self._queue.reserve(wait=2 * PATIENCE)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Return what came."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "nothing has woken it"
        if self._error is not None:
            raise self._error
        return self._item

    def is_waiting(self) -> bool:
        return self._thread.is_alive()
