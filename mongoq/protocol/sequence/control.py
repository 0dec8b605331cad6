"""What both ends of a sequence share: the transaction, and the statements that are sent in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mongoq.errors import TransactionsUnavailable
from mongoq.protocol.base.retry import retry_lost_race
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.base.transaction import ensure_transactional, run_in_transaction
from mongoq.protocol.state.context import BrokerContext

T = TypeVar("T")
Kind = TypeVar("Kind", bound=Hashable)


async def ensure_possible(broker: BrokerContext) -> None:
    """Refuse a server without transactions before anything is written.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    if broker.serverless:
        return
    try:
        await ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=["sequences (sequence=)"]) from None


async def run_atomic(broker: BrokerContext, attempt: Callable[[], Awaitable[T]], *, joined: bool = False) -> T:
    """Run an operation in a transaction of its own, or in the caller's (``joined``); without a server, as it is.

    A crash before the commit leaves nothing of it behind. Two processes that begin a sequence at the same moment may
    both insert its control document; the slower one tries again.
    """
    if joined or broker.serverless:
        return await attempt()
    return await retry_lost_race(lambda: run_in_transaction(broker, attempt))


def update_alike(ids: Mapping[Kind, Sequence[Any]], update: Callable[[Kind], Mapping[str, Any]]) -> Iterable[Statement]:
    """Return one statement for all documents that get the same update: the server takes less time for it."""
    for kind, alike in ids.items():
        yield "UpdateMany", {"filter": {"_id": {"$in": alike}}, "update": update(kind)}
