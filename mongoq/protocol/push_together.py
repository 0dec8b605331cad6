"""Pushes of callers who share an ``insert``: each is told exactly what became of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.protocol import push as pushing
from mongoq.protocol.batch import chunks
from mongoq.protocol.context import QueueContext
from mongoq.protocol.draft import Draft, envelopes
from mongoq.protocol.insert import insert_command
from mongoq.protocol.lane import Lanes, copies
from mongoq.protocol.request import Command, Flow, PartlyRefused, Shared

__all__ = ["push"]


def push(context: QueueContext[Any], payload: Any, *, session: Any, **told: Any) -> Flow[ObjectId]:
    """Insert one item, with those of other callers, and return its id."""
    lanes, joined = context.broker.lanes, session is not None
    if lanes is None or joined:
        return pushing.push(context, payload, joined=joined, **told)
    return pushing.push(context, payload, insert=partial(_insert, lanes), **told)


def _insert(lanes: Lanes, draft: Draft) -> Shared[Any]:
    return Shared(lanes.lane("push", _inserted, abreast=True), draft)


def _inserted(drafts: list[Draft]) -> Flow[list[Any]]:
    """Insert the items of several drafts; a lost reply, or any other error, is told to those of its command."""
    if len(drafts) == 1:
        return [(yield insert_command(drafts[0].envelope()))]
    made = envelopes(drafts)
    told: list[Any] = []
    for chunk in chunks(list(zip(drafts, made, strict=True)), lambda one: len(one[0].wrapped)):
        refusals: Mapping[int, Exception] = {}
        documents = [envelope for _, envelope in chunk]
        try:
            yield from Command[Any]("insert_many", {"documents": documents, "ordered": False})
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        told += [refusals.get(place) for place in range(len(chunk))]
    return told
