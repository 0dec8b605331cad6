"""Rows that are pushed, with ids made of their content, by the queues' own push."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

from mongoq.model.settings import queue_options
from mongoq.protocol.push.push_each import Push, PushOptions, push_each
from mongoq.protocol.state.context import QueueContext
from mongoq.spark.write.payloads import Refusal
from mongoq.spark.write.row_ids import ContentIds, ValueIds
from mongoq.spark.write.row_orders import RowOrder
from mongoq.spark.write.write_options import WriteOptions
from mongoq.sync import Broker

__all__ = ["RowPusher", "Rows"]

ID = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Contents of rows, by their positions.

    Attributes:
        orders: options of each row besides its payload.
        wrapped: payloads as ``{"payload": payload}`` in BSON; ``None`` where no column belongs to payloads.
        values: bytes that ids are made of, with ``idColumn``.
    """

    orders: Sequence[RowOrder]
    wrapped: Sequence[bytes] | None
    values: Sequence[bytes | None] | None


class RowPusher:
    """Pushes the rows of one task.

    Args:
        broker: broker of the queues.
        options: options of the write.
        ids: makes the ids.
    """

    def __init__(self, broker: Broker, options: WriteOptions, ids: ContentIds | ValueIds) -> None:
        self._broker = broker
        self._options = options
        self._ids = ids

    def push(self, rows: Rows, places: Sequence[int]) -> None:
        """Push the rows of some positions, grouped by queue; raises ``Refusal`` before any command is sent.

        Rows with the same id are one item.
        """
        tolds: dict[str, list[PushOptions]] = {}
        pushes: dict[str, list[Push]] = {}
        for order, those in _alike(rows.orders, places).items():
            queue, wrapped = _checked(rows, order, those)
            ids = self._made(queue, rows, order, those, wrapped)
            told = tolds.setdefault(queue, [])
            pushes.setdefault(queue, []).extend(zip(ids, wrapped, repeat(len(told))))
            told.append(PushOptions(order.delay, order.when, order.priority or 0, order.headers, order.key))
        for queue, those_pushed in pushes.items():
            self._send(queue, tolds[queue], those_pushed)

    def _send(self, queue: str, tolds: Sequence[PushOptions], pushes: list[Push]) -> None:
        context = QueueContext(self._broker._context, queue_options(queue), self._broker._context.untyped)
        if isinstance(self._ids, ValueIds):
            # Rows with equal ids are one item, so only one of them is sent.
            pushes = list({push[0]: push for push in pushes}.values())
        pushes.sort(key=ID)  # ordered ids save the server a quarter of its work
        self._broker._driver.run(push_each(context, tolds, pushes, remember=self._options.once))

    def _made(
        self, queue: str, rows: Rows, order: RowOrder, places: Sequence[int], wrapped: Sequence[bytes]
    ) -> list[bytes]:
        if isinstance(self._ids, ContentIds):
            return self._ids.ids(queue, order.said, wrapped)
        assert rows.values is not None
        values = []
        for place in places:
            value = rows.values[place]
            if value is None:
                raise Refusal(place, str(self._options.id_column), "it is null, and idColumn makes ids of it")
            values.append(value)
        return self._ids.ids(queue, values)


def _alike(orders: Sequence[RowOrder], places: Iterable[int]) -> dict[RowOrder, list[int]]:
    alike: dict[RowOrder, list[int]] = {}
    for place in places:
        alike.setdefault(orders[place], []).append(place)
    return alike


def _checked(rows: Rows, order: RowOrder, places: Sequence[int]) -> tuple[str, list[bytes]]:
    """Return the queue of rows with the same order, and their payloads."""
    if order.to is None:
        raise Refusal(places[0], "_to", "it says no queue to push to, and neither does the option to")
    if rows.wrapped is None:
        raise Refusal(places[0], "payload", "no column makes the payload, which a row that is pushed needs")
    return order.to, [rows.wrapped[place] for place in places]
