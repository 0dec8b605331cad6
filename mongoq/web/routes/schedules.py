"""Calls about schedules: a list of them, pause, an extra run, and removal."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mongoq.model.arguments import queue_name
from mongoq.protocol.coordination.schedules import find_schedule, list_schedules
from mongoq.web import audit
from mongoq.web.models import Answer
from mongoq.web.services import Services
from mongoq.web.values import ExtendedJsonRoute, respond

ScheduleName = Annotated[
    str,
    AfterValidator(lambda name: queue_name(name, "schedule")),
    Field(description="Name of a schedule.", examples=["report"]),
]


class ScheduleDocument(Answer):
    """A schedule, with its next and last ticks."""

    schedule: str
    what: str = Field(description="When it ticks, as a text.")
    queue: str = Field(description="Queue that its items go to.")
    paused: bool
    next: str | None = Field(description="The next tick; null if there is none any more.")
    over: bool = Field(description="True if it never ticks again.")
    timezone: str | None = Field(description="Zone of its cron expression; null for others.")
    next_local: str | None = Field(description="The next tick in that zone, with the offset to UTC.")
    last: str | None = Field(description="The last tick that was made.")
    late: float = Field(description="Seconds since the next tick has been due, from a minute on.")
    unseen: bool = Field(description="True if it belongs to a function that no running code has had for a day.")
    trouble: str | None = Field(description="Why it cannot be read; null if it can.")


class ScheduleList(Answer):
    """All schedules, by name."""

    schedules: list[ScheduleDocument]


class ScheduleAction(BaseModel):
    """A request that changes a schedule."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schedule: ScheduleName


class ScheduleRun(Answer):
    """An extra item of a schedule."""

    schedule: str
    queue: str
    id: str


class ScheduleRemoved(Answer):
    """Result of a removal."""

    schedule: str
    removed: bool = Field(description="False if another caller was faster.")


VERBS = {"pause": "pause_schedule", "resume": "resume_schedule"}
"""Method of the broker for each change of the pause."""


def make_router(services: Services) -> APIRouter:
    """Return the calls about schedules."""
    router = APIRouter(prefix="/api/schedules", tags=["schedules"], route_class=ExtendedJsonRoute)

    @router.get("", response_model=ScheduleList)
    async def list_all_schedules() -> Response:
        """Return all schedules, with their next and last ticks."""
        records = await services.client.read(list_schedules)
        return respond({"schedules": [record.to_document() for record in records]})

    @router.post("/pause", response_model=ScheduleDocument)
    async def pause_schedule(request: Request, action: ScheduleAction) -> Response:
        """Let a schedule make no items until it is resumed."""
        return respond(await set_paused(services, request, action.schedule, "pause"))

    @router.post("/resume", response_model=ScheduleDocument)
    async def resume_schedule(request: Request, action: ScheduleAction) -> Response:
        """End the pause of a schedule; what it missed goes by its rule for missed ticks."""
        return respond(await set_paused(services, request, action.schedule, "resume"))

    @router.post("/run", response_model=ScheduleRun)
    async def run_schedule(request: Request, action: ScheduleAction) -> Response:
        """Push an extra item of a schedule now; its next tick stays."""
        return respond(await run_now(services, request, action.schedule))

    @router.post("/remove", response_model=ScheduleRemoved)
    async def remove_schedule(request: Request, action: ScheduleAction) -> Response:
        """Delete a schedule; its items stay. Code that defines it makes it anew when it starts."""
        return respond(await remove(services, request, action.schedule))

    return router


async def set_paused(services: Services, request: Request, name: str, verb: str) -> dict[str, Any]:
    """Pause or resume a schedule, and return its document."""
    broker = await services.client.open()
    await services.client.call(getattr(broker, VERBS[verb]), name)
    audit.record(request, f"{verb} schedule", name)
    record = await services.client.read(find_schedule, name)
    return record.to_document()  # type: ignore[no-any-return]


async def run_now(services: Services, request: Request, name: str) -> dict[str, Any]:
    """Push an extra item of a schedule, and return where it went."""
    queue = (await services.client.read(find_schedule, name)).queue
    broker = await services.client.open()
    id = await services.client.call(broker.run_schedule_now, name)
    audit.record(request, "run schedule", name)
    return {"schedule": name, "queue": queue, "id": str(id)}


async def remove(services: Services, request: Request, name: str) -> dict[str, Any]:
    """Delete a schedule, and return whether it was there."""
    await services.client.read(find_schedule, name)
    broker = await services.client.open()
    removed = await services.client.call(broker.remove_schedule, name)
    audit.record(request, "remove schedule", name)
    return {"schedule": name, "removed": removed}
