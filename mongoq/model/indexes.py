"""The four indexes. Their names carry the schema version, so that a later one can replace them in peace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

__all__ = ["BEGINNING", "CLAIM", "HISTORY", "INDEXES", "KEY", "Index"]


@dataclass(frozen=True, slots=True)
class Index:
    """One index: its keys in order, ascending all, and its options."""

    name: str
    keys: tuple[str, ...]
    present: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the specification that the ``createIndexes`` command takes."""
        return {
            "name": self.name,
            "key": dict.fromkeys(self.keys, 1),
            "partialFilterExpression": {name: {"$exists": True} for name in self.present},
            **self.options,
        }


BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Before every date, so that ``$gte`` says "exists" in a form that the server answers from the index alone."""

CLAIM = Index("mongoq1_claim", ("q", "priority", "when", "_id"), ("when",))
KEY = Index("mongoq1_key", ("q", "key"), ("key", "when"), {"unique": True})
HISTORY = Index("mongoq1_history", ("q", "processed", "_id"), ("processed",))
EXPIRES = Index("mongoq1_expires", ("expires",), ("expires",), {"expireAfterSeconds": 0})

INDEXES = (CLAIM, KEY, HISTORY, EXPIRES)
