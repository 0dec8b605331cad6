"""Retries: the policies by which operations send a command again.

| function | after | sends in all | pause |
|---|---|---|---|
| ``retry_once`` | a lost reply | 2; the driver sends reads and retryable writes again by itself | none |
| ``retry_until_reply``, ``retry_and_report`` | a lost reply | ``MAX_SENDS`` | none |
| ``retry_lost_race`` | ``Duplicate``: another process was faster | ``MAX_RACES`` | none |
| ``TransactionRetries`` | an error with a label of the server's | as many as fit in two minutes | growing |

A lost reply needs no pause: the driver waits by itself until it knows a server that takes the command. Only a command
that is safe to apply twice may be sent again: it is fenced, sets the same values, or finds nothing the second time.
Other operations recover in a way of their own, because they must find out something, or change the command, before they
send it again: ``push.insert.is_new``, ``claim.reserve`` and ``settle.exchange`` among them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeVar

from mongoq.core.command import MAX_SENDS, Command, Duplicate, ReplyLost, Shared, own_error
from mongoq.core.perform import TRANSIENT_LABEL, has_label, perform, share
from mongoq.data.process import dice

T = TypeVar("T")

MAX_RACES = 5
"""Times that another process may be faster before an operation gives up."""
UNKNOWN_COMMIT_LABEL = "UnknownTransactionCommitResult"
"""Error label of a commit that can be sent again."""
TIME_EXPIRED = 50
"""Error code ``MaxTimeMSExpired``: a retry would only meet the same time limit."""
RETRY_LIMIT_SECONDS = 120.0
"""Seconds after which no transaction is retried, as in the drivers' own ``with_transaction``."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.5
"""First and longest pause between retries of a transaction, in seconds."""


async def retry_once(command: Command[T]) -> T:
    """Perform a command; send it once more when its reply is lost."""
    try:
        return await perform(command)
    except ReplyLost:
        return await perform(command)


async def retry_until_reply(command: Command[T]) -> T:
    """Send a command until there is a reply, ``MAX_SENDS`` times at most, and return its result."""
    result, _ = await retry_and_report(partial(perform, command))
    return result


async def retry_and_report(send: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
    """Send until there is a reply, ``MAX_SENDS`` times at most; return the result, and whether a reply was lost.

    Then the result may be that of a command which the lost one left nothing to do.
    """
    for lost_replies in range(MAX_SENDS - 1):
        try:
            return (await send()), lost_replies > 0
        except ReplyLost:
            pass
    return (await send()), True


async def retry_lost_race(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat an upsert until no other process inserts the same key at the same moment, ``MAX_RACES`` times at most."""
    for _ in range(MAX_RACES - 1):
        try:
            return await attempt()
        except Duplicate:
            pass
    return await attempt()


async def run_for_callers(
    key: Hashable, is_due: Callable[[], bool], work: Callable[[], Awaitable[object]], *, is_shared: bool
) -> None:
    """Do what is due once for all concurrent callers, or for each alone; for a later caller it is not due any more.

    Callers that arrive during a run use the next one.
    """

    async def run_in_turn(entries: list[tuple[Callable[[], bool], Callable[[], Awaitable[object]]]]) -> list[None]:
        for is_still_due, run in entries:
            if is_still_due():
                await run()
        return [None] * len(entries)

    if is_shared:
        await share(Shared[None](key, run_in_turn, (is_due, work)))
    elif is_due():
        await work()


class TransactionRetries:
    """Decides whether and when to retry a transaction or its commit: with growing pauses, for two minutes in all."""

    def __init__(self) -> None:
        self._until = time.monotonic() + RETRY_LIMIT_SECONDS
        self._longest = PAUSE_SECONDS

    def pause(self, error: Exception, label: str = TRANSIENT_LABEL) -> float | None:
        """Return the seconds to pause after an error, or ``None`` when the operation is not to be retried."""
        cause = own_error(error)
        if not has_label(cause, label) or getattr(cause, "code", None) == TIME_EXPIRED:
            return None
        if time.monotonic() >= self._until:
            return None
        self._longest = min(self._longest * 1.5, MAX_PAUSE_SECONDS)
        return dice.uniform(self._longest / 2, self._longest)
