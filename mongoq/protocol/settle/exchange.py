"""Exchanges: settle reserved items and write new ones, many in one transaction.

No item can fail another: when a transaction cannot settle one of them, lost items are left out, or halves are tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from bson.errors import BSONError

from mongoq.errors import MongoqError, OutcomeInvalid
from mongoq.model.item import Item, id_key
from mongoq.protocol.base.fence import make_lost_error
from mongoq.protocol.base.transaction import run_in_transaction
from mongoq.protocol.command import Duplicate, Interruption, PartlyRefused, Refused, Unreadable, own_error
from mongoq.protocol.settle.settlement import read_states
from mongoq.protocol.state.context import QueueContext

W = TypeVar("W")
R = TypeVar("R")
Failures = dict[Any, Exception]


class FenceMiss(Exception):
    """Fewer items were found under their tokens than there were to settle."""


class PutOff(Exception):
    """An item is unchanged, and is to be settled again in a moment: the thing it needs is about to arrive."""


ITEM_ERRORS = (
    *(FenceMiss, MongoqError, Refused, PartlyRefused, Duplicate, Unreadable),
    # what other programs have put into the fields of an item may be anything
    *(ArithmeticError, AttributeError, BSONError, LookupError, TypeError, ValueError),
)
"""Errors about one of the items, and not about the server."""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[W, R]):
    """Rules of one exchange of items.

    Attributes:
        context: the queue of the items.
        attempt: settles all of its arguments, and writes their new items; raises ``FenceMiss`` when it has not found
            all of them. It is called in a transaction, perhaps several times, and changes nothing else.
        item: returns the item of one argument.
        on_done: receives the result of the committed attempt.
    """

    context: QueueContext[Any]
    attempt: Callable[[Sequence[W]], Awaitable[R]]
    item: Callable[[W], Item[Any]]
    on_done: Callable[[R], None]


async def run_exchange(exchange: Exchange[W, R], wanted: Sequence[W]) -> Failures:
    """Exchange all items in one transaction, and return the errors of items that cannot be exchanged, by ``id_key``.

    Without a server there are no transactions, and they are exchanged one after the other.

    A crash before the commit leaves all of them reserved, to the ends of their leases; after it, all are settled. The
    server drops a transaction of a dead client after ``transactionLifetimeLimitSeconds``, 60 by default; until then no
    other consumer can claim its items.
    """
    if not wanted:
        return {}
    context, broker = exchange.context, exchange.context.broker
    keys = [id_key(exchange.item(entry).id) for entry in wanted]
    attempt = partial(exchange.attempt, wanted)
    if broker.serverless and len(wanted) > 1:
        return await _run_halves(exchange, wanted)
    try:
        try:
            result = await (attempt() if broker.serverless else run_in_transaction(broker, attempt))
        except ITEM_ERRORS as error:
            is_miss = isinstance(error, FenceMiss)
            lost = (await _find_lost(context, list(map(exchange.item, wanted)))) if is_miss else {}
            if lost:
                rest = [entry for key, entry in zip(keys, wanted, strict=True) if key not in lost]
                return {**lost, **(await run_exchange(exchange, rest))}
            if len(wanted) > 1:
                return await _run_halves(exchange, wanted)
            return {
                keys[0]: make_lost_error(context, exchange.item(wanted[0]), None) if is_miss else _item_error(error)
            }
    except Exception as error:  # raised here, it would hide what became of the other items of the caller
        return dict.fromkeys(keys, own_error(error))
    exchange.on_done(result)
    return {}


async def _run_halves(exchange: Exchange[W, R], wanted: Sequence[W]) -> Failures:
    """Exchange two halves: one bad item of 1,000 costs 20 transactions, and 1,000 singly, in which leases run out."""
    half = len(wanted) // 2
    failed = await run_exchange(exchange, wanted[:half])
    return {**failed, **(await run_exchange(exchange, wanted[half:]))}


def _item_error(error: Exception) -> Exception:
    """Return the error of one item; an error that the server would repeat becomes one that is not retried."""
    cause = own_error(error)
    if isinstance(error, PartlyRefused):
        is_permanent = all(isinstance(refusal, Refused | Duplicate) for refusal in error.refusals.values())
    else:
        is_permanent = isinstance(error, Refused | Duplicate | Unreadable) or not isinstance(error, Interruption)
    if isinstance(error, MongoqError) or not is_permanent:
        return cause
    invalid = OutcomeInvalid(f"it cannot be settled like that: {cause}")
    invalid.__cause__ = cause
    return invalid


async def _find_lost(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Failures:
    """Return the errors of items that another holder has, or has settled."""
    states = await read_states(context.broker, [item.id for item in items])
    return {
        key: make_lost_error(context, item, states.get(key))
        for item in items
        if states.get(key := id_key(item.id), {}).get("token") != item.token
    }
