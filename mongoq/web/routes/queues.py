"""Calls about whole queues: their state, pause and end."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from mongoq.errors import ArgumentInvalid
from mongoq.protocol.history.query import BoundedCount, count_range, make_query
from mongoq.protocol.insight import BUDGET, read_queues, read_settings
from mongoq.web import audit
from mongoq.web.models import Action, Changed, DropQueue, QueueList, SettingsDocument
from mongoq.web.routes.settings import settings_document
from mongoq.web.services import Services
from mongoq.web.values import ExtendedJsonRoute, QueueName, respond

LIVE_STATES: tuple[Literal["blocked"] | None, ...] = (None, "blocked")
"""States that together are those of all live items."""
COUNT_LIMIT = 100_000
"""Items that a dry run examines, at most."""


def make_router(services: Services) -> APIRouter:
    """Return the calls about queues."""
    router = APIRouter(prefix="/api", tags=["queues"], route_class=ExtendedJsonRoute)
    client = services.client

    @router.get("/queues", response_model=QueueList)
    async def list_queues(
        queue: Annotated[list[QueueName] | None, Query(description="Only these queues.", max_length=500)] = None,
        budget: Annotated[int, Query(ge=1, le=10 * BUDGET, description="Items to count, in all.")] = BUDGET,
    ) -> Response:
        """Return the state of all queues; counts end at a limit, and say so."""
        found = await client.read(read_queues, queue, budget=budget)
        return respond({"queues": [each.to_document() for each in found]})

    @router.post("/queues/pause", response_model=SettingsDocument)
    async def pause_queue(request: Request, action: Action) -> Response:
        """Stop claims of a queue in all processes within a second; pushes go on."""
        return await set_paused(request, action.queue, "pause")

    @router.post("/queues/resume", response_model=SettingsDocument)
    async def resume_queue(request: Request, action: Action) -> Response:
        """End the pause of a queue."""
        return await set_paused(request, action.queue, "resume")

    async def set_paused(request: Request, queue: str, verb: Literal["pause", "resume"]) -> Response:
        await client.call(getattr(await services.open_queue(queue), verb))
        audit.record(request, verb, queue)
        return respond(settings_document(await client.read(read_settings, queue)))

    @router.post("/queues/drop", response_model=Changed)
    async def drop_queue(request: Request, action: DropQueue) -> Response:
        """Delete a queue with its history, counters and settings; its dead queue stays."""
        handle = await services.open_queue(action.queue)
        counted = BoundedCount()
        for state in LIVE_STATES:
            live = make_query(handle._context, since=None, until=None, where=None, state=state, page=1)
            counted += await client.read(count_range, live, handle=handle, limit=COUNT_LIMIT)
        if counted.number > services.max_bulk and action.force:
            raise ArgumentInvalid("force", f"the queue holds more than {services.max_bulk:,} items; purge it first")
        if action.dry_run:
            return respond({"queue": action.queue, "dry_run": True, "number": counted.number, "exact": counted.exact})
        broker = await client.open()
        number = await client.call(broker.drop_queue, action.queue, force=action.force)
        audit.record(request, "drop", action.queue, number)
        return respond({"queue": action.queue, "dry_run": False, "number": number, "exact": True})

    return router
