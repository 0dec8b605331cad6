"""Deliveries: the items that a stage or a consumer receives at once, identified by a hash of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from mongoq.model.item import Item
from mongoq.model.trail import hops_counted

__all__ = ["delivery_hash", "delivery_parts"]


def delivery_hash(name: str, items: Iterable[Item[Any]]) -> str:
    """Return the SHA-256 of a stage's or queue's name and its items, as 64 hex digits.

    Every attempt of the same items has the same hash. An item that goes round a loop of a pipeline has made more hops,
    and has another hash each time. An item joined from several has the parts of its inputs.
    """
    parts = sorted(part for item in items for part in delivery_parts(item.id, item.hops, item.stored("joined")))
    return hashlib.sha256("\0".join([name, *parts]).encode()).hexdigest()


def delivery_parts(id: Any, hops: int, joined: Any) -> list[str]:
    """Return an item's parts of a hash, from its id, its hops, and the field ``joined`` of its envelope."""
    inputs = joined.get("inputs") if isinstance(joined, Mapping) else None
    if not isinstance(inputs, list):
        return [_part(id, hops)]
    told = [one for one in inputs if isinstance(one, Mapping)]
    return [*(_part(one.get("id"), hops_counted(one.get("hops"))) for one in told), f"joined {hops}"]


def _part(id: Any, hops: int) -> str:
    return f"{id}:{hops}" if hops else str(id)
