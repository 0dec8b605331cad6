# Generated from mongoq/aio/transaction.py by scripts/unasync.py. Do not edit.
"""Transactions: pushes, commits and moves that happen together with writes of your own, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from mongoq.drivers.threads.driver import Runner, ThreadDriver
from mongoq.errors import ArgumentInvalid
from mongoq.model.process import Local
from mongoq.protocol.base import transaction
from mongoq.protocol.base.retry import TransactionRetries
from mongoq.protocol.state.context import BrokerContext

__all__ = ["Transaction", "Transactions"]

T = TypeVar("T")


class Transaction(Runner[BrokerContext], Local):
    """A transaction, made by ``broker.transaction()`` and ``broker.run_transaction()``."""

    _elsewhere = (
        "it belongs to its session, its broker and its process; another process begins a transaction of its own"
    )

    def __init__(self, driver: ThreadDriver, context: BrokerContext) -> None:
        super().__init__(driver, context)
        self._session: Any = None
        self._caller: Any = None

    @property
    def session(self) -> Any:
        """Session of the client: ``session=`` of ``push``, ``commit``, ``move``, and of the methods of the client.

        Raises:
            ArgumentInvalid: the block of the transaction has not begun.
        """
        if self._session is None:
            raise ArgumentInvalid("session", "the transaction has not begun: with broker.transaction() as tx")
        return self._session

    def __enter__(self) -> Self:
        """Begin: make the collection ready, outside of the transaction, and start a session."""
        caller = self._driver.caller()
        # One transaction in a thread or task at a time: two could wait for each other.
        self._sessions.enter(caller)
        try:
            self._session = self._run(transaction.begin_transaction)
        except BaseException:
            # Also after a cancellation or an interrupt: otherwise this caller could never begin another transaction.
            self._sessions.leave(caller)
            raise
        self._caller = caller
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; or abort after any exception, also after a cancellation or an interrupt."""
        try:
            ending = (
                transaction.commit_transaction(self._session)
                if error is None
                else transaction.abort_transaction(self._session)
            )
            # Shielded: a cancellation of the caller does not stop the commit.
            self._driver.run_shielded(ending)
        finally:
            self._sessions.leave(self._caller)


class Transactions(Runner[BrokerContext]):
    """The part of ``Broker`` that makes transactions."""

    def transaction(self) -> Transaction:
        """Return a block with writes that happen together or not at all: ``with broker.transaction() as tx``.

        ```python
        with broker.transaction() as tx:
            orders.insert_one(order, session=tx.session)
            queue.push(order["_id"], session=tx.session)
        ```

        It reads a snapshot and is committed to the majority at the end of the block (``commitTransaction``). An
        exception that leaves the block aborts it (``abortTransaction``) and is raised further; a cancellation does the
        same. A process that dies within the block leaves nothing; the server releases the documents of the transaction
        after ``transactionLifetimeLimitSeconds``, 60 by default. Keep the block short: other callers wait for the items
        that it settles.

        When the reply to the commit is lost, the broker asks for it again, for up to two minutes. A cancelled commit
        goes on.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: another transaction of this broker runs in this thread or task.

        Errors of the driver are raised unchanged. After one with the label ``TransientTransactionError``, such as a
        write conflict, nothing has happened and the whole may be tried again, as ``run_transaction`` does; after one
        with ``UnknownTransactionCommitResult``, the transaction may have happened.
        """
        return Transaction(self._driver, self._context)

    def run_transaction(self, function: Callable[[Transaction], T]) -> T:
        """Call ``function(tx)`` in a transaction, commit it, and return the result of the function.

        A transaction that met a write conflict, or lost its server, is aborted and run again as a whole, with growing
        pauses, for up to two minutes. So the function may be called several times, and should have no effects except
        through ``tx.session``. It must not catch the driver's errors: they have aborted the transaction.

        Args:
            function: called with the transaction, and awaited.

        Raises:
            TransactionsUnavailable: the server is no replica set; nothing was written.
            ArgumentInvalid: another transaction of this broker runs in this thread or task.

        Any other exception of the function aborts the transaction and is raised unchanged. Errors of the driver are as
        for ``transaction``.
        """
        retries = TransactionRetries()
        while True:
            try:
                with self.transaction() as tx:
                    result = function(tx)
                    return transaction.check_result(result)
            except Exception as error:
                pause = retries.pause(error)
                # Not an error to retry, or the two minutes are over.
                if pause is None:
                    raise
            self._run_flow(pause.__iter__())
