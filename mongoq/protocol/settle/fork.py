"""Forks: items that become several, settled in the transaction that writes what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import MongoqError, OutcomeInvalid, PayloadTooLarge
from mongoq.model.item import Document, Item, id_key
from mongoq.model.outcomes import Fork
from mongoq.protocol.flow.chunking import chunks
from mongoq.protocol.flow.commands import Command, Flow
from mongoq.protocol.settle.bulk import BulkResult, Settlement, did, found_by, groups, statements
from mongoq.protocol.settle.exchange import Exchange, FenceMiss, exchanged
from mongoq.protocol.settle.move_many import Moves
from mongoq.protocol.settle.outputs import noted, output
from mongoq.protocol.settle.settle_many import Batch, committing
from mongoq.protocol.state.context import QueueContext

__all__ = ["forked"]

OUTPUTS = 10_000
BYTES = 32 * 1024 * 1024
"""The most that comes of one item, and what one transaction carries: the server keeps all of it in its cache."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An item, how it is settled, and what is written for it, as it is noted and as it travels."""

    item: Item[Any]
    settlement: Settlement
    outputs: Sequence[Document]
    raw: list[RawBSONDocument]

    @property
    def size(self) -> int:
        return sum(len(document.raw) for document in self.raw)


def forked(
    context: QueueContext[Any], wanted: Iterable[tuple[Item[Any], Fork]], batch: Batch, moves: Moves
) -> Flow[dict[Any, Exception]]:
    """Settle items and write what comes of them, and return by ``id_key`` the errors of those that were not settled.

    A crash leaves each as it was, or with all that comes of it.
    """
    failed: dict[Any, Exception] = {}
    exchanges = []
    for item, fork in wanted:
        try:
            exchanges.append(_exchange(context, item, fork, batch, moves))
        except MongoqError as error:
            failed[id_key(item.id)] = error
    way = Exchange(context, partial(_attempt, context), _item_of, partial(_noted, context))
    for chunk in _chunks(exchanges):
        failed |= yield from exchanged(way, chunk)
    return failed


def _exchange(context: QueueContext[Any], item: Item[Any], fork: Fork, batch: Batch, moves: Moves) -> _Exchange:
    told = fork.moves
    if len(told) > OUTPUTS:
        raise OutcomeInvalid(f"a fork of {len(told):,} outputs, and {OUTPUTS:,} is the limit; fork in two steps")
    outputs = [output(context, item, move, moves, id=ObjectId()) for move in told]
    for document in outputs:
        _mark(context, item, document, batch)
    exchange = _Exchange(
        item, committing(context, item, batch), outputs, list(map(context.broker.encoding.raw, outputs))
    )
    if exchange.size > BYTES:
        raise PayloadTooLarge(f"outputs of a fork into {len(told):,}", exchange.size, BYTES)
    return exchange


def _mark(context: QueueContext[Any], item: Item[Any], document: dict[str, Any], batch: Batch) -> None:
    """Let an output go on where the item was: its hops, this one included, and its trail."""
    marks = batch.marker(context, "moved", document["q"]).marks(item)
    hops = item.hops + (context.stage is not None)
    if hops:
        document["hops"] = hops
    trail = item.stored("trail", [])
    marked = {**marks.in_document({"trail": trail if isinstance(trail, list) else []})}
    if stored := marked.get("trail", trail):
        document["trail"] = stored


def _chunks(exchanges: Sequence[_Exchange]) -> Iterator[list[_Exchange]]:
    return chunks(exchanges, lambda one: one.size, items=lambda one: len(one.raw) + 1)


def _item_of(one: _Exchange) -> Item[Any]:
    return one.item


def _attempt(context: QueueContext[Any], wanted: Sequence[_Exchange]) -> Flow[Sequence[_Exchange]]:
    requests = statements(groups((one.item, one.settlement) for one in wanted))
    if (yield from found_by(context.broker, requests)) < len(wanted):
        raise FenceMiss
    for chunk in chunks([document for one in wanted for document in one.raw], lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
    return wanted


def _noted(context: QueueContext[Any], done: Sequence[_Exchange]) -> None:
    did(context, groups((one.item, one.settlement) for one in done), BulkResult())
    for one in done:
        for document in one.outputs:
            noted(context, document)
