"""Moves of many items: equal options are checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from mongoq.errors import ArgumentInvalid, MongoqError, OutcomeInvalid
from mongoq.model.arguments import moment, read_list
from mongoq.model.encoding.error_text import spoken
from mongoq.model.envelope import Document, splice
from mongoq.model.item import Item
from mongoq.model.outcomes import Move
from mongoq.model.settings import KEEP
from mongoq.protocol.base.fence import is_gone
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow, with_place
from mongoq.protocol.settle.bulk import Put, Settlement, settle_bulk
from mongoq.protocol.settle.move import Destination, Handover, check_move, destination, send_move
from mongoq.protocol.settle.patch import max_growth, merge_patch
from mongoq.protocol.settle.settle_many import Batch, check_items, settle_all
from mongoq.protocol.state.context import QueueContext

__all__ = ["Moves", "Resolve", "make_move", "move_many"]

Resolve = Callable[[Any], "str | QueueContext[Any]"]
"""Turns a handle into its context."""
Told = tuple[Handover, bytes | None]
"""A checked move, and its payload, as ``{"payload": payload}`` in BSON."""
_Way = Callable[[Item[Any], bytes | None], Settlement]
"""Makes the settlement of a move, given the item and that payload."""


def move_many(context: QueueContext[Any], moves: Iterable[tuple[Item[Any], Move]], resolve: Resolve) -> Flow[None]:
    """Move items to other queues; ``resolve`` turns a handle into its context."""
    items, given = _split_pairs(moves)
    items, held = check_items(context, items, "moves")
    alike = _are_alike(given)
    told = _check_moves(context, given[:1] if alike else given, resolve)
    if not items:
        return
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    if alike:
        same = partial(make_move, context, told=told[0], batch=batch)
        yield from settle_all(context, items, same, held if context.stage is None else None)
    else:
        each = zip(items, told, strict=True)
        yield from settle_bulk(context, [(item, make_move(context, item, one, batch)) for item, one in each])


def _split_pairs(moves: Any) -> tuple[list[Item[Any]], list[Move]]:
    """Return the items and the moves of the given pairs, and refuse other values."""
    pairs = read_list(moves, "moves")
    if {tuple}.issuperset(map(type, pairs)) and {2}.issuperset(map(len, pairs)):
        given = [move for _, move in pairs]
        if {Move}.issuperset(map(type, given)):
            return [item for item, _ in pairs], given
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentInvalid(f"moves[{place}]", f"a tuple of an item and a Move, not {type(pair).__name__}")
        if not isinstance(pair[1], Move):
            raise ArgumentInvalid(f"moves[{place}]", f"a Move beside the item, not {type(pair[1]).__name__}")
    return [item for item, _ in pairs], [move for _, move in pairs]


def _check_moves(context: QueueContext[Any], given: list[Move], resolve: Resolve) -> list[Told]:
    moves, told = Moves(context, resolve), []
    for place, move in enumerate(given):
        try:
            told.append(moves.check(move))
        except ArgumentInvalid as error:
            raise with_place(error, f"moves[{place}].") from error
    return told


_attributes = [attrgetter(each.name) for each in fields(Move)]


def _are_alike(moves: Sequence[Move]) -> bool:
    """Return whether all moves have identical options, and leave the payloads unchanged."""
    if not moves or moves[0].payload is not KEEP or moves[0].patch is not None:
        return False
    first = vars(moves[0])
    if len(first) == 1 and {Move}.issuperset(map(type, moves)):  # it is told nothing but where to go
        with suppress(Exception):  # what is compared may be of any class
            return list(map(vars, moves)).count(first) == len(moves)
    # equal is not enough: 1 equals True, which is refused
    return all(all(map(is_, map(told, moves), repeat(told(moves[0])))) for told in _attributes)


_but_payload = attrgetter("patch", "delay", "when", "priority", "headers")


class Moves:
    """Checks moves; moves with identical option objects, apart from the payload, share a handover."""

    def __init__(self, context: QueueContext[Any], resolve: Resolve) -> None:
        self._context = context
        self._resolve = resolve
        self._known: dict[Any, tuple[Handover, Destination, Move]] = {}

    def check(self, move: Move) -> Told:
        """Check a move, and return it with its payload."""
        try:
            return self._check(move)
        except MongoqError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what a handler returns may be of any class, and raise anything
            raise OutcomeInvalid(f"a Move that cannot be read: {spoken(error)}") from error

    def _check(self, move: Move) -> Told:
        own, to = move.payload is not KEEP, move.to
        key = own, to if type(to) is str else id(to), *map(id, _but_payload(move))
        if key in self._known:
            handed, queue, _ = self._known[key]
            return handed, queue.codec.wrap(move.payload) if own else None
        queue = destination(self._context, self._resolve(to))
        handed = _check_move(self._context, queue, move)
        self._known[key] = handed, queue, move  # which keeps what it was told, and so the identities
        return handed, handed.payload


def make_move(context: QueueContext[Any], item: Item[Any], told: Told, batch: Batch) -> Settlement:
    """Return the settlement that moves an item of a batch."""
    handed, payload = told
    if handed not in batch.ways:
        batch.ways[handed] = (_patch_move_maker if handed.patch else _plain_move_maker)(context, handed, batch)
    return batch.ways[handed](item, payload)


def _check_move(context: QueueContext[Any], to: Destination, move: Move) -> Handover:
    return check_move(
        context,
        to,
        payload=move.payload,
        replace_payload=move.payload is not KEEP,
        patch=move.patch,
        delay=move.delay,
        when=move.when,
        priority=move.priority,
        headers=move.headers,
        replace_headers=move.headers is not KEEP,
    )


def _plain_move_maker(context: QueueContext[Any], handed: Handover, batch: Batch) -> _Way:
    """Return the function that makes the settlements of a move; items with equal updates share one."""
    when, equal, encoding = _due_time(handed, batch), batch.alike, context.broker.encoding
    happened, marker = _is_moved(handed, when), batch.marker(context, "moved", handed.queue)
    update = handed.update(when)
    gone, put = update["$unset"], Put(handed.queue, when, handed.changes.get("priority"))
    taken, shared = tuple(gone), bytes(encoding.raw(update["$set"]).raw)

    def one(item: Item[Any], payload: bytes | None) -> Settlement:
        raw = shared if payload is None else splice(shared, payload)
        marks = marker.marks(item, payload=payload)
        key = raw, taken, marks
        if key not in equal:
            sent = marks.on({"$set": encoding.of_bytes(raw), "$unset": gone})  # those very bytes
            alone = partial(_send_move, context, handed, payload)
            equal[key] = Settlement(sent, happened, "move", alone, size=len(raw) + marks.size, put=put)
        return equal[key]

    return one


def _patch_move_maker(context: QueueContext[Any], handed: Handover, batch: Batch) -> _Way:
    """Return the function that makes the settlements of a move with a patch."""
    when, equal, added = _due_time(handed, batch), batch.alike, max_growth(context, handed.patch)
    happened, marker = _is_moved(handed, when), batch.marker(context, "moved", handed.queue)
    alone, put = partial(send_move, context, handed=handed), Put(handed.queue, when, handed.changes.get("priority"))

    def one(item: Item[Any], _: bytes | None) -> Settlement:
        marks = marker.marks(item, added=added)
        key = handed, marks
        if key not in equal:
            sent, room, most = merge_patch(context, marks.on(handed.update(when)), handed.patch)
            size = context.broker.encoding.size(sent)
            equal[key] = Settlement(sent, happened, "move", alone, most, room, size, put=put)
        return equal[key]

    return one


def _is_moved(handed: Handover, when: datetime) -> Callable[[Document, Item[Any]], bool | None]:
    return partial(is_gone, queue=handed.queue, when=when, fixed=handed.when is not None)


def _due_time(handed: Handover, batch: Batch) -> datetime:
    return batch.due(handed.delay, handed.when and moment(handed.when, "when"))


def _send_move(context: QueueContext[Any], handed: Handover, payload: bytes | None, item: Item[Any]) -> Flow[None]:
    return send_move(context, item, replace(handed, payload=payload))
