"""Rows of frames: what a handler takes, and the outcomes of items by the rows that it returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bson import ObjectId

from mongoq.errors import MongoqError, OutcomeInvalid, PayloadInvalid
from mongoq.model.item import Item
from mongoq.model.outcomes import Dead, Drop, Fork, HandlerOutcome, Move, Retry
from mongoq.pipeline.frames.values import ABSENT, is_document, restore_value

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
    texts = [_id(item.id) for item in items]
    if len(set(texts)) == len(texts):
        return texts
    # An ObjectId and a string with the same 24 digits look alike; repr distinguishes them.
    times = Counter(texts)
    return [repr(item.id) if times[text] > 1 else text for text, item in zip(texts, items, strict=True)]


def _id(id: Any) -> str:
    if isinstance(id, str | ObjectId):
        return str(id)
    # Imported by name: type checkers that check code against mongoq need no Spark.
    return str(import_module("mongoq.spark.types.json_text").json_shown(id))


def column_of(field: str) -> str:
    """Return the column of a field; a field's leading ``_`` is doubled, because ``_`` columns belong to the item."""
    return f"_{field}" if field.startswith("_") else field


def field_of(column: str) -> str | None:
    """Return the field of a column; ``None`` for a column that belongs to the item."""
    if not column.startswith("_"):
        return column
    return column[1:] if column.startswith("__") else None


TO, RETRY, DEAD = "_to", "_retry", "_dead"
KNOWN_COLUMNS = (ID, DELIVERY_HASH, ATTEMPTS, TO, RETRY, DEAD)


def check_columns(columns: Sequence[tuple[Any, list[Any]]]) -> dict[str, list[Any]]:
    """Return the columns of a frame by their names; raises ``OutcomeInvalid``."""
    lists: dict[str, list[Any]] = {}
    for name, values in columns:
        if not isinstance(name, str):
            raise OutcomeInvalid(f"a column of the frame returned is named {name!r:.60}; rename it to a string")
        if name in lists:
            raise OutcomeInvalid(f"the frame returned has two columns {name!r:.150}; rename one, or drop it")
        if field_of(name) is None and name not in KNOWN_COLUMNS:
            raise OutcomeInvalid(
                f"the frame returned has a column {name!r:.150}, and of those that begin with '_' it may have "
                f"{', '.join(KNOWN_COLUMNS)}; drop it, or name it {'_' + name!r:.150} for a field {name!r:.150} "
                "of the payload"
            )
        lists[str(name)] = values
    if ID not in lists:
        raise OutcomeInvalid(
            "the frame returned has no column '_id', which says of which item a row is made; keep it, or bring it back "
            "with reset_index() if it has become the index"
        )
    return lists


