"""Purges: delete the items of a queue, all items of a state, or a selection by a filter, ids or a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, FilterInvalid
from mongoq.model.arguments import count, listed, object_id, text
from mongoq.model.trail import STAGE_BYTES
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow.commands import Flow, delete_many
from mongoq.protocol.history import read
from mongoq.protocol.history.pages import Range, history_range, is_refused_filter, refusal
from mongoq.protocol.history.read import NOT_RESERVED, Selection
from mongoq.protocol.state.context import QueueContext

__all__ = ["purge"]

PAGE = 1_000
"""Items that one command deletes, at most, where ids are named."""
PLACE: dict[str, Any] = dict.fromkeys(("priority", "when", "processed"), 1)
"""Projection of the fields that define where the next page begins."""


def purge(
    context: QueueContext[Any],
    state: Selection,
    *,
    where: Any = None,
    limit: int | None = None,
    ids: Iterable[ObjectId] | None = None,
    stage: str | None = None,
) -> Flow[int]:
    """Delete items of a state, or live ones that no caller holds, and return how many (``delete``).

    Without a limit it is one command, or one for each 1,000 ids. With a limit it is a ``find`` of ids in queue order
    and a ``delete`` of them for each 1,000 items. A crash in between leaves the rest.
    """
    if all(choice is None for choice in (where, limit, ids, stage)):
        return (yield from read.purge(context, state))
    room = math.inf if limit is None else count(limit, "limit")
    wanted = history_range(context, since=None, until=None, where=where, state=state, page=PAGE)
    if stage is not None:
        wanted = wanted.narrowed({"origin.stage": text(stage, "stage", STAGE_BYTES)})
    groups = _groups(ids, where=where, stage=stage)
    yield from ensure_ready(context, fresh=False)
    now = context.broker.clock.now()
    if state is None:
        wanted = wanted.narrowed({"$or": [{"reserved": NOT_RESERVED}, {"when": {"$lte": now}}]})
    deleted = 0
    for group in groups:
        chosen = replace(wanted.narrowed(group) if group else wanted, started=now)
        try:
            deleted += yield from _purged(context, chosen, room - deleted)
        except Exception as error:
            if where is not None and is_refused_filter(error):
                raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
            raise
    return deleted


def _groups(ids: Any, **others: Any) -> list[Mapping[str, Any]]:
    """Return filters that name the selected ids, up to 1,000 in each; one empty filter without ids."""
    if ids is None:
        return [{}]
    if any(value is not None for value in others.values()):
        raise ArgumentInvalid("ids", "choose by ids=, or by where= and stage=, not by both")
    checked = [object_id(id, f"ids[{place}]") for place, id in enumerate(listed(ids, "ids"))]
    chosen = list(dict.fromkeys(checked))
    return [{"_id": {"$in": chosen[start : start + PAGE]}} for start in range(0, len(chosen), PAGE)]


def _purged(context: QueueContext[Any], chosen: Range, room: float) -> Flow[int]:
    if room == math.inf:
        return (yield from delete_many(chosen.filter(context.name)))
    deleted, rest = 0, chosen
    while deleted < room:
        size = int(min(PAGE, room - deleted))
        filter = rest.filter(context.name)
        found = yield from find_few(context.broker, filter, chosen.order, size, projection=PLACE)
        if not found:
            break
        # An item may have been claimed, moved or settled since it was read, so the delete repeats the whole filter.
        named = chosen.narrowed({"_id": {"$in": [document["_id"] for document in found]}})
        deleted += yield from delete_many(named.filter(context.name))
        # Go on after the last item: from the beginning, the server would walk over the index entries just deleted.
        rest = replace(rest, after=found[-1])
    return deleted
