"""HTTP API: its calls, as a table. ``items``, ``letters`` and ``queues`` have a function for each of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from mongoq.data.encoding.extended_json import read_json
from mongoq.web import items, letters, models, queues
from mongoq.web.services import Services, bind
from mongoq.web.values import JSON_TYPE

LONG_BYTES = 65_536
"""Bytes of a body from which on a thread reads it."""


class Call(NamedTuple):
    """A call of the API.

    Attributes:
        method: method of HTTP.
        path: path.
        tag: heading in OpenAPI.
        function: function that answers it.
        answer: model of the answer, for OpenAPI; ``None`` for other answers.
        is_large: True if the answer may have many payloads, or large ones.
        options: what else FastAPI is to know.
    """

    method: str
    path: str
    tag: str
    function: Callable[..., Any]
    answer: type[BaseModel] | None = None
    is_large: bool = False
    options: Mapping[str, Any] = {}


PUSHED = {"status_code": HTTPStatus.CREATED, "responses": {200: {"model": models.Pushed, "description": models.KNOWN}}}
TEXT = {"response_class": Response, "responses": {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}}
_MISTAKE = {"model": models.Mistake, "description": letters.MISTAKE}
_IN_ADDRESS = [
    {"name": name, "in": "query", "required": name != "channel", "schema": {"type": "string"}}
    for name in ("count", "topic-entity", "channel")
]
ZIGGURAT = {"responses": {400: _MISTAKE, 404: _MISTAKE}, "openapi_extra": {"parameters": _IN_ADDRESS}}
ZIGGURAT_BODY = {**ZIGGURAT, "openapi_extra": {"requestBody": {"content": {JSON_TYPE: {}}}}}

CALLS = (
    Call("GET", "/api/queues", "queues", queues.list_queues, models.QueueList),
    Call("POST", "/api/queues/pause", "queues", queues.pause_queue, models.SettingsDocument),
    Call("POST", "/api/queues/resume", "queues", queues.resume_queue, models.SettingsDocument),
    Call("POST", "/api/queues/drop", "queues", queues.drop_queue, models.Changed),
    Call("GET", "/api/settings", "queues", queues.show_settings, models.SettingsDocument),
    Call("POST", "/api/settings", "queues", queues.configure_queue, models.SettingsDocument),
    Call("GET", "/api/items", "items", items.list_items, models.ItemList, is_large=True),
    Call("GET", "/api/items/{id}", "items", items.show_item, models.ItemDocument, is_large=True),
    Call("POST", "/api/items/push", "items", items.push_item, models.Pushed, options=PUSHED),
    Call("POST", "/api/items/remove", "items", items.remove_item, models.Changed),
    Call("POST", "/api/items/purge", "items", items.purge_items, models.Changed),
    Call("GET", "/api/letters", "dead letters", letters.list_letters, models.ItemList, is_large=True),
    Call("GET", "/api/letters/groups", "dead letters", letters.group_letters, models.LetterGroups),
    Call("POST", "/api/letters/replay", "dead letters", letters.replay_letters, models.Sent),
    Call("POST", "/api/letters/move", "dead letters", letters.move_letters, models.Sent),
    Call("POST", "/api/letters/drop", "dead letters", letters.drop_letters, models.Changed),
    Call("GET", "/api/history", "history", items.list_history, models.ItemList, is_large=True),
    Call("POST", "/api/history/replay", "history", items.replay_history, models.Sent),
    Call("GET", "/api/pipelines", "pipelines", queues.list_pipelines, models.PipelineList),
    Call("GET", "/api/pipeline", "pipelines", queues.show_pipeline, models.PipelineDocument),
    Call("GET", "/api/workers", "system", queues.list_workers, models.WorkerList),
    Call("GET", "/api/bindings", "system", queues.list_bindings, models.BindingList),
    Call("GET", "/api/health", "system", queues.show_health, models.HealthDocument),
    Call("GET", "/api/schedules", "schedules", queues.list_all_schedules, models.ScheduleList),
    Call("POST", "/api/schedules/pause", "schedules", queues.pause_schedule, models.ScheduleDocument),
    Call("POST", "/api/schedules/resume", "schedules", queues.resume_schedule, models.ScheduleDocument),
    Call("POST", "/api/schedules/run", "schedules", queues.run_schedule, models.ScheduleRun),
    Call("POST", "/api/schedules/remove", "schedules", queues.remove_schedule, models.ScheduleRemoved),
    Call("GET", "/v1/dead_set", "Ziggurat", letters.view_dead_set, is_large=True, options=ZIGGURAT),
    Call("POST", "/v1/dead_set/replay", "Ziggurat", letters.replay_dead_set, options=ZIGGURAT_BODY),
    Call("DELETE", "/v1/dead_set", "Ziggurat", letters.delete_dead_set, options=ZIGGURAT),
    Call("GET", "/metrics", "system", queues.show_metrics, options=TEXT),
)


def make_router(services: Services) -> APIRouter:
    """Return the calls of the API."""
    router = APIRouter(route_class=ExtendedJsonRoute)
    for method, path, tag, function, answer, is_large, options in CALLS:
        endpoint = bind(function, services, is_large=is_large)
        router.add_api_route(path, endpoint, methods=[method], tags=[tag], response_model=answer, **options)
    return router


class ExtendedJsonRequest(Request):
    """Request whose body is extended JSON: ``{"$oid": …}`` is an ObjectId, ``{"$date": …}`` a time."""

    async def json(self) -> Any:
        """Return the value of the body.

        Raises:
            RequestValidationError: it is no JSON, or extended JSON that means no value.
        """
        if not hasattr(self, "_value"):
            try:
                body = await self.body()
                # A large one takes seconds, in which the app is to answer others.
                read = to_thread.run_sync(read_json, body) if len(body) > LONG_BYTES else None
                self._value = read_json(body) if read is None else await read
            except ValueError as error:  # a text that is not UTF-8 is one too
                raise RequestValidationError([{"loc": ("body",), "msg": str(error), "type": "json"}]) from None
        return self._value


class ExtendedJsonRoute(APIRoute):
    """Route for requests with extended JSON as their body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handle_extended(request: Request) -> Response:
            # A form of another site can send any text, but none of this type without asking first.
            if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0] != JSON_TYPE:
                raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON_TYPE}")
            extended = ExtendedJsonRequest(request.scope, request.receive)
            if request.method == "POST":
                await extended.json()  # here, because FastAPI would replace the error by one without a reason
            return await handle(extended)

        return handle_extended
