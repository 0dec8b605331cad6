"""Leases of a consumer's items: waiting, running and unsettled ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.protocol.settle.by_token import ExtendedItems

EXTENSION_DUE_SHARE = 2 / 3
"""Share of a lease that is left when its extension is due."""
EXTENSION_EARLY_SHARE = 5 / 6
"""Share that is left when a lease is extended along with due ones, to save a command."""


@dataclass(slots=True)
class Lease:
    """Lease of the items that were claimed together, under one token.

    Attributes:
        token: fencing token of the claim.
        length: time from an extension to the next end.
        until: current end; changes with each extension.
        items: unsettled items, by ``id_key``.
        is_extended: True if ``until`` is later than the end that the item objects carry.
    """

    token: Any
    length: timedelta
    until: datetime
    items: dict[Any, Item[Any]] = field(default_factory=dict)
    is_extended: bool = False


class Leases:
    """All leases of a consumer. Callers from several threads hold the backlog's lock.

    Attributes:
        items: number of items held.
        bytes: known size of these items.
    """

    def __init__(self) -> None:
        # Keyed by id_key of the token: hashing an ObjectId takes longer than all the rest of a lookup.
        self._by_token: dict[Any, Lease] = {}
        # Leases of single items that a handler has extended itself, keyed by token and item.
        self._split: dict[Any, Lease] = {}
        self.items = self.bytes = 0

    def add(self, items: Iterable[Item[Any]], length: timedelta) -> None:
        """Add claimed items, each to the lease of its token."""
        lease, token = None, None
        for item in items:
            # The items of one claim share the object of their token, so that one lookup serves all of them.
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
        """Move an item to a lease of its own, which ends when the item says: its handler has extended it."""
        key = id_key(item.id)
        lease = self._of(item.token, key)
        if lease is None or key not in lease.items:
            return
        assert item.lease_until is not None
        held_item = lease.items[key]
        self.drop(held_item)
        apart = Lease(item.token, lease.length, item.lease_until, {key: held_item}, is_extended=True)
        self._split[id_key(item.token), key] = apart
        self.items += 1
        self.bytes += held_item._size

    def current(self, item: Item[Any]) -> Item[Any]:
        """Return the item with the current end of its lease."""
        lease = self._of(item.token, id_key(item.id))
        return item.held_until(lease.until) if lease is not None and lease.is_extended else item

    def drop(self, item: Item[Any]) -> None:
        """Drop an item that was settled or lost."""
        key = id_key(item.id)
        lease = self._of(item.token, key)
        held_item = None if lease is None else lease.items.pop(key, None)
        if lease is None or held_item is None:
            return
        self.items -= 1
        self.bytes -= held_item._size
        if not lease.items:
            token = id_key(item.token)
            if self._split.pop((token, key), None) is None:
                del self._by_token[token]

    def is_due(self, now: datetime) -> bool:
        """Return whether a lease has to be extended now."""
        return any(lease.until - now < lease.length * EXTENSION_DUE_SHARE for lease in self._all())

    def due(self, now: datetime) -> list[tuple[Lease, ExtendedItems]]:
        """Return the leases to extend now, or soon."""
        return [
            (lease, ExtendedItems(lease.token, [item.id for item in lease.items.values()], lease.length))
            for lease in self._all()
            if lease.until - now < lease.length * EXTENSION_EARLY_SHARE
        ]

    def find(self, token: Any, key: Any) -> Item[Any] | None:
        """Return a held item by its token and ``id_key``."""
        lease = self._of(token, key)
        return None if lease is None else lease.items.get(key)

    def _all(self) -> Iterator[Lease]:
        yield from self._by_token.values()
        yield from self._split.values()

    def _of(self, token: Any, key: Any) -> Lease | None:
        token = id_key(token)
        apart = self._split.get((token, key)) if self._split else None
        return apart or self._by_token.get(token)
