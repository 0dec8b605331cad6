# Generated from mongoq/core/settle/exchange.py by scripts/unasync.py. Do not edit.
"""Exchanges: settle reserved items and write new ones, many in one transaction.

No item can fail another: when a transaction cannot settle one of them, lost items are left out, or halves are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mongoq.core.command import own_error
from mongoq.core.settle.exchange import ITEM_ERRORS, STATE_FIELDS, Failures, FenceMiss, W, _item_error, make_lost_error
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.transaction import run_atomic
from mongoq.data.envelope import Document
from mongoq.data.item import Item, id_key

Attempt = Callable[[Sequence[tuple[Item[Any], W]]], Callable[[], None]]
"""Settles items within a transaction, perhaps several times, and changes nothing else.

Returns the function that records the results once they are committed; raises ``FenceMiss`` when it has not found all of
the items."""


def run_exchange(broker: BrokerContext, wanted: Sequence[tuple[Item[Any], W]], attempt: Attempt[W]) -> Failures:
    """Exchange all items in one transaction, and return the errors of items that cannot be exchanged, by ``id_key``.

    Without a server there are no transactions, and they are exchanged one after the other.

    A crash before the commit leaves all of them reserved, to the ends of their leases; after it, all are settled. The
    server drops a transaction of a dead client after ``transactionLifetimeLimitSeconds``, 60 by default; until then no
    other consumer can claim its items.
    """
    if not wanted:
        return {}
    items = [item for item, _ in wanted]
    keys = [id_key(item.id) for item in items]

    if broker.serverless and len(wanted) > 1:
        return _run_halves(broker, wanted, attempt)
    try:
        try:
            record = run_atomic(broker, partial(attempt, wanted))
        except ITEM_ERRORS as error:
            lost: Failures = {}
            if isinstance(error, FenceMiss):
                states = read_states(broker, [item.id for item in items])
                for key, item in zip(keys, items, strict=True):
                    if states.get(key, {}).get("token") != item.token:
                        lost[key] = make_lost_error(broker, item, states.get(key))
            if lost:
                rest = [entry for key, entry in zip(keys, wanted, strict=True) if key not in lost]
                return {**lost, **(run_exchange(broker, rest, attempt))}
            if len(wanted) > 1:
                return _run_halves(broker, wanted, attempt)
            is_miss = isinstance(error, FenceMiss)
            return {keys[0]: make_lost_error(broker, items[0], None) if is_miss else _item_error(error)}
    except Exception as error:  # raised here, it would hide what became of the other items of the caller
        return dict.fromkeys(keys, own_error(error))
    record()
    return {}


def _run_halves(broker: BrokerContext, wanted: Sequence[tuple[Item[Any], W]], attempt: Attempt[W]) -> Failures:
    """Exchange two halves: one bad item of 1,000 costs 20 transactions, and 1,000 singly, in which leases run out."""
    half = len(wanted) // 2
    failed = run_exchange(broker, wanted[:half], attempt)
    return {**failed, **(run_exchange(broker, wanted[half:], attempt))}


# --- the items of a fence that was missed --------------------------------------------------------


def read_states(broker: BrokerContext, ids: Sequence[Any]) -> dict[Any, Document]:
    """Read the present states of items (``find``), by ``id_key``; items that are gone are left out."""
    documents = find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE_FIELDS)
    return {id_key(document["_id"]): document for document in documents}
