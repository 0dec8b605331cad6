# Generated from mongoq/protocol/settle/exchange.py by scripts/unasync.py. Do not edit.
"""Exchanges: settle reserved items and write new ones, many in one transaction.

No item can fail another: when a transaction cannot settle one of them, lost items are left out, or halves are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from mongoq.model.item import Item, id_key
from mongoq.protocol.base.fence import make_lost_error
from mongoq.protocol.command import own_error
from mongoq.protocol.settle.exchange import ITEM_ERRORS, Failures, FenceMiss, R, W, _item_error
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.transaction import run_in_transaction
from mongoq.protocol_threads.settle.settlement import read_states


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
    attempt: Callable[[Sequence[W]], R]
    item: Callable[[W], Item[Any]]
    on_done: Callable[[R], None]


def run_exchange(exchange: Exchange[W, R], wanted: Sequence[W]) -> Failures:
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
        return _run_halves(exchange, wanted)
    try:
        try:
            result = attempt() if broker.serverless else run_in_transaction(broker, attempt)
        except ITEM_ERRORS as error:
            is_miss = isinstance(error, FenceMiss)
            lost = (_find_lost(context, list(map(exchange.item, wanted)))) if is_miss else {}
            if lost:
                rest = [entry for key, entry in zip(keys, wanted, strict=True) if key not in lost]
                return {**lost, **(run_exchange(exchange, rest))}
            if len(wanted) > 1:
                return _run_halves(exchange, wanted)
            return {
                keys[0]: make_lost_error(context, exchange.item(wanted[0]), None) if is_miss else _item_error(error)
            }
    except Exception as error:  # raised here, it would hide what became of the other items of the caller
        return dict.fromkeys(keys, own_error(error))
    exchange.on_done(result)
    return {}


def _run_halves(exchange: Exchange[W, R], wanted: Sequence[W]) -> Failures:
    """Exchange two halves: one bad item of 1,000 costs 20 transactions, and 1,000 singly, in which leases run out."""
    half = len(wanted) // 2
    failed = run_exchange(exchange, wanted[:half])
    return {**failed, **(run_exchange(exchange, wanted[half:]))}


def _find_lost(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Failures:
    """Return the errors of items that another holder has, or has settled."""
    states = read_states(context.broker, [item.id for item in items])
    return {
        key: make_lost_error(context, item, states.get(key))
        for item in items
        if states.get(key := id_key(item.id), {}).get("token") != item.token
    }
