"""Settlements of items with a place in a sequence: in one transaction the item leaves, and the next one follows.

An item that stays, such as one that goes back for a retry, keeps its place, and is settled like any other. One that is
buried may hold its sequence, which then goes on in the transaction in which the dead letter is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mongoq.model.item import Document, Item, find_held_target, has_place, id_key
from mongoq.protocol.flow import Flow
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.enter import ensure_ready_to_enter, enter_all
from mongoq.protocol.sequence.hold import Letter, hold, release, take_back
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.settlement import Settlement, record_settled, settle_alone
from mongoq.protocol.state.context import QueueContext

Wanted = tuple[Item[Any], Settlement]


def settle_one(
    context: QueueContext[Any], item: Item[Any], settlement: Settlement, *, joined: bool = False
) -> Flow[Any]:
    """Settle one item by itself, and return the answer for the caller.

    An item of a sequence is settled in a transaction: the caller's if there is one (``joined``), else one of its own.
    """
    # Looked at here, since almost all items have no place, and each function that a call enters takes its time.
    document = item._document  # noqa: SLF001
    if ("place" in document or "origin" in document or settlement.enters is not None) and is_in_order(item, settlement):
        return _settle_in_transaction(context, item, settlement, joined=joined)
    return settle_alone(context, item, settlement)


def _settle_in_transaction(
    context: QueueContext[Any], item: Item[Any], settlement: Settlement, *, joined: bool
) -> Flow[Any]:
    """Settle an item, and let the next one follow; a crash before the commit leaves the item reserved."""
    yield from get_ready_to_enter(context, [(item, settlement)], joined=joined)
    attempt = partial(_settle_in_order, context, item, settlement)
    settled, promoted = yield from run_atomic(context.broker, attempt, joined=joined)
    record_settled(context, item, settled)
    record_promoted(context.broker, promoted)
    return settlement.answer


def _settle_in_order(
    context: QueueContext[Any], item: Item[Any], settlement: Settlement
) -> Flow[tuple[Settlement, list[Promoted]]]:
    [(_, changed)], promoted = yield from rewrite(context, [(item, settlement)])
    yield from settle_alone(context, item, changed, joined=True)
    return changed, promoted + (yield from promote_next(context, [(item, settlement)]))


def is_in_order(item: Item[Any], settlement: Settlement) -> bool:
    """Return whether a settlement changes a sequence: the item leaves its place, takes one, or holds others up."""
    if settlement.enters is not None:
        return True
    return settlement.leaves and (has_place(item) or find_held_target(item) is not None)


def get_ready_to_enter(context: QueueContext[Any], wanted: Iterable[Wanted], *, joined: bool) -> Flow[None]:
    """Prepare the queues into whose sequences items go, before the transaction begins."""
    queues = {settlement.put.queue for _, settlement in wanted if settlement.enters and settlement.put}
    yield from ensure_ready_to_enter(context.broker, queues, joined=joined)


def rewrite(context: QueueContext[Any], wanted: Sequence[Wanted]) -> Flow[tuple[list[Wanted], list[Promoted]]]:
    """Return the settlements with the places that they take and give up; called in the transaction.

    A dead letter that is moved back into the sequence that it holds takes its old place there. Also returns older items
    of other sequences that became heads meanwhile.
    """
    places, freed = yield from _take_back(context, wanted)
    entries = yield from enter_all(
        context.broker,
        (
            (settlement.put.queue, settlement.enters)
            for item, settlement in wanted
            if settlement.enters is not None and settlement.put is not None and id_key(item.id) not in places
        ),
    )
    promoted = [*freed, *(item for entry in entries.values() for item in entry.promoted)]
    shared: dict[int, Settlement] = {}
    changed: list[Wanted] = []
    for item, settlement in wanted:
        if (key := id_key(item.id)) in places and settlement.put is not None:
            fields = {"sequence": settlement.enters, "place": places[key], "when": settlement.put.when}
            changed.append((item, _with_unset(_with_place(settlement, fields), ("origin.place",))))
        elif settlement.enters is not None and settlement.put is not None:
            entry = entries[settlement.put.queue, settlement.enters]
            changed.append((item, _with_place(settlement, entry.take(settlement.put.when))))
        elif settlement.leaves and has_place(item):
            changed.append((item, shared.setdefault(id(settlement), _without_place(settlement))))
        else:
            changed.append((item, settlement))
    return changed, promoted


def _take_back(context: QueueContext[Any], wanted: Sequence[Wanted]) -> Flow[tuple[dict[Any, int], list[Promoted]]]:
    """Return the old places of letters that are moved back into the sequences that they hold, by ``id_key``."""
    letters: dict[str, list[Document]] = {}
    for item, settlement in wanted:
        target = find_held_target(item) if settlement.enters is not None else None
        if target is not None and settlement.put is not None and target == (settlement.put.queue, settlement.enters):
            letters.setdefault(target[0], []).append(item._document)  # noqa: SLF001
    places: dict[Any, int] = {}
    freed: list[Promoted] = []
    for queue, documents in letters.items():
        found, promoted = yield from take_back(context.broker, queue, documents)
        places |= found
        freed += promoted
    return places, freed


def promote_next(context: QueueContext[Any], wanted: Iterable[Wanted]) -> Flow[list[Promoted]]:
    """Let the next items of the sequences go, after these items have left; called in the transaction.

    Items that were buried may hold their sequences; letters that have left hold theirs no longer.
    """
    gone = [pair for pair in wanted if pair[1].leaves]
    letters = [pair for pair in gone if pair[1].is_burial and has_place(pair[0]) and context.settings.holds_sequences]
    yield from hold(context.broker, context.name, [_letter(context, item) for item, _ in letters])
    held = {id(item) for item, _ in letters}
    left = Counter(str(item.sequence) for item, _ in gone if has_place(item) and id(item) not in held)
    promoted = yield from leave(context.broker, context.name, left, taker=context.taker)
    targets = [target for item, _ in gone if (target := find_held_target(item)) is not None]
    return promoted + (yield from release(context.broker, targets))


def _letter(context: QueueContext[Any], item: Item[Any]) -> Letter:
    return Letter(item.id, str(context.settings.dead), str(item.sequence), item.stored("place"))


def _without_place(settlement: Settlement) -> Settlement:
    """Return the settlement that also takes the place; an item that is moved belongs to no sequence any more."""
    if settlement.update is None:
        return settlement
    gone = ("place", "sequence") if settlement.event == "move" else ("place",)
    return _with_unset(settlement, gone)


def _with_unset(settlement: Settlement, fields: Sequence[str]) -> Settlement:
    update = settlement.update or {}
    unset = {**update.get("$unset", {}), **dict.fromkeys(fields, "")}
    return replace(settlement, update={**update, "$unset": unset})


def _with_place(settlement: Settlement, fields: Mapping[str, Any]) -> Settlement:
    """Return the settlement that gives the item a place; a blocked item has no ``when``."""
    update = settlement.update or {}
    changes = {**update["$set"], **fields}
    if "when" in fields:
        return replace(settlement, update={**update, "$set": changes})
    del changes["when"]
    put = None if settlement.put is None else settlement.put._replace(is_due=False)
    blocked = replace(settlement, update={**update, "$set": changes}, put=put)
    return _with_unset(blocked, ("when",))
