"""Deliveries: what a stage, or a consumer, was given at once, known by a hash of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from mongoq.model.item import Item

__all__ = ["delivery_hash"]


def delivery_hash(name: str, items: Iterable[Item[Any]]) -> str:
    """Return the SHA-256 of a stage's or queue's name and its items, as 64 hex digits.

    Every attempt of the same items has the same. An item that comes round a loop of a pipeline has made more hops, and
    has another one each time.
    """
    parts = sorted(f"{item.id}:{item.hops}" if item.hops else str(item.id) for item in items)
    return hashlib.sha256("\0".join([name, *parts]).encode()).hexdigest()
