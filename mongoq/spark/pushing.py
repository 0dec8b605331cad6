"""Rows that are pushed: under ids that are made of what they say, by the queues' own push."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from bson import ObjectId

from mongoq.model.settings import queue_options
from mongoq.protocol.context import QueueContext
from mongoq.protocol.push_each import Push, Told, push_each
from mongoq.spark.orders import Order
from mongoq.spark.payloads import Refusal
from mongoq.spark.row_ids import ContentIds, ValueIds
from mongoq.spark.write_options import WriteOptions
from mongoq.sync import Broker

__all__ = ["NewRow", "Pushing"]

NewRow = tuple[int, Order, bytes | None, bytes | None]
"""A row: its place, its order, its payload as ``{"payload": payload}`` in BSON, and what its id is made of."""

by_id = attrgetter("id.binary")


class Pushing:
    """Pushes rows of one task.

    Args:
        broker: where to.
        options: of the write.
        ids: makes the ids.
    """

    def __init__(self, broker: Broker, options: WriteOptions, ids: ContentIds | ValueIds) -> None:
        self._broker = broker
        self._options = options
        self._ids = ids
        self._told: dict[Order, Told] = {}

    def push(self, rows: Iterable[NewRow]) -> int:
        """Push rows, those of each queue together, and return how many; raises ``Refusal`` before anything is sent.

        A value of ``idColumn`` that is there twice is one item.
        """
        self._told.clear()
        queues: dict[str, dict[bytes, Push]] = {}
        number = 0
        for row in rows:
            queue, push = self._push(row)
            queues.setdefault(queue, {})[push.id.binary] = push
            number += 1
        for queue, pushes in queues.items():
            context = QueueContext(self._broker._context, queue_options(queue), self._broker._context.untyped)
            # in the order of their ids, which saves the server half of the work on the indexes
            ordered = [pushes[id] for id in sorted(pushes)]
            self._broker._driver.run(push_each(context, ordered, remember=self._options.once))
        return number

    def _push(self, row: NewRow) -> tuple[str, Push]:
        place, order, wrapped, value = row
        if order.to is None:
            raise Refusal(place, "_to", "it says no queue to push to, and neither does the option to")
        if wrapped is None:
            raise Refusal(place, "payload", "no column makes the payload, which a row that is pushed needs")
        return order.to, Push(self._id(place, order.to, order, wrapped, value), wrapped, self._tell(order))

    def _id(self, place: int, queue: str, order: Order, wrapped: bytes, value: bytes | None) -> ObjectId:
        if isinstance(self._ids, ContentIds):
            return self._ids.id(queue, order.said, wrapped)
        if value is None:
            raise Refusal(place, str(self._options.id_column), "it is null, and idColumn makes ids of it")
        return self._ids.id(queue, value)

    def _tell(self, order: Order) -> Told:
        told = self._told.get(order)
        if told is None:
            told = Told(order.delay, order.when, order.priority or 0, order.headers, order.key)
            self._told[order] = told
        return told
