"""Leaving a sequence: the next item gets its date in the transaction in which the one before it leaves.

As many follow as have left, unless ``max_in_sequence`` was raised or lowered meanwhile. Then promotion does not write
the control document. Where fewer or more follow, that is written or deleted, and so conflicts with a push that saw the
sequence full: one of the two transactions is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mongoq.model.indexes import SEQUENCE_ORDER
from mongoq.model.item import Document
from mongoq.model.sequence import HAS_PLACE, blocked_filter, control_id, held_entries
from mongoq.model.settings import DEFAULT_MAX_IN_SEQUENCE
from mongoq.protocol.base.find import find_few, find_one
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.command import Command
from mongoq.protocol.perform import perform
from mongoq.protocol.sequence.control import update_alike
from mongoq.protocol.sequence.promotion import (
    FIRST_FIELDS,
    MAY_FOLLOW,
    NEXT_FIELDS,
    Promoted,
    make_promoted,
    promote_first,
)
from mongoq.protocol.state.context import BrokerContext
from mongoq.protocol.state.taker import Taker

MAX_LOOKUPS = 1_000
"""Sequences that one command looks up, at most."""


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
    if not known and most == 1:
        following = await _find_first(broker, queue, list(numbers))
    elif not known and not broker.serverless and len(numbers) > 1:
        following = await _join_following(broker, queue, list(numbers), most)
    elif not known:
        for sequence in numbers:
            following[sequence] = await _find_following(broker, queue, sequence, most)
    ids = {
        control_id(queue, name): name
        for name, number in numbers.items()
        if most > 1 or may_be_held or len(following[name]) != number
    }
    controls: dict[str, Document] = {}
    if ids:
        documents = await find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
        controls = {ids[document["_id"]]: document for document in documents}
    return {name: (controls.get(name, {}), following[name]) for name in numbers}


async def _find_first(broker: BrokerContext, queue: str, sequences: Sequence[str]) -> dict[str, list[Document]]:
    """Find the next item of each sequence; none where a head is there, which is so after the limit was lowered.

    Of many sequences the server reads one entry of the index for each: a ``$sort`` by the index and a ``$group`` with
    nothing but ``$first`` are a ``DISTINCT_SCAN``. An item that another program left without a date is passed over.
    """
    first: dict[str, Document] = {}
    if broker.serverless or len(sequences) == 1:
        for sequence in sequences:
            filter = {"q": queue, "sequence": sequence, "place": HAS_PLACE}
            for document in await find_few(broker, filter, [("place", 1)], 1, projection=FIRST_FIELDS):
                first[sequence] = document
    else:
        pipeline: list[Mapping[str, Any]] = [
            {"$match": {"q": queue, "sequence": {"$in": sequences}, "place": HAS_PLACE}},
            {"$sort": dict(SEQUENCE_ORDER)},
            {"$group": {"_id": "$sequence", "first": {"$first": "$$ROOT"}}},
            {"$project": {f"first.{name}": 1 for name in ("_id", *FIRST_FIELDS)}},
        ]
        documents: list[Any] = await perform(Command("aggregate", {"pipeline": pipeline}))
        first = {document["_id"]: document["first"] for document in documents}
    following = {name: [first[name]] if name in first and "when" not in first[name] else [] for name in sequences}
    for name, document in first.items():
        if not isinstance(document.get("when", document.get("ready_from")), datetime):
            following[name] = await _find_following(broker, queue, name, 1)
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
