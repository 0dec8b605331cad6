"""Repairs of sequences whose first item is gone without a trace: another program has deleted it."""

from __future__ import annotations

from functools import partial
from typing import Any

from mongoq.model.item import Document
from mongoq.model.sequence import control_prefix, heads_filter
from mongoq.protocol.base.find import find_few, find_one, prefix_filter
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.leave import Promoted, leave, record_promoted
from mongoq.protocol.state.context import QueueContext

CONTROLS_PER_PAGE = 1_000
"""Control documents that one command reads."""


def repair_sequences(context: QueueContext[Any]) -> Flow[int]:
    """Promote the next items of sequences that have fewer heads than their control documents count; return how many.

    Each sequence that looks so is read again in a transaction of its own. A crash in between leaves the others.
    """
    yield from ensure_ready(context)
    broker, number, after = context.broker, 0, ""
    while True:
        filter = {"$and": [prefix_filter(control_prefix(context.name)), {"_id": {"$gt": after}}], "queue": context.name}
        controls = yield from find_few(broker, filter, [("_id", 1)], CONTROLS_PER_PAGE)
        for control in controls:
            if (yield from _count_missing(context, control)) > 0:
                promoted = yield from run_atomic(broker, partial(_repair, context, control["_id"]))
                record_promoted(broker, promoted)
                number += len(promoted)
        if len(controls) < CONTROLS_PER_PAGE:
            return number
        after = controls[-1]["_id"]


def _repair(context: QueueContext[Any], id: str) -> Flow[list[Promoted]]:
    control = yield from find_one(context.broker, {"_id": id})
    if control is None:
        return []
    missing = yield from _count_missing(context, control)
    return (yield from leave(context.broker, context.name, {control["sequence"]: missing}))


def _count_missing(context: QueueContext[Any], control: Document) -> Flow[int]:
    """Return how many heads a control document counts that are not there."""
    return int(control["open"]) - len((yield from find_heads(context, control)))


def find_heads(context: QueueContext[Any], control: Document) -> Flow[list[Document]]:
    """Find the heads of a sequence, no more than its control document counts: the index has them before the others."""
    filter = {**heads_filter(context.name), "sequence": control["sequence"]}
    return (yield from find_few(context.broker, filter, [("place", 1)], control["open"], lenient=True))
