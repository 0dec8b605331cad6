# Generated from mongoq/protocol/settle/in_order.py by scripts/unasync.py. Do not edit.
"""Settlements of items with a place in a sequence: in one transaction the item leaves, and the next one follows.

An item that stays, such as one that goes back for a retry, keeps its place, and is settled like any other. One that is
buried may hold its sequence, which then goes on in the transaction in which the dead letter is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from mongoq.model.item import Document, Item, find_held_target, has_place, id_key
from mongoq.protocol.sequence.hold import Letter
from mongoq.protocol.sequence.leave import Promoted
from mongoq.protocol.settle.exchange import FenceMiss
from mongoq.protocol.settle.in_order import InOrder, _with_place, is_in_order, record_in_order
from mongoq.protocol.settle.settlement import Settlement, Wanted, group_by_statement
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.statements import send_statements
from mongoq.protocol_threads.base.transaction import run_atomic
from mongoq.protocol_threads.sequence.enter import ensure_ready_to_enter, enter_all
from mongoq.protocol_threads.sequence.hold import hold, release, take_back
from mongoq.protocol_threads.sequence.leave import leave
from mongoq.protocol_threads.settle.settlement import settle_alone


def settle_one(context: QueueContext[Any], item: Item[Any], settlement: Settlement, *, joined: bool = False) -> Any:
    """Settle one item by itself, and return the answer for the caller.

    An item of a sequence is settled in a transaction: the caller's if there is one (``joined``), else one of its own.
    A crash before the commit leaves it reserved.
    """
    if is_in_order(item, settlement):
        wanted = [(item, settlement)]
        get_ready_to_enter(context, wanted, joined=joined)
        record_in_order(context, (run_atomic(context.broker, partial(settle_within, context, wanted), joined=joined)))
        return settlement.answer
    return settle_alone(context, item, settlement)


def get_ready_to_enter(context: QueueContext[Any], wanted: Iterable[Wanted], *, joined: bool) -> None:
    """Prepare the queues into whose sequences items go, before the transaction begins."""
    queues = {settlement.put.queue for _, settlement in wanted if settlement.enters and settlement.put}
    ensure_ready_to_enter(context.broker, queues, joined=joined)


def settle_within(context: QueueContext[Any], wanted: Sequence[Wanted]) -> InOrder:
    """Settle items inside a transaction, and let the next ones of their sequences go; return what is to be recorded.

    Raises:
        FenceMiss: not all of them were found under their tokens; a single one raises its own error.
    """
    changed, promoted = wanted, list[Promoted]()
    if is_ordered := any(is_in_order(*pair) for pair in wanted):
        changed, promoted = _rewrite(context, wanted)
    if len(changed) == 1:
        settle_alone(context, *changed[0], joined=True)
    else:
        statements = [group.statement() for group in group_by_statement(changed)]
        if (send_statements(context.broker, statements)) < len(wanted):
            raise FenceMiss
    return changed, promoted + ((_promote_next(context, wanted)) if is_ordered else [])


def _rewrite(context: QueueContext[Any], wanted: Sequence[Wanted]) -> tuple[list[Wanted], list[Promoted]]:
    """Return the settlements with the places that they take and give up.

    A dead letter that is moved back into the sequence that it holds takes its old place there. Also returns older items
    of other sequences that became heads meanwhile.
    """
    letters: dict[str, list[Document]] = {}
    entering = [(item, each.put.queue, each.enters) for item, each in wanted if each.put is not None and each.enters]
    for item, queue, sequence in entering:
        if find_held_target(item) == (queue, sequence):
            letters.setdefault(queue, []).append(item._document)  # noqa: SLF001
    places: dict[Any, int] = {}
    promoted: list[Promoted] = []
    for queue, documents in letters.items():
        found, freed = take_back(context.broker, queue, documents)
        places |= found
        promoted += freed
    targets = [(queue, sequence) for item, queue, sequence in entering if id_key(item.id) not in places]
    entries = enter_all(context.broker, targets)
    promoted += [item for entry in entries.values() for item in entry.promoted]
    shared: dict[int, Settlement] = {}
    changed: list[Wanted] = []
    for item, settlement in wanted:
        put, enters, key = settlement.put, settlement.enters, id_key(item.id)
        if enters and put is not None and key in places:
            fields = {"sequence": enters, "place": places[key], "when": put.when}
            settlement = _with_place(settlement, fields, unset=("origin.place",))  # noqa: PLW2901
        elif enters and put is not None:
            settlement = _with_place(settlement, entries[put.queue, enters].take(put.when))  # noqa: PLW2901
        elif settlement.leaves and settlement.update is not None and has_place(item):
            if id(settlement) not in shared:
                # an item that is moved belongs to no sequence any more
                gone = ("place", "sequence") if settlement.event == "move" else ("place",)
                shared[id(settlement)] = _with_place(settlement, {}, unset=gone)
            settlement = shared[id(settlement)]  # noqa: PLW2901
        changed.append((item, settlement))
    return changed, promoted


def _promote_next(context: QueueContext[Any], wanted: Iterable[Wanted]) -> list[Promoted]:
    """Let the next items of the sequences go, after these items have left.

    Items that were buried may hold their sequences; letters that have left hold theirs no longer.
    """
    letters: list[Letter] = []
    left: Counter[str] = Counter()
    gone = [(item, settlement) for item, settlement in wanted if settlement.leaves]
    for item, settlement in gone:
        if has_place(item) and settlement.is_burial and context.settings.holds_sequences:
            letters.append(Letter(item.id, str(context.settings.dead), str(item.sequence), item.stored("place")))
        elif has_place(item):
            left[str(item.sequence)] += 1
    hold(context.broker, context.name, letters)
    promoted = leave(context.broker, context.name, left, taker=context.taker)
    targets = [target for item, _ in gone if (target := find_held_target(item)) is not None]
    return promoted + (release(context.broker, targets))
