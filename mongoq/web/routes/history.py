"""Calls about processed items: search, and replay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from mongoq.errors import ArgumentInvalid
from mongoq.model.clock import MILLISECOND
from mongoq.model.copies import Replayed
from mongoq.model.encoding.extended_json import time_text
from mongoq.protocol.history.query import BoundedCount, count_range, make_query
from mongoq.web import audit
from mongoq.web.models import ItemList, ReplayHistory, Sent
from mongoq.web.routes.items import LISTED
from mongoq.web.routes.letters import make_result
from mongoq.web.routes.queues import COUNT_LIMIT
from mongoq.web.services import Services
from mongoq.web.values import (
    CursorText,
    ExtendedJsonRoute,
    FilterText,
    Limit,
    Moment,
    QueueName,
    respond,
)


def make_router(services: Services) -> APIRouter:
    """Return the calls about processed items."""
    router = APIRouter(prefix="/api/history", tags=["history"], route_class=ExtendedJsonRoute)
    client = services.client

    @router.get("", response_model=ItemList)
    async def list_history(
        *,
        queue: QueueName,
        since: Moment = None,
        until: Moment = None,
        where: FilterText = None,
        limit: Limit = LISTED,
        cursor: CursorText = None,
    ) -> Response:
        """Return items of a queue that were processed from ``since`` on and before ``until``, the oldest first.

        An answer to a search with a filter may have few items or none, and a cursor nevertheless: it examines a
        limited number of items, and the next one goes on.
        """
        handle = await services.open_queue(queue)
        first, last = await services.read_times(since, until)
        wanted = make_query(handle._context, since=first, until=last, where=where, state="processed", page=limit)
        return await services.respond_with_payloads(services.list_items(handle, wanted, cursor))

    @router.post("/replay", response_model=Sent)
    async def replay_history(request: Request, action: ReplayHistory) -> Response:
        """Push copies of processed items, each once: the same replay again pushes nothing.

        With ``payload``, the copy of one item gets another payload. A dry run with a filter examines a limited number
        of items; ``exact`` is false when there may be more.
        """
        limit = services.check_limit(action.limit)
        handle = await services.open_queue(action.queue)
        since, until, now = await services.read_times(action.since, action.until, timedelta(0))
        # Processed before: the millisecond of now counts as before.
        bound = {"until": time_text(until or now + MILLISECOND)} if action.dry_run and action.ids is None else {}
        chosen = {"ids": action.ids, "since": since, "until": until, "where": action.where}
        options = {"to": action.to, "label": action.label, "limit": limit, "dry_run": action.dry_run}
        if action.dry_run and (counted := await count_matches(services, handle, limit=limit, **chosen)) is not None:
            result = make_result(Replayed(pushed=counted.number), action.queue, action.to or action.queue, is_dry=True)
            return respond({**result, "exact": False, **bound})
        done: Replayed = await client.call(handle.replay, **chosen, **options, transform=_make_transform(action))
        target = action.to or action.queue
        if not action.dry_run:
            audit.record(request, "replay", action.queue, done.pushed, to=target, **audit.show_filter(chosen))
        note = {} if done.found else await services.explain_no_history(handle)
        return respond({**make_result(done, action.queue, target, is_dry=action.dry_run), **bound, **note})

    return router


async def count_matches(
    services: Services, handle: Any, *, ids: Any, since: Any, until: Any, where: Any, limit: int
) -> BoundedCount | None:
    """Count the processed items that match a filter among the first ones, if there may be more behind them.

    ``None`` says that a dry run examines a limited number of items: without a filter, or when all that the time covers
    can be examined.
    """
    if ids is not None or not where:
        return None
    wanted = make_query(handle._context, since=since, until=until, where=where, state="processed", page=1)
    counted: BoundedCount = await services.client.read(count_range, wanted, handle=handle, limit=COUNT_LIMIT)
    return None if counted.exact or counted.number >= limit else counted


def _make_transform(action: ReplayHistory) -> Any:
    """Return the function that gives the copy its payload; ``None`` if the copy gets the original's."""
    if "payload" not in action.model_fields_set:
        return None
    if action.ids is None or len(set(action.ids)) != 1:
        raise ArgumentInvalid("payload", "a payload of its own is for the copy of one item; give one id in ids")
    payload = action.payload
    return lambda _payload, _item: payload
