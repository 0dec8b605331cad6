# Generated from mongoq/core/base/retry.py by scripts/unasync.py. Do not edit.
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

from collections.abc import Callable, Hashable
from functools import partial

from mongoq.core.base.retry import MAX_RACES, T
from mongoq.core.command import MAX_SENDS, Command, Duplicate, ReplyLost, Shared
from mongoq.core_threads.perform import perform, share


def retry_once(command: Command[T]) -> T:
    """Perform a command; send it once more when its reply is lost."""
    try:
        return perform(command)
    except ReplyLost:
        return perform(command)


def retry_until_reply(command: Command[T]) -> T:
    """Send a command until there is a reply, ``MAX_SENDS`` times at most, and return its result."""
    result, _ = retry_and_report(partial(perform, command))
    return result


def retry_and_report(send: Callable[[], T]) -> tuple[T, bool]:
    """Send until there is a reply, ``MAX_SENDS`` times at most; return the result, and whether a reply was lost.

    Then the result may be that of a command which the lost one left nothing to do.
    """
    for lost_replies in range(MAX_SENDS - 1):
        try:
            return (send()), lost_replies > 0
        except ReplyLost:
            pass
    return (send()), True


def retry_lost_race(attempt: Callable[[], T]) -> T:
    """Repeat an upsert until no other process inserts the same key at the same moment, ``MAX_RACES`` times at most."""
    for _ in range(MAX_RACES - 1):
        try:
            return attempt()
        except Duplicate:
            pass
    return attempt()


def run_for_callers(key: Hashable, is_due: Callable[[], bool], work: Callable[[], object], *, is_shared: bool) -> None:
    """Do what is due once for all concurrent callers, or for each alone; for a later caller it is not due any more.

    Callers that arrive during a run use the next one.
    """

    def run_in_turn(entries: list[tuple[Callable[[], bool], Callable[[], object]]]) -> list[None]:
        for is_still_due, run in entries:
            if is_still_due():
                run()
        return [None] * len(entries)

    if is_shared:
        share(Shared[None](key, run_in_turn, (is_due, work)))
    elif is_due():
        work()
