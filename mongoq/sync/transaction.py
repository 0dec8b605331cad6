# Generated from mongoq/aio/transaction.py by scripts/unasync.py. Do not edit.
"""Transactions: pushes, commits and moves that happen together with writes of your own, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from mongoq.drivers.threads import ThreadDriver
from mongoq.errors import ArgumentInvalid
from mongoq.model.process.local import Local
from mongoq.protocol.base import transaction
from mongoq.protocol.state.context import BrokerContext

__all__ = ["Transaction", "Transactions"]

T = TypeVar("T")


class Transaction(Local):
    """A transaction, made by ``broker.transaction()`` and ``broker.run_transaction()``."""

    _elsewhere = (
        "it belongs to its session, its broker and its process; another process begins a transaction of its own"
    )

    def __init__(self, driver: ThreadDriver, context: BrokerContext) -> None:
        self._driver = driver
        self._context = context
        self._session: Any = None
        self._caller: Any = None

    @property
    def session(self) -> Any:
        """The client's session: ``session=`` of ``push``, ``commit``, ``move``, and of the methods of the client.

        Raises:
            ArgumentInvalid: the block of the transaction has not begun.
        """
        if self._session is None:
            raise ArgumentInvalid("session", "the transaction has not begun: with broker.transaction() as tx")
        return self._session

    def __enter__(self) -> Self:
        """Begin: make the collection ready, outside of the transaction, and start a session."""
        caller = self._driver.caller()
        self._driver.sessions.enter(caller)
        try:
            self._session = self._driver.run(transaction.begin_transaction(self._context))
        except BaseException:
            self._driver.sessions.leave(caller)
            raise
        self._caller = caller
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; or abort, after any exception, a cancellation and an interrupt too."""
        try:
            ending = (
                transaction.commit_transaction(self._session)
                if error is None
                else transaction.abort_transaction(self._session)
            )
            self._driver.run_shielded(ending)
        finally:
            self._driver.sessions.leave(self._caller)


class Transactions:
    """The side of a broker that makes transactions; part of ``Broker``."""

    _driver: ThreadDriver
    _context: BrokerContext

    def transaction(self) -> Transaction:
        """Return a block whose writes happen together or not at all: ``with broker.transaction() as tx``.

        ```python
        with broker.transaction() as tx:
            orders.insert_one(order, session=tx.session)
            queue.push(order["_id"], session=tx.session)
        ```

        It reads a snapshot and is committed to the majority at the end of the block (``commitTransaction``). An
        exception that leaves the block aborts it (``abortTransaction``) and goes on; so does a cancellation. A process
        that dies within leaves nothing; the server lets go of what it had touched after
        ``transactionLifetimeLimitSeconds``, 60 by default. Keep the block short: others wait for the items it settles.

        When the reply to the commit is lost it is asked for again, for up to two minutes. A cancelled commit goes on.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: another transaction of this broker runs in this thread or task.

        Errors of the driver pass through. One with the label ``TransientTransactionError``, such as a write conflict,
        means that nothing happened and the whole may be tried again, as ``run_transaction`` does; one with
        ``UnknownTransactionCommitResult``, that it may have happened.
        """
        return Transaction(self._driver, self._context)

    def run_transaction(self, function: Callable[[Transaction], T]) -> T:
        """Call ``function(tx)`` in a transaction, commit it, and return what the function returned.

        A transaction that met a write conflict, or lost its server, is aborted and run again as a whole, with growing
        pauses, for up to two minutes: the function may be called several times, and should have no effects but through
        ``tx.session``. Let the driver's errors leave it: those that it swallows have aborted the transaction.

        Args:
            function: called with the transaction, and awaited.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: another transaction of this broker runs in this thread or task.

        Any other exception of the function aborts the transaction and goes on unchanged. Errors of the driver are as
        for ``transaction``.
        """
        retries = transaction.Retries()
        while True:
            try:
                with self.transaction() as tx:
                    result = function(tx)
                    return transaction.check_result(result)
            except Exception as error:
                pause = retries.pause(error)
                if pause is None:
                    raise
            self._driver.run(pause.__iter__())
