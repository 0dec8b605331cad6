# Generated from mongoq/protocol/sequence/enter.py by scripts/unasync.py. Do not edit.
"""Entering a sequence: an item gets its place from the control document, in the transaction that writes the item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mongoq.model.item import Document
from mongoq.model.sequence import Target, control_id, held_entries
from mongoq.protocol.command import Command
from mongoq.protocol.sequence.enter import Entry, _context
from mongoq.protocol.sequence.leave import update_alike
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.base.queue_settings import ensure_ready, mark_ordered
from mongoq.protocol_threads.base.statements import send_statements
from mongoq.protocol_threads.base.transaction import ensure_possible
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.leave import promote


def enter(context: QueueContext[Any], numbers: Mapping[str, int]) -> dict[str, Entry]:
    """Reserve places for so many new items in each sequence of a queue (``find``, ``insert``, ``update``).

    Called in the transaction that writes the items. Another transaction that enters or empties one of the sequences
    conflicts with it at the control document, and one of the two is tried again.
    """
    broker, queue, most = context.broker, context.name, context.settings.max_in_sequence
    ids = {control_id(queue, sequence): sequence for sequence in numbers}
    documents = find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    controls: dict[str, Document] = {ids[document["_id"]]: document for document in documents}
    new: list[Document] = []
    known: dict[tuple[int, int], list[str]] = {}
    entries: dict[str, Entry] = {}
    raised: dict[str, int] = {}
    for id, sequence in ids.items():
        control, number = controls.get(sequence), numbers[sequence]
        opened, place = (0, 0) if control is None else (control.get("open", 0), control.get("next", 0))
        heads = 0 if held_entries(control or {}) else max(min(most - opened, number), 0)
        entries[sequence] = Entry(sequence, place, heads)
        if control is None:
            new.append({"_id": id, "queue": queue, "sequence": sequence, "next": number, "open": heads})
            continue
        known.setdefault((number, heads), []).append(id)
        if heads:
            raised[sequence] = heads
    if new:
        perform(Command[Any]("insert_many", {"documents": new, "ordered": True}))
    changes = update_alike(known, lambda counts: {"$inc": {"next": counts[0], "open": counts[1]}})
    send_statements(broker, list(changes))
    # Where the limit was raised, items that wait go before the new ones.
    for sequence, promoted in (promote(broker, queue, raised)).items():
        entries[sequence].promoted = promoted
        entries[sequence].heads -= len(promoted)
    return entries


def ensure_ready_to_enter(broker: BrokerContext, queues: Iterable[str], *, joined: bool) -> None:
    """Prepare the queues whose sequences items enter, before the transaction begins.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    for queue in queues:
        context = _context(broker, queue)
        if not joined:
            ensure_possible(broker)
        ensure_ready(context)
        mark_ordered(context, joined=joined)


def enter_all(broker: BrokerContext, wanted: Iterable[Target]) -> dict[Target, Entry]:
    """Reserve places in sequences of several queues, one for each time that a sequence is named; see ``enter``."""
    numbers: dict[str, Counter[str]] = {}
    for queue, sequence in wanted:
        numbers.setdefault(queue, Counter())[sequence] += 1
    entries: dict[Target, Entry] = {}
    for queue, each in numbers.items():
        entered = enter(_context(broker, queue), each)
        entries |= {(queue, sequence): entry for sequence, entry in entered.items()}
    return entries
