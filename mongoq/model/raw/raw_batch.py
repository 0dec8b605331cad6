"""Many reserved items checked together, by their envelopes: several times as fast as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from bson import ObjectId

from mongoq.model.encoding.ids import bytes_of
from mongoq.model.item import Item

__all__ = ["RawBatch", "all_held", "ids_of", "one_due", "remembers"]

Items = Sequence[Item[Any]]

ITEMS = {Item}
OBJECT_IDS = {ObjectId}
DATES = {datetime}

_envelope = attrgetter("_document")
_namespace = attrgetter("_namespace")
_due = attrgetter("_due")
_fields = [itemgetter(name) for name in ("_id", "q", "token", "when", "reserved")]


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Common facts of many items that are all reserved from one queue.

    Attributes:
        together: True when one token holds all of them.
        until: end of the first of their leases.
        ids: ids of the items.
    """

    together: bool
    until: datetime
    ids: list[ObjectId]


def all_held(items: Sequence[Any], namespace: str, queue: str) -> RawBatch | None:
    """Check that all are different items, reserved from that queue; ``None`` when each needs a check of its own."""
    if not (items and ITEMS.issuperset(map(type, items)) and {namespace}.issuperset(map(_namespace, items))):
        return None
    envelopes = list(map(_envelope, items))
    try:
        ids, queues, tokens, ends, reserved = [list(map(field, envelopes)) for field in _fields]
    except KeyError:
        return None
    if not ({queue}.issuperset(queues) and all(reserved) and OBJECT_IDS.issuperset(map(type, chain(ids, tokens)))):
        return None
    if not DATES.issuperset(map(type, ends)):
        return None
    # An item is there twice.
    if len(set(map(bytes_of, ids))) < len(items):
        return None
    return RawBatch(len(set(map(bytes_of, tokens))) == 1, min(ends), ids)


def ids_of(items: Items) -> list[Any]:
    """Return the ids of items."""
    return [found["_id"] for found in map(_envelope, items)]


def one_due(items: Items) -> bool:
    """Return whether all items were due at the same known time."""
    first = items[0].due
    return first is not None and all(first == due for due in map(_due, items))


def remembers(items: Items) -> bool:
    """Return whether the id of any item is remembered after it is settled."""
    return any("once" in found for found in map(_envelope, items))
