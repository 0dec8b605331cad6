"""Holds: in a queue with ``on_dead="hold"`` a dead letter keeps its place, and no item of its sequence follows.

The control document of the sequence lists the letter in ``held``, and still counts it in ``open``; the letter has its
``place`` in its ``origin``. A hold ends in a transaction that has read that the letter is not there any more, or that
moves the letter back to its place. Callers that take a letter away end its hold in the same transaction; of other
deletions the repair finds out.

Repairs are for sequences that their control documents do not describe, since another program has deleted or written
some. The first item, or the letter that held the others, may be gone: nothing follows. Or the control document is gone,
and the next push made a second item the first one: both run at a time. A repair counts anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from mongoq.core.base.find import find_few, find_one, prefix_filter
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.statements import Statement, send_statements
from mongoq.core.base.transaction import run_atomic
from mongoq.core.command import Command, delete_many
from mongoq.core.perform import perform
from mongoq.core.sequence.places import Promoted, leave, promote, record_promoted
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.indexes import BEGINNING, CONTROL_PREFIX, SEQUENCE_ORDER
from mongoq.data.item import Document, Item, find_held_target, id_key
from mongoq.data.sequence import (
    HAS_PLACE,
    SEQUENCE_PREFIX,
    Target,
    blocked_filter,
    control_id,
    control_prefix,
    heads_filter,
    held_entries,
    held_target,
)
from mongoq.data.settings import DEFAULT_MAX_IN_SEQUENCE

CONTROLS_PER_PAGE = 1_000
"""Control documents that one command reads, at most."""
RELEASED_PER_TRANSACTION = 100
"""Sequences whose holds end in one transaction, at most."""
LETTER_FIELDS = {"q": 1, "sequence": 1, "origin.queue": 1, "origin.place": 1}
"""Projection of a letter: what its hold follows from."""


class Letter(NamedTuple):
    """A dead letter that holds the sequence it died in.

    Attributes:
        id: the item.
        queue: the dead queue.
        sequence: the sequence.
        place: its place there.
    """

    id: Any
    queue: str
    sequence: str
    place: int


async def hold(broker: BrokerContext, queue: str, letters: Sequence[Letter]) -> None:
    """Let letters hold the sequences of a queue (``find``, ``update``).

    Called in the transaction that buries them, after they have left. It conflicts with a push into the sequence, and
    with a settlement that lets more or fewer items follow than have left.
    """
    if not letters:
        return
    numbers = Counter(letter.sequence for letter in letters)
    ids = [control_id(queue, sequence) for sequence in numbers]
    documents = await find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection={"_id": 1})
    stored = {document["_id"] for document in documents}
    statements: list[Statement] = []
    for letter in letters:
        mark = {"$set": {"origin.place": letter.place}, "$unset": {"place": ""}}
        statements.append(("UpdateOne", {"filter": {"_id": letter.id, "q": letter.queue}, "update": mark}))
        id = control_id(queue, letter.sequence)
        update: dict[str, Any] = {"$push": {"held": {"id": letter.id, "queue": letter.queue, "place": letter.place}}}
        if id not in stored:  # another program has deleted it
            after = await find_last_place(broker, queue, letter.sequence)
            names = {"queue": queue, "sequence": letter.sequence}
            counts = {"next": max(after, letter.place) + 1, "open": numbers[letter.sequence]}
            update["$setOnInsert"] = {**names, **counts}
        statements.append(("UpdateOne", {"filter": {"_id": id}, "update": update, "upsert": True}))
    await send_statements(broker, statements)


async def release(broker: BrokerContext, targets: Iterable[Target]) -> list[Promoted]:
    """End the holds of letters that are not there any more, and return the items that follow (``find``, ``update``).

    Called in a transaction, for sequences that may be held. A sequence goes on when none of its letters is left.
    """
    queues: dict[str, list[str]] = {}
    for queue, sequence in dict.fromkeys(targets):
        queues.setdefault(queue, []).append(control_id(queue, sequence))
    promoted: list[Promoted] = []
    for queue, ids in queues.items():
        filter = {"_id": {"$in": ids}, "held": {"$exists": True}}
        controls = await find_few(broker, filter, [("_id", 1)], len(ids))
        holding = await _read_holding(broker, controls)
        for control in controls:
            rest = holding[control["_id"]]
            if gone := len(held_entries(control)) - len(rest):
                promoted += await _go_on(broker, queue, control, rest, left=gone)
    return promoted


async def take_back(
    broker: BrokerContext, queue: str, letters: Iterable[Document]
) -> tuple[dict[Any, int], list[Promoted]]:
    """End the holds of letters that go back to their places; return these places by ``id_key``, and items that follow.

    Called in the transaction that moves them. A letter whose hold is not noted any more has no place, such as one of a
    queue that was dropped since. An item follows where others have left the sequence while it was held.
    """
    own: dict[str, list[Document]] = {}
    for letter in letters:
        target = held_target(letter)
        if target is not None and target[0] == queue:
            own.setdefault(control_id(*target), []).append(letter)
    places: dict[Any, int] = {}
    promoted: list[Promoted] = []
    filter = {"_id": {"$in": list(own)}, "held": {"$exists": True}}
    controls = (await find_few(broker, filter, [("_id", 1)], len(own))) if own else []
    for control in controls:
        back = {_letter_key(letter) for letter in own[control["_id"]]}
        entries = held_entries(control)
        rest = [entry for entry in entries if _entry_key(entry, control) not in back]
        if len(rest) < len(entries):
            places |= {id_key(each["id"]): each["place"] for each in entries if each not in rest}
            promoted += await _go_on(broker, queue, control, rest, left=0)
    return places, promoted


async def release_all(broker: BrokerContext, queue: str) -> int:
    """End the holds of a queue whose letters are gone, and return how many items follow.

    Takes a ``find`` in the control documents of the queue's sequences, one in the letters for each 1,000 held
    sequences, and a transaction for each 100 whose letters are gone. A crash in between leaves the rest.
    """
    number, after = 0, ""
    while True:
        controls = await find_held(broker, queue, after)
        holding = await _read_holding(broker, controls)
        ended = [each for each in controls if len(holding[each["_id"]]) < len(held_entries(each))]
        targets = [(control["queue"], control["sequence"]) for control in ended]
        for start in range(0, len(targets), RELEASED_PER_TRANSACTION):
            some = targets[start : start + RELEASED_PER_TRANSACTION]
            promoted = await run_atomic(broker, partial(release, broker, some))
            record_promoted(broker, promoted)
            number += len(promoted)
        if len(controls) < CONTROLS_PER_PAGE:
            return number
        after = controls[-1]["_id"]


async def find_held(broker: BrokerContext, queue: str, after: str = "") -> list[Document]:
    """Find control documents of held sequences of a queue behind one, 1,000 at most (``find``)."""
    return await _find_controls(broker, queue, after, held={"$exists": True})


async def _find_controls(broker: BrokerContext, queue: str, after: str, **where: Any) -> list[Document]:
    filter = {"$and": [prefix_filter(control_prefix(queue)), {"_id": {"$gt": after}}], "queue": queue, **where}
    return await find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE)


async def find_held_from(broker: BrokerContext, dead: str, after: str) -> list[Document]:
    """Find control documents of sequences that letters of a dead queue hold, behind one, 1,000 at most (``find``)."""
    filter = {"$and": [prefix_filter(SEQUENCE_PREFIX), {"_id": {"$gt": after}}], "held.queue": dead}
    return await find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE)


async def find_letters(
    broker: BrokerContext, controls: Sequence[Document], fields: Mapping[str, Any] | None = None
) -> dict[Any, list[Document]]:
    """Find the letters that hold sequences, live and as buried, by the ``_id`` of the control document (``find``)."""
    held = {_entry_key(entry, control): control["_id"] for control in controls for entry in held_entries(control)}
    letters: dict[Any, list[Document]] = {}
    if held:
        ids = [entry["id"] for control in controls for entry in held_entries(control)]
        live = {"_id": {"$in": ids}, "when": {"$gte": BEGINNING}}
        found = await find_few(broker, live, [("_id", 1)], len(ids), projection=fields, lenient=True)
        for letter in found:
            if (key := _letter_key(letter)) in held:
                letters.setdefault(held[key], []).append(letter)
    return letters


async def find_held_letters(context: QueueContext[Any], items: Iterable[Item[Any]]) -> set[Any]:
    """Return the keys (``id_key``) of the dead letters among items that hold their sequences (``find``).

    Without a letter that says so there is no command.
    """
    targets = {id_key(item.id): target for item in items if (target := find_held_target(item)) is not None}
    if not targets:
        return set()
    ids = list({control_id(*target) for target in targets.values()})
    fields = {"held": 1}
    controls = await find_few(context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=fields)
    listed = {id_key(entry["id"]) for control in controls for entry in held_entries(control)}
    return listed & targets.keys()


async def _go_on(
    broker: BrokerContext, queue: str, control: Document, rest: Sequence[Mapping[str, Any]], *, left: int
) -> list[Promoted]:
    """Note that only the rest of the letters holds a sequence; ``left`` letters have gone, and others become heads.

    Without a rest, as many items follow as the queue allows, since none has followed in the meantime.
    """
    opened = max(control["open"] - left, len(rest))
    promoted: list[Promoted] = []
    if not rest and (room := (await read_limit(broker, queue)) - opened) > 0:
        sequence = control["sequence"]
        promoted = (await promote(broker, queue, {sequence: room}))[sequence]
    opened += len(promoted)
    filter = {"_id": control["_id"]}
    if not opened:
        statement: Statement = ("DeleteMany", {"filter": filter})
    elif rest:
        statement = ("UpdateOne", {"filter": filter, "update": {"$set": {"open": opened, "held": list(rest)}}})
    else:
        statement = ("UpdateOne", {"filter": filter, "update": {"$set": {"open": opened}, "$unset": {"held": ""}}})
    await send_statements(broker, [statement])
    return promoted


async def _read_holding(broker: BrokerContext, controls: Sequence[Document]) -> dict[Any, list[Mapping[str, Any]]]:
    """Read which entries of control documents have their letters, live and as buried (``find``), by ``_id``."""
    letters = await find_letters(broker, controls, LETTER_FIELDS)
    there = {_letter_key(letter) for found in letters.values() for letter in found}
    return {
        control["_id"]: [entry for entry in held_entries(control) if _entry_key(entry, control) in there]
        for control in controls
    }


def _letter_key(letter: Document) -> Any:
    origin = letter.get("origin")
    died = (origin.get("queue"), origin.get("place")) if isinstance(origin, Mapping) else None
    # By its text, because other programs may write values that are not hashable.
    return id_key(letter["_id"]), repr((letter.get("q"), letter.get("sequence"), died))


def _entry_key(entry: Mapping[str, Any], control: Document) -> Any:
    return id_key(entry["id"]), repr(
        (entry.get("queue"), control.get("sequence"), (control.get("queue"), entry.get("place")))
    )


async def read_limit(broker: BrokerContext, queue: str) -> int:
    """Read ``max_in_sequence`` of a queue; this process may not know its settings (``find``)."""
    document = await find_one(broker, {"_id": CONTROL_PREFIX + queue}, {"settings.max_in_sequence": 1})
    settings = (document or {}).get("settings")
    most = settings.get("max_in_sequence") if isinstance(settings, Mapping) else None
    return int(most) if isinstance(most, int | float) and most >= 1 else DEFAULT_MAX_IN_SEQUENCE


async def find_last_place(broker: BrokerContext, queue: str, sequence: str) -> int:
    """Find the last place that an item of a sequence has (``find``); -1 without items."""
    filter = {"q": queue, "sequence": sequence, "place": HAS_PLACE}
    documents = await find_few(broker, filter, [("place", -1)], 1, projection={"place": 1})
    return int(documents[0]["place"]) if documents else -1


# --- deletion of items that others wait for: the next ones follow at once


DELETED_PER_TRANSACTION = 1_000
"""Items of sequences that are deleted in one transaction, at most."""
IN_ORDER: dict[str, Any] = {"$or": [{"place": HAS_PLACE}, {"origin.place": HAS_PLACE}]}
"""Condition of an item with a place in a sequence, and of a dead letter that has died with one."""
NOT_IN_ORDER: dict[str, Any] = {"place": {"$exists": False}, "origin.place": {"$not": HAS_PLACE}}
"""Condition of any other item. It may be deleted outside a transaction: no other item waits for it."""


async def delete_in_order(context: QueueContext[Any], filter: Mapping[str, Any], *, blocked: bool = False) -> int:
    """Delete the items that match a filter on items that are not blocked, and return how many.

    Items that others may wait for are deleted in transactions of up to 1,000, and the next ones follow; all others
    before that in one command, with ``blocked`` ones in another. A crash in between leaves the rest.

    This process may not have heard yet of the queue's first sequence, or first dead letter that holds one, so each
    command names the items that it may delete.
    """
    deleted = (await perform(delete_many(blocked_filter(context.name)))) if blocked else 0
    deleted += await perform(delete_many({"$and": [filter, NOT_IN_ORDER]}))
    return deleted + (await delete_placed(context, filter))


async def delete_placed(context: QueueContext[Any], filter: Mapping[str, Any]) -> int:
    """Delete those of the items that others may wait for."""
    broker, wanted, deleted = context.broker, {"$and": [filter, IN_ORDER]}, 0
    fields = {"sequence": 1, "when": 1, "place": 1, "origin.queue": 1, "origin.place": 1}
    while True:
        # Found outside the transaction, which then reads by ids alone and is short.
        page = await find_few(broker, wanted, [], DELETED_PER_TRANSACTION, projection={"_id": 1})
        ids = {"_id": {"$in": [document["_id"] for document in page]}}

        async def delete_page(ids: Mapping[str, Any] = ids) -> tuple[int, list[Promoted]]:
            still: dict[str, Any] = {"$and": [wanted, ids]}
            documents = await find_few(broker, still, [], DELETED_PER_TRANSACTION, projection=fields, lenient=True)
            if not documents:
                return 0, []
            number = await perform(delete_many({"_id": {"$in": [document["_id"] for document in documents]}}))
            left = Counter(document["sequence"] for document in documents if "place" in document and "when" in document)
            promoted = await leave(broker, context.name, left)
            # What is left of a letter ends its hold.
            targets = [target for document in documents if (target := held_target(document)) is not None]
            return number, promoted + (await release(broker, targets))

        if page:
            number, promoted = await run_atomic(broker, delete_page)
            record_promoted(broker, promoted)
            deleted += number
        if len(page) < DELETED_PER_TRANSACTION:
            return deleted


# --- repairs of sequences that their control documents do not describe


PLACES_PER_PAGE = 10_000
"""Places of items that one command reads, from the index alone, to find sequences without a control document."""
MAX_HEADS = 10_000
"""Items that one command looks up, at most; but always those of one sequence."""
HEAD_FIELDS = {"when": 1, "reserved": 1}
"""Projection of a head: what its state follows from, without its payload."""


async def repair_sequences(context: QueueContext[Any]) -> int:
    """Count anew the sequences that differ from their control documents; return how many items go, or wait, by that.

    Before that, holds of dead letters end that are not there any more. Each sequence that looks so is read again in a
    transaction. A crash in between leaves the others.
    """
    await ensure_ready(context)
    broker, queue = context.broker, context.name
    number = await release_all(broker, queue)
    for find in find_miscounted, find_uncounted:
        following: str | None = ""
        while following is not None:
            sequences, following = await find(broker, queue, following)
            number += await repair_all(broker, queue, sequences)
    return number


async def find_miscounted(broker: BrokerContext, queue: str, after: str = "") -> tuple[list[str], str | None]:
    """Find sequences that seem to have fewer or more heads than they count (``find``, ``aggregate``).

    Looks at up to 1,000 control documents behind one, and returns such sequences, and the ``_id`` behind which the next
    look begins; ``None`` at the end. A transaction of another process in between may make a sequence seem so.
    """
    controls = await _find_controls(broker, queue, after)
    looked_at = controls[: max(1, MAX_HEADS // max(_most(controls), 1))]
    heads = await read_heads(broker, queue, looked_at)
    is_end = len(looked_at) == len(controls) < CONTROLS_PER_PAGE
    miscounted = [
        each["sequence"] for each in looked_at if len(heads[each["_id"]]) + len(held_entries(each)) != each["open"]
    ]
    return miscounted, None if is_end else looked_at[-1]["_id"]


async def find_uncounted(broker: BrokerContext, queue: str, after: str = "") -> tuple[list[str], str | None]:
    """Find sequences without a control document, by the places of items behind a sequence (``aggregate``, ``find``).

    Returns them, and the sequence behind which the next look begins; ``None`` at the end.
    """
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"q": queue, "sequence": {"$gt": after}, "place": HAS_PLACE}},
        {"$sort": dict(SEQUENCE_ORDER)},
        {"$limit": PLACES_PER_PAGE},
        {"$group": {"_id": "$sequence", "places": {"$sum": 1}}},
    ]
    groups: list[Any] = await perform(Command("aggregate", {"pipeline": pipeline}))
    if not groups:
        return [], None
    ids = {control_id(queue, group["_id"]): group["_id"] for group in groups}
    stored = await find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids), projection={"_id": 1})
    uncounted = [ids[id] for id in ids.keys() - {document["_id"] for document in stored}]
    is_end = sum(group["places"] for group in groups) < PLACES_PER_PAGE
    return uncounted, None if is_end else max(ids.values())


async def read_heads(broker: BrokerContext, queue: str, controls: Sequence[Document]) -> Mapping[Any, list[Document]]:
    """Read the heads of sequences, without payloads, by the ``_id`` of the control document (``aggregate``).

    Heads have the first places, so one item more is read of each sequence than the largest number of heads counted.
    """
    heads: dict[Any, list[Document]] = {control["_id"]: [] for control in controls}
    if broker.serverless:
        for control in controls:
            heads[control["_id"]] = await find_heads(
                broker, queue, control["sequence"], control["open"] + 1, HEAD_FIELDS
            )
        return heads
    if not controls:
        return heads
    first: list[Mapping[str, Any]] = [
        {"$match": {"q": queue, "place": HAS_PLACE}},
        {"$sort": {"place": 1}},
        {"$limit": _most(controls) + 1},
        {"$project": HEAD_FIELDS},
    ]
    lookup = {"from": broker.collection, "localField": "sequence", "foreignField": "sequence", "pipeline": first}
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"_id": {"$in": list(heads)}}},
        {"$lookup": {**lookup, "as": "first"}},
        {"$project": {"first": 1}},
    ]
    arguments = {"pipeline": pipeline, "batchSize": len(controls)}
    documents: list[Any] = await perform(Command("aggregate", arguments))
    for document in documents:
        heads[document["_id"]] = [item for item in document["first"] if isinstance(item.get("when"), datetime)]
    return heads


def _most(controls: Iterable[Document]) -> int:
    return max((int(control["open"]) for control in controls), default=0)


async def repair_all(broker: BrokerContext, queue: str, sequences: Iterable[str], *, holds: bool = True) -> int:
    """Count these sequences anew, each in a transaction; return how many items go, or wait, by that."""
    number = 0
    for sequence in sequences:
        promoted, postponed = await run_atomic(broker, partial(_count_anew, broker, queue, sequence, holds=holds))
        record_promoted(broker, promoted)
        number += len(promoted) + postponed
    return number


async def forget_sequences(broker: BrokerContext, queue: str) -> None:
    """Delete the control documents of a queue's sequences without items, each in a transaction.

    Where an item was pushed meanwhile, its sequence is counted anew. No dead letter holds any of them after that.
    """
    after: str | None = ""
    while after is not None:
        controls = await _find_controls(broker, queue, after)
        await repair_all(broker, queue, [control["sequence"] for control in controls], holds=False)
        after = None if len(controls) < CONTROLS_PER_PAGE else controls[-1]["_id"]


async def _count_anew(broker: BrokerContext, queue: str, sequence: str, *, holds: bool) -> tuple[list[Promoted], int]:
    """Let as many items of a sequence be heads as the queue allows, and count them; called in a transaction.

    A letter that holds is one of them, unless its hold ends (``holds``). Returns the items that follow, and how many
    heads wait again; no caller holds these. Without items and letters the control document goes.
    """
    id = control_id(queue, sequence)
    control = (await find_one(broker, {"_id": id})) or {}
    held = held_entries(control) if holds else []
    heads = await find_heads(broker, queue, sequence, MAX_HEADS, HEAD_FIELDS)
    room = (await read_limit(broker, queue)) - len(held) - len(heads)
    postponed = [head for head in reversed(heads) if head.get("reserved") is not True][: max(-room, 0)]
    statements: list[Statement] = []
    for head in postponed:
        wait = {"$set": {"ready_from": head["when"]}, "$unset": {"when": ""}}
        statements.append(("UpdateOne", {"filter": {"_id": head["_id"]}, "update": wait}))
    await send_statements(broker, statements)
    follows = room > 0 and not held
    promoted = (await promote(broker, queue, {sequence: room}))[sequence] if follows else []
    opened = len(held) + len(heads) - len(postponed) + len(promoted)
    is_changed = bool(postponed or promoted) or len(held_entries(control)) > len(held)
    if opened == control.get("open", 0) and (opened or not control) and not is_changed:
        return [], 0
    statement: Statement = ("DeleteMany", {"filter": {"_id": id}})
    if opened:
        last = await find_last_place(broker, queue, sequence)
        # One place is left out, so that this is a change in any case: it then conflicts with a push into the sequence,
        # and with a settlement that nothing follows.
        fields = {
            "queue": queue,
            "sequence": sequence,
            "open": opened,
            "next": max(control.get("next", 0), last + 1) + 1,
        }
        update = {"$set": fields} if holds else {"$set": fields, "$unset": {"held": ""}}
        statement = ("UpdateOne", {"filter": {"_id": id}, "update": update, "upsert": True})
    await send_statements(broker, [statement])
    return promoted, len(postponed)


async def find_heads(
    broker: BrokerContext, queue: str, sequence: str, most: int, fields: Mapping[str, Any] | None = None
) -> list[Document]:
    """Find up to ``most`` heads of a sequence; the index has them before the others."""
    filter = {**heads_filter(queue), "sequence": sequence}
    return await find_few(broker, filter, [("place", 1)], most, projection=fields, lenient=True)
