"""Call of Prometheus: the state of all queues as metrics, as ``mongoq exporter`` serves it."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Response

from mongoq.aio import AsyncBroker
from mongoq.web.client import BrokerClient
from mongoq.web.services import Services

SCRAPE_SECONDS = 5.0
"""Seconds that one reading may take; Prometheus gives up after 10."""
NEEDED_EXTRA = "metrics need the extra 'prometheus': pip install 'mongoq-driver[prometheus]'"
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def make_router(services: Services) -> APIRouter:
    """Return the call of Prometheus."""
    router = APIRouter(tags=["system"])
    scrapes = _Scrapes(services.client)

    @router.get("/metrics", response_class=Response, responses=TEXT)
    async def show_metrics() -> Response:
        """Return the state of all queues as metrics; scrapes within five seconds share one reading.

        When no server answers, ``mongoq_up`` is 0. Without the extra ``prometheus`` the answer is 501.
        """
        return await scrapes.answer()

    return router


class _Scrapes:
    """Answers scrapes, from one reading for all within some seconds."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._parts: Any = None

    async def answer(self) -> Response:
        """Return the metrics.

        Raises:
            HTTPException: prometheus-client is not installed.
        """
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

            from mongoq.monitoring.prometheus import BrokerCollector, read_broker, read_broker_async
        except ImportError as error:
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, NEEDED_EXTRA) from error
        if self._parts is None:
            registry, collector = CollectorRegistry(), BrokerCollector(None)
            registry.register(collector)
            self._parts = registry, collector
        registry, collector = self._parts
        broker = await self._client.open()
        read = read_broker_async if isinstance(broker, AsyncBroker) else read_broker
        await collector.refresh_async(partial(self._client.call, read, broker, within=SCRAPE_SECONDS))
        # In a thread: with thousands of queues, the text alone would hold up the event loop.
        return Response(await to_thread.run_sync(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)
