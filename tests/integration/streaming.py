"""Processes that read a queue as a stream, on one clock, and that can die between two commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import mongoq
from mongoq.protocol.coordination import streams
from mongoq.protocol.coordination.streams import StreamRun
from mongoq.protocol.flow import Flow
from mongoq.protocol.settle.by_token import extend_and_list_held

T = TypeVar("T")
LEASE, RUN = 30.0, 10.0
QUEUE = "orders"


class Process:
    """One process: a broker of its own."""

    def __init__(self, collection: Any, clock: mongoq.VirtualClock, **options: Any) -> None:
        self.broker = mongoq.Broker(collection, clock=clock)
        self.queue = self.broker.queue(QUEUE, **{"lease": LEASE, **options})
        self.context = self.queue._context
        self.run: Any = None

    def perform(
        self, flow: Flow[T], *, commands: int | None = None, change_reply: Callable[[Any], Any] | None = None
    ) -> T | None:
        """Run a flow, or so many of its commands: then the process is dead, and nothing is undone.

        ``change_reply`` may change the reply that the flow gets.
        """
        if commands is None and change_reply is None:
            return self.broker._driver.run(flow)
        request, number = next(flow), 0
        try:
            while number != commands:
                reply = self.broker._driver._performer.perform(request, [])
                request = flow.send(reply if change_reply is None else change_reply(reply))
                number += 1
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        return None

    def open(self, consumer: str = "etl", *, queue: str = QUEUE) -> Any:
        self.run = self.perform(streams.open_run(self.broker._context, consumer, queue, timedelta(seconds=RUN)))
        return self.run

    def claim(self, n: int = 100, *, after: int = 0, commands: int | None = None, **options: Any) -> Any:
        flow = streams.next_claim(self.context, self.run, n, None, after=after, **options)
        return self.perform(flow, commands=commands)

    def settle(self, number: int, *, commands: int | None = None) -> Any:
        return self.perform(streams.settle_claim(self.context, self.run, number), commands=commands)

    def affirm(self) -> Any:
        claim = self.run.claim
        return self.perform(
            extend_and_list_held(self.broker._context, claim.token, claim.ids, timedelta(seconds=LEASE))
        )


def is_run(answer: Any) -> bool:
    return isinstance(answer, StreamRun)


Make = Callable[..., Process]
