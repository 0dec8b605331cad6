"""Holds: in a queue with ``on_dead="hold"`` a dead letter keeps its place, and no item of its sequence follows.

The control document of the sequence lists the letter in ``held``, and still counts it in ``open``; the letter has its
``place`` in its ``origin``. A hold ends in a transaction that has read that the letter is not there any more, or that
moves the letter back to its place. Callers that take a letter away end its hold in the same transaction; of other
deletions the repair finds out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Document, Item, find_held_target, id_key
from mongoq.model.sequence import (
    HAS_PLACE,
    SEQUENCE_PREFIX,
    Target,
    control_id,
    control_prefix,
    held_entries,
    held_target,
)
from mongoq.model.settings import DEFAULT_MAX_IN_SEQUENCE
from mongoq.protocol.base.find import find_few, find_one, prefix_filter
from mongoq.protocol.base.queue_settings import CONTROL_PREFIX
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.leave import promote
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import BrokerContext, QueueContext

HELD_PER_PAGE = 1_000
"""Control documents of held sequences that one command reads, at most."""
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
        if len(controls) < HELD_PER_PAGE:
            return number
        after = controls[-1]["_id"]


async def find_held(broker: BrokerContext, queue: str, after: str = "") -> list[Document]:
    """Find control documents of held sequences of a queue behind one, 1,000 at most (``find``)."""
    own = {**prefix_filter(control_prefix(queue)), "queue": queue, "held": {"$exists": True}}
    filter = {"$and": [own, {"_id": {"$gt": after}}]}
    return await find_few(broker, filter, [("_id", 1)], HELD_PER_PAGE)


async def find_held_from(broker: BrokerContext, dead: str, after: str) -> list[Document]:
    """Find control documents of sequences that letters of a dead queue hold, behind one, 1,000 at most (``find``)."""
    filter = {"$and": [prefix_filter(SEQUENCE_PREFIX), {"_id": {"$gt": after}}], "held.queue": dead}
    return await find_few(broker, filter, [("_id", 1)], HELD_PER_PAGE)


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
