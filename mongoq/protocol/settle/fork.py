"""Forks: an item becomes several, and is settled in the transaction that writes its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import MongoqError, OutcomeInvalid, PayloadTooLarge
from mongoq.model.envelope import new_envelope
from mongoq.model.item import Document, Item, id_key
from mongoq.model.outcomes import Fork, Move
from mongoq.model.settings import KEEP
from mongoq.protocol.flow import Command, Flow, chunks
from mongoq.protocol.push.push import due_time
from mongoq.protocol.sequence.leave import Promoted, record_promoted
from mongoq.protocol.settle.bulk import BulkResult, group_by_statement, mark_done, settle_within
from mongoq.protocol.settle.exchange import Exchange, run_exchange
from mongoq.protocol.settle.move import Moves, new_headers
from mongoq.protocol.settle.settle import make_commit
from mongoq.protocol.settle.settlement import Batch, Settlement
from mongoq.protocol.state.context import QueueContext


def make_output(
    context: QueueContext[Any], item: Item[Any], move: Move, moves: Moves, *, id: ObjectId
) -> dict[str, Any]:
    """Return the envelope of a new item, by a move of the old one."""
    checked, payload = moves.check(move)
    if checked.sequence is not None:
        raise OutcomeInvalid("what comes of an item is a new one, and cannot enter a sequence; push it with sequence=")
    if checked.patch:
        raise OutcomeInvalid("what comes of an item is a new one, and has nothing to patch; give payload=")
    return new_envelope(
        checked.queue,
        item.stored("payload") if payload is None else context.broker.encoding.unwrap("payload", payload),
        id=id,
        when=due_time(context.broker.clock, checked.delay, checked.when),
        priority=checked.changes.get("priority", item.priority),
        headers=new_headers(context, item, checked) if move.headers is not KEEP else dict(item.headers) or None,
        once=None,
    )


MAX_OUTPUTS = 10_000
"""Outputs of one item, at most."""
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
"""Bytes of one item's outputs, and of one transaction, at most: the server keeps all of it in its cache."""


@dataclass(frozen=True, slots=True)
class _ForkedItem:
    """An item, its settlement, and its outputs as documents and in the form to send."""

    item: Item[Any]
    settlement: Settlement
    outputs: Sequence[Document]
    raw: list[RawBSONDocument]

    @property
    def size(self) -> int:
        return sum(len(document.raw) for document in self.raw)


def fork_items(
    context: QueueContext[Any], wanted: Iterable[tuple[Item[Any], Fork]], batch: Batch, moves: Moves
) -> Flow[dict[Any, Exception]]:
    """Settle items and write their outputs; return the errors of items that were not settled, by ``id_key``.

    A crash leaves each item as it was, or settled with all of its outputs.
    """
    failed: dict[Any, Exception] = {}
    forked = []
    for item, fork in wanted:
        try:
            forked.append(_fork_item(context, item, fork, batch, moves))
        except MongoqError as error:
            failed[id_key(item.id)] = error
    exchange = Exchange(context, partial(_attempt, context), attrgetter("item"), on_done=partial(_record_done, context))
    for chunk in chunks(forked, lambda entry: entry.size, items=lambda entry: len(entry.raw) + 1):
        failed |= yield from run_exchange(exchange, chunk)
    return failed


def _fork_item(context: QueueContext[Any], item: Item[Any], fork: Fork, batch: Batch, moves: Moves) -> _ForkedItem:
    number = len(fork.moves)
    if number > MAX_OUTPUTS:
        raise OutcomeInvalid(f"a fork of {number:,} outputs, and {MAX_OUTPUTS:,} is the limit; fork in two steps")
    outputs = [make_output(context, item, move, moves, id=ObjectId()) for move in fork.moves]
    for document in outputs:
        _mark_output(context, item, document, batch)
    raw = list(map(context.broker.encoding.raw, outputs))
    forked = _ForkedItem(item, make_commit(context, item, batch), outputs, raw)
    if forked.size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(f"outputs of a fork into {number:,}", forked.size, MAX_TRANSACTION_BYTES)
    return forked


def _mark_output(context: QueueContext[Any], item: Item[Any], document: dict[str, Any], batch: Batch) -> None:
    """Add the hops of the item to an output, this one included, and the trail."""
    marks = batch.marker(context, "moved", document["q"]).marks(item)
    hops = item.hops + (context.stage is not None)
    if hops:
        document["hops"] = hops
    trail = item.stored("trail", [])
    fields = marks.in_document({"trail": trail if isinstance(trail, list) else []})
    if new_trail := fields.get("trail", trail):
        document["trail"] = new_trail


def _attempt(
    context: QueueContext[Any], wanted: Sequence[_ForkedItem]
) -> Flow[tuple[Sequence[_ForkedItem], list[Promoted]]]:
    _, promoted = yield from settle_within(context, [(forked.item, forked.settlement) for forked in wanted])
    for chunk in chunks([document for forked in wanted for document in forked.raw], lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
    return wanted, promoted


def _record_done(context: QueueContext[Any], result: tuple[Sequence[_ForkedItem], list[Promoted]]) -> None:
    forked_items, promoted = result
    record_promoted(context.broker, promoted)
    mark_done(context, group_by_statement((forked.item, forked.settlement) for forked in forked_items), BulkResult())
    for forked in forked_items:
        for document in forked.outputs:
            context.broker.record_put(document["q"], document["when"], document["priority"], id=document["_id"])
