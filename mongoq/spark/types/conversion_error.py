"""Error of a value that does not fit its column; its message does not quote the value."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bson import Decimal128, ObjectId
from pyspark.sql.types import DataType

from mongoq.drivers.documents import Garbled
from mongoq.spark.errors import ColumnMismatch
from mongoq.spark.types.envelope_columns import Document

__all__ = ["DROP", "FAIL", "MODES", "PERMISSIVE", "ConversionError", "ParseMode", "name_of"]

NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (str, "a string"),
    (int, "an integer"),
    (float, "a double"),
    (datetime, "a date"),
    (bytes, "binary data"),
    (dict, "a document"),
    (list, "an array"),
    (ObjectId, "an ObjectId"),
    (Decimal128, "a Decimal128"),
    (uuid.UUID, "a UUID"),
    (Garbled, "text that is not UTF-8"),
)


class ConversionError(Exception):
    """A value that does not fit; ``steps`` has the path to it, innermost first."""

    def __init__(self, type: DataType, problem: str) -> None:
        super().__init__(problem)
        self.type = type.simpleString()
        self.problem = problem
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        """Path from the column to the value, such as ``[2].price``."""
        return "".join(reversed(self.steps))


def name_of(value: Any) -> str:
    """Return the kind of a value in words, without quoting it."""
    for kind, name in NAMES:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


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
