"""What a replay has done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

__all__ = ["REFUSALS", "SKIP", "Replayed"]

REFUSALS = 100


class _Skip:
    """What ``transform`` of a replay returns for an item that is to be left out."""

    def __repr__(self) -> str:
        """Read well in messages."""
        return "SKIP"


SKIP: Final[Any] = _Skip()
"""What ``transform`` returns for an item that is not to be replayed."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has done, so far or in all: ``found == pushed + already + skipped + refused``.

    Of a replay of dead letters, which go back themselves, ``pushed`` are those that went, and ``skipped`` those that
    somebody holds; there is no ``already`` and no ``position``.

    Attributes:
        found: processed items that were selected.
        pushed: copies that were added; of a dry run, that would be.
        already: copies that were there, or are remembered, from this replay sent before.
        skipped: items for which ``transform`` returned ``SKIP``.
        refused: items whose payload does not fit the target, or cannot be stored, and documents of other programs that
            cannot be decoded.
        refusals: the id of each and the reason, of the first 100.
        missing: of ``ids=``, those that are not in the history of the queue, or not among the dead letters.
        position: ``processed`` and id of the last item that was done; ``after=position`` goes on behind it.
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
        """Return both together; the other came later."""
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
