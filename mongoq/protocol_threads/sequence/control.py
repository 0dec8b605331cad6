# Generated from mongoq/protocol/sequence/control.py by scripts/unasync.py. Do not edit.
"""What both ends of a sequence share: the transaction, and the statements that are sent in it."""

from __future__ import annotations

from collections.abc import Callable

from mongoq.errors import TransactionsUnavailable
from mongoq.protocol.sequence.control import T
from mongoq.protocol.state.context import BrokerContext
from mongoq.protocol_threads.base.retry import retry_lost_race
from mongoq.protocol_threads.base.transaction import ensure_transactional, run_in_transaction


def ensure_possible(broker: BrokerContext) -> None:
    """Refuse a server without transactions before anything is written.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    if broker.serverless:
        return
    try:
        ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=["sequences (sequence=)"]) from None


def run_atomic(broker: BrokerContext, attempt: Callable[[], T], *, joined: bool = False) -> T:
    """Run an operation in a transaction of its own, or in the caller's (``joined``); without a server, as it is.

    A crash before the commit leaves nothing of it behind. Two processes that begin a sequence at the same moment may
    both insert its control document; the slower one tries again.
    """
    if joined or broker.serverless:
        return attempt()
    return retry_lost_race(lambda: run_in_transaction(broker, attempt))
