"""Service: the shop for the lifetime of the app, its worker if it has one, and its health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import mongoq
from examples.shop.settings import Settings
from examples.shop.shop import Shop
from examples.shop.worker import make_worker
from mongoq.monitoring.prometheus import PrometheusMetrics

__all__ = ["Service"]

PROBE_SECONDS = 1.0


class Service:
    """What the app opens at its start and closes at its end.

    The server hears SIGTERM, and not the worker. uvicorn ends the lifespan then, which stops the worker.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shop: Shop | None = None
        self._metrics: Any = None
        self._worker: mongoq.AsyncWorker | None = None
        self._run: asyncio.Task[None] | None = None
        self._stopping = False

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Open the shop for the lifetime of the app, and run the worker meanwhile if the settings say so."""
        async with Shop(self._settings) as shop:
            self._shop, self._loop, self._stopping = shop, asyncio.get_running_loop(), False
            metrics = PrometheusMetrics(shop.broker)
            self._metrics = metrics.asgi_app()
            if self._settings.worker_in_app:
                self._worker = metrics.instrument(make_worker(shop))
                self._run = asyncio.create_task(self._worker.run(signals=False))
                await asyncio.sleep(0)  # so that run() has begun: before that, stop() would do nothing
            try:
                yield
            finally:
                if not self._stopping:
                    self._stop_worker()
                if self._run is not None:
                    await self._run  # raises what has ended the worker
                self._loop = self._worker = self._run = None

    @property
    def shop(self) -> Shop:
        """The open shop."""
        assert self._shop is not None, "the lifespan has not begun"
        return self._shop

    # --- the end ---------------------------------------------------------------------------------

    def stop(self, then: Callable[[], None]) -> None:
        """Stop the worker, and call ``then`` when it has ended; may be called by a signal handler.

        The first time handlers may go on for the grace, the second time they may not.
        """
        if self._loop is None:
            then()
        else:
            self._loop.call_soon_threadsafe(self._drain, then)

    def _drain(self, then: Callable[[], None]) -> None:
        is_first = not self._stopping
        self._stop_worker()
        if self._run is None:
            then()
        elif is_first:
            self._run.add_done_callback(lambda _: then())

    def _stop_worker(self) -> None:
        self._stopping = True
        if self._worker is not None:
            self._worker.stop()

    # --- what probes and Prometheus read ---------------------------------------------------------

    def check_life(self) -> mongoq.Health:
        """Return whether a restart would not help: only a worker that has ended by an error needs one."""
        has_failed = self._run is not None and self._run.done() and not self._stopping
        return mongoq.Health.of(["the worker has ended by an error"] if has_failed else [])

    async def check_readiness(self) -> mongoq.Health:
        """Return whether orders can be taken now, and whether the worker of this process consumes."""
        reasons = ["the application stops"] if self._stopping else []
        if self._worker is not None:
            reasons += self._worker.health().reasons
        database = await self.shop.broker.health(within=PROBE_SECONDS)
        return mongoq.Health.of([*reasons, *database.reasons], database.notes)

    async def serve_metrics(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a scrape (ASGI)."""
        await self._metrics(scope, receive, send)
