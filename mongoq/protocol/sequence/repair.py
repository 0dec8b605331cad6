"""Repairs of sequences whose first item is gone without a trace, or the dead letter that held them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mongoq.model.item import Document
from mongoq.model.sequence import HAS_PLACE, control_id, control_prefix, heads_filter, held_entries
from mongoq.protocol.base.find import find_few, find_one, prefix_filter
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.hold import release_all
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import BrokerContext, QueueContext

CONTROLS_PER_PAGE = 1_000
"""Control documents that one command reads."""
MAX_HEADS = 10_000
"""Items that one command looks up, at most; but always those of one sequence."""
HEAD_FIELDS = {"when": 1, "reserved": 1}
"""Projection of a head: what its state follows from, without its payload."""


def repair_sequences(context: QueueContext[Any]) -> Flow[int]:
    """Promote the next items of sequences that have fewer heads than their control documents count; return how many.

    Before that, holds of dead letters end that are not there any more. Each sequence that looks so is read again in a
    transaction. A crash in between leaves the others.
    """
    yield from ensure_ready(context)
    number, after = (yield from release_all(context.broker, context.name)), ""
    while True:
        incomplete, following = yield from find_incomplete(context.broker, context.name, after)
        number += yield from repair_all(context, incomplete)
        if following is None:
            return number
        after = following


def find_incomplete(broker: BrokerContext, queue: str, after: str = "") -> Flow[tuple[list[Document], str | None]]:
    """Find sequences that seem to have fewer heads than they count (``find``, ``aggregate``).

    Looks at up to 1,000 control documents behind one, and returns those of such sequences, and the ``_id`` behind which
    the next look begins; ``None`` at the end. A transaction of another process in between may make a sequence seem so.
    """
    filter = {"$and": [prefix_filter(control_prefix(queue)), {"_id": {"$gt": after}}], "queue": queue}
    controls = yield from find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE)
    looked_at = controls[: max(1, MAX_HEADS // max(_most(controls), 1))]
    heads = yield from read_heads(broker, queue, looked_at)
    is_end = len(looked_at) == len(controls) < CONTROLS_PER_PAGE
    incomplete = [each for each in looked_at if len(heads[each["_id"]]) + len(held_entries(each)) < each["open"]]
    return incomplete, None if is_end else looked_at[-1]["_id"]


def read_heads(broker: BrokerContext, queue: str, controls: Sequence[Document]) -> Flow[Mapping[Any, list[Document]]]:
    """Read the heads of sequences, without payloads, by the ``_id`` of the control document (``aggregate``).

    Heads have the first places, so no more items are read of a sequence than the largest number of heads.
    """
    heads: dict[Any, list[Document]] = {control["_id"]: [] for control in controls}
    if broker.serverless:
        for control in controls:
            heads[control["_id"]] = yield from _find_heads(broker, queue, control)
        return heads
    if not controls:
        return heads
    first: list[Mapping[str, Any]] = [
        {"$match": {"q": queue, "place": HAS_PLACE}},
        {"$sort": {"place": 1}},
        {"$limit": max(_most(controls), 1)},
        {"$project": HEAD_FIELDS},
    ]
    lookup = {"from": broker.collection, "localField": "sequence", "foreignField": "sequence", "pipeline": first}
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"_id": {"$in": list(heads)}}},
        {"$lookup": {**lookup, "as": "first"}},
        {"$project": {"first": 1}},
    ]
    arguments = {"pipeline": pipeline, "batchSize": len(controls)}
    documents: list[Any] = yield from Command("aggregate", arguments)
    for document in documents:
        heads[document["_id"]] = [item for item in document["first"] if "when" in item]
    return heads


def _most(controls: Iterable[Document]) -> int:
    return max((int(control["open"]) for control in controls), default=0)


def repair_all(context: QueueContext[Any], controls: Iterable[Document]) -> Flow[int]:
    """Repair the sequences of these control documents, each in a transaction; return how many items were promoted."""
    number = 0
    for control in controls:
        promoted = yield from run_atomic(context.broker, partial(_repair, context, control["_id"]))
        record_promoted(context.broker, promoted)
        number += len(promoted)
    return number


def _repair(context: QueueContext[Any], id: str) -> Flow[list[Promoted]]:
    control = yield from find_one(context.broker, {"_id": id})
    if control is None:
        return []
    missing = yield from _count_missing(context, control)
    return (yield from leave(context.broker, context.name, {control["sequence"]: missing}))


def lacks_head(context: QueueContext[Any], sequence: Any) -> Flow[bool]:
    """Return whether a sequence has fewer heads than it counts, or counts none; called in a transaction (two ``find``).

    False if a repair has already replaced a head that is gone: nothing may follow that head a second time.
    """
    control = (
        (yield from find_one(context.broker, {"_id": control_id(context.name, sequence)}))
        if isinstance(sequence, str)
        else None
    )
    return control is None or (yield from _count_missing(context, control)) > 0


def _count_missing(context: QueueContext[Any], control: Document) -> Flow[int]:
    """Return how many heads a control document counts that are not there; a letter that holds is none of them."""
    heads = yield from find_heads(context, control)
    return int(control["open"]) - len(held_entries(control)) - len(heads)


def find_heads(context: QueueContext[Any], control: Document) -> Flow[list[Document]]:
    """Find the heads of a sequence, no more than its control document counts: the index has them before the others."""
    return (yield from _find_heads(context.broker, context.name, control))


def _find_heads(broker: BrokerContext, queue: str, control: Document) -> Flow[list[Document]]:
    filter = {**heads_filter(queue), "sequence": control["sequence"]}
    return (yield from find_few(broker, filter, [("place", 1)], control["open"], lenient=True))
