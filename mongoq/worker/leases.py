"""The leases that a consumer holds: of what waits, of what runs, and of what is not settled yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.protocol.settle.extend_leases import ExtendedItems

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
        is_extended: the items do not know its end.
    """

    token: Any
    length: timedelta
    until: datetime
    items: dict[Any, Item[Any]] = field(default_factory=dict)
    is_extended: bool = False


class Leases:
    """All leases of a consumer; used by several threads, with the backlog's lock held.

    Attributes:
        items: how many items are held.
        bytes: how many bytes they have, as far as that is known.
    """

    def __init__(self) -> None:
        self._by_token: dict[Any, Lease] = {}  # by the key of the token: hashing an ObjectId takes longer than the rest
        self._split: dict[Any, Lease] = {}  # by that and the key of the item
        self.items = self.bytes = 0

    def add(self, items: Iterable[Item[Any]], length: timedelta) -> None:
        """Hold what was claimed."""
        lease, token = None, None
        for item in items:
            if lease is None or item.token is not token:
                token = item.token
                lease = self._lease(item, length)
            lease.items[id_key(item.id)] = item
            self.items += 1
            self.bytes += item._size

    def _lease(self, item: Item[Any], length: timedelta) -> Lease:
        key = id_key(item.token)
        if key not in self._by_token:
            assert item.lease_until is not None
            self._by_token[key] = Lease(item.token, length, item.lease_until)
        return self._by_token[key]

    def split(self, item: Item[Any]) -> None:
        """Let an item's lease end when the item says, and no sooner, whatever those claimed with it do."""
        key = id_key(item.id)
        lease = self._of(item.token, key)
        if lease is None or key not in lease.items:
            return
        assert item.lease_until is not None
        held = lease.items[key]
        self.drop(held)
        apart = Lease(item.token, lease.length, item.lease_until, {key: held}, is_extended=True)
        self._split[id_key(item.token), key] = apart
        self.items += 1
        self.bytes += held._size

    def current(self, item: Item[Any]) -> Item[Any]:
        """Return an item that knows the end of its lease."""
        lease = self._of(item.token, id_key(item.id))
        return item.held_until(lease.until) if lease is not None and lease.is_extended else item

    def drop(self, item: Item[Any]) -> None:
        """Hold an item no more: it was settled, or is lost."""
        key = id_key(item.id)
        lease = self._of(item.token, key)
        held = None if lease is None else lease.items.pop(key, None)
        if lease is None or held is None:
            return
        self.items -= 1
        self.bytes -= held._size
        if not lease.items:
            token = id_key(item.token)
            if self._split.pop((token, key), None) is None:
                del self._by_token[token]

    def is_due(self, now: datetime) -> bool:
        """Say whether a lease is to be extended now."""
        return any(lease.until - now < lease.length * DUE for lease in self._all())

    def due(self, now: datetime) -> list[tuple[Lease, ExtendedItems]]:
        """Return what is to be extended now, or soon."""
        return [
            (lease, ExtendedItems(lease.token, [item.id for item in lease.items.values()], lease.length))
            for lease in self._all()
            if lease.until - now < lease.length * SOON
        ]

    def find(self, token: Any, key: Any) -> Item[Any] | None:
        """Return an item that is held, by its token and ``id_key``."""
        lease = self._of(token, key)
        return None if lease is None else lease.items.get(key)

    def _all(self) -> Iterator[Lease]:
        yield from self._by_token.values()
        yield from self._split.values()

    def _of(self, token: Any, key: Any) -> Lease | None:
        token = id_key(token)
        apart = self._split.get((token, key)) if self._split else None
        return apart or self._by_token.get(token)
