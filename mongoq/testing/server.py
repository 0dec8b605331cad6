"""Stand-in for the server: a collection in memory, a clock moved by hand, and the runs under way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.aio import AsyncQueue
from mongoq.drivers.threads.driver import ThreadDriver
from mongoq.errors import ArgumentInvalid, BatchIncomplete
from mongoq.model.arguments import Duration, duration, queue_name
from mongoq.model.clock import VirtualClock
from mongoq.model.item import Item
from mongoq.protocol.flow import Command
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.sync import Queue
from mongoq.testing.loop import PrivateLoop
from mongoq.worker.consumer import Consumer
from mongoq.worker.handler_call import HandlerCall

__all__ = ["VirtualServer"]


@dataclass(slots=True, eq=False)
class VirtualServer:
    """State that the virtual brokers of one collection share with their workers.

    Attributes:
        driver: performs every command at once, in the caller's thread.
        context: context of the broker.
        clock: clock that stands still until the test moves it.
        loop: event loop for coroutine functions that plain tests run.
        running: runs under way: one, unless handlers run handlers or tasks of a test run several.
    """

    driver: ThreadDriver
    context: BrokerContext
    clock: VirtualClock
    loop: PrivateLoop
    running: dict[HandlerCall, Consumer]

    def bound(self, context: QueueContext[Any]) -> QueueContext[Any]:
        """Return the same queue bound to this broker, with the same model and options."""
        return context if context.broker is self.context else replace(context, broker=self.context)

    def resolve_target(self, to: Any) -> Any:
        """Return the destination of a ``Move``: a queue's name as it is, or a handle's queue here."""
        return self.bound(to._context) if isinstance(to, Queue | AsyncQueue) else to

    # --- time ------------------------------------------------------------------------------------

    def advance(self, by: Duration) -> datetime:
        """Move the clock on; running items keep their leases, as with a worker."""
        length = duration(by, "by")
        now = self.clock.advance(length)
        for run, consumer in list(self.running.items()):
            self._keep(run, consumer)
        return now

    def _keep(self, run: HandlerCall, consumer: Consumer) -> None:
        queue = Queue(self.driver, consumer.queue._context)
        try:
            # A worker would have extended these leases before they ended: the clock jumps, so it is done afterwards.
            queue.extend_many(run.items, lease=consumer.lease)
        except BatchIncomplete:
            if run.job is not None:
                run.job.lost.set()

    def force_retry(self, target: Any) -> int:
        """Make a waiting item ready now, or all retries of a queue; returns the number of items."""
        if not isinstance(target, Item | ObjectId):
            name = target.name if isinstance(target, Queue | AsyncQueue) else queue_name(target, "target")
            return self._make_ready({"q": name, "attempts": {"$gt": 0}})
        id = target.id if isinstance(target, Item) else target
        if not self._make_ready({"_id": id}):
            raise ArgumentInvalid("target", f"item {id} waits for nothing: it is ready, reserved, settled or gone")
        return 1

    def _make_ready(self, filter: dict[str, Any]) -> int:
        now = self.clock.now()
        waiting = {**filter, "when": {"$gt": now}, "reserved": {"$ne": True}}
        update = {"$set": {"when": now}}
        command: Command[int] = Command("update_many", {"filter": waiting, "update": update}, _number)
        return self.driver.run(command.__iter__())


def _number(reply: Any) -> int:
    return int(reply.matched_count)
