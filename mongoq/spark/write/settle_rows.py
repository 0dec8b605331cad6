"""Rows that hold a reservation: moved or committed under their fence."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from bson import ObjectId
from bson.errors import InvalidId

from mongoq.errors import BatchIncomplete
from mongoq.model.settings import queue_options
from mongoq.protocol.settle.by_token import FencedItem, SettledByToken, settle_held
from mongoq.protocol.settle.move import Destination, Handover, check_move
from mongoq.protocol.state.context import QueueContext
from mongoq.spark.errors import RowsLost
from mongoq.spark.write.payloads import Refusal
from mongoq.spark.write.row_orders import RowOrder
from mongoq.spark.write.write_options import WriteOptions
from mongoq.sync import Broker

__all__ = ["HeldRow", "RowSettler"]

logger = logging.getLogger("mongoq.spark")


class HeldRow(NamedTuple):
    """A row: its position, the id and the token of its item in hex, its order, and its payload if it has one."""

    place: int
    id: str
    token: str
    order: RowOrder
    wrapped: bytes | None


class RowSettler:
    """Settles the rows of one task.

    Args:
        broker: broker of the items.
        options: options of the write.
    """

    def __init__(self, broker: Broker, options: WriteOptions) -> None:
        self._broker = broker
        self._options = options
        self._seen: set[bytes] = set()

    def settle(self, rows: Iterable[HeldRow]) -> SettledByToken:
        """Move or commit the items of rows, and return their results; all are tried before an error is raised.

        Raises:
            Refusal: a row does not identify an item; nothing was sent.
            BatchIncomplete: some items could not be settled, for example because the target queue has the key already.
            RowsLost: some items have another holder by now, or were settled before, with ``lost=fail``.
        """
        handed: dict[RowOrder, Handover] = {}
        held = [self._held(row, handed) for row in rows]
        if not held:
            return SettledByToken()
        told = self._broker._driver.run(settle_held(self._broker._context, held))
        # Reported before failures, which raise: the log has both.
        if told.lost:
            self._tell_lost(told.lost)
        if told.failed:
            done = [one.id for one in held if one.id not in told.failed]
            first = next(iter(told.failed.values()))
            raise BatchIncomplete(", ".join(sorted(told.queues)), done, told.failed) from first
        return told

    def _held(self, row: HeldRow, handed: dict[RowOrder, Handover]) -> FencedItem:
        id, token = _object_id(row.place, "_id", row.id), _object_id(row.place, "_token", row.token)
        # The first row would settle the item, and the second would count as lost.
        if id.binary in self._seen:
            problem = "another row of this task settles the same item; what is made of it besides has no _token"
            raise Refusal(row.place, "_token", problem)
        self._seen.add(id.binary)
        if row.order.to is None:
            return FencedItem(id, token)
        if row.order not in handed:
            handed[row.order] = self._handover(row.order, row.order.to)
        return FencedItem(id, token, handed[row.order], row.wrapped)

    def _handover(self, order: RowOrder, to: str) -> Handover:
        """Return the move of an order: priority and headers stay unless ``carry`` names them."""
        context = QueueContext(self._broker._context, queue_options(to), self._broker._context.untyped)
        carry = self._options.carry
        return check_move(
            context,
            Destination(to, context.codec),
            payload=None,
            replace_payload=False,
            patch=None,
            delay=order.delay,
            when=order.when,
            priority=order.priority if "priority" in carry else self._options.priority,
            headers=order.headers,
            replace_headers="headers" in carry and order.headers is not None,
            key=order.key,
        )

    def _tell_lost(self, lost: list[ObjectId]) -> None:
        if self._options.lost == "fail":
            raise RowsLost(lost)
        logger.warning("%s", RowsLost(lost))


def _object_id(place: int, column: str, text: str) -> ObjectId:
    try:
        return ObjectId(text)
    except InvalidId:
        raise Refusal(place, column, "it is no ObjectId in hex, which the ids and tokens of mongoq are") from None
