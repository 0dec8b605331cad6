"""Settle groups: consumers whose items are settled together, since items of one may belong to items of another."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["SettleGroup"]


class _Member(Protocol):
    def is_expecting_items(self) -> bool: ...


class SettleGroup:
    """Several consumers of an engine with one settle loop for the items of all of them.

    The loop takes the items that are ready, and waits for no consumer.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._loops: list[Any] = []

    def join(self, queue: str, loop: _Member) -> list[Any]:
        """Add the loop of a consumer, and return the list of all loops; the first one settles."""
        self._members[queue] = loop
        self._loops.append(loop)
        return self._loops

    def is_expecting(self, queue: str) -> bool:
        """Return whether more items of a queue are about to come."""
        member = self._members.get(queue)
        return member is not None and member.is_expecting_items()
