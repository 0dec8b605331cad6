"""Exchanges: settle reserved items and write new ones, many in one transaction.

No item can fail another: when a transaction cannot settle one of them, lost items are left out, or halves are tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from bson.errors import BSONError

from mongoq.core.base.find import find_few
from mongoq.core.base.transaction import run_atomic
from mongoq.core.command import Duplicate, Interruption, PartlyRefused, Refused, Unreadable, own_error
from mongoq.core.state.context import BrokerContext
from mongoq.data.envelope import Document
from mongoq.data.item import Item, id_key
from mongoq.errors import MongoqError, OutcomeInvalid, ReservationLost

W = TypeVar("W")
Failures = dict[Any, Exception]
Attempt = Callable[[Sequence[tuple[Item[Any], W]]], Awaitable[Callable[[], None]]]
"""Settles items within a transaction, perhaps several times, and changes nothing else.

Returns the function that records the results once they are committed; raises ``FenceMiss`` when it has not found all of
the items."""


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


async def run_exchange(broker: BrokerContext, wanted: Sequence[tuple[Item[Any], W]], attempt: Attempt[W]) -> Failures:
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
        return await _run_halves(broker, wanted, attempt)
    try:
        try:
            record = await run_atomic(broker, partial(attempt, wanted))
        except ITEM_ERRORS as error:
            lost: Failures = {}
            if isinstance(error, FenceMiss):
                states = await read_states(broker, [item.id for item in items])
                for key, item in zip(keys, items, strict=True):
                    if states.get(key, {}).get("token") != item.token:
                        lost[key] = make_lost_error(broker, item, states.get(key))
            if lost:
                rest = [entry for key, entry in zip(keys, wanted, strict=True) if key not in lost]
                return {**lost, **(await run_exchange(broker, rest, attempt))}
            if len(wanted) > 1:
                return await _run_halves(broker, wanted, attempt)
            is_miss = isinstance(error, FenceMiss)
            return {keys[0]: make_lost_error(broker, items[0], None) if is_miss else _item_error(error)}
    except Exception as error:  # raised here, it would hide what became of the other items of the caller
        return dict.fromkeys(keys, own_error(error))
    record()
    return {}


async def _run_halves(broker: BrokerContext, wanted: Sequence[tuple[Item[Any], W]], attempt: Attempt[W]) -> Failures:
    """Exchange two halves: one bad item of 1,000 costs 20 transactions, and 1,000 singly, in which leases run out."""
    half = len(wanted) // 2
    failed = await run_exchange(broker, wanted[:half], attempt)
    return {**failed, **(await run_exchange(broker, wanted[half:], attempt))}


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


# --- the items of a fence that was missed --------------------------------------------------------

STATE_FIELDS: dict[str, Any] = dict.fromkeys(
    ("q", "key", "when", "attempts", "token", "settled", "processed", "reserved", "by"), 1
)
"""Projection of the fields that show whether an item was settled. A payload may be large, and no verdict reads it."""


async def read_states(broker: BrokerContext, ids: Sequence[Any]) -> dict[Any, Document]:
    """Read the present states of items (``find``), by ``id_key``; items that are gone are left out."""
    documents = await find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE_FIELDS)
    return {id_key(document["_id"]): document for document in documents}


def make_lost_error(broker: BrokerContext, item: Item[Any], document: Document | None) -> ReservationLost:
    """Return the error of a lost reservation; it names the present holder, if there is one."""
    holder = document if document and document.get("reserved") and document["when"] > broker.clock.now() else {}
    return ReservationLost(item.id, item.queue, held_by=holder.get("by"), held_until=holder.get("when"))
