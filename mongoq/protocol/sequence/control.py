"""What both ends of a sequence share: the transaction, and the statements that are sent in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mongoq.errors import TransactionsUnavailable
from mongoq.protocol.base.retry import retry_lost_race
from mongoq.protocol.base.transaction import ensure_transactional, run_in_transaction
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.state.context import BrokerContext

T = TypeVar("T")
Kind = TypeVar("Kind", bound=Hashable)
Statement = tuple[str, dict[str, Any]]

METHODS = {"DeleteMany": "delete_many", "UpdateMany": "update_many", "UpdateOne": "update_one"}
MAX_STATEMENTS = 1_000
"""Statements of one bulk, at most."""


def ensure_possible(broker: BrokerContext) -> Flow[None]:
    """Refuse a server without transactions before anything is written.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    if broker.serverless:
        return
    try:
        yield from ensure_transactional(broker)
    except TransactionsUnavailable as error:
        raise TransactionsUnavailable(error.server, needed_by=["sequences (sequence=)"]) from None


def run_atomic(broker: BrokerContext, attempt: Callable[[], Flow[T]], *, joined: bool = False) -> Flow[T]:
    """Run a flow in a transaction of its own, or in the caller's (``joined``); without a server, as it is.

    A crash before the commit leaves nothing of it behind. Two processes that begin a sequence at the same moment may
    both insert its control document; the slower one tries again.
    """
    if joined or broker.serverless:
        return (yield from attempt())
    return (yield from retry_lost_race(lambda: run_in_transaction(broker, attempt)))


def update_alike(ids: Mapping[Kind, Sequence[Any]], update: Callable[[Kind], Mapping[str, Any]]) -> Iterable[Statement]:
    """Return one statement for all documents that get the same update: the server takes less time for it."""
    for kind, alike in ids.items():
        yield "UpdateMany", {"filter": {"_id": {"$in": alike}}, "update": update(kind)}


def send_statements(broker: BrokerContext, requests: Sequence[Statement]) -> Flow[None]:
    """Send statements in order, in bulks where there is a server."""
    if broker.serverless:
        for kind, arguments in requests:
            yield from Command[Any](METHODS[kind], arguments)
        return
    for start in range(0, len(requests), MAX_STATEMENTS):
        bulk = requests[start : start + MAX_STATEMENTS]
        yield from Command[Any]("bulk_write", {"requests": bulk, "ordered": True})
