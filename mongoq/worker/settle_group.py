"""Gatherings: consumers whose items are settled together, since those of one may belong to those of another."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["SettleGroup"]


class _Member(Protocol):
    def is_expecting_items(self) -> bool: ...


class SettleGroup:
    """What several consumers of an engine share: one loop settles the items of all of them.

    It takes what there is, and waits for none of them.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._loops: list[Any] = []

    def join(self, queue: str, loop: _Member) -> list[Any]:
        """Take in who works for a consumer, and return the list of all; the first of them settles."""
        self._members[queue] = loop
        self._loops.append(loop)
        return self._loops

    def is_expecting(self, queue: str) -> bool:
        """Say whether more items of a queue are about to come."""
        member = self._members.get(queue)
        return member is not None and member.is_expecting_items()
