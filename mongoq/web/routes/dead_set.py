"""The dead set of Ziggurat: its calls, as its users know them, on the dead letters of mongoq.

``topic-entity`` is the name of a queue; with a ``channel`` it is ``topic-entity.channel``. The calls take
``count`` letters, the first ones. Source: https://github.com/gojek/ziggurat, "Retries and queues".
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from mongoq.errors import MongoqError, QueueUnknown
from mongoq.web import audit
from mongoq.web.routes.letters import open_letters, select, with_page
from mongoq.web.services import Services
from mongoq.web.values import MAX_LISTED, ExtendedJsonRoute, respond

MISTAKE = "count is to be a positive whole number, and topic-entity the name of a queue"
PARAMETERS = [
    {"name": name, "in": "query", "required": name != "channel", "schema": {"type": "string"}}
    for name in ("count", "topic-entity", "channel")
]


class Mistake(BaseModel):
    """A call that cannot be carried out, in the form that Ziggurat's users know."""

    model_config = ConfigDict(extra="allow")

    error: str | None = None


def make_router(services: Services) -> APIRouter:
    """Return the calls of the dead set."""
    answer: dict[str, Any] = {"model": Mistake, "description": MISTAKE}
    responses: dict[int | str, dict[str, Any]] = {400: answer, 404: answer}
    router = APIRouter(prefix="/v1", tags=["Ziggurat"], route_class=ExtendedJsonRoute, responses=responses)

    @router.get("/dead_set", openapi_extra={"parameters": PARAMETERS})
    async def view_dead_set(request: Request) -> Response:
        """Return the payloads of the first dead letters; of large ones as many as 16 MB hold."""
        count, letters = await _open(services, dict(request.query_params), MAX_LISTED)

        async def read() -> Any:
            # One reply of the server, 16 MB at most: a thousand large letters would not fit into memory.
            found = await services.list_items(letters, with_page(_all(letters), count), None)
            return {"messages": [letter.get("payload") for letter in found["items"]]}

        return await services.respond_with_payloads(read())

    @router.post("/dead_set/replay", openapi_extra={"requestBody": {"content": {"application/json": {}}}})
    async def replay_dead_set(request: Request) -> Response:
        """Send the first dead letters back to the queues that they died in."""
        count, letters = await _open(services, await _read_parameters(request), services.max_bulk)
        done = await services.client.call(letters.replay, limit=count)
        audit.record(request, "replay letters", letters.name, done.pushed)
        return respond({"message": f"sent {done.pushed} messages back for another try"})

    @router.delete("/dead_set", openapi_extra={"parameters": PARAMETERS})
    async def delete_dead_set(request: Request) -> Response:
        """Delete the first dead letters."""
        count, letters = await _open(services, await _read_parameters(request), services.max_bulk)
        number = await services.client.call(letters.purge, limit=count)
        audit.record(request, "drop letters", letters.name, number)
        return respond({"message": f"deleted {number} messages"})

    return router


def _all(letters: Any) -> Any:
    return select(letters, ids=None, where=None, stage=None, reason=None, error=None)


async def _read_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a call, from its address or its body; ``topic_entity`` is ``topic-entity``."""
    body = await request.json() if await request.body() else {}
    given = {**request.query_params, **(body if isinstance(body, dict) else {})}
    return {name.replace("_", "-"): value for name, value in given.items()}


async def _open(services: Services, parameters: dict[str, Any], most: int) -> tuple[int, Any]:
    """Return the number of letters and the handle of the dead queue.

    Raises:
        DeadSetMistake: a parameter cannot be used, or there is no such queue.
    """
    try:
        count = int(str(parameters.get("count", "")))
    except ValueError:
        count = 0
    entity, channel = parameters.get("topic-entity"), parameters.get("channel")
    if not 0 < count <= most or not isinstance(entity, str) or not entity or not isinstance(channel, str | None):
        raise DeadSetMistake(HTTPStatus.BAD_REQUEST, MISTAKE)
    name = f"{entity}.{channel}" if channel else entity
    try:
        return count, await open_letters(services, name)
    except QueueUnknown as error:
        raise DeadSetMistake(HTTPStatus.NOT_FOUND, str(error)) from error


class DeadSetMistake(MongoqError):
    """A call of the dead set that cannot be carried out; the answer has the form that Ziggurat's users know.

    Attributes:
        status: status of the answer.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


async def answer_mistake(_request: Request, error: Exception) -> Response:
    """Answer a mistake with ``{"error": …}``."""
    assert isinstance(error, DeadSetMistake)
    return respond({"error": str(error)}, error.status)
