"""Blocks, for ``async with``: an item for the duration of a block, and a transaction."""

from __future__ import annotations

import logging
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from mongoq.core.base import transaction
from mongoq.core.claim import reserve
from mongoq.core.claim.judge import OnInvalid
from mongoq.core.settle import settle
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import Duration, duration
from mongoq.data.encoding.error_text import spoken
from mongoq.data.item import Item, reservation_key
from mongoq.data.log_fields import log_fields
from mongoq.data.process import Local
from mongoq.data.settings import KEEP
from mongoq.drivers.aio.driver import AioDriver, AsyncRunner
from mongoq.errors import ArgumentInvalid, ReservationLost

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
        on_invalid: OnInvalid,
    ) -> None:
        super().__init__(driver, context)
        self._options: dict[str, Any] = {"lease": lease, "wait": wait, "on_invalid": on_invalid}
        # Checked here, so that a bad value raises before an item is reserved.
        self._delay = duration(delay, "delay")
        self._item: Item[M] | None = None

    async def __aenter__(self) -> Item[M] | None:
        """Reserve an item, or return ``None`` when none came in time."""
        self._item = await self._run(reserve.reserve, **self._options)  # type: ignore[arg-type]  # by keyword
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
            try:
                session = self._sessions.choose(KEEP)
            except ArgumentInvalid:  # this task has outlived the block of the transaction: the item is settled alone
                session = None
            commit = partial(self._observed(settle.commit), self._context, item, session=session)
            if session is not None:
                commit = partial(transaction.run_within, self._context, session, commit, item)
            await self._driver.run_shielded(transaction.skip_if_settled, tentative, commit)
            return
        try:
            # Other exceptions stop the process or the task, and are no fault of the item: its attempt is not counted.
            if issubclass(type(error), Exception):
                back = partial(self._observed(settle.rollback), self._context, item, delay=self._delay, error=error)
            else:
                back = partial(self._observed(settle.release), self._context, item)
            await self._driver.run_shielded(transaction.skip_if_settled, tentative, back)
        except ReservationLost as lost:
            # The block has failed with its own error, which is raised; the lost reservation is only logged.
            logger.warning("after %s: %s", spoken(error), lost, extra=log_fields(item))


class AsyncTransaction(AsyncRunner[BrokerContext], Local):
    """A transaction, made by ``broker.transaction()`` and ``broker.run_transaction()``."""

    _elsewhere = (
        "it belongs to its session, its broker and its process; another process begins a transaction of its own"
    )

    def __init__(self, driver: AioDriver, context: BrokerContext) -> None:
        super().__init__(driver, context)
        self._session: Any = None
        self._caller: Any = None

    @property
    def session(self) -> Any:
        """Session of the client: ``session=`` of the methods of the client.

        Raises:
            ArgumentInvalid: the block of the transaction has not begun.
        """
        if self._session is None:
            raise ArgumentInvalid("session", "the transaction has not begun: async with broker.transaction() as tx")
        return self._session

    async def __aenter__(self) -> Self:
        """Begin: make the collection ready, outside of the transaction, and start a session."""
        caller = self._driver.caller()
        # One transaction in a thread or task at a time: two could wait for each other.
        self._sessions.enter(caller)
        try:
            self._session = await self._run(transaction.begin_transaction)
        except BaseException:
            # Also after a cancellation or an interrupt: otherwise this caller could never begin another transaction.
            self._sessions.leave(caller)
            raise
        self._caller = caller
        self._sessions.bind(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; or abort after any exception, also after a cancellation or an interrupt, or if a call still runs."""
        self._sessions.expect_end(self._session)  # async only
        has_calls = self._sessions.has_calls(self._session)
        try:
            is_committed = error is None and not has_calls
            # Shielded: a cancellation of the caller does not stop the commit.
            await self._driver.run_shielded(
                transaction.commit_transaction if is_committed else transaction.abort_transaction, self._session
            )
        finally:
            self._sessions.leave(self._caller, self._session)
        if error is None and has_calls:
            raise ArgumentInvalid(
                "transaction", "a call has not ended, so nothing happens; await the task that made it in the block"
            )
