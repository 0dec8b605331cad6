"""Entering a sequence: an item gets its place from the control document, in the transaction that writes the item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core.base.statements import send_statements
from mongoq.core.base.transaction import ensure_possible
from mongoq.core.command import Command
from mongoq.core.perform import perform
from mongoq.core.sequence.leave import Promoted, promote, update_alike
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.item import Document
from mongoq.data.sequence import Target, control_id, held_entries
from mongoq.data.settings import queue_options


@dataclass(slots=True)
class Entry:
    """The places that new items take in one sequence, in their order.

    Attributes:
        sequence: the sequence.
        next: place of the next item.
        heads: so many of the next items become heads; the ones after them are blocked.
        promoted: older items that became heads before them, since the queue allows more heads than it did.
    """

    sequence: str
    next: int
    heads: int
    promoted: list[Promoted] = field(default_factory=list)

    def take(self, when: datetime) -> dict[str, Any]:
        """Take the next place, and return the fields of its item: ``when`` of a head, else ``ready_from``."""
        self.next += 1
        fields = {"sequence": self.sequence, "place": self.next - 1}
        if self.heads:
            self.heads -= 1
            return {"when": when, **fields}
        return {"ready_from": when, **fields}


async def enter_all(broker: BrokerContext, wanted: Iterable[Target]) -> dict[Target, Entry]:
    """Reserve places in sequences, one for each time that a sequence is named (``find``, ``insert``, ``update``).

    Called in the transaction that writes the items. Another transaction that enters or empties one of the sequences
    conflicts with it at the control document, and one of the two is tried again.
    """
    numbers = Counter(wanted)
    if not numbers:
        return {}
    ids = {control_id(*target): target for target in numbers}
    documents = await find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
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
        await perform(Command[Any]("insert_many", {"documents": new, "ordered": True}))
    changes = update_alike(known, lambda counts: {"$inc": {"next": counts[0], "open": counts[1]}})
    await send_statements(broker, list(changes))
    # Where the limit was raised, items that wait go before the new ones.
    for queue, room in raised.items():
        for sequence, promoted in (await promote(broker, queue, room)).items():
            entries[queue, sequence].promoted = promoted
            entries[queue, sequence].heads -= len(promoted)
    return entries


async def ensure_ready_to_enter(broker: BrokerContext, queues: Iterable[str], *, joined: bool) -> None:
    """Prepare the queues whose sequences items enter, before the transaction begins.

    Raises:
        TransactionsUnavailable: the server is no replica set.
    """
    for queue in queues:
        context = _context(broker, queue)
        if not joined:
            await ensure_possible(broker)
        await ensure_ready(context)
        await mark_ordered(context, joined=joined)


def with_place(document: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """Return the envelope of a new item with the next place of its sequence; a blocked item has no ``when``."""
    rest = {name: value for name, value in document.items() if name != "when"}
    return {**rest, **entry.take(document["when"])}


def record_new(broker: BrokerContext, document: Mapping[str, Any]) -> None:
    """Count a new item, and wake the waiters of this process for it unless it is blocked."""
    if "when" in document:
        broker.record_put(document["q"], document["when"], document["priority"], id=document["_id"])
    else:
        broker.counters.add(document["q"], "put", 1)


def _context(broker: BrokerContext, queue: str) -> QueueContext[Any]:
    return QueueContext(broker, queue_options(queue), broker.untyped)
