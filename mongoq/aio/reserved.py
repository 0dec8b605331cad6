"""``reserved()``: an item for the duration of a block."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, TypeVar

from mongoq.drivers.aio.driver import AioDriver, AsyncRunner
from mongoq.errors import ReservationLost
from mongoq.model.arguments import Duration, duration
from mongoq.model.encoding.error_text import spoken
from mongoq.model.item import Item, reservation_key
from mongoq.protocol import group_commit
from mongoq.protocol.base import transaction
from mongoq.protocol.claim import reserve
from mongoq.protocol.flow import Flow
from mongoq.protocol.settle import settle
from mongoq.protocol.state.context import QueueContext

__all__ = ["AsyncReserved"]

M = TypeVar("M")
logger = logging.getLogger("mongoq.reserved")


class AsyncReserved(AsyncRunner[QueueContext[M]]):
    """The block of ``queue.reserved()``; made by that method."""

    def __init__(
        self,
        driver: AioDriver,
        context: QueueContext[M],
        *,
        lease: Duration | None,
        wait: Duration | None,
        delay: Duration,
        on_invalid: reserve.OnInvalid,
    ) -> None:
        super().__init__(driver, context)
        self._options: dict[str, Any] = {"lease": lease, "wait": wait, "on_invalid": on_invalid}
        # Checked here, so that a bad value raises before an item is reserved.
        self._delay = duration(delay, "delay")
        self._item: Item[M] | None = None

    async def __aenter__(self) -> Item[M] | None:
        """Reserve an item, or return ``None`` when none came in time."""
        self._item = await self._run(group_commit.reserve, **self._options)
        if self._item is not None:
            # The set shows at the end whether the block has settled the item itself.
            self._context.broker.unsettled.add(reservation_key(self._item))
        return self._item

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; or roll back with the error; or release, when the block was cancelled or interrupted."""
        item, reservation = self._item, reservation_key(self._item)
        if item is None or reservation not in self._context.broker.unsettled:
            return
        self._context.broker.unsettled.discard(reservation)
        # A settlement in a transaction counts only if the transaction is committed.
        tentative = self._sessions.take_tentative(reservation)
        if error is None:
            # Shielded below: a cancellation of the caller does not stop the settlement.
            commit = group_commit.commit(self._context, item)
            await self._driver.run_shielded(transaction.skip_if_settled(tentative, commit))
            return
        try:
            back = self._handing_back(item, error)
            await self._driver.run_shielded(transaction.skip_if_settled(tentative, back))
        except ReservationLost as lost:
            # The block has failed with its own error, which is raised; the lost reservation is only logged.
            logger.warning("after %s: %s", spoken(error), lost)

    def _handing_back(self, item: Item[M], error: BaseException) -> Flow[None]:
        # Other exceptions stop the process or the task, and are no fault of the item: its attempt is not counted.
        if issubclass(type(error), Exception):
            return group_commit.rollback(self._context, item, delay=self._delay, error=error)
        return settle.release(self._context, item)
