"""The result of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

__all__ = ["REFUSALS", "SKIP", "Replayed"]

REFUSALS = 100
"""Refusals in one result, at most."""


class _Skip:
    """Type of ``SKIP``, which ``transform`` of a replay returns for an item to leave out."""

    def __repr__(self) -> str:
        """Return the name that messages show."""
        return "SKIP"


SKIP: Final[Any] = _Skip()
"""Result of ``transform`` for an item that is not to be replayed."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, so far or in all: ``found == pushed + already + skipped + refused``.

    A replay of dead letters moves the letters themselves: ``pushed`` are the letters that went back, and ``skipped``
    the letters that a caller holds; there is no ``already`` and no ``position``.

    Attributes:
        found: processed items that were selected.
        pushed: copies that were added; in a dry run, copies that would be.
        already: copies that exist, or are remembered, from an earlier run of this replay.
        skipped: items for which ``transform`` returned ``SKIP``.
        refused: items with a payload that does not fit the target, or cannot be stored, and documents of other programs
            that cannot be decoded.
        refusals: id and reason of the first 100 refused items.
        missing: ids of ``ids=`` that are not in the history of the queue, or not among the dead letters.
        position: ``processed`` and id of the last item that was done; ``after=position`` goes on after it.
    """

    found: int = 0
    pushed: int = 0
    already: int = 0
    skipped: int = 0
    refused: int = 0
    refusals: tuple[tuple[ObjectId, str], ...] = ()
    missing: tuple[ObjectId, ...] = ()
    position: tuple[datetime, Any] | None = None

    def __add__(self, more: Replayed) -> Replayed:
        """Return the sum of this result and a later one."""
        return Replayed(
            found=self.found + more.found,
            pushed=self.pushed + more.pushed,
            already=self.already + more.already,
            skipped=self.skipped + more.skipped,
            refused=self.refused + more.refused,
            refusals=(*self.refusals, *more.refusals)[:REFUSALS],
            missing=(*self.missing, *more.missing),
            position=more.position or self.position,
        )
