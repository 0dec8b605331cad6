"""Gatherings: consumers whose items are settled together, since those of one may belong to those of another."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["SettleGroup"]


class _Member(Protocol):
    def is_about_to_have(self) -> bool: ...


class SettleGroup:
    """What several consumers of an engine share: one loop settles the items of all of them.

    It takes what there is, and waits for none of them.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._stations: list[Any] = []

    def joined(self, queue: str, station: _Member) -> list[Any]:
        """Take in who works for a consumer, and return the list of all; the first of them settles."""
        self._members[queue] = station
        self._stations.append(station)
        return self._stations

    def coming(self, queue: str) -> bool:
        """Say whether more items of a queue are about to come."""
        member = self._members.get(queue)
        return member is not None and member.is_about_to_have()
