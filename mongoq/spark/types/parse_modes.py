"""Treatment of items that do not fit their columns: the three modes of Spark's own readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.spark.errors import ColumnMismatch
from mongoq.spark.types.conversion_error import ConversionError
from mongoq.spark.types.envelope_columns import Document

__all__ = ["DROP", "FAIL", "MODES", "PERMISSIVE", "ParseMode"]

FAIL, PERMISSIVE, DROP = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
MODES = (FAIL, PERMISSIVE, DROP)


class ParseMode:
    """Documents of one batch that do not fit.

    Attributes:
        places: their positions in the batch; grows with ``note`` and ``meet``.
    """

    def __init__(self, mode: str, documents: Sequence[Document]) -> None:
        self.places: set[int] = set()
        self._mode = mode
        self._documents = documents

    def note(self, place: int) -> None:
        """Record a document in which a value became null, as the mode allows."""
        self.places.add(place)

    def meet(self, place: int, column: str, misfit: ConversionError, *, nullable: bool) -> None:
        """Record a document, or raise ``ColumnMismatch`` if the mode or the column requires a value."""
        if self._mode == FAIL or (self._mode == PERMISSIVE and not nullable):
            id: Any = self._documents[place]["_id"]
            raise ColumnMismatch(id, column + misfit.path, misfit.type, misfit.problem) from None
        self.places.add(place)
