"""Moves: hand an item to another queue in one fenced update; of many moves, equal options are checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.command import with_place
from mongoq.core.settle.send import check_items, settle, settle_item
from mongoq.core.settle.settlement import (
    Batch,
    Patch,
    Put,
    Settlement,
    check_patch,
    max_growth,
    merge_patch,
)
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import Duration, moment, queue_name, read_list
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.encoding.codec import HEADERS_LIMIT, Codec
from mongoq.data.encoding.error_text import spoken
from mongoq.data.envelope import trace_to_keep
from mongoq.data.item import Item
from mongoq.data.outcomes import Move
from mongoq.data.push_options import KEYED, check_due, check_expires, check_headers, check_key
from mongoq.data.sequence import check_sequence
from mongoq.data.settings import KEEP
from mongoq.errors import ArgumentInvalid, MongoqError, OutcomeInvalid, PayloadTooLarge

Resolve = Callable[[Any], "str | QueueContext[Any]"]
"""Turns a handle into its context."""


class CheckedMove(NamedTuple):
    """A move whose options were checked; the due time of the item is computed when the move is sent.

    Attributes:
        queue: name of the target queue.
        changes: fields that the move sets, without the payload.
        unset_fields: fields that the move removes.
        patch: operators that change the payload.
        delay: time that the item waits in the target queue.
        when: time until which it waits there, instead of ``delay``.
        raw: ``changes`` and ``unset_fields`` as BSON: moves are the same when these bytes are, and ``1`` is not
            ``True``.
        sequence: sequence that the item enters in the target queue, or ``None``.
        expires: how long the item may wait for its start there, or until when; ``None`` for ever.
        payload: the new payload, as ``{"payload": payload}`` in BSON; ``None`` to keep the item's.
    """

    queue: str
    changes: dict[str, Any]
    unset_fields: list[str]
    patch: Patch
    delay: Duration | None
    when: datetime | None
    raw: bytes
    sequence: str | None
    expires: timedelta | datetime | None
    payload: bytes | None

    @property
    def sets_headers(self) -> bool:
        """True if the move replaces the headers; then each item may have a trace of its own to keep."""
        return "headers" in self.changes


class Destination(NamedTuple):
    """A queue to move to: its name, and the codec of its payloads."""

    name: str
    codec: Codec[Any]


def destination(context: QueueContext[Any], to: str | QueueContext[Any]) -> Destination:
    """Return the destination of a move; a queue of another collection is refused: a move is one update of one document.

    A queue given by its name takes any payload.
    """
    if not isinstance(to, QueueContext):
        return Destination(queue_name(to, "to"), context.broker.untyped)
    if to.broker.namespace != context.broker.namespace:
        raise ArgumentInvalid("to", f"{to.broker.namespace}/{to.name} lies in another collection; push it there")
    return Destination(to.name, to.codec)


def check_move(context: QueueContext[Any], to: Destination, move: Move, *, key: str | None = None) -> CheckedMove:
    """Check the options of a move."""
    changes: dict[str, Any] = {"q": to.name, "reserved": False, "attempts": 0}
    unset_fields = ["token", "error", "batch", "pushed"]
    patch = check_patch(context, move.patch, replaces_payload=move.payload is not KEEP)
    payload = None if move.payload is KEEP else to.codec.wrap(move.payload)
    sequence = None if move.sequence is None else check_sequence(move.sequence)
    if sequence is not None and key is not None:
        raise ArgumentInvalid("sequence", KEYED)
    if key is None:
        unset_fields.append("key")
    else:
        changes["key"] = check_key(key)
    if move.priority is not None:
        changes["priority"] = checked_priority(move.priority)
    if move.headers is None:
        unset_fields.append("headers")
    elif move.headers is not KEEP:
        changes["headers"] = check_headers(move.headers, context.broker.encoding)
    check_due(move.delay, move.when)
    raw = bytes(context.broker.encoding.raw({"$set": changes, "$unset": unset_fields}).raw)
    expires = move.expires
    if expires is not None:
        expires = check_expires(context.broker.clock, expires, move.delay, move.when)
    dates = move.delay, move.when
    return CheckedMove(to.name, changes, unset_fields, patch, *dates, raw, sequence, expires, payload)


async def move(
    context: QueueContext[Any],
    item: Item[Any],
    to: Destination,
    options: Move,
    *,
    key: str | None = None,
    session: Any = None,
) -> None:
    """Move an item to another queue with a fresh budget of attempts, in one update; with a key, by its own command."""
    checked = check_move(context, to, options, key=key)
    is_shared = key is None and checked.sequence is None
    make = partial(make_move, checked=checked)
    await settle_item(context, item, make, joined=session is not None, shared=is_shared)


def make_move(context: QueueContext[Any], item: Item[Any], batch: Batch, checked: CheckedMove) -> Settlement:
    """Return the settlement that moves an item of a batch; items with equal updates share one."""
    patch, payload, expires = checked.patch, checked.payload, checked.expires
    when = batch.due(checked.delay, checked.when and moment(checked.when, "when"))
    marks = batch.marks(context, item, "moved", checked.queue, payload=payload, added=max_growth(context, patch))
    headers = new_headers(context, item, checked) if checked.sets_headers else None
    start_by = batch.now + expires if isinstance(expires, timedelta) else expires
    raw_headers = b"" if headers is None else headers.raw
    key = checked.raw, id(patch) if patch else None, when, payload, marks, raw_headers, checked.sequence, start_by
    if key not in batch.alike:
        changes = {**checked.changes, "when": when}
        if headers is not None:
            changes["headers"] = headers
        if start_by is not None:
            changes["start_by"] = start_by
        if payload is not None:
            changes["payload"] = context.broker.encoding.unwrap("payload", payload)
        settlement = Settlement(
            context,
            marks.on({"$set": changes, "$unset": dict.fromkeys(checked.unset_fields, "")}),
            "move",
            size=len(checked.raw) + len(payload or b"") + marks.size + len(raw_headers),
            put=Put(checked.queue, when, checked.changes.get("priority"), is_new=True),
            enters=checked.sequence,
            is_date_given=checked.when is not None,
        )
        merge_patch(context, settlement, patch)
        batch.alike[key] = settlement
    return batch.alike[key]


def new_headers(context: QueueContext[Any], item: Item[Any], checked: CheckedMove) -> Any:
    """Return the headers that a move gives to an item, in the form to send; ``None`` if it gives none.

    The trace of the item goes on, unless the new headers leave it no room.
    """
    headers, encoding = checked.changes.get("headers"), context.broker.encoding
    if headers is None or not (kept := trace_to_keep(item.headers, headers)):
        return headers
    try:
        return encoding.encode("headers", {**encoding.decode_sendable(headers), **kept}, limit=HEADERS_LIMIT)
    except PayloadTooLarge:
        return headers


async def move_many(context: QueueContext[Any], moves: Iterable[tuple[Item[Any], Move]], resolve: Resolve) -> None:
    """Move items to other queues; ``resolve`` turns a handle into its context."""
    pairs = read_list(moves, "moves")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentInvalid(f"moves[{place}]", f"a tuple of an item and a Move, not {type(pair).__name__}")
        if not isinstance(pair[1], Move):
            raise ArgumentInvalid(f"moves[{place}]", f"a Move beside the item, not {type(pair[1]).__name__}")
    items = check_items(context, [item for item, _ in pairs], "moves")
    known, checked = Moves(context, resolve), []
    for place, (_, outcome) in enumerate(pairs):
        try:
            checked.append(known.check(outcome))
        except ArgumentInvalid as error:
            raise with_place(error, f"moves[{place}].") from error
    if not items:
        return
    await ensure_ready(context)
    batch = Batch(context.broker.clock)
    made = [(item, make_move(context, item, batch, each)) for item, each in zip(items, checked, strict=True)]
    await settle(context, made)


_but_payload = attrgetter("patch", "delay", "when", "priority", "headers", "sequence", "expires")


class Moves:
    """Checks moves; moves with identical option objects, apart from the payload, are checked once."""

    def __init__(self, context: QueueContext[Any], resolve: Resolve) -> None:
        self._context = context
        self._resolve = resolve
        self._known: dict[Any, tuple[CheckedMove, Destination, Move]] = {}

    def check(self, move: Move) -> CheckedMove:
        """Check a move, with its payload."""
        try:
            own, to = move.payload is not KEEP, move.to
            key = own, to if type(to) is str else id(to), *map(id, _but_payload(move))
            if key in self._known:
                checked, queue, _ = self._known[key]
                return checked._replace(payload=queue.codec.wrap(move.payload)) if own else checked
            queue = destination(self._context, self._resolve(to))
            checked = check_move(self._context, queue, move)
        except (MongoqError, KeyboardInterrupt):
            raise
        except BaseException as error:  # what a handler returns may be of any class, and raise anything
            raise OutcomeInvalid(f"a Move that cannot be read: {spoken(error)}") from error
        self._known[key] = checked, queue, move  # the move keeps its options alive, and so their identities
        return checked
