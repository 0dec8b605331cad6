"""Page of the schedules, and the changes that its forms ask for: a question first, then the change."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Request, Response

from mongoq.model.arguments import queue_name
from mongoq.protocol.coordination.schedules import find_schedule, list_schedules
from mongoq.web.pages.forms import NO_FORM, first_values, go_to, read_fields
from mongoq.web.pages.render import Renderer, make_address, root_of
from mongoq.web.routes.schedules import remove, run_now, set_paused
from mongoq.web.services import Services

QUESTIONS = {
    "pause": ("Let {} make no items until it is resumed?", "Pause"),
    "resume": ("Let {} make items again?", "Resume"),
    "run": ("Push an extra item of {} now?", "Push"),
    "remove": ("Delete the schedule {}? Its items stay.", "Delete"),
}
"""Question and verb of each change."""
PATH = "/schedules"


def make_router(services: Services, renderer: Renderer) -> APIRouter:
    """Return the page, and the call that its forms are sent to."""
    router = APIRouter(include_in_schema=False)

    async def show_schedules(request: Request) -> Response:
        """Show all schedules."""
        records = await services.client.read(list_schedules)
        return renderer.page(request, "schedules", schedules=records)

    async def change_schedule(request: Request) -> Response:
        """Carry out what a form asks for, or ask first."""
        action, name, confirmed = await _read_form(request)
        record = await services.client.read(find_schedule, name)
        if not confirmed:
            question, verb = QUESTIONS[action]
            fields = [("action", action), ("schedule", name)]
            options = {"fields": fields, "back": make_address(root_of(request), PATH), "target": f"{PATH}/change"}
            return renderer.page(request, "confirm", question=question.format(record.name), verb=verb, **options)
        if action == "run":
            await run_now(services, request, name)
        elif action == "remove":
            await remove(services, request, name)
        else:
            await set_paused(services, request, name, action)
        return go_to(request, PATH)

    router.add_api_route(PATH, show_schedules, methods=["GET"])
    router.add_api_route(f"{PATH}/change", change_schedule, methods=["POST"])
    return router


async def _read_form(request: Request) -> tuple[str, str, bool]:
    """Return the change, the schedule, and whether the reader has agreed.

    Raises:
        HTTPException: it is no form, or a field of it cannot be used.
        QueueNameInvalid: no schedule can have this name.
    """
    fields = first_values(await read_fields(request))
    action, name = fields.get("action"), fields.get("schedule")
    if action not in QUESTIONS or name is None:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FORM)
    return action, queue_name(name, "schedule"), "confirmed" in fields
