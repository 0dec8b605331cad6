# Generated from mongoq/aio/topics.py by scripts/unasync.py. Do not edit.
"""Topics: queue names with bound queues. A push to a topic goes to every queue that is bound to it."""

from __future__ import annotations

from mongoq.drivers.threads.driver import ThreadDriver
from mongoq.protocol.push import bindings as binding
from mongoq.protocol.state.context import BrokerContext

__all__ = ["Topics"]


class Topics:
    """The part of ``Broker`` that binds queues to topics."""

    _driver: ThreadDriver
    _context: BrokerContext

    def bind(self, topic: str, *queues: str) -> tuple[str, ...]:
        """Bind queues to a topic, so that its pushes go to them instead, and return all queues bound to it now.

        From then on ``push`` and ``push_many`` to ``topic`` put a copy into each bound queue and none into the queue of
        that name, in one transaction: into all of them, or into none. The binding is stored with the collection
        (``findAndModify`` of one control document). This broker uses it at once, and every other producer within a
        second. Until then their pushes go where they went before. Items in the queue ``topic`` stay there, and so do
        items that a move or a replay brings. Queues that are bound already stay bound.

        Args:
            topic: a queue name.
            queues: the names of the queues, in the order in which the copies are written.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            QueueNameInvalid: one of the names cannot be stored.
            ArgumentInvalid: no queue is named, one is bound to itself, is a topic itself, or the topic is bound to
                another topic; or one of the names is that of a dead queue. Nothing was changed.
        """
        return self._driver.run(binding.bind(self._context, topic, queues))

    def unbind(self, topic: str, *queues: str) -> tuple[str, ...]:
        """Undo the binding of these queues, or of all if none is named, and return the remaining bound queues.

        Without any bound queue, the topic is an ordinary queue again. This broker uses the change at once, and every
        other producer within a second (``findAndModify`` of one control document). Items in the queues stay there.

        Args:
            topic: a queue name.
            queues: the names of the queues; a queue that is not bound is ignored.

        Raises:
            QueueNameInvalid: one of the names cannot be stored.
        """
        return self._driver.run(binding.unbind(self._context, topic, queues))

    def bindings(self) -> dict[str, tuple[str, ...]]:
        """Return the queues bound to each topic, in the order they were bound (``find`` of one control document)."""
        return self._driver.run(binding.bindings(self._context))
