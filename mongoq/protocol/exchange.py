"""Exchanges: reserved items settled, and others written for them, in one transaction; it carries many.

None of them can fail another: what a transaction cannot do is looked for, and the rest is tried again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from mongoq.errors import MongoqError
from mongoq.model.item import Item, id_key
from mongoq.protocol.batch import own_error
from mongoq.protocol.bulk import STATE
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import lost
from mongoq.protocol.lookup import find_few
from mongoq.protocol.request import Duplicate, Flow, PartlyRefused, Refused
from mongoq.protocol.transaction import transacted

__all__ = ["Short", "exchanged"]

W = TypeVar("W")
Failed = dict[Any, Exception]


class Short(Exception):
    """Fewer items were found under their tokens than there were to settle."""


OWN = (Short, MongoqError, Refused, PartlyRefused, Duplicate)
"""Errors that are about one of the items, and not about the server."""


def exchanged(
    context: QueueContext[Any],
    wanted: Sequence[W],
    attempt: Callable[[Sequence[W]], Flow[None]],
    item: Callable[[W], Item[Any]],
) -> Flow[Failed]:
    """Do what ``attempt`` does with all of them, in one transaction, and return by ``id_key`` the errors of the others.

    ``attempt`` raises ``Short`` when it has not found all of them. It may be called several times, and notes nothing
    but in what it writes. Without a server, where there are no transactions, it is called for one after the other.

    A crash before the commit leaves all of them reserved, to the ends of their leases; after it, all are settled.
    """
    if not wanted:
        return {}
    if context.broker.serverless and len(wanted) > 1:
        return (yield from _by_halves(context, wanted, attempt, item))
    try:
        if context.broker.serverless:
            yield from attempt(wanted)
        else:
            yield from transacted(context.broker, partial(attempt, wanted))
    except OWN as error:
        return (yield from _apart(context, wanted, attempt, item, error))
    except Exception as error:
        return {id_key(item(one).id): own_error(error) for one in wanted}
    return {}


def _apart(
    context: QueueContext[Any],
    wanted: Sequence[W],
    attempt: Callable[[Sequence[W]], Flow[None]],
    item: Callable[[W], Item[Any]],
    error: Exception,
) -> Flow[Failed]:
    """Find out whom an error is about, and try again with the others."""
    gone = (yield from _lost(context, [item(one) for one in wanted])) if isinstance(error, Short) else {}
    if gone:
        rest = [one for one in wanted if id_key(item(one).id) not in gone]
        return {**gone, **(yield from exchanged(context, rest, attempt, item))}
    if len(wanted) > 1:
        return (yield from _by_halves(context, wanted, attempt, item))
    [one] = wanted
    return {id_key(item(one).id): lost(context, item(one), None) if isinstance(error, Short) else own_error(error)}


def _by_halves(
    context: QueueContext[Any],
    wanted: Sequence[W],
    attempt: Callable[[Sequence[W]], Flow[None]],
    item: Callable[[W], Item[Any]],
) -> Flow[Failed]:
    half = len(wanted) // 2
    failed = yield from exchanged(context, wanted[:half], attempt, item)
    return {**failed, **(yield from exchanged(context, wanted[half:], attempt, item))}


def _lost(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Flow[Failed]:
    """Read which items somebody else has, or has settled."""
    ids = [item.id for item in items]
    read = yield from find_few(context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE)
    found = {id_key(document["_id"]): document for document in read}
    return {
        key: lost(context, item, found.get(key))
        for item in items
        if (found.get(key := id_key(item.id)) or {}).get("token") != item.token
    }
