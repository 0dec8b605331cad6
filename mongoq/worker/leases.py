"""The leases that a consumer holds: of what waits, of what runs, and of what is not settled yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.protocol.keeping import Kept

__all__ = ["Lease", "Leases"]

DUE = 2 / 3
"""What is left of a lease when it is to be extended."""
SOON = 5 / 6
"""What is left of one that goes along with those that are to be."""


@dataclass(slots=True)
class Lease:
    """The items that were claimed together, under one token.

    Attributes:
        token: the fence.
        length: how long it runs from when it is extended.
        until: its end.
        items: those that are not settled yet, by ``id_key``.
        extended: the items do not know its end.
    """

    token: Any
    length: timedelta
    until: datetime
    items: dict[Any, Item[Any]] = field(default_factory=dict)
    extended: bool = False


class Leases:
    """All leases of a consumer; used by several threads, with the backlog's lock held."""

    def __init__(self) -> None:
        self._held: dict[Any, Lease] = {}
        self.items = 0

    def add(self, items: Iterable[Item[Any]], length: timedelta) -> None:
        """Hold what was claimed."""
        for item in items:
            lease = self._held.get(item.token)
            if lease is None:
                assert item.lease_until is not None
                lease = self._held[item.token] = Lease(item.token, length, item.lease_until)
            lease.items[id_key(item.id)] = item
            self.items += 1

    def current(self, item: Item[Any]) -> Item[Any]:
        """Return an item that knows the end of its lease."""
        lease = self._held.get(item.token)
        return item.held_until(lease.until) if lease is not None and lease.extended else item

    def drop(self, item: Item[Any]) -> None:
        """Hold an item no more: it was settled, or is lost."""
        lease = self._held.get(item.token)
        if lease is None or lease.items.pop(id_key(item.id), None) is None:
            return
        self.items -= 1
        if not lease.items:
            del self._held[item.token]

    def is_due(self, now: datetime) -> bool:
        """Say whether a lease is to be extended now."""
        return any(lease.until - now < lease.length * DUE for lease in self._held.values())

    def due(self, now: datetime) -> list[tuple[Lease, Kept]]:
        """Return what is to be extended now, or soon."""
        return [
            (lease, Kept(lease.token, [item.id for item in lease.items.values()], lease.length))
            for lease in self._held.values()
            if lease.until - now < lease.length * SOON
        ]

    def find(self, token: Any, key: Any) -> Item[Any] | None:
        """Return an item that is held, by its token and ``id_key``."""
        lease = self._held.get(token)
        return None if lease is None else lease.items.get(key)
