"""Places in sequences: how a new item gets its place, and how the next one follows an item that has left.

An item gets its place from the control document, in the transaction that writes the item. The next item gets its date
in the transaction in which the one before it leaves.

As many follow as have left, unless ``max_in_sequence`` was raised or lowered meanwhile. Then promotion does not write
the control document. Where fewer or more follow, that is written or deleted, and so conflicts with a push that saw the
sequence full: one of the two transactions is tried again.

A worker whose last claim has found nothing settles the first item. Then the next one is due for nobody but this worker,
and its claim would take half of the time. So the transaction that lets it follow also reserves it: it is handed over.
Only an item that was never claimed, has no date to start by and is due is handed over: it has nothing to be found out
by a claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from mongoq.core.base.find import find_few, find_one
from mongoq.core.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core.base.statements import Statement, send_statements
from mongoq.core.base.transaction import ensure_possible
from mongoq.core.command import Command
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext, Handed, QueueContext, Taker
from mongoq.data.indexes import BEGINNING, SEQUENCE_ORDER
from mongoq.data.item import Document
from mongoq.data.sequence import HAS_PLACE, Target, blocked_filter, control_id, held_entries
from mongoq.data.settings import DEFAULT_MAX_IN_SEQUENCE, queue_options

Kind = TypeVar("Kind", bound=Hashable)

MAX_LOOKUPS = 1_000
"""Sequences that one command looks up, at most."""
NEXT_FIELDS = {"ready_from": 1, "priority": 1, "place": 1}
"""Projection of an item that is next in its sequence."""
FIRST_FIELDS = {**NEXT_FIELDS, "when": 1}
"""Projection of the item with the first place, which may be a head."""
LATEST = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
"""Dates of other programs beyond it cannot be decoded."""
MAY_FOLLOW = {"$gte": BEGINNING, "$lte": LATEST, "$not": {"$type": "array"}}
"""Condition on ``ready_from`` of an item that may follow: a date that can be used, and no list of dates."""
OBSTACLES = ("by", "start_by")
"""Fields that keep an item from being handed over: it was claimed before, or may have expired."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """An item that is first in its sequence now.

    Attributes:
        queue: the queue.
        id: the item.
        when: the time from which on it is eligible.
        priority: its priority.
        hand_over: gives it to the worker for which it is reserved; ``None`` for an item that is to be claimed.
    """

    queue: str
    id: Any
    when: datetime
    priority: Any
    hand_over: Callable[[], None] | None = None


def make_promoted(queue: str, document: Document, now: datetime) -> Promoted:
    """Return what becomes of an item that is next in its sequence."""
    return Promoted(queue, document["_id"], max(document["ready_from"], now), document.get("priority"))


def record_promoted(broker: BrokerContext, promoted: Iterable[Promoted]) -> None:
    """Hand items over, and wake the waiters of this process for the others; called after the commit.

    Waiters of other processes hear of them by the change stream.
    """
    for item in promoted:
        if item.hand_over is not None:
            item.hand_over()
            continue
        priorities = [item.priority] if isinstance(item.priority, int) else []
        broker.record_put(item.queue, item.when, *priorities, id=item.id, is_new=False)


async def promote_first(
    broker: BrokerContext, queue: str, sequence: str, taker: Taker | None
) -> tuple[Promoted | None, bool]:
    """Promote the item with the first place of a sequence, unless it is a head (``findAndModify``).

    Called in a transaction. Returns the item, and false if another program has written a date that cannot be used.
    """
    now, ready_from = broker.clock.now(), "$ready_from"
    marks = None if taker is None else taker.reserve(now)
    is_next = [
        {"$eq": [{"$type": "$when"}, "missing"]},
        {"$eq": [{"$type": ready_from}, "date"]},
        {"$gte": [ready_from, BEGINNING]},
        {"$lte": [ready_from, LATEST]},
    ]
    fields: dict[str, Any] = {
        "when": {"$cond": [{"$and": is_next}, {"$max": [ready_from, now]}, "$when"]},
        "ready_from": {"$cond": [{"$and": is_next}, "$$REMOVE", ready_from]},
    }
    is_handed_over = {
        "$and": [
            *is_next,
            {"$lte": [ready_from, now]},
            *({"$eq": [{"$type": f"${name}"}, "missing"]} for name in OBSTACLES),
            {"$in": [{"$type": "$attempts"}, ["int", "long"]]},
            {"$eq": ["$attempts", 0]},
        ]
    }
    for name, value in ({**marks, "attempts": 1} if marks else {}).items():
        fields[name] = {"$cond": [is_handed_over, {"$literal": value}, fields.get(name, f"${name}")]}
    arguments: dict[str, Any] = {
        "filter": {"q": queue, "sequence": sequence, "place": HAS_PLACE},
        "update": [{"$set": fields}],
        "sort": [("place", 1)],
        **({} if marks else {"projection": FIRST_FIELDS}),
    }
    # Undecoded: an error would keep the item before it from being settled.
    before = await perform(Command("find_one_and_update", arguments, broker.encoding.read_reply, target="bytes"))
    if before is None:
        return None, True
    if "when" in before:
        return None, isinstance(before["when"], datetime)
    ready, attempts = before.get("ready_from"), before.get("attempts")
    if not isinstance(ready, datetime) or ready > LATEST:
        return None, False
    # The server's condition, for the item as it was.
    is_new = isinstance(attempts, int) and not isinstance(attempts, bool) and not attempts
    if taker is None or marks is None or ready > now or not is_new or any(name in before for name in OBSTACLES):
        return make_promoted(queue, before, now), True
    return Promoted(queue, before["_id"], now, None, partial(taker.accept, Handed(before, marks, now))), True


def update_alike(ids: Mapping[Kind, Sequence[Any]], update: Callable[[Kind], Mapping[str, Any]]) -> Iterable[Statement]:
    """Return one statement for all documents that get the same update: the server takes less time for it."""
    for kind, alike in ids.items():
        yield "UpdateMany", {"filter": {"_id": {"$in": alike}}, "update": update(kind)}


async def leave(
    broker: BrokerContext, queue: str, numbers: Mapping[str, int], *, taker: Taker | None = None
) -> list[Promoted]:
    """Promote the next items of sequences that so many heads have left, and return them.

    Called in the transaction in which the heads leave, after they have. ``record_promoted`` follows it. Where one head
    has left one sequence, one command finds and promotes the next item, and may reserve it for a ``taker``.
    """
    numbers = {sequence: number for sequence, number in numbers.items() if number > 0}
    if not numbers:
        return []
    state, now = broker.state(queue), broker.clock.now()
    # Unknown if this process has not read the settings of the queue.
    most = int(state.stored.get("max_in_sequence", DEFAULT_MAX_IN_SEQUENCE)) if state.ordered else None
    may_be_held = not state.ordered or "on_dead" in state.stored
    names = list(numbers)
    known: Mapping[str, list[Document]] | None = None
    if most == 1 and list(numbers.values()) == [1] and not broker.serverless:
        id, held = control_id(queue, names[0]), {"held": 1}
        if not may_be_held or not held_entries((await find_one(broker, {"_id": id}, held)) or {}):
            first, is_known = await promote_first(broker, queue, names[0], taker)
            if first is not None:
                return [first]
            known = {names[0]: [] if is_known else (await _find_following(broker, queue, names[0], 1))}
    promoted: list[Promoted] = []
    reduced: dict[int, list[str]] = {}
    closed: list[str] = []
    for start in range(0, len(names), MAX_LOOKUPS):
        some = {name: numbers[name] for name in names[start : start + MAX_LOOKUPS]}
        found = await _look_up(broker, queue, some, most, known, may_be_held=may_be_held)
        for sequence, (control, following) in found.items():
            chosen = following[: _room(control, numbers[sequence], most)]
            promoted += [make_promoted(queue, document, now) for document in chosen]
            # Heads that left without a successor; a negative number counts items that follow beyond those.
            left = numbers[sequence] - len(chosen)
            if left and control:
                if control.get("open", 0) <= left and not held_entries(control):
                    closed.append(control["_id"])  # without any head or letter it goes
                else:
                    reduced.setdefault(left, []).append(control["_id"])
    statements = [*_promotions(promoted), *update_alike(reduced, lambda left: {"$inc": {"open": -left}})]
    if closed:
        statements.append(("DeleteMany", {"filter": {"_id": {"$in": closed}}}))
    await send_statements(broker, statements)
    return promoted


def _promotions(promoted: Iterable[Promoted]) -> Iterable[Statement]:
    """Return the statements by which items follow."""
    dates: dict[datetime, list[Any]] = {}
    for item in promoted:
        dates.setdefault(item.when, []).append(item.id)
    return update_alike(dates, lambda when: {"$set": {"when": when}, "$unset": {"ready_from": ""}})


async def promote(broker: BrokerContext, queue: str, numbers: Mapping[str, int]) -> dict[str, list[Promoted]]:
    """Promote up to so many items of each sequence, without any change of the control documents; return them."""
    now = broker.clock.now()
    promoted: dict[str, list[Promoted]] = {}
    for sequence, number in numbers.items():
        following = await _find_following(broker, queue, sequence, number)
        promoted[sequence] = [make_promoted(queue, document, now) for document in following]
    await send_statements(broker, list(_promotions(item for items in promoted.values() for item in items)))
    return promoted


def _room(control: Document, number: int, most: int | None) -> int:
    """Return how many items may follow ``number`` heads that have left: as many, or what a changed limit allows."""
    opened = control.get("open")
    if held_entries(control):
        return 0
    if most is None or not isinstance(opened, int):
        return number
    return max(most - max(opened - number, 0), 0)


async def _look_up(
    broker: BrokerContext,
    queue: str,
    numbers: Mapping[str, int],
    limit: int | None,
    known: Mapping[str, list[Document]] | None,
    *,
    may_be_held: bool,
) -> dict[str, tuple[Document, list[Document]]]:
    """Read the control document of each sequence, and the items that are next in it (``aggregate``, ``find``).

    A sequence whose control document is gone, deleted by hand, has what another head would find: its next items. The
    items may be ``known`` already.
    Where one head goes, and one item follows it, the control document is not read, unless a letter may hold it.
    """
    most = max(*numbers.values(), limit or 1)
    following = dict(known or {})
    if not known and most == 1 and not broker.serverless:
        following = await _find_first(broker, queue, list(numbers))
    elif not known and not broker.serverless and len(numbers) > 1:
        following = await _join_following(broker, queue, list(numbers), most)
    elif not known:
        for sequence in numbers:
            following[sequence] = await _find_following(broker, queue, sequence, most)
    ids = {
        control_id(queue, name): name
        for name, number in numbers.items()
        if most > 1 or may_be_held or broker.serverless or len(following[name]) != number
    }
    controls: dict[str, Document] = {}
    if ids:
        documents = await find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
        controls = {ids[document["_id"]]: document for document in documents}
    return {name: (controls.get(name, {}), following[name]) for name in numbers}


async def _find_first(broker: BrokerContext, queue: str, sequences: Sequence[str]) -> dict[str, list[Document]]:
    """Find the next item of each sequence; none where a head is there, which is so after the limit was lowered.

    The server reads one entry of the index for each: a ``$sort`` by the index and a ``$group`` with nothing but
    ``$first`` are a ``DISTINCT_SCAN``. An item that another program left without a date is passed over.
    """
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"q": queue, "sequence": {"$in": sequences}, "place": HAS_PLACE}},
        {"$sort": dict(SEQUENCE_ORDER)},
        {"$group": {"_id": "$sequence", "first": {"$first": "$$ROOT"}}},
        {"$project": {f"first.{name}": 1 for name in ("_id", *FIRST_FIELDS)}},
    ]
    documents: list[Any] = await perform(Command("aggregate", {"pipeline": pipeline}))
    following: dict[str, list[Document]] = {name: [] for name in sequences}
    for document in documents:
        name, first = document["_id"], document["first"]
        if not isinstance(first.get("when", first.get("ready_from")), datetime):
            following[name] = await _find_following(broker, queue, name, 1)
        elif "when" not in first:
            following[name] = [first]
    return following


async def _join_following(
    broker: BrokerContext, queue: str, sequences: Sequence[str], most: int
) -> dict[str, list[Document]]:
    """Find up to so many next items of each sequence, by their control documents (``aggregate`` with ``$lookup``)."""
    blocked: list[Mapping[str, Any]] = [
        {"$match": {**blocked_filter(queue), "ready_from": MAY_FOLLOW}},
        {"$sort": {"place": 1}},
        {"$limit": most},
        {"$project": NEXT_FIELDS},
    ]
    lookup = {"from": broker.collection, "localField": "sequence", "foreignField": "sequence", "pipeline": blocked}
    ids = {control_id(queue, sequence): sequence for sequence in sequences}
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"_id": {"$in": list(ids)}}},
        {"$lookup": {**lookup, "as": "following"}},
        {"$project": {"following": 1}},
    ]
    documents: list[Any] = await perform(Command("aggregate", {"pipeline": pipeline}))
    found = {ids[document["_id"]]: document["following"] for document in documents}
    return {sequence: found.get(sequence, []) for sequence in sequences}


async def _find_following(broker: BrokerContext, queue: str, sequence: str, number: int) -> list[Document]:
    filter = {"q": queue, "sequence": sequence, "place": HAS_PLACE, "ready_from": MAY_FOLLOW}
    return await find_few(broker, filter, [("place", 1)], number, projection=NEXT_FIELDS)


# --- entering ------------------------------------------------------------------------------------


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
