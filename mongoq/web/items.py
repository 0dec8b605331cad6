"""Calls about items, live and processed: lists, one item, push, deletion and replay."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus

from fastapi import HTTPException, Request, Response

from mongoq import BoundedCount
from mongoq.aio import AsyncInspection
from mongoq.data.clock import MILLISECOND
from mongoq.data.copies import Replayed
from mongoq.data.encoding.extended_json import time_text
from mongoq.errors import ArgumentInvalid
from mongoq.web.models import ListedState, Purge, Push, Remove, ReplayHistory
from mongoq.web.services import (
    COUNT_LIMIT,
    LISTED,
    Document,
    Services,
    make_changed,
    record_change,
    respond,
    show_filter,
)
from mongoq.web.values import CursorText, FilterText, ItemId, Limit, Moment, QueueName


async def list_items(
    services: Services,
    *,
    queue: QueueName,
    state: ListedState = "live",
    where: FilterText = None,
    limit: Limit = LISTED,
    cursor: CursorText = None,
) -> Document:
    """Return items of a queue in the order in which they are claimed; of processed ones the oldest first.

    Blocked items come sequence by sequence, with the items that they wait for; ``live`` leaves them out.
    """
    return await services.list_queue(queue, state, where=where, limit=limit, cursor=cursor)


async def list_history(
    services: Services,
    *,
    queue: QueueName,
    since: Moment = None,
    until: Moment = None,
    where: FilterText = None,
    limit: Limit = LISTED,
    cursor: CursorText = None,
) -> Document:
    """Return items of a queue that were processed from ``since`` on and before ``until``, the oldest first.

    An answer to a search with a filter may have few items or none, and a cursor nevertheless: it examines a
    limited number of items, and the next one goes on.
    """
    times = {"since": since, "until": until}
    return await services.list_queue(queue, "processed", where=where, **times, limit=limit, cursor=cursor)


async def show_item(services: Services, id: ItemId) -> Document:
    """Return one item of any queue, live or processed, with its failure and its trail.

    Of an item that was settled in a queue without history, at most the id is remembered.
    """
    item = await services.client.inspect(AsyncInspection.item, id)
    if item is None:
        detail = f"there is no item {id}; it may have been settled in a queue without history, or its time is over"
        raise HTTPException(HTTPStatus.NOT_FOUND, detail)
    return (await services.describe_items([item], whole=True))[0]


async def push_item(services: Services, request: Request, action: Push) -> Response:
    """Add an item to a queue; a queue that does not exist is made.

    If a live item has the key, nothing is pushed, and the answer is 409, unless ``on_duplicate`` is ``"keep"``:
    then it is the id of that item, or ``"replace"``: then that item gets the payload. Give an ``id`` to send the
    push again after a lost answer: no second item is added. The answer is 201 for a new item, else 200.
    """
    client = services.client
    broker = await client.open()
    is_new_queue = not await client.inspect(AsyncInspection.is_known, action.queue)
    has_id = action.id is not None and await client.inspect(AsyncInspection.item, action.id) is not None
    has_key = action.key is not None and await client.inspect(AsyncInspection.has_key, action.queue, action.key)
    is_new = not (has_id or has_key)
    [when] = await services.read_times(action.when)
    keyed = () if action.key is None else ("key", "on_duplicate")
    names = ("delay", "expires", "priority", "sequence", "headers", "id", "once", *keyed)
    options = {name: getattr(action, name) for name in names}
    pushed = await client.call(broker.queue(action.queue).push, action.payload, when=when, **options)
    changed = is_new or action.on_duplicate == "replace"
    record_change(request, "push", action.queue, int(changed), id=str(pushed))
    result = {"id": str(pushed), "queue": action.queue, "new_item": is_new, "new_queue": is_new_queue}
    return respond(result, HTTPStatus.CREATED if is_new else HTTPStatus.OK)


async def remove_item(services: Services, request: Request, action: Remove) -> Document:
    """Delete one item of a queue, live or processed, unless a worker holds it: that is 409."""
    handle = await services.open_queue(action.queue)
    if not await services.client.call(handle.remove, action.id):
        item = await services.client.inspect(AsyncInspection.item, action.id)
        if item is None or item.queue != action.queue:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"queue {action.queue!r} has no item {action.id}")
        raise HTTPException(HTTPStatus.CONFLICT, f"item {action.id} is {item.state}: a worker holds it")
    record_change(request, "remove", action.queue, 1, id=str(action.id))
    return make_changed(action.queue, 1)


async def purge_items(services: Services, request: Request, action: Purge) -> Document:
    """Delete items of a queue: of one state, or all live ones that no caller holds."""
    limit = services.check_limit(action.limit)
    handle = await services.open_queue(action.queue)
    until, now = await services.read_times(action.until, timedelta(0))
    chosen = {"state": action.state, "where": action.where, "as_of": until}
    if action.dry_run:
        selected = handle.select(**chosen)
        counted = await services.client.read(selected.count, COUNT_LIMIT, free=action.state is None)
        number, exact = (limit, True) if counted.number >= limit else (counted.number, counted.exact)
        return {**make_changed(action.queue, number, dry_run=True, exact=exact), "until": time_text(until or now)}
    number = await services.client.call(handle.purge, **chosen, limit=limit)
    record_change(request, "purge", action.queue, number, **show_filter({**chosen, "until": until}))
    return make_changed(action.queue, number)


async def replay_history(services: Services, request: Request, action: ReplayHistory) -> Document:
    """Push copies of processed items, each once: the same replay again pushes nothing.

    With ``payload``, the copy of one item gets another payload. A dry run with a filter examines a limited number
    of items; ``exact`` is false when there may be more.
    """
    limit = services.check_limit(action.limit)
    handle = await services.open_queue(action.queue)
    since, until, now = await services.read_times(action.since, action.until, timedelta(0))
    target = action.to or action.queue
    chosen = {"ids": action.ids, "since": since, "until": until, "where": action.where}
    # Processed before: the millisecond of now counts as before.
    bound = {"until": time_text(until or now + MILLISECOND)} if action.dry_run and action.ids is None else {}
    is_edited = "payload" in action.model_fields_set
    if is_edited and (action.ids is None or len(set(action.ids)) != 1):
        raise ArgumentInvalid("payload", "a payload of its own is for the copy of one item; give one id in ids")
    if action.dry_run and action.ids is None and action.where:
        # A dry run examines all that the time covers; where that is too much, a count of the first ones has to do.
        selected = handle.select(state="processed", since=since, until=until, where=action.where)
        counted: BoundedCount = await services.client.read(selected.count, COUNT_LIMIT)
        if not counted.exact and counted.number < limit:
            found = Replayed(pushed=counted.number)
            return {**make_replayed(found, action.queue, target, dry_run=True, exact=False), **bound}
    options = {"to": action.to, "label": action.label, "limit": limit, "dry_run": action.dry_run}
    transform = (lambda *_: action.payload) if is_edited else None
    done: Replayed = await services.client.call(handle.replay, **chosen, **options, transform=transform)
    if not action.dry_run:
        shown = {"payload": "edited" if is_edited else None, **show_filter(chosen)}
        record_change(request, "replay", action.queue, done.pushed, to=target, **shown)
    note = {} if done.found else await services.explain_no_history(action.queue)
    return {**make_replayed(done, action.queue, target, dry_run=action.dry_run), **bound, **note}


def make_replayed(done: Replayed, queue: str, to: str | None, *, dry_run: bool = False, exact: bool = True) -> Document:
    """Return the answer to a replay."""
    return {
        **make_changed(queue, done.pushed, dry_run=dry_run, exact=exact),
        "to": to,
        **{name: getattr(done, name) for name in ("already", "skipped", "refused")},
        "refusals": [{"id": str(id), "reason": reason} for id, reason in done.refusals],
        "missing": list(map(str, done.missing)),
    }
