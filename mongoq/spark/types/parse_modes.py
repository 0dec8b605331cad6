"""What becomes of items that do not fit their columns: the three modes of Spark's own readers."""

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
    """The documents of one batch that do not fit.

    Attributes:
        places: where they are in it.
    """

    def __init__(self, mode: str, documents: Sequence[Document]) -> None:
        self.places: set[int] = set()
        self._mode = mode
        self._documents = documents

    def note(self, place: int) -> None:
        """Remember a document of which some value became null, which the mode allows."""
        self.places.add(place)

    def meet(self, place: int, column: str, misfit: ConversionError, *, nullable: bool) -> None:
        """Remember a document, or raise ``ColumnMismatch`` where the mode or the column wants a value."""
        if self._mode == FAIL or (self._mode == PERMISSIVE and not nullable):
            id: Any = self._documents[place]["_id"]
            raise ColumnMismatch(id, column + misfit.path, misfit.type, misfit.problem) from None
        self.places.add(place)
