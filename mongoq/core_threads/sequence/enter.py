# Generated from mongoq/core/sequence/enter.py by scripts/unasync.py. Do not edit.
"""Entering a sequence: an item gets its place from the control document, in the transaction that writes the item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mongoq.core.command import Command
from mongoq.core.sequence.enter import Entry, _context
from mongoq.core.sequence.leave import update_alike
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core_threads.base.statements import send_statements
from mongoq.core_threads.base.transaction import ensure_possible
from mongoq.core_threads.perform import perform
from mongoq.core_threads.sequence.leave import promote
from mongoq.data.item import Document
from mongoq.data.sequence import Target, control_id, held_entries


def enter_all(broker: BrokerContext, wanted: Iterable[Target]) -> dict[Target, Entry]:
    """Reserve places in sequences, one for each time that a sequence is named (``find``, ``insert``, ``update``).

    Called in the transaction that writes the items. Another transaction that enters or empties one of the sequences
    conflicts with it at the control document, and one of the two is tried again.
    """
    numbers = Counter(wanted)
    if not numbers:
        return {}
    ids = {control_id(*target): target for target in numbers}
    documents = find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    controls: dict[Target, Document] = {ids[document["_id"]]: document for document in documents}
    new: list[Document] = []
    known: dict[tuple[int, int], list[str]] = {}
    entries: dict[Target, Entry] = {}
    raised: dict[str, dict[str, int]] = {}
    for id, target in ids.items():
        (queue, sequence), control, number = target, controls.get(target), numbers[target]
        opened, place = (0, 0) if control is None else (control.get("open", 0), control.get("next", 0))
        most = _context(broker, queue).settings.max_in_sequence
        heads = 0 if held_entries(control or {}) else max(min(most - opened, number), 0)
        entries[target] = Entry(sequence, place, heads)
        if control is None:
            new.append({"_id": id, "queue": queue, "sequence": sequence, "next": number, "open": heads})
            continue
        known.setdefault((number, heads), []).append(id)
        if heads:
            raised.setdefault(queue, {})[sequence] = heads
    if new:
        perform(Command[Any]("insert_many", {"documents": new, "ordered": True}))
    changes = update_alike(known, lambda counts: {"$inc": {"next": counts[0], "open": counts[1]}})
    send_statements(broker, list(changes))
    # Where the limit was raised, items that wait go before the new ones.
    for queue, room in raised.items():
        for sequence, promoted in (promote(broker, queue, room)).items():
            entries[queue, sequence].promoted = promoted
            entries[queue, sequence].heads -= len(promoted)
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
