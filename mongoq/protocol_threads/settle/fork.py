# Generated from mongoq/protocol/settle/fork.py by scripts/unasync.py. Do not edit.
"""Forks: an item becomes several, and is settled in the transaction that writes its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.errors import MongoqError
from mongoq.model.item import Document, Item, id_key
from mongoq.model.outcomes import Fork
from mongoq.protocol.command import Command, chunks, own_error
from mongoq.protocol.sequence.enter import with_place
from mongoq.protocol.settle.fork import _ForkedItem, _record_done, check_fork
from mongoq.protocol.settle.in_order import InOrder
from mongoq.protocol.settle.move import Moves
from mongoq.protocol.settle.settlement import Batch
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.enter import ensure_ready_to_enter, enter_all
from mongoq.protocol_threads.settle.exchange import Exchange, run_exchange
from mongoq.protocol_threads.settle.in_order import settle_within


def fork_items(
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
            ensure_ready_to_enter(context.broker, queues, joined=False)
        except Exception as error:  # raised here, it would hide what became of the other items of the caller
            return failed | {id_key(entry.item.id): own_error(error) for entry in forked}
    exchange = Exchange(context, partial(_attempt, context), attrgetter("item"), on_done=partial(_record_done, context))
    for chunk in chunks(forked, lambda entry: entry.size, items=lambda entry: len(entry.raw) + 1):
        failed |= run_exchange(exchange, chunk)
    return failed


def _attempt(context: QueueContext[Any], wanted: Sequence[_ForkedItem]) -> tuple[InOrder, list[Document]]:
    """Settle items and write their outputs in a transaction; return what is to be recorded of both."""
    settled, promoted = settle_within(context, [(forked.item, forked.settlement) for forked in wanted])
    entries = enter_all(context.broker, [target for forked in wanted for target in forked.entered])
    outputs: list[Document] = []
    documents: list[RawBSONDocument] = []
    for forked in wanted:
        for output, raw, sequence in zip(forked.outputs, forked.raw, forked.sequences, strict=True):
            placed = output if sequence is None else with_place(output, entries[output["q"], sequence])
            outputs.append(placed)
            documents.append(raw if sequence is None else context.broker.encoding.raw(placed))
    for chunk in chunks(documents, lambda document: len(document.raw)):
        perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
    promoted += [item for entry in entries.values() for item in entry.promoted]
    return (settled, promoted), outputs
