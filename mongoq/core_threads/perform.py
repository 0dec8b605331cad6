# Generated from mongoq/core/perform.py by scripts/unasync.py. Do not edit.
"""Performing: the commands, pauses and shared requests of an operation, by the driver that runs it.

Every command to the server passes ``perform``. Errors that operations can handle are raised as an ``Interruption``; the
driver's own error comes out at the end of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mongoq.core.command import OPERATION, Attached, Command, Duplicate, Operation, Refused, Shared, WakeEvent
from mongoq.core.perform import TRANSIENT_LABEL, T, TransactionOver, _is_find, _Present, has_label

if TYPE_CHECKING:
    from mongoq.drivers.performer_threads import ThreadPerformer


def perform(command: Command[T]) -> T:
    """Send a command, and return its parsed reply.

    Raises:
        Interruption: an error that operations can handle.
        BrokerClosed: the broker was closed.
    """
    operation = OPERATION.get()
    driver: ThreadPerformer = operation.driver
    if operation.transaction is not None:
        reply: T = _perform_in_transaction(operation, operation.transaction, command)
        return reply
    return driver.perform(command, operation.undo_log)


def share(shared: Shared[T]) -> T:
    """Send this caller's part of a command that callers share, and return its answer."""
    operation = OPERATION.get()
    driver: ThreadPerformer = operation.driver
    return driver.share(shared, operation.undo_log)


def sleep(seconds: float) -> None:
    """Pause; a cancelled caller is cancelled here."""
    driver: ThreadPerformer = OPERATION.get().driver
    driver.sleep(seconds)


def rest(event: WakeEvent, seconds: float) -> None:
    """Sleep until the event is set, for ``seconds`` at most; a cancelled caller is cancelled here."""
    driver: ThreadPerformer = OPERATION.get().driver
    driver.rest(event, seconds)


def run_beside(work: Callable[[], None], over: Callable[[], object], context: Context | None = None) -> None:
    """Run another operation in the background, in a thread or task of the driver; its result and errors are dropped.

    On asyncio ``over`` is called when it has ended, or will never begin because its task was cancelled. By default it
    runs without the deadlines and settings of the caller's context, and ``close`` cancels it; what has the context of a
    caller, who waits for it, is waited for.
    """
    driver: ThreadPerformer = OPERATION.get().driver
    driver.run_beside(work, over, context)


# --- within a transaction ------------------------------------------------------------------------


def run_attached(session: Any, work: Callable[[], T]) -> T:
    """Run an operation with the session attached to its commands.

    No command is sent again, and the operation recovers from no error: the server has aborted the transaction by then.
    It may raise an error of its own in the place of a refusal.
    """
    operation = OPERATION.get()
    before = operation.transaction
    attached = operation.transaction = Attached(session)
    try:
        result = work()
    except Exception:
        if attached.error is None or attached.may_explain:
            raise
        raise attached.error from None
    finally:
        operation.transaction = before
    if attached.error is not None:
        raise attached.error
    return result


def _perform_in_transaction(operation: Operation, attached: Attached, command: Command[Any]) -> Any:
    """Perform a command in the transaction; one that has ended it lets the operation only read, outside of it."""
    driver: ThreadPerformer = operation.driver
    if attached.error is not None:
        if attached.may_explain and _is_find(command):
            return driver.perform(command, operation.undo_log)
        attached.may_explain = False
        raise TransactionOver
    inserts = command.method == "insert_one"
    if command.target != "database" or _is_find(command):  # ``hello`` and index creation would abort it
        command = replace(command, session=attached.session, undo=None)
    if inserts:  # a failed insert aborts the transaction, even when it is caught
        fields: dict[str, Any] = dict(command.arguments["document"])
        arguments: Mapping[str, Any] = {"filter": {"_id": fields.pop("_id")}, "update": {"$setOnInsert": fields}}
        command = replace(command, method="update_one", arguments={**arguments, "upsert": True})
    try:
        reply = driver.perform(command, operation.undo_log)
    except Exception as error:
        attached.error = error
        if isinstance(error, Duplicate | Refused) and not has_label(error.cause, TRANSIENT_LABEL):
            attached.may_explain = True
            raise
        raise TransactionOver from error
    if inserts and reply.upserted_id is None:
        raise Duplicate(_Present())
    return reply
