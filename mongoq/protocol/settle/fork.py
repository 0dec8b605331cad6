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
from mongoq.model.sequence import Target
from mongoq.model.settings import KEEP
from mongoq.protocol.command import Command, chunks, own_error
from mongoq.protocol.perform import perform
from mongoq.protocol.push.draft import due_time, last_start
from mongoq.protocol.sequence.enter import ensure_ready_to_enter, enter_all, record_new, with_place
from mongoq.protocol.settle.exchange import Exchange, run_exchange
from mongoq.protocol.settle.in_order import InOrder, record_in_order, settle_within
from mongoq.protocol.settle.move import Moves, new_headers
from mongoq.protocol.settle.settle import make_commit
from mongoq.protocol.settle.settlement import Batch, Settlement
from mongoq.protocol.state.context import QueueContext


def make_output(
    context: QueueContext[Any], item: Item[Any], move: Move, moves: Moves, *, id: ObjectId
) -> dict[str, Any]:
    """Return the envelope of a new item, by a move of the old one."""
    checked, payload = moves.check(move)
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
        start_by=None if checked.expires is None else last_start(context.broker.clock, checked.expires, None),
    )


MAX_OUTPUTS = 10_000
"""Outputs of one item, at most."""
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
"""Bytes of one item's outputs, and of one transaction, at most: the server keeps all of it in its cache."""


@dataclass(frozen=True, slots=True)
class _ForkedItem:
    """An item, its settlement, and its outputs as documents and in the form to send.

    Attributes:
        sequences: sequences that the outputs enter, ``None`` for an output that waits for no other item.
    """

    item: Item[Any]
    settlement: Settlement
    outputs: Sequence[Document]
    raw: list[RawBSONDocument]
    sequences: Sequence[str | None]

    @property
    def entered(self) -> list[Target]:
        """Sequences of queues that the outputs enter, in their order, once for each output."""
        pairs = zip(self.outputs, self.sequences, strict=True)
        return [(document["q"], sequence) for document, sequence in pairs if sequence is not None]

    @property
    def size(self) -> int:
        return sum(len(document.raw) for document in self.raw)


async def fork_items(
    context: QueueContext[Any], wanted: Iterable[tuple[Item[Any], Fork]], batch: Batch, moves: Moves
) -> dict[Any, Exception]:
    """Settle items and write their outputs; return the errors of items that were not settled, by ``id_key``.

    Outputs with a sequence take places at its end in the same transaction. A crash leaves each item as it was, or
    settled with all of its outputs.
    """
    failed: dict[Any, Exception] = {}
    forked = []
    for item, fork in wanted:
        try:
            forked.append(check_fork(context, item, fork, batch, moves))
        except MongoqError as error:
            failed[id_key(item.id)] = error
    if queues := {queue for entry in forked for queue, _ in entry.entered}:
        try:
            await ensure_ready_to_enter(context.broker, queues, joined=False)
        except Exception as error:  # raised here, it would hide what became of the other items of the caller
            return failed | {id_key(entry.item.id): own_error(error) for entry in forked}
    exchange = Exchange(context, partial(_attempt, context), attrgetter("item"), on_done=partial(_record_done, context))
    for chunk in chunks(forked, lambda entry: entry.size, items=lambda entry: len(entry.raw) + 1):
        failed |= await run_exchange(exchange, chunk)
    return failed


def check_fork(context: QueueContext[Any], item: Item[Any], fork: Fork, batch: Batch, moves: Moves) -> _ForkedItem:
    """Check a fork, and return it with its outputs; raises the errors of a fork that cannot be applied."""
    number = len(fork.moves)
    if number > MAX_OUTPUTS:
        raise OutcomeInvalid(f"a fork of {number:,} outputs, and {MAX_OUTPUTS:,} is the limit; fork in two steps")
    outputs = [make_output(context, item, move, moves, id=ObjectId()) for move in fork.moves]
    for document in outputs:
        _mark_output(context, item, document, batch)
    raw = list(map(context.broker.encoding.raw, outputs))
    sequences = [move.sequence for move in fork.moves]
    forked = _ForkedItem(item, make_commit(context, item, batch), outputs, raw, sequences)
    if forked.size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(f"outputs of a fork into {number:,}", forked.size, MAX_TRANSACTION_BYTES)
    return forked


def _mark_output(context: QueueContext[Any], item: Item[Any], document: dict[str, Any], batch: Batch) -> None:
    """Add the hops of the item to an output, this one included, and the trail."""
    marks = batch.marker(context, "moved", document["q"]).marks(item)
    document["hops"] = item.hops + 1
    trail = item.stored("trail", [])
    fields = marks.in_document({"trail": trail if isinstance(trail, list) else []})
    if new_trail := fields.get("trail", trail):
        document["trail"] = new_trail


async def _attempt(context: QueueContext[Any], wanted: Sequence[_ForkedItem]) -> tuple[InOrder, list[Document]]:
    """Settle items and write their outputs in a transaction; return what is to be recorded of both."""
    settled, promoted = await settle_within(context, [(forked.item, forked.settlement) for forked in wanted])
    entries = await enter_all(context.broker, [target for forked in wanted for target in forked.entered])
    outputs: list[Document] = []
    documents: list[RawBSONDocument] = []
    for forked in wanted:
        for output, raw, sequence in zip(forked.outputs, forked.raw, forked.sequences, strict=True):
            placed = output if sequence is None else with_place(output, entries[output["q"], sequence])
            outputs.append(placed)
            documents.append(raw if sequence is None else context.broker.encoding.raw(placed))
    for chunk in chunks(documents, lambda document: len(document.raw)):
        await perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
    promoted += [item for entry in entries.values() for item in entry.promoted]
    return (settled, promoted), outputs


def _record_done(context: QueueContext[Any], result: tuple[InOrder, list[Document]]) -> None:
    record_in_order(context, result[0])
    for document in result[1]:
        record_new(context.broker, document)
