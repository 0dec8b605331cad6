# Generated from mongoq/protocol/sequence/repair.py by scripts/unasync.py. Do not edit.
"""Repairs of sequences that their control documents do not describe, since another program has deleted or written some.

The first item, or the dead letter that held the others, may be gone: nothing follows. Or the control document is gone,
and the next push made a second item the first one: both run at a time. The repair counts anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.model.indexes import SEQUENCE_ORDER
from mongoq.model.item import Document
from mongoq.model.sequence import HAS_PLACE, control_id, control_prefix, heads_filter, held_entries
from mongoq.protocol.base.find import prefix_filter
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.command import Command
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.sequence.repair import CONTROLS_PER_PAGE, HEAD_FIELDS, MAX_HEADS, PLACES_PER_PAGE, _most
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.protocol_threads.base.find import find_few, find_one
from mongoq.protocol_threads.base.queue_settings import ensure_ready
from mongoq.protocol_threads.base.statements import send_statements
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.control import run_atomic
from mongoq.protocol_threads.sequence.hold import find_last_place, read_limit, release_all
from mongoq.protocol_threads.sequence.leave import promote


def repair_sequences(context: QueueContext[Any]) -> int:
    """Count anew the sequences that differ from their control documents; return how many items go, or wait, by that.

    Before that, holds of dead letters end that are not there any more. Each sequence that looks so is read again in a
    transaction. A crash in between leaves the others.
    """
    ensure_ready(context)
    broker, queue = context.broker, context.name
    number = release_all(broker, queue)
    for find in find_miscounted, find_uncounted:
        following: str | None = ""
        while following is not None:
            sequences, following = find(broker, queue, following)
            number += repair_all(broker, queue, sequences)
    return number


def find_miscounted(broker: BrokerContext, queue: str, after: str = "") -> tuple[list[str], str | None]:
    """Find sequences that seem to have fewer or more heads than they count (``find``, ``aggregate``).

    Looks at up to 1,000 control documents behind one, and returns such sequences, and the ``_id`` behind which the next
    look begins; ``None`` at the end. A transaction of another process in between may make a sequence seem so.
    """
    filter = {"$and": [prefix_filter(control_prefix(queue)), {"_id": {"$gt": after}}], "queue": queue}
    controls = find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE)
    looked_at = controls[: max(1, MAX_HEADS // max(_most(controls), 1))]
    heads = read_heads(broker, queue, looked_at)
    is_end = len(looked_at) == len(controls) < CONTROLS_PER_PAGE
    miscounted = [
        each["sequence"] for each in looked_at if len(heads[each["_id"]]) + len(held_entries(each)) != each["open"]
    ]
    return miscounted, None if is_end else looked_at[-1]["_id"]


def find_uncounted(broker: BrokerContext, queue: str, after: str = "") -> tuple[list[str], str | None]:
    """Find sequences without a control document, by the places of items behind a sequence (``aggregate``, ``find``).

    Returns them, and the sequence behind which the next look begins; ``None`` at the end.
    """
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"q": queue, "sequence": {"$gt": after}, "place": HAS_PLACE}},
        {"$sort": dict(SEQUENCE_ORDER)},
        {"$limit": PLACES_PER_PAGE},
        {"$group": {"_id": "$sequence", "places": {"$sum": 1}}},
    ]
    groups: list[Any] = perform(Command("aggregate", {"pipeline": pipeline}))
    if not groups:
        return [], None
    ids = {control_id(queue, group["_id"]): group["_id"] for group in groups}
    stored = find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids), projection={"_id": 1})
    uncounted = [ids[id] for id in ids.keys() - {document["_id"] for document in stored}]
    is_end = sum(group["places"] for group in groups) < PLACES_PER_PAGE
    return uncounted, None if is_end else max(ids.values())


def read_heads(broker: BrokerContext, queue: str, controls: Sequence[Document]) -> Mapping[Any, list[Document]]:
    """Read the heads of sequences, without payloads, by the ``_id`` of the control document (``aggregate``).

    Heads have the first places, so one item more is read of each sequence than the largest number of heads counted.
    """
    heads: dict[Any, list[Document]] = {control["_id"]: [] for control in controls}
    if broker.serverless:
        for control in controls:
            heads[control["_id"]] = find_heads(broker, queue, control["sequence"], control["open"] + 1, HEAD_FIELDS)
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
    documents: list[Any] = perform(Command("aggregate", arguments))
    for document in documents:
        heads[document["_id"]] = [item for item in document["first"] if isinstance(item.get("when"), datetime)]
    return heads


def repair_all(broker: BrokerContext, queue: str, sequences: Iterable[str]) -> int:
    """Count these sequences anew, each in a transaction; return how many items go, or wait, by that."""
    number = 0
    for sequence in sequences:
        promoted, postponed = run_atomic(broker, partial(_count_anew, broker, queue, sequence))
        record_promoted(broker, promoted)
        number += len(promoted) + postponed
    return number


def forget_sequences(broker: BrokerContext, queue: str) -> None:
    """Delete the control documents of a queue's sequences without items, each in a transaction.

    Where an item was pushed meanwhile, its sequence is counted anew. No dead letter holds any of them after that.
    """
    after = ""
    while True:
        filter = {"$and": [prefix_filter(control_prefix(queue)), {"_id": {"$gt": after}}], "queue": queue}
        controls = find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE, projection={"sequence": 1})
        for control in controls:
            attempt = partial(_count_anew, broker, queue, control["sequence"], holds=False)
            promoted, _ = run_atomic(broker, attempt)
            record_promoted(broker, promoted)
        if len(controls) < CONTROLS_PER_PAGE:
            return
        after = controls[-1]["_id"]


def _count_anew(broker: BrokerContext, queue: str, sequence: str, *, holds: bool = True) -> tuple[list[Promoted], int]:
    """Let as many items of a sequence be heads as the queue allows, and count them; called in a transaction.

    A letter that holds is one of them, unless its hold ends (``holds``). Returns the items that follow, and how many
    heads wait again; no caller holds these. Without items and letters the control document goes.
    """
    id = control_id(queue, sequence)
    control = (find_one(broker, {"_id": id})) or {}
    held = held_entries(control) if holds else []
    heads = find_heads(broker, queue, sequence, MAX_HEADS, HEAD_FIELDS)
    room = (read_limit(broker, queue)) - len(held) - len(heads)
    postponed = [head for head in reversed(heads) if head.get("reserved") is not True][: max(-room, 0)]
    statements: list[Statement] = []
    for head in postponed:
        wait = {"$set": {"ready_from": head["when"]}, "$unset": {"when": ""}}
        statements.append(("UpdateOne", {"filter": {"_id": head["_id"]}, "update": wait}))
    send_statements(broker, statements)
    follows = room > 0 and not held
    promoted = (promote(broker, queue, {sequence: room}))[sequence] if follows else []
    opened = len(held) + len(heads) - len(postponed) + len(promoted)
    is_changed = bool(postponed or promoted) or len(held_entries(control)) > len(held)
    if opened == control.get("open", 0) and (opened or not control) and not is_changed:
        return [], 0
    statement: Statement = ("DeleteMany", {"filter": {"_id": id}})
    if opened:
        last = find_last_place(broker, queue, sequence)
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
    send_statements(broker, [statement])
    return promoted, len(postponed)


def find_heads(
    broker: BrokerContext, queue: str, sequence: str, most: int, fields: Mapping[str, Any] | None = None
) -> list[Document]:
    """Find up to ``most`` heads of a sequence; the index has them before the others."""
    filter = {**heads_filter(queue), "sequence": sequence}
    return find_few(broker, filter, [("place", 1)], most, projection=fields, lenient=True)
