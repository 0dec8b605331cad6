"""Calls about items: lists, one item, push and deletion."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from mongoq.model.encoding.extended_json import time_text
from mongoq.protocol import admin
from mongoq.protocol.history.mistaken import is_known
from mongoq.protocol.history.query import make_query
from mongoq.protocol.insight import find_item, find_keyed
from mongoq.web import audit
from mongoq.web.client import BrokerClient
from mongoq.web.models import Changed, ItemDocument, ItemList, ListedState, Purge, Push, Pushed, Remove
from mongoq.web.routes.queues import COUNT_LIMIT
from mongoq.web.services import Services
from mongoq.web.values import (
    CursorText,
    ExtendedJsonRoute,
    FilterText,
    ItemId,
    Limit,
    QueueName,
    respond,
)

LISTED = 50
"""Items in one answer, unless ``limit`` says otherwise."""
KNOWN: dict[str, Any] = {"model": Pushed, "description": "An item had the id or the key already."}


def make_router(services: Services) -> APIRouter:
    """Return the calls about items."""
    router = APIRouter(prefix="/api", tags=["items"], route_class=ExtendedJsonRoute)
    client = services.client

    @router.get("/items", response_model=ItemList)
    async def list_items(
        queue: QueueName,
        state: ListedState = "live",
        where: FilterText = None,
        limit: Limit = LISTED,
        cursor: CursorText = None,
    ) -> Response:
        """Return items of a queue in the order in which they are claimed; of processed ones the oldest first.

        Blocked items come sequence by sequence, with the items that they wait for; ``live`` leaves them out.
        """
        handle = await services.open_queue(queue)
        selected: Any = None if state == "live" else state
        wanted = make_query(handle._context, since=None, until=None, where=where, state=selected, page=limit)
        return await services.respond_with_payloads(services.list_items(handle, wanted, cursor))

    @router.get("/items/{id}", response_model=ItemDocument)
    async def show_item(id: ItemId) -> Response:
        """Return one item of any queue, live or processed, with its failure and its trail.

        Of an item that was settled in a queue without history, at most the id is remembered.
        """
        item = await client.read(find_item, id)
        if item is None:
            detail = f"there is no item {id}; it may have been settled in a queue without history"
            raise HTTPException(HTTPStatus.NOT_FOUND, detail)
        return await services.respond_with_payloads(services.describe_item(item))

    @router.post("/items/push", response_model=Pushed, status_code=HTTPStatus.CREATED, responses={200: KNOWN})
    async def push_item(request: Request, action: Push) -> Response:
        """Add an item to a queue; a queue that does not exist is made.

        If a live item has the key, nothing is pushed, and the answer is 409, unless ``on_duplicate`` is ``"keep"``:
        then it is the id of that item, or ``"replace"``: then that item gets the payload. Give an ``id`` to send the
        push again after a lost answer: no second item is added. The answer is 201 for a new item, else 200.
        """
        broker = await client.open()
        is_new_queue = not await client.read(is_known, action.queue)
        is_new = not await _has_item(client, action)
        [when] = await services.read_times(action.when)
        keyed = () if action.key is None else ("key", "on_duplicate")
        names = ("delay", "expires", "priority", "sequence", "headers", *keyed)
        options = {name: getattr(action, name) for name in names}
        options |= {"id": action.id, "once": action.once}
        pushed = await client.call(broker.queue(action.queue).push, action.payload, when=when, **options)
        changed = is_new or action.on_duplicate == "replace"
        audit.record(request, "push", action.queue, int(changed), id=str(pushed))
        result = {"id": str(pushed), "queue": action.queue, "new_item": is_new, "new_queue": is_new_queue}
        return respond(result, HTTPStatus.CREATED if is_new else HTTPStatus.OK)

    @router.post("/items/remove", response_model=Changed)
    async def remove_item(request: Request, action: Remove) -> Response:
        """Delete one item of a queue, live or processed, unless a worker holds it: that is 409."""
        handle = await services.open_queue(action.queue)
        if not await client.call(handle.remove, action.id):
            item = await client.read(find_item, action.id)
            if item is None or item.queue != action.queue:
                raise HTTPException(HTTPStatus.NOT_FOUND, f"queue {action.queue!r} has no item {action.id}")
            raise HTTPException(HTTPStatus.CONFLICT, f"item {action.id} is {item.state}: a worker holds it")
        audit.record(request, "remove", action.queue, 1, id=str(action.id))
        return respond({"queue": action.queue, "dry_run": False, "number": 1, "exact": True})

    @router.post("/items/purge", response_model=Changed)
    async def purge_items(request: Request, action: Purge) -> Response:
        """Delete items of a queue: of one state, or all live ones that no caller holds."""
        limit = services.check_limit(action.limit)
        handle = await services.open_queue(action.queue)
        until, now = await services.read_times(action.until, timedelta(0))
        chosen = {"where": action.where, "until": until}
        if action.dry_run:
            counted = await client.read(admin.count_purge, action.state, handle=handle, **chosen, limit=COUNT_LIMIT)
            number, exact = (limit, True) if counted.number >= limit else (counted.number, counted.exact)
            result = {"queue": action.queue, "dry_run": True, "number": number, "exact": exact}
            return respond({**result, "until": time_text(until or now)})
        number = await client.call(handle._run, admin.purge, action.state, **chosen, limit=limit)
        audit.record(request, "purge", action.queue, number, **audit.show_filter({**chosen, "state": action.state}))
        return respond({"queue": action.queue, "dry_run": False, "number": number, "exact": True})

    return router


async def _has_item(client: BrokerClient, action: Push) -> bool:
    """Return whether an item has the id of a push, or a live one its key."""
    if action.id is not None and await client.read(find_item, action.id) is not None:
        return True
    return action.key is not None and await client.read(find_keyed, action.queue, action.key)
