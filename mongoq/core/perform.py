"""Performing: the commands, pauses and shared requests of an operation, by the driver that runs it.

Every command to the server passes ``perform``. Errors that operations can handle are raised as an ``Interruption``; the
driver's own error comes out at the end of the operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mongoq.core.command import (
    OPERATION,
    Attached,
    Command,
    Duplicate,
    Operation,
    Refused,
    Shared,
    WakeEvent,
)

if TYPE_CHECKING:
    from mongoq.drivers.performer_aio import AioPerformer

T = TypeVar("T")

TRANSIENT_LABEL = "TransientTransactionError"
"""Error label of a transaction that can be run again as a whole."""


def has_label(error: Any, label: str) -> bool:
    """Return whether the server has put a label on an error."""
    has = getattr(error, "has_error_label", None)
    return bool(has is not None and has(label))


async def perform(command: Command[T]) -> T:
    """Send a command, and return its parsed reply.

    Raises:
        Interruption: an error that operations can handle.
        BrokerClosed: the broker was closed.
    """
    operation = OPERATION.get()
    driver: AioPerformer = operation.driver
    if operation.transaction is not None:
        reply: T = await _perform_in_transaction(operation, operation.transaction, command)
        return reply
    return await driver.perform(command, operation.undo_log)


async def share(shared: Shared[T]) -> T:
    """Send this caller's part of a command that callers share, and return its answer."""
    operation = OPERATION.get()
    driver: AioPerformer = operation.driver
    return await driver.share(shared, operation.undo_log)


async def sleep(seconds: float) -> None:
    """Pause; a cancelled caller is cancelled here."""
    driver: AioPerformer = OPERATION.get().driver
    await driver.sleep(seconds)


async def rest(event: WakeEvent, seconds: float) -> None:
    """Sleep until the event is set, for ``seconds`` at most; a cancelled caller is cancelled here."""
    driver: AioPerformer = OPERATION.get().driver
    await driver.rest(event, seconds)


def run_beside(
    work: Callable[[], Coroutine[Any, Any, None]], over: Callable[[], object], context: Context | None = None
) -> None:
    """Run another operation in the background, in a thread or task of the driver; its result and errors are dropped.

    On asyncio ``over`` is called when it has ended, or will never begin because its task was cancelled. By default it
    runs without the deadlines and settings of the caller's context, and ``close`` cancels it; what has the context of a
    caller, who waits for it, is waited for.
    """
    driver: AioPerformer = OPERATION.get().driver
    driver.run_beside(work, over, context)


# --- within a transaction ------------------------------------------------------------------------


class TransactionOver(Exception):
    """An error has ended the transaction of an operation, which is to stop; ``run_attached`` raises the error."""


class _Present(Exception):
    """An item with this id exists already."""


async def run_attached(session: Any, work: Callable[[], Awaitable[T]]) -> T:
    """Run an operation with the session attached to its commands.

    No command is sent again, and the operation recovers from no error: the server has aborted the transaction by then.
    It may raise an error of its own in the place of a refusal.
    """
    operation = OPERATION.get()
    before = operation.transaction
    attached = operation.transaction = Attached(session)
    try:
        result = await work()
    except Exception:
        if attached.error is None or attached.may_explain:
            raise
        raise attached.error from None
    finally:
        operation.transaction = before
    if attached.error is not None:
        raise attached.error
    return result


async def _perform_in_transaction(operation: Operation, attached: Attached, command: Command[Any]) -> Any:
    """Perform a command in the transaction; one that has ended it lets the operation only read, outside of it."""
    driver: AioPerformer = operation.driver
    if attached.error is not None:
        if attached.may_explain and _is_find(command):
            return await driver.perform(command, operation.undo_log)
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
        reply = await driver.perform(command, operation.undo_log)
    except Exception as error:
        attached.error = error
        if isinstance(error, Duplicate | Refused) and not has_label(error.cause, TRANSIENT_LABEL):
            attached.may_explain = True
            raise
        raise TransactionOver from error
    if inserts and reply.upserted_id is None:
        raise Duplicate(_Present())
    return reply


def _is_find(command: Command[Any]) -> bool:
    return "find" in command.arguments.get("command", {})
