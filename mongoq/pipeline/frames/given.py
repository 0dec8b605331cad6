"""Rows that a frame handler takes: one row for each item of a batch, one column for each field of the payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bson import ObjectId

from mongoq.errors import PayloadInvalid
from mongoq.model.item import Item
from mongoq.pipeline.frames.values import ABSENT, is_document

__all__ = ["ATTEMPTS", "DELIVERY_HASH", "ID", "PAYLOAD", "FrameRows", "field_of", "make_rows"]

ID, DELIVERY_HASH, ATTEMPTS = "_id", "_delivery_hash", "_attempts"
PAYLOAD = "payload"
"""Column of payloads that are not documents."""
Columns = Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Rows of a batch.

    Attributes:
        items: items that have a row.
        payloads: payloads of these items.
        envelope: columns about the items, ``_id`` first.
        fields: columns of the payloads, with ``ABSENT`` where an item lacks the field.
        refused: errors of the items without a row, by their index in the batch.
    """

    items: Sequence[Item[Any]]
    payloads: Sequence[Any]
    envelope: Columns
    fields: Columns
    refused: Mapping[int, Exception]

    @property
    def ids(self) -> list[str]:
        """Ids of the rows' items, as the column ``_id`` shows them."""
        return self.envelope[ID]


def make_rows(items: Sequence[Item[Any]], payloads: Sequence[Any], job: Any) -> FrameRows:
    """Return the rows of a batch. Beside documents, an item with another payload has no row, and it alone fails."""
    # If one payload is a document, fields are columns, and other payloads of the batch have no place in the frame.
    documents = [place for place, payload in enumerate(payloads) if is_document(payload)]
    refused: dict[int, Exception] = {}
    if not documents:
        fields: Columns = {PAYLOAD: list(payloads)}
    else:
        refused = {place: _refusal(payloads[place]) for place in set(range(len(payloads))) - set(documents)}
        items, payloads = [items[place] for place in documents], [payloads[place] for place in documents]
        names = dict.fromkeys(field for payload in payloads for field in payload)
        fields = {column_of(name): [payload.get(name, ABSENT) for payload in payloads] for name in names}
    envelope = {
        ID: _ids(items),
        DELIVERY_HASH: [job.hash_of(item) for item in items],
        ATTEMPTS: [item.attempts for item in items],
    }
    return FrameRows(items, payloads, envelope, fields, refused)


def _refusal(payload: Any) -> Exception:
    kind = type(payload).__name__
    hint = "let a stage before this one make documents of all, or add model="
    return PayloadInvalid(
        "payload", f"of type {kind}, where its batch is of documents, whose fields are columns; {hint}"
    )


def _ids(items: Sequence[Item[Any]]) -> list[str]:
    """Return ids as text, as Spark's tables show them; ids with equal text are shown by ``repr``."""
    shown = [_id(item.id) for item in items]
    if len(set(shown)) == len(shown):
        return shown
    # An ObjectId and a string with the same 24 digits look alike; repr distinguishes them.
    times = Counter(shown)
    return [repr(item.id) if times[text] > 1 else text for text, item in zip(shown, items, strict=True)]


def _id(id: Any) -> str:
    if isinstance(id, str | ObjectId):
        return str(id)
    jsontext = import_module(
        "mongoq.spark.types.json_text"
    )  # imported by name: type checkers that check code against mongoq need no Spark
    return str(jsontext.json_shown(id))


def column_of(field: str) -> str:
    """Return the column of a field; a field's leading ``_`` is doubled, because ``_`` columns belong to the item."""
    return f"_{field}" if field.startswith("_") else field


def field_of(column: str) -> str | None:
    """Return the field of a column; ``None`` for a column that belongs to the item."""
    if not column.startswith("_"):
        return column
    return column[1:] if column.startswith("__") else None