@dataclass(frozen=True, slots=True)
class Results:
    """Rows of a returned frame.

    Attributes:
        source_rows: rows that the function was called with.
        frame_values: columns that the function was called with, with values as the frame returns them unchanged.
        targets: queues that items may go to; empty for a sink.
        nested: True if unchanged documents and lists come back as new objects.
        columns: returned columns with their values.
    """

    source_rows: FrameRows
    frame_values: Mapping[str, list[Any]]
    targets: Sequence[Any]
    nested: bool
    columns: Mapping[str, list[Any]]

    def entries(self) -> list[HandlerOutcome | MongoqError | None]:
        """Return an outcome for each item of the batch, or the error of its rows.

        Raises:
            OutcomeInvalid: a row has the id of no item of the batch, so the whole frame is ambiguous.
        """
        places = self._places()
        rows: list[list[int]] = [[] for _ in self.source_rows.ids]
        for row, place in enumerate(places):
            rows[place].append(row)
        payloads = self._make_payloads(places) if self.targets else None
        return [self._make_entry(each, payloads) for each in rows]

    def _places(self) -> list[int]:
        places = {id: place for place, id in enumerate(self.source_rows.ids)}
        try:
            return [places[id] for id in self.columns[ID]]
        except (KeyError, TypeError):
            # TypeError: an unhashable value in the column.
            stray = next(id for id in self.columns[ID] if not isinstance(id, str) or id not in places)
            raise OutcomeInvalid(
                f"a row of the frame returned has {stray!r:.150} in '_id', which is no item of the batch; leave the "
                "column as it was given"
            ) from None

    # --- one item --------------------------------------------------------------------------------

    def _make_entry(self, rows: list[int], payloads: list[Any] | None) -> HandlerOutcome | MongoqError | None:
        try:
            failure = next(self._read_failures(rows), None)
            if failure is not None:
                return failure
            moves = [self._make_move(row, payloads) for row in rows]
        except MongoqError as invalid:
            return invalid
        if payloads is None:
            return None
        return Drop() if not moves else moves[0] if len(moves) == 1 else Fork(moves)

    def _read_failures(self, rows: list[int]) -> Iterator[Retry | Dead]:
        """Yield the failure that the rows of an item ask for; raises ``OutcomeInvalid`` if they ask for several."""
        for row in rows:
            retry, dead = self._read_text(RETRY, row), self._read_text(DEAD, row)
            if retry is None and dead is None:
                continue
            if len(rows) > 1:
                raise OutcomeInvalid(f"a row says _retry or _dead, and its item has {len(rows)} rows; return one")
            if retry is not None and dead is not None:
                raise OutcomeInvalid("a row says both _retry and _dead; leave one of them null")
            yield Dead(dead) if retry is None else Retry(error=retry)

    def _read_text(self, column: str, row: int) -> str | None:
        value = self.columns[column][row] if column in self.columns else None
        if value is None or isinstance(value, str):
            return value
        raise OutcomeInvalid(f"{column} is of type {type(value).__name__}; it is a text, or null")

    def _make_move(self, row: int, payloads: list[Any] | None) -> Move | None:
        to = self._read_text(TO, row)
        if payloads is None:
            if to is None:
                return None
            raise OutcomeInvalid(f"a row says _to={to!r:.150}, and items end here; leave it null, or declare to=")
        if to is None:
            if len(self.targets) > 1:
                several = ", ".join(map(repr, self.targets))
                raise OutcomeInvalid(f"a row has no _to, and there are several targets ({several}); name one of them")
            to = self.targets[0]
        return Move(to, payload=payloads[row]) if payloads else Move(to)

    # --- payloads --------------------------------------------------------------------------------

    def _make_payloads(self, places: list[int]) -> list[Any]:
        """Return the payload of each row; an empty list where no column belongs to payloads: items keep theirs."""
        names = {field: name for name in self.columns if (field := field_of(name)) is not None}
        values = {field: self._restore_column(name, places) for field, name in names.items()}
        if not values:
            return []
        if set(values) == {PAYLOAD}:
            return [self._make_sole(value, place) for value, place in zip(values[PAYLOAD], places, strict=True)]
        return self._make_documents(values, places)

    def _restore_column(self, name: str, places: list[int]) -> list[Any]:
        values = self.columns[name]
        if name not in self.source_rows.fields:
            return values
        frame_values, originals = self.frame_values[name], self.source_rows.fields[name]
        return [
            restore_value(value, frame_values[place], originals[place], nested=self.nested)
            for value, place in zip(values, places, strict=True)
        ]

    def _make_sole(self, value: Any, place: int) -> Any:
        """Return the payload for a sole column ``payload``: the value, or a document if the item has this field."""
        original = self.source_rows.payloads[place]
        if is_document(original) and PAYLOAD in original:
            return {PAYLOAD: value}
        return {} if value is ABSENT else value

    def _make_documents(self, values: dict[str, list[Any]], places: list[int]) -> list[Any]:
        """Return documents: first the item's fields in their order, then new fields in the order of the columns."""
        names, orders = list(values), dict[tuple[str, ...], list[int]]()
        documents = []
        for row, place in zip(zip(*values.values(), strict=True), places, strict=True):
            original = self.source_rows.payloads[place]
            fields = tuple(original) if is_document(original) else ()
            # Items of a batch mostly have the same fields: the order is computed once for each set of fields.
            if fields not in orders:
                orders[fields] = _order_fields(fields, names)
            order = orders[fields]
            documents.append({names[at]: row[at] for at in order if row[at] is not ABSENT})
        return documents


def _order_fields(fields: Sequence[str], names: Sequence[str]) -> list[int]:
    at = {name: place for place, name in enumerate(names)}
    return [at[name] for name in dict.fromkeys([*(field for field in fields if field in at), *names])]
