# Generated from mongoq/core/settle/send.py by scripts/unasync.py. Do not edit.
"""Sending settlements: alone, many in one bulk, or in a transaction; and the result for each item.

Every statement is fenced: it finds its item only under the token of the reservation. The server answers a bulk with
totals only. When fewer items were found than were sent, the stored documents tell which.

Items with places in sequences, and forks, are settled in transactions: the item leaves, the next one of its sequence
follows, and its outputs are written. An item that stays, such as one that goes back for a retry, keeps its place, and
is settled like any other. One that is buried may hold its sequence, which then goes on in the transaction in which the
dead letter is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.core.base.statements import MAX_STATEMENTS, number_found
from mongoq.core.command import (
    Command,
    Duplicate,
    Interruption,
    PartlyRefused,
    Refused,
    ReplyLost,
    Shared,
    chunks,
    copies,
    finish,
    has_matched,
    own_error,
)
from mongoq.core.sequence.hold import Letter
from mongoq.core.sequence.places import Promoted, record_new, record_promoted, with_place
from mongoq.core.settle.exchange import STATE_FIELDS, FenceMiss, make_lost_error
from mongoq.core.settle.send import (
    LEASE_MARGIN,
    MAX_TRANSACTION_ITEMS,
    UNPROVEN,
    MakeSettlement,
    Results,
    _ends_by,
    _needs_transaction,
    _record_done,
    _with_place,
    check_items,
    check_owner,
)
from mongoq.core.settle.settlement import Batch, Group, Settlement, Wanted, group_by_statement, record_settled
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_and_report
from mongoq.core_threads.base.statements import send_statements
from mongoq.core_threads.base.transaction import run_atomic
from mongoq.core_threads.perform import perform, share
from mongoq.core_threads.push.insert import raise_duplicate
from mongoq.core_threads.sequence.hold import hold, release, take_back
from mongoq.core_threads.sequence.places import ensure_ready_to_enter, enter_all, leave
from mongoq.core_threads.settle.exchange import read_states, run_exchange
from mongoq.data.encoding.codec import SIZE_LIMIT
from mongoq.data.envelope import Document
from mongoq.data.item import Item, find_held_target, has_place, id_key
from mongoq.errors import MongoqError, PatchInvalid, PayloadTooLarge, ReservationLost

# --- of one caller, and of callers together ------------------------------------------------------


def settle_item(
    context: QueueContext[Any],
    item: Item[Any],
    make: MakeSettlement,
    *,
    joined: bool = False,
    shared: bool = False,
) -> Any:
    """Settle one item, and return the answer for its caller; ``shared``: callers may share a command for it.

    ``joined``: it happens in the caller's transaction.
    """
    check_owner(context, item)
    ensure_ready(context)
    # Near the end of its lease the answer must be exact, so the item goes alone; other callers need not wait for it.
    # So does an item of a sequence, whose settlement may need a transaction.
    if (
        joined
        or not (shared and context.broker.group_commit)
        or has_place(item)
        or _ends_by(item, context.state.calm_at + LEASE_MARGIN)
    ):
        return _settle_one(item, make(context, item, Batch(context.broker.clock)), joined=joined)
    return share(Shared(("settle", context.name), _settle_for_all, (context, item, make)))


def _settle_for_all(entries: list[tuple[QueueContext[Any], Item[Any], MakeSettlement]]) -> list[Any]:
    """Settle the items of several callers; if two callers settle the same item, the second one is sent by itself."""
    if len(entries) == 1:
        [(context, item, make)] = entries
        return [_settle_one(item, make(context, item, Batch(context.broker.clock)))]
    batch = Batch(entries[0][0].broker.clock)
    answers: list[Any] = [None] * len(entries)
    wanted: dict[Any, tuple[int, Wanted]] = {}
    later: list[int] = []
    for place, (context, item, make) in enumerate(entries):
        if id_key(item.id) in wanted:
            later.append(place)
            continue
        try:
            wanted[id_key(item.id)] = place, (item, make(context, item, batch))
        except Exception as error:  # it concerns this caller only; the rest of the batch goes on
            answers[place] = error
    results = settle_all([pair for _, pair in wanted.values()])
    for key, (place, (_, settlement)) in wanted.items():
        failure = results.failed.get(key)
        answers[place] = copies(failure, 1)[0] if failure else settlement.answer
    for place in later:
        context, item, make = entries[place]
        try:
            answers[place] = _settle_one(item, make(context, item, Batch(context.broker.clock)))
        except Exception as error:
            answers[place] = own_error(error)
    return answers


def settle_items(context: QueueContext[Any], items: Iterable[Item[Any]], make: MakeSettlement) -> list[Wanted]:
    """Settle items, each by ``make``; each settlement is made before anything is sent. Errors as for ``settle``."""
    checked = check_items(context, items)
    if checked:
        ensure_ready(context)
    batch = Batch(context.broker.clock)
    wanted = [(item, make(context, item, batch)) for item in checked]
    settle(context, wanted)
    return wanted


def settle(context: QueueContext[Any], wanted: Sequence[Wanted]) -> None:
    """Settle items.

    All are tried; then one ``BatchIncomplete`` names the failed items. Each command is safe to send again, and is sent
    until there is a reply, ``MAX_SENDS`` times at most. An error of the driver that concerns no single item ends it.
    """
    results = settle_all(wanted)
    # An id that is not hashable (written by another program) is named by its text.
    ids = {id_key(item.id): item.id for item, _ in wanted} if results.failed else {}
    failed = {ids[key] if isinstance(ids[key], Hashable) else key: error for key, error in results.failed.items()}
    finish(context.name, results.done, failed)


def settle_all(wanted: Sequence[Wanted]) -> Results:
    """Settle items in as few commands as possible, and return the result of each item without raising.

    A crash in between leaves some items settled and the others reserved to the ends of their leases.
    """
    results = Results()
    if not wanted:
        return results
    broker = wanted[0][1].context.broker
    soon = broker.clock.now() + LEASE_MARGIN
    together: list[Wanted] = []
    alone: list[Wanted] = []
    in_transaction: list[Wanted] = []
    for pair in wanted:
        if _needs_transaction(*pair):
            in_transaction.append(pair)
        # Near the end of a lease another consumer may claim the item meanwhile, and a total does not tell which one.
        elif broker.serverless or (pair[1].fence is None and _ends_by(pair[0], soon)):
            alone.append(pair)
        else:
            together.append(pair)
    try:
        groups = list(group_by_statement(together))
        for bulk in chunks(
            groups, lambda group: group.settlement.size, items=lambda group: len(group.items), most=MAX_STATEMENTS
        ):
            alone += _send_bulk(bulk, results)
        for item, settlement in alone:
            try:
                _settle_one(item, settlement)
                results.done.append(item.id)
            except (Interruption, MongoqError) as error:
                results.failed[id_key(item.id)] = own_error(error)
        _get_ready_to_enter(in_transaction, joined=False)
        for chunk in chunks(
            in_transaction,
            lambda pair: pair[1].size,
            items=lambda pair: len(pair[1].outputs) + 1,
            most=MAX_TRANSACTION_ITEMS,
        ):
            failed = run_exchange(broker, chunk, settle_within)
            results.done += [item.id for item, _ in chunk if id_key(item.id) not in failed]
            results.failed |= failed
    except Exception as error:  # it concerns no single item, and raised here would hide what became of the others
        resolved = {*map(id_key, results.done), *results.failed}
        results.failed |= {key: own_error(error) for item, _ in wanted if (key := id_key(item.id)) not in resolved}
    return results


# --- by a command of its own ---------------------------------------------------------------------


def _settle_one(item: Item[Any], settlement: Settlement, *, joined: bool = False) -> Any:
    """Settle one item by itself, and return the answer for the caller.

    What needs a transaction happens in the caller's if there is one (``joined``), else in one of its own. A crash
    before the commit leaves the item reserved.
    """
    if _needs_transaction(item, settlement):
        wanted = [(item, settlement)]
        _get_ready_to_enter(wanted, joined=joined)
        record = run_atomic(settlement.context.broker, partial(settle_within, wanted), joined=joined)
        record()
    else:
        send_alone(item, settlement)
        record_settled([Group(settlement, [item], [item.id])])
    return settlement.answer


def send_alone(item: Item[Any], settlement: Settlement) -> None:
    """Send the fenced command of one item; raise ``ReservationLost`` when its token no longer holds it.

    The driver sends the command as a retryable write. The server keeps a record of it, and after a lost reply the
    record tells the exact result. ``ReplyLost`` arrives here in two cases: there is no record (a standalone server,
    ``retryWrites=false``), or none of the sends was answered. Then the command is sent again. This is safe: it takes
    the token away, or sets the same values.

    If the second command finds nothing, the first one may be the reason, and ``has_happened`` decides from the stored
    document. That document is durable, since the second command has waited for the majority, even though it changed
    nothing. A delete leaves nothing to read, so a missing item stays uncertain: no local clock can tell whether the
    lease still ran when the server got the command, since a paused machine stops all its clocks.
    """
    broker = settlement.context.broker
    filter: dict[str, Any] = {"_id": item.id, **(settlement.fence or {"token": item.token})}
    if settlement.update is None:
        command = Command("delete_one", {"filter": filter}, lambda reply: bool(reply.deleted_count))
    else:
        if settlement.room is not None and not broker.serverless:  # mongomock has no ``$bsonSize``
            filter.update(settlement.room)
        command = Command("update_one", {"filter": filter, "update": settlement.update}, has_matched)
    try:
        found, was_lost = retry_and_report(partial(perform, command))
    except Refused as refused:
        if settlement.patch is None:
            raise
        problem = f"does not fit the payload: {str(refused).partition(', full error')[0]}"
        raise PatchInvalid("patch", problem) from refused.cause
    except Duplicate as duplicate:
        key = (settlement.update or {}).get("$set", {}).get("key")
        if key is None or settlement.put is None:
            raise
        raise_duplicate(broker, settlement.put.queue, key, duplicate.cause)
    if found:
        return
    document = find_one(broker, {"_id": item.id}, STATE_FIELDS)
    # The room for a patch is a part of the filter, so an item that has none looks like one that was lost.
    if settlement.patch is not None and document is not None and document.get("token") == item.token:
        raise PayloadTooLarge("patch", SIZE_LIMIT + settlement.patch, SIZE_LIMIT)
    verdict = settlement.has_happened(item, document) if was_lost else False
    if verdict is None:
        raise ReservationLost(item.id, item.queue, certain=False)
    if not verdict:
        raise make_lost_error(broker, item, document)


# --- in one bulk ---------------------------------------------------------------------------------


def _send_bulk(bulk: list[Group], results: Results) -> list[Wanted]:
    """Send one bulk, and return the items that have to be settled alone: the command has left them as they were."""
    requests = [group.statement() for group in bulk]
    command = Command("bulk_write", {"requests": requests, "ordered": False}, number_found)
    command.resolved = any(kind != "DeleteOne" for kind, _ in requests)  # those the driver can send again

    def send() -> tuple[Mapping[int, Exception], int]:
        try:
            return {}, (perform(command))
        except PartlyRefused as refused:
            return refused.refusals, refused.total

    try:
        (refusals, total), again = retry_and_report(send)
    except ReplyLost as reply:
        results.failed |= {id_key(id): reply.cause for group in bulk for id in group.ids}
        return []
    rest: list[Wanted] = []
    groups = [group for place, group in enumerate(bulk) if place not in refusals]
    if total == sum(len(group.items) for group in groups):
        _record_done(groups, results)
    elif not again and all(group.settlement.fence is not None for group in groups):
        # Nobody holds these items or waits for them, so only their number counts: others have settled the rest.
        for group in groups:
            _record_done([Group(group.settlement, group.items[:total], group.ids[:total])] if total else [], results)
            total -= min(total, len(group.items))
    else:
        rest += _read_back(groups, None if again else total, results)
    halfway: list[Group] = []
    for place, error in refusals.items():
        group = bulk[place]
        if len(group.items) > 1:
            halfway.append(group)
        elif isinstance(error, Refused | Duplicate):
            rest.append((group.items[0], group.settlement))  # its own command says what does not fit
        else:
            results.failed[id_key(group.ids[0])] = own_error(error)
    if halfway:
        rest += _read_back(halfway, None, results, refused=True)
    return rest


def _read_back(groups: Sequence[Group], total: int | None, results: Results, *, refused: bool = False) -> list[Wanted]:
    """Read which items were settled, and return those to be settled alone: held, and ``refused`` or without room.

    ``total`` is the number of settled items, or ``None`` when it is unknown, as after a lost reply.

    The server keeps no record of a statement of many. After a lost reply, an item deleted by us and an item settled by
    another holder look alike: both are gone, and stay uncertain.
    """
    wanted = [(item, group.settlement) for group in groups for item in group.items]
    states = read_states(wanted[0][1].context.broker, [item.id for item, _ in wanted])
    verdicts: dict[Any, bool | None] = {}
    alone: list[Wanted] = []
    for item, settlement in wanted:
        document = states.get(key := id_key(item.id))
        is_held = document is not None and document.get("token") == item.token
        if is_held and (refused or settlement.patch is not None):
            alone.append((item, settlement))
        else:
            verdicts[key] = settlement.has_happened(item, document)
    possible = [key for key, verdict in verdicts.items() if verdict is not False]
    certain = [key for key, verdict in verdicts.items() if verdict]
    if total in (0, len(possible)):
        verdicts |= dict.fromkeys(possible, total > 0)
    elif total is not None and total < len(certain):  # some of them looked like this before
        verdicts |= dict.fromkeys(certain, None)
    elif total == len(certain) and not any(settlement.event in UNPROVEN for _, settlement in wanted):
        verdicts |= dict.fromkeys(set(possible) - set(certain), False)
    for item, settlement in wanted:
        if (key := id_key(item.id)) not in verdicts:
            continue
        if verdicts[key]:
            _record_done([Group(settlement, [item], [item.id])], results)
        elif verdicts[key] is None:
            results.failed[key] = ReservationLost(item.id, item.queue, certain=False)
        else:
            results.failed[key] = make_lost_error(settlement.context.broker, item, states.get(key))
    return alone


# --- in a transaction ----------------------------------------------------------------------------


def _get_ready_to_enter(wanted: Sequence[Wanted], *, joined: bool) -> None:
    """Prepare the queues into whose sequences items go, before the transaction begins."""
    queues: set[str] = set()
    for _, settlement in wanted:
        queues |= {output.document["q"] for output in settlement.outputs if output.sequence is not None}
        if settlement.enters and settlement.put:
            queues.add(settlement.put.queue)
    if queues:
        ensure_ready_to_enter(wanted[0][1].context.broker, queues, joined=joined)


def settle_within(wanted: Sequence[Wanted]) -> Callable[[], None]:
    """Settle items inside a transaction, let the next ones of their sequences go, and write outputs.

    Returns the function that counts all of it, and wakes the waiters, once it is committed.

    Raises:
        FenceMiss: not all of them were found under their tokens; a single one raises its own error.
    """
    if not wanted:
        return lambda: None
    broker = wanted[0][1].context.broker
    changed, promoted = _take_places(broker, wanted)
    if len(changed) == 1:
        send_alone(*changed[0])
    elif (send_statements(broker, [group.statement() for group in group_by_statement(changed)])) < len(wanted):
        raise FenceMiss
    promoted += _promote_next(broker, [pair for pair in wanted if pair[1].leaves])
    outputs = [output for _, settlement in wanted for output in settlement.outputs]
    targets = [(output.document["q"], output.sequence) for output in outputs if output.sequence is not None]
    entries = enter_all(broker, targets)
    promoted += [item for entry in entries.values() for item in entry.promoted]
    documents: list[Document] = []
    raw: list[RawBSONDocument] = []
    for document, as_sent, sequence in outputs:
        placed = document if sequence is None else with_place(document, entries[document["q"], sequence])
        documents.append(placed)
        raw.append(as_sent if sequence is None else broker.encoding.raw(placed))
    for chunk in chunks(raw, lambda document: len(document.raw)):
        perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))

    def record() -> None:
        record_settled(group_by_statement(changed))
        record_promoted(broker, promoted)
        for document in documents:
            record_new(broker, document)

    return record


def _take_places(broker: BrokerContext, wanted: Sequence[Wanted]) -> tuple[Sequence[Wanted], list[Promoted]]:
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
        found, freed = take_back(broker, queue, documents)
        places |= found
        promoted += freed
    targets = [(queue, sequence) for item, queue, sequence in entering if id_key(item.id) not in places]
    entries = enter_all(broker, targets)
    promoted += [item for entry in entries.values() for item in entry.promoted]
    shared: dict[tuple[int, int], Settlement] = {}
    changed: list[Wanted] = []
    for item, settlement in wanted:
        put, enters, key = settlement.put, settlement.enters, id_key(item.id)
        if enters and put is not None and key in places:
            fields = {"sequence": enters, "place": places[key], "when": put.when}
            settlement = _with_place(settlement, fields, unset=("origin.place",))  # noqa: PLW2901
        elif enters and put is not None:
            settlement = _with_place(settlement, entries[put.queue, enters].take(put.when))  # noqa: PLW2901
        elif settlement.leaves and settlement.update is not None and has_place(item):
            # An item that is moved belongs to no sequence any more; one that waits in a join may come back to it.
            gone = ["place"]
            if settlement.event == "move" and not settlement.parks:
                gone.append("sequence")
            if "when" not in item._document:  # noqa: SLF001  # blocked, it has expired behind the first one
                gone.append("ready_from")
            alike = id(settlement.update), len(gone)
            settlement = shared.get(alike) or _with_place(settlement, {}, unset=gone)  # noqa: PLW2901
            shared[alike] = settlement
        changed.append((item, settlement))
    return changed, promoted


def _promote_next(broker: BrokerContext, left: Iterable[Wanted]) -> list[Promoted]:
    """Let the next items of the sequences go, after these items have left.

    Items that were buried may hold their sequences; letters that have left hold theirs no longer.
    """
    letters: dict[str, list[Letter]] = {}
    numbers: dict[str, tuple[QueueContext[Any], Counter[str]]] = {}
    targets = []
    for item, settlement in left:
        context = settlement.context
        if has_place(item) and settlement.is_burial and context.settings.holds_sequences:
            letter = Letter(item.id, str(context.settings.dead), str(item.sequence), item.stored("place"))
            letters.setdefault(context.name, []).append(letter)
        elif has_place(item) and "when" in item._document:  # noqa: SLF001  # a blocked one makes no room
            numbers.setdefault(context.name, (context, Counter()))[1][str(item.sequence)] += 1
        if (target := find_held_target(item)) is not None:
            targets.append(target)
    promoted: list[Promoted] = []
    for queue, queue_letters in letters.items():
        hold(broker, queue, queue_letters)
    for context, counts in numbers.values():
        promoted += leave(broker, context.name, counts, taker=context.taker)
    return promoted + (release(broker, targets))
