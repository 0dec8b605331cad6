"""Rows of frames: what a handler takes, and the outcomes of items by the rows that it returned; handlers of frames.

Values are as BSON holds them, and the item's original values where the frame returned them unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, DecimalException
from importlib import import_module
from math import isnan
from typing import Any, Final
from uuid import UUID

from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from pydantic import TypeAdapter

from mongoq.data.encoding.codec import NESTING_LIMIT
from mongoq.data.encoding.error_text import name_of
from mongoq.data.encoding.typed import TypedValues
from mongoq.data.item import Item
from mongoq.data.outcomes import Dead, Drop, Fork, HandlerOutcome, Move, Retry
from mongoq.errors import MongoqError, OutcomeInvalid, PayloadInvalid
from mongoq.pipeline.graph.graph import Stage
from mongoq.worker.outcome_resolver import check_entries, check_result

ABSENT: Final = object()
"""Stands for a field that an item does not have; a null is a value of its own."""
NONE_TYPE = type(None)
NUMBER_TYPES = frozenset({int, float, Int64})
PLAIN_TYPES = frozenset({str, int, float, bool, bytes, NONE_TYPE, datetime, Int64, ObjectId, Decimal128, UUID})
"""Types that BSON holds as they are; compared by identity, so subclasses are not included."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def kinds_of(values: list[Any]) -> frozenset[type]:
    """Return the types of the values of a column; ``Int64`` counts as ``int``, and nulls have none."""
    kinds = set(map(type, values)) - {NONE_TYPE}
    return frozenset({int} | kinds - {Int64} if Int64 in kinds else kinds)


def fits_double(values: list[Any]) -> bool:
    """Return whether a column of int and float may be one of doubles: no integer loses digits (above 2**53)."""
    return all(value is None or type(value) is float or float(value) == value for value in values)


def is_document(payload: Any) -> bool:
    """Return whether a payload has fields."""
    return type(payload) is dict or isinstance(payload, Mapping)  # isinstance with an abstract class is slow


def is_missing(value: Any) -> bool:
    """Return whether a frame shows a value as missing; pandas shows null, NaN and an absent field alike."""
    return value is None or value is ABSENT or (type(value) is float and isnan(value))


