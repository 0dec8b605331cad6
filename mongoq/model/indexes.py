"""The four indexes. Their names carry the schema version, so that a later version can add new ones beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

__all__ = ["BEGINNING", "CLAIM", "HISTORY", "INDEXES", "KEY", "Index"]


@dataclass(frozen=True, slots=True)
class Index:
    """One index: its keys in order, all ascending, and its options.

    Attributes:
        name: name with the schema version.
        keys: fields of the key, in order.
        present: fields that a document must have to be in the index.
        options: further options of ``createIndexes``.
    """

    name: str
    keys: tuple[str, ...]
    present: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the specification for the ``createIndexes`` command."""
        return {
            "name": self.name,
            "key": dict.fromkeys(self.keys, 1),
            "partialFilterExpression": {name: {"$exists": True} for name in self.present},
            **self.options,
        }


BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Time before every date: ``$gte`` with it means "exists", in a form that the server answers from the index alone."""

CLAIM = Index("mongoq1_claim", ("q", "priority", "when", "_id"), ("when",))
"""Index of live items, in the order of claims."""
KEY = Index("mongoq1_key", ("q", "key"), ("key", "when"), {"unique": True})
"""Index of the keys of live items: one live item for each key of a queue."""
HISTORY = Index("mongoq1_history", ("q", "processed", "_id"), ("processed",))
"""Index of processed items, oldest first."""
EXPIRES = Index("mongoq1_expires", ("expires",), ("expires",), {"expireAfterSeconds": 0})
"""TTL index: the server deletes a document at its date."""

INDEXES = (CLAIM, KEY, HISTORY, EXPIRES)
