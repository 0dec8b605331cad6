"""The schema: its version, the ids of control documents, and the five indexes.

The names of the indexes carry the version, so that a later one can add new ones beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

SCHEMA_VERSION = 1
"""Version of the stored documents that this code writes."""
OLDEST_READER = 1
"""Lowest schema version that can read these documents; older code refuses the collection."""
SCHEMA_ID = "schema:mongoq"
MAX_INDEXES = 64
"""Indexes that a collection can have."""
COUNTERS_PREFIX = "stats:"
"""Prefix of the ``_id`` of a queue's counters."""
CONTROL_PREFIX = "queue:"
"""Prefix of the ``_id`` of a queue's control document."""
TOPICS_ID = "topics:mongoq"
"""``_id`` of the bindings of topics."""


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

    @property
    def order(self) -> list[tuple[str, int]]:
        """Sort order of the documents of one queue in this index."""
        return [(name, 1) for name in self.keys if name != "q"]

    @property
    def pattern(self) -> dict[str, int]:
        """Keys as the server names the index in a hint, whatever its name."""
        return dict.fromkeys(self.keys, 1)

    def document(self) -> dict[str, Any]:
        """Return the specification for the ``createIndexes`` command."""
        return {
            "name": self.name,
            "key": self.pattern,
            "partialFilterExpression": {name: {"$exists": True} for name in self.present},
            **self.options,
        }


BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Time before every date: ``$gte`` with it means "exists", in a form that the server answers from the index alone."""

CLAIM = Index("mongoq1_claim", ("q", "priority", "when", "_id"), ("when",))
"""Index of live items, in the order of claims."""
CLAIM_ORDER = CLAIM.order
"""Order of claims: by priority, then by the time from which an item is eligible, then by id."""
CLAIM_FIELDS = {"priority": 1, "when": 1}
"""Projection of the place of an item, its ``_id`` included: the server answers it from the index alone."""
KEY = Index("mongoq1_key", ("q", "key"), ("key", "when"), {"unique": True})
"""Index of the keys of live items: one live item for each key of a queue."""
HISTORY = Index("mongoq1_history", ("q", "processed", "_id"), ("processed",))
"""Index of processed items, oldest first."""
HISTORY_ORDER = HISTORY.order
"""Order of processed items, oldest first."""
SEQUENCE = Index("mongoq1_sequence", ("q", "sequence", "place", "ready_from"), ("place",))
"""Index of live items with a place in a sequence; with ``ready_from``, blocked items are counted in the index alone."""
SEQUENCE_ORDER = [("sequence", 1), ("place", 1)]
"""Order of the items of a queue that have places in sequences."""
EXPIRES = Index("mongoq1_expires", ("expires",), ("expires",), {"expireAfterSeconds": 0})
"""TTL index: the server deletes a document at its date."""

INDEXES = (CLAIM, KEY, HISTORY, SEQUENCE, EXPIRES)