def moment(micros: int | None) -> datetime | DatetimeMS | None:
    """Return the time that is ``micros`` microseconds after 1970."""
    if micros is None:
        return None
    try:
        return EPOCH + timedelta(0, 0, micros)
    except OverflowError:  # outside Python's years, but BSON holds it
        return DatetimeMS(micros // 1_000)


def plain_values(values: list[Any]) -> list[Any]:
    """Return the values of a column as BSON holds them."""
    return values if PLAIN_TYPES.issuperset(map(type, values)) else [plain(value) for value in values]


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value as BSON holds it; a value that BSON cannot hold stays, and the codec refuses it with its path."""
    kind = type(value)
    # Deeper values are left to the codec, which refuses them with their path.
    if kind in PLAIN_TYPES or depth > NESTING_LIMIT:
        return value
    # By the name of the package, so that neither pandas nor numpy is imported here.
    library = kind.__module__.partition(".")[0]
    if library == "pandas":
        if kind.__name__ in ("NAType", "NaTType"):
            return None
        return value.to_pydatetime(warn=False) if kind.__name__ == "Timestamp" else value
    if library == "numpy" and hasattr(value, "dtype"):
        if value.dtype.kind in "mM":
            value = value.astype(f"{value.dtype.name.partition('64')[0]}64[us]")  # Python's datetime has no nanoseconds
        listed = value.tolist()
        return listed if type(listed) is type(value) else plain(listed, depth + 1)
    if isinstance(value, dict):
        return {key: plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, depth + 1) for part in value]
    if isinstance(value, time) or (isinstance(value, date) and not isinstance(value, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        with suppress(DecimalException):  # more than 34 digits: the codec refuses it
            return Decimal128(value)
    return value


def restore_value(value: Any, shown: Any, original: Any, *, nested: bool) -> Any:
    """Return the item's original value where a frame returned it unchanged, else the new value.

    A number that is equal is unchanged, whatever its type. ``nested`` compares inside documents and lists, which Arrow
    returns as new objects; pandas returns the objects that it was given.
    """
    kind, other = type(value), type(shown)
    if value is None:
        return original if is_missing(shown) else None
    if kind is dict and nested and isinstance(shown, dict) and isinstance(original, Mapping):
        # Without the nulls that a struct adds for absent fields; fields keep their original order.
        own = [key for key in original if key in value]
        restored = {key: restore_value(value[key], shown[key], original[key], nested=True) for key in own}
        return restored | {key: part for key, part in value.items() if key not in original and part is not None}
    if kind is list and nested and isinstance(shown, list) and len(value) == len(shown):
        triples = zip(value, shown, original, strict=True)
        return [restore_value(part, was, source, nested=True) for part, was, source in triples]
    if kind in (dict, list):
        return value
    if kind is Decimal128:
        if isinstance(shown, Decimal128) and value == shown:
            return original
        number = shown.to_decimal() if isinstance(shown, Decimal128) else shown
        same = isinstance(number, Decimal) and not number.is_nan() and bool(value.to_decimal() == number)
    elif kind in (str, bytes):  # a frame may turn a Code into a plain string, and a Binary into plain bytes
        same = isinstance(shown, kind) and kind.__eq__(value, shown) is True
    else:
        same = (kind is other or (kind in NUMBER_TYPES and other in NUMBER_TYPES)) and bool(value == shown)
    return original if same else value


ID, DELIVERY_HASH, ATTEMPTS = "_id", "_delivery_hash", "_attempts"
TO, RETRY, DEAD = "_to", "_retry", "_dead"
KNOWN_COLUMNS = (ID, DELIVERY_HASH, ATTEMPTS, TO, RETRY, DEAD)
PAYLOAD = "payload"
"""Column of payloads that are not documents."""
Columns = Mapping[str, list[Any]]


class FrameRows:
    """Rows of a batch. Beside documents, an item with another payload has no row, and it alone fails.

    Attributes:
        items: items that have a row.
        payloads: payloads of these items.
        envelope: columns about the items, ``_id`` first.
        fields: columns of the payloads, with ``ABSENT`` where an item lacks the field.
        refused: errors of the items without a row, by their index in the batch.
    """

    def __init__(self, items: Sequence[Item[Any]], payloads: Sequence[Any], job: Any) -> None:
        self.refused: dict[int, Exception] = {}
        # If one payload is a document, fields are columns, and other payloads of the batch have no place in the frame.
        documents = [place for place, payload in enumerate(payloads) if is_document(payload)]
        if not documents:
            self.fields: Columns = {PAYLOAD: list(payloads)}
        else:
            hint = "let a stage before this one make documents of all, or add model="
            for place in set(range(len(payloads))).difference(documents):
                kind = type(payloads[place]).__name__
                problem = f"of type {kind}, where its batch is of documents, whose fields are columns"
                self.refused[place] = PayloadInvalid("payload", f"{problem}; {hint}")
            items, payloads = [items[place] for place in documents], [payloads[place] for place in documents]
            names = dict.fromkeys(field for payload in payloads for field in payload)
            # A leading ``_`` of a field is doubled, because ``_`` columns belong to the item.
            columns = {f"_{name}" if name.startswith("_") else name: name for name in names}
            self.fields = {
                column: [payload.get(name, ABSENT) for payload in payloads] for column, name in columns.items()
            }
        self.items = items
        self.payloads = payloads
        self.envelope: Columns = {
            ID: self._make_ids(),
            DELIVERY_HASH: [job.hash_of(item) for item in items],
            ATTEMPTS: [item.attempts for item in items],
        }

    def _make_ids(self) -> list[str]:
        """Return ids as text, as Spark's tables show them; ids with equal text are shown by ``repr``."""
        ids: list[Any] = [item.id for item in self.items]
        # Imported by name: type checkers that check code against mongoq need no Spark.
        show = import_module("mongoq.spark.types.json_text").json_shown
        texts = [str(id) if isinstance(id, str | ObjectId) else str(show(id)) for id in ids]
        # An ObjectId and a string with the same 24 digits look alike; repr distinguishes them.
        times = Counter(texts)
        return [repr(id) if times[text] > 1 else text for text, id in zip(texts, ids, strict=True)]

    def read_outcomes(
        self, returned: Columns, frame_values: Columns, targets: Sequence[Any], *, nested: bool
    ) -> list[HandlerOutcome | MongoqError | None]:
        """Return an outcome for each item that has a row, or the error of its rows.

        Args:
            returned: returned columns with their values.
            frame_values: columns that the function was called with, with values as the frame returns them unchanged.
            targets: queues that items may go to; empty for a sink.
            nested: True if unchanged documents and lists come back as new objects.

        Raises:
            OutcomeInvalid: a row has the id of no item of the batch, so the whole frame is ambiguous.
        """
        places_by_id = {id: place for place, id in enumerate(self.envelope[ID])}
        try:
            places = [places_by_id[id] for id in returned[ID]]
        except (KeyError, TypeError):
            # TypeError: an unhashable value in the column.
            stray = next(id for id in returned[ID] if not isinstance(id, str) or id not in places_by_id)
            raise OutcomeInvalid(
                f"a row of the frame returned has {stray!r:.150} in '_id', which is no item of the batch; leave the "
                "column as it was given"
            ) from None
        rows: list[list[int]] = [[] for _ in self.items]
        for row, place in enumerate(places):
            rows[place].append(row)
        payloads: list[Any] = []
        if targets:
            values = {}
            for name, column in returned.items():
                if (field := field_of(name)) is not None:
                    values[field] = column
                    if name in self.fields:
                        shown, originals = frame_values[name], self.fields[name]
                        values[field] = [
                            restore_value(value, shown[place], originals[place], nested=nested)
                            for value, place in zip(column, places, strict=True)
                        ]
            payloads = self._make_payloads(values, places)
        return [_make_outcome(own, returned, targets, payloads) for own in rows]

    def _make_payloads(self, values: dict[str, list[Any]], places: list[int]) -> list[Any]:
        """Return the payload of each row; an empty list where no column belongs to payloads: items keep theirs."""
        payloads: list[Any] = []
        if set(values) == {PAYLOAD}:
            for value, place in zip(values[PAYLOAD], places, strict=True):
                original = self.payloads[place]
                # A document if the item has this field, else the value itself.
                if is_document(original) and PAYLOAD in original:
                    payloads.append({PAYLOAD: value})
                else:
                    payloads.append({} if value is ABSENT else value)
            return payloads
        if not values:
            return []
        names = list(values)
        for row, place in zip(zip(*values.values(), strict=True), places, strict=True):
            original = self.payloads[place]
            payload = {name: value for name, value in zip(names, row, strict=True) if value is not ABSENT}
            # First the item's fields in their order, then new fields in the order of the columns.
            own = {field: payload[field] for field in original if field in payload} if is_document(original) else {}
            payloads.append(own | payload)
        return payloads


def field_of(column: str) -> str | None:
    """Return the field of a column; ``None`` for a column that belongs to the item."""
    if not column.startswith("_"):
        return column
    return column[1:] if column.startswith("__") else None


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


def _make_outcome(
    rows: list[int], columns: Columns, targets: Sequence[Any], payloads: list[Any]
) -> HandlerOutcome | MongoqError | None:
    """Return the outcome of one item by its rows, or the error of these rows."""

    def text(column: str, row: int) -> str | None:
        value = columns[column][row] if column in columns else None
        if value is None or isinstance(value, str):
            return value
        raise OutcomeInvalid(f"{column} is of type {type(value).__name__}; it is a text, or null")

    moves = []
    try:
        for row in rows:
            retry, dead = text(RETRY, row), text(DEAD, row)
            if retry is None and dead is None:
                continue
            if len(rows) > 1:
                raise OutcomeInvalid(f"a row says _retry or _dead, and its item has {len(rows)} rows; return one")
            if retry is not None and dead is not None:
                raise OutcomeInvalid("a row says both _retry and _dead; leave one of them null")
            return Dead(dead) if retry is None else Retry(error=retry)
        for row in rows:
            to = text(TO, row)
            if to is not None and not targets:
                raise OutcomeInvalid(f"a row says _to={to!r:.150}, and items end here; leave it null, or declare to=")
            if to is None and len(targets) > 1:
                several = ", ".join(map(repr, targets))
                raise OutcomeInvalid(f"a row has no _to, and there are several targets ({several}); name one of them")
            if targets:
                to = targets[0] if to is None else to
                moves.append(Move(to, payload=payloads[row]) if payloads else Move(to))
    except MongoqError as invalid:
        return invalid
    if not targets:
        return None
    return Drop() if not moves else moves[0] if len(moves) == 1 else Fork(moves)


FORMATS = {"pandas": "pandas.DataFrame", "arrow": "pyarrow.Table"}
"""Classes of frames, by format."""


def frames_of(format: str) -> Any:
    """Return the module that makes frames of this format.

    Raises:
        ModuleNotFoundError: the package of the format is not installed; the message names the extra.
    """
    try:
        return import_module(f"mongoq.pipeline.frames.{format}_frames")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mongoq"):
            raise
        needed = FORMATS[format].partition(".")[0]
        hint = f"{format!r} needs {needed}: install mongoq-driver[{format}] (pip install '.[{format}]')"
        raise ModuleNotFoundError(hint, name=error.name) from error


def wrap_frame_handler(stage: Stage, *, takes_job: bool, asynchronous: bool) -> Callable[..., Any]:
    """Return a handler of batches, which takes and returns lists, around the function of a stage on frames."""
    function, format = stage.handler, stage.format

    def prepare(payloads: Sequence[Any], job: Any) -> tuple[tuple[Any, ...], Callable[[Any], Sequence[Any]]]:
        """Return the arguments for the function, and a function from what it returns to an entry for each item."""
        if stage.model is not None:
            # As they are stored: the model has validated them before and may have changed values.
            adapter = stage.model if isinstance(stage.model, TypeAdapter) else TypeAdapter(stage.model)
            payloads = [TypedValues(adapter).to_stored(payload) for payload in payloads]
        module, rows = frames_of(format), FrameRows(job.items, payloads, job)
        frame, frame_values = module.make_frame({**rows.envelope, **rows.fields})

        def read_entries(returned: Any) -> Sequence[Any]:
            if returned is None or isinstance(returned, BaseException):
                entries: Sequence[Any] = [returned] * len(rows.items)
            elif isinstance(returned, module.KIND):
                try:
                    columns = module.columns(returned)
                except (ArithmeticError, LookupError, ValueError) as error:  # Arrow's are ValueErrors or LookupErrors
                    raise OutcomeInvalid(f"the frame returned holds what Python cannot read: {error}") from error
                columns = check_columns(columns)
                entries = rows.read_outcomes(columns, frame_values, stage.targets, nested=module.NESTED)
            else:
                check_result(returned)
                if not isinstance(returned, list | tuple):
                    hint = f"return a {FORMATS[format]}, a list with an entry for each row, or None"
                    raise OutcomeInvalid(f"a stage with format={format!r} got a {name_of(returned)}; {hint}")
                entries = check_entries(rows.items, returned)
            # Items without a row stand at their positions in the batch, each with its own error.
            rest, places = iter(entries), range(len(entries) + len(rows.refused))
            return [rows.refused[place] if place in rows.refused else next(rest) for place in places]

        return (frame, job) if takes_job else (frame,), read_entries

    def call(payloads: Sequence[Any], job: Any) -> Any:
        arguments, read_entries = prepare(payloads, job)
        return read_entries(function(*arguments))

    async def call_async(payloads: Sequence[Any], job: Any) -> Any:
        arguments, read_entries = prepare(payloads, job)
        return read_entries(await function(*arguments))

    return call_async if asynchronous else call
