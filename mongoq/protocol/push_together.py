"""Pushes of callers who share an ``insert``: each is told exactly what became of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongoq.protocol.batch import chunks
from mongoq.protocol.draft import Draft, envelopes
from mongoq.protocol.insert import insert_command
from mongoq.protocol.lane import Lanes, copies
from mongoq.protocol.request import Command, Flow, PartlyRefused, Shared

__all__ = ["shared_insert"]


def shared_insert(lanes: Lanes, draft: Draft) -> Shared[Any]:
    """Return the request to insert the item of a draft with those of other callers."""
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
