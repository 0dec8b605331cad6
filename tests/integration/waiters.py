"""Consumers that wait, for tests of what wakes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient, monitoring

import mongoq
from tests.waiting import PATIENCE, until

__all__ = ["Commands", "Waiter", "at_rest", "listened_to", "until"]


def at_rest(broker: Any, queue: str, number: int = 1) -> bool:
    """Say whether so many wait for a queue that the stream watches, and ask nothing any more."""
    wait_queue = broker._context.registry.wait_queues.get(queue)
    if wait_queue is None or not broker._context.registry.watches(queue) or not wait_queue.dry:
        return False
    return sum(waiter.asleep and not waiter.called for waiter in wait_queue.waiters) == number


class Waiter:
    """A thread that waits for one item; at rest when it is made."""

    def __init__(self, broker: mongoq.Broker, queue: str = "orders", *, rest: bool = True, **options: Any) -> None:
        self.item: Any = None
        self.error: BaseException | None = None
        self._queue, self._options = broker.queue(queue), options
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if rest:
            until(lambda: at_rest(broker, queue))

    def _run(self) -> None:
        try:
            self.item = self._queue.reserve(wait=2 * PATIENCE, **self._options)
        except BaseException as error:
            self.error = error

    def result(self, seconds: float = PATIENCE) -> Any:
        """Return what came, before any look would have found it."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "nothing has woken it"
        if self.error is not None:
            raise self.error
        return self.item

    def is_waiting(self) -> bool:
        return self._thread.is_alive()


class Commands(monitoring.CommandListener):
    """The names of the commands that a client has sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


@contextmanager
def listened_to(uri: str, database: str) -> Iterator[tuple[mongoq.Broker, Commands]]:
    """A broker whose commands are counted."""
    commands = Commands()
    with (
        MongoClient[Any](uri, event_listeners=[commands]) as client,
        mongoq.Broker(client[database]["mongoq"]) as broker,
    ):
        yield broker, commands
