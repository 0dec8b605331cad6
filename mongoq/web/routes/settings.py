"""Calls about the settings of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from mongoq.errors import ArgumentInvalid
from mongoq.model.settings import SETTINGS
from mongoq.protocol import admin
from mongoq.protocol.insight import StoredSettings, read_settings
from mongoq.web import audit
from mongoq.web.models import Configure, SettingsDocument
from mongoq.web.services import Services
from mongoq.web.values import ExtendedJsonRoute, QueueName, respond


def make_router(services: Services) -> APIRouter:
    """Return the calls about settings."""
    router = APIRouter(prefix="/api", tags=["queues"], route_class=ExtendedJsonRoute)
    client = services.client

    @router.get("/settings", response_model=SettingsDocument)
    async def show_settings(queue: QueueName) -> Response:
        """Return the settings of a queue, and which of them are stored."""
        return respond(settings_document(await client.read(read_settings, queue)))

    @router.post("/settings", response_model=SettingsDocument)
    async def configure_queue(request: Request, action: Configure) -> Response:
        """Change settings of a queue for all processes within a second; settings that are left out stay."""
        changes = {name: getattr(action, name) for name in SETTINGS if name in action.model_fields_set}
        if not changes:
            raise ArgumentInvalid("settings", f"give at least one of {', '.join(SETTINGS)}")
        handle = await services.open_queue(action.queue)
        if action.existing:
            await _refuse_large_history(services, handle)
        await client.call(handle.configure, **changes, existing=action.existing)
        audit.record(request, "configure", action.queue, **changes)
        return respond(settings_document(await client.read(read_settings, action.queue)))

    return router


async def _refuse_large_history(services: Services, handle: Any) -> None:
    counted = await services.client.read(admin.count_purge, "processed", handle=handle, limit=services.max_bulk)
    if not counted.exact:
        problem = f"the history holds more than {services.max_bulk:,} items; use mongoq configure --existing"
        raise ArgumentInvalid("existing", problem)


def settings_document(read: StoredSettings) -> Mapping[str, Any]:
    """Return the settings of a queue as a document; durations in seconds."""
    values = {name: getattr(read.settings, name) for name in SETTINGS}
    for name in ("lease", "history"):
        values[name] = None if values[name] is None else values[name].total_seconds()
    return {"queue": read.settings.name, **values, "paused": read.paused, "stored": sorted(read.stored)}
