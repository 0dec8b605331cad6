"""Deliveries: what a stage, or a consumer, was given at once, known by a hash of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from mongoq.model.item import Item
from mongoq.model.trail import hops_counted

__all__ = ["delivery_hash"]


def delivery_hash(name: str, items: Iterable[Item[Any]]) -> str:
    """Return the SHA-256 of a stage's or queue's name and its items, as 64 hex digits.

    Every attempt of the same items has the same. An item that comes round a loop of a pipeline has made more hops, and
    has another one each time. An item that several were joined to counts as these.
    """
    parts = sorted(part for item in items for part in _parts(item))
    return hashlib.sha256("\0".join([name, *parts]).encode()).hexdigest()


def _parts(item: Item[Any]) -> list[str]:
    joined = item.stored("joined")
    inputs = joined.get("inputs") if isinstance(joined, Mapping) else None
    if not isinstance(inputs, list):
        return [_part(item.id, item.hops)]
    told = [one for one in inputs if isinstance(one, Mapping)]
    return [*(_part(one.get("id"), hops_counted(one.get("hops"))) for one in told), f"joined {item.hops}"]


def _part(id: Any, hops: int) -> str:
    return f"{id}:{hops}" if hops else str(id)
