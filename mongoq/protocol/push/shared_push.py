"""Pushes of callers that share an ``insert``: each caller gets the exact result of its own push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mongoq.protocol.flow.chunking import chunks
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, PartlyRefused, ReplyLost, Shared
from mongoq.protocol.push.draft import Draft, Kind
from mongoq.protocol.push.insert import insert_command, insert_item, is_new
from mongoq.protocol.state.batcher import Batchers, copies

__all__ = ["insert_together"]


def insert_together(batchers: Batchers, draft: Draft) -> Flow[None]:
    """Insert the item of a draft together with other callers' items."""
    broker = draft.context.broker
    batcher, caller = batchers.batcher("push", _insert_drafts, max_in_flight=2, shares=2), batchers.caller
    if caller is not None and batcher.start_alone(caller()):
        try:
            if (yield from insert_item(broker, draft.encode(), given=draft.given is not None, here=True)):
                draft.record_put()
        finally:
            batcher.finish_alone()  # even when this caller is cancelled: others wait for their turn
            batchers.go_on(batcher)
        return
    try:
        yield Shared(batcher, draft)
    except (Duplicate, ReplyLost) as error:
        if (yield from is_new(broker, error, draft.encode(), given=draft.given is not None)):
            draft.record_put()


def _insert_drafts(drafts: list[Draft]) -> Flow[list[Any]]:
    """Insert the items of several drafts; a lost reply, or any other error, goes to the callers of its command."""
    if len(drafts) == 1:
        yield insert_command(drafts[0].encode())
        drafts[0].record_put()
        return [None]
    told: list[Any] = []
    for chunk in chunks(drafts, lambda draft: draft.size):
        refusals: Mapping[int, Exception] = {}
        documents = [draft.encode() for draft in chunk]
        try:
            yield from Command[Any]("insert_many", {"documents": documents, "ordered": False})
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        _record_drafts(draft for place, draft in enumerate(chunk) if place not in refusals)
        told += [refusals.get(place) for place in range(len(chunk))]
    return told


def _record_drafts(drafts: Iterable[Draft]) -> None:
    """Count inserted items, and wake the waiters of their queues."""
    kinds: dict[Kind, list[Draft]] = {}
    for draft in drafts:
        kinds.setdefault(draft.kind, []).append(draft)
    for (queue, priority, at), alike in kinds.items():
        context = alike[0].context
        if queue in context.broker.registry.wait_queues:
            # The change stream reports each item once more; a waiter recognises it by its id.
            for draft in alike:
                context.put(priority, at, id=draft.id)
        else:
            context.put(priority, at, number=len(alike))
