"""Calls about the whole: workers, bindings and health."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response

from mongoq.errors import MongoqError
from mongoq.model.health import Health
from mongoq.protocol.base.topics import read_bindings
from mongoq.protocol.coordination.heartbeats import workers
from mongoq.web.client import CONNECT_SECONDS
from mongoq.web.models import BindingList, HealthDocument, WorkerList
from mongoq.web.problems import describe_error
from mongoq.web.services import Services
from mongoq.web.values import respond


def make_router(services: Services) -> APIRouter:
    """Return the calls about workers, bindings and health."""
    router = APIRouter(prefix="/api", tags=["system"])
    client = services.client

    @router.get("/workers", response_model=WorkerList)
    async def list_workers() -> Response:
        """Return the live workers, and workers that have ended lately without saying so."""
        records = await client.read(workers)
        return respond({"workers": [record.to_document() for record in records]})

    @router.get("/bindings", response_model=BindingList)
    async def list_bindings() -> Response:
        """Return topics, and the queues that are bound to them."""
        bound = await client.read(read_bindings)
        return respond({"bindings": {topic: sorted(queues) for topic, queues in sorted(bound.items())}})

    @router.get("/health", response_model=HealthDocument)
    async def show_health() -> Response:
        """Return whether the server takes writes and the collection can be used: 200, or else 503 with reasons."""
        try:
            broker = await client.open()
            health: Health = await client.call(broker.health, within=CONNECT_SECONDS)
        except MongoqError as error:
            health = Health.of([describe_error(error)])
        status = HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE
        return respond(health.to_document(), status)

    return router
