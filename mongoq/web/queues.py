"""Calls about queues and their settings, schedules, pipelines, workers, and the whole: bindings, health, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import HTTPException, Query, Request, Response

from mongoq import BoundedCount
from mongoq.aio import AsyncBroker, AsyncInspection
from mongoq.data.process import Health
from mongoq.data.settings import SETTINGS
from mongoq.errors import ArgumentInvalid, MongoqError
from mongoq.web.client import CONNECT_SECONDS
from mongoq.web.models import Action, Configure, DropQueue, ScheduleAction
from mongoq.web.pipelines import make_drawing
from mongoq.web.problems import describe_error
from mongoq.web.services import COUNT_LIMIT, Document, Services, make_changed, record_change, respond
from mongoq.web.values import QueueName

LIVE_STATES: tuple[Literal["blocked"] | None, ...] = (None, "blocked")
"""States that together are those of all live items."""
BUDGET = 100_000
"""Items that the state of all queues examines, by default."""
SCRAPE_SECONDS = 5.0
"""Seconds that a reading for Prometheus may take; it gives up after 10."""
NEEDED_EXTRA = "metrics need the extra 'prometheus': pip install 'mongoq-driver[prometheus]'"


async def list_queues(
    services: Services,
    queue: Annotated[list[QueueName] | None, Query(description="Only these queues.", max_length=500)] = None,
    budget: Annotated[int, Query(ge=1, le=10 * BUDGET, description="Items to count, in all.")] = BUDGET,
) -> Document:
    """Return the state of all queues; counts end at a limit, and say so."""
    found = await services.client.inspect(AsyncInspection.queues, queue, budget=budget)
    return {"queues": [each.to_document() for each in found]}


async def pause_queue(services: Services, request: Request, action: Action) -> Document:
    """Stop claims of a queue in all processes within a second; pushes go on."""
    return await _set_paused(services, request, action.queue, "pause")


async def resume_queue(services: Services, request: Request, action: Action) -> Document:
    """End the pause of a queue."""
    return await _set_paused(services, request, action.queue, "resume")


async def _set_paused(services: Services, request: Request, queue: str, verb: Literal["pause", "resume"]) -> Document:
    await services.client.call(getattr(await services.open_queue(queue), verb))
    record_change(request, verb, queue)
    return await show_settings(services, queue)


async def drop_queue(services: Services, request: Request, action: DropQueue) -> Document:
    """Delete a queue with its history, counters and settings; its dead queue stays."""
    handle = await services.open_queue(action.queue)
    counted = BoundedCount()
    for state in LIVE_STATES:
        counted += await services.client.read(handle.select(state=state).count, COUNT_LIMIT)
    if counted.number > services.max_bulk and action.force:
        raise ArgumentInvalid("force", f"the queue holds more than {services.max_bulk:,} items; purge it first")
    if action.dry_run:
        return make_changed(action.queue, counted.number, dry_run=True, exact=counted.exact)
    broker = await services.client.open()
    number = await services.client.call(broker.drop_queue, action.queue, force=action.force)
    record_change(request, "drop", action.queue, number)
    return make_changed(action.queue, number)


# --- settings -----------------------------------------------------------------------------------


async def show_settings(services: Services, queue: QueueName) -> Document:
    """Return the settings of a queue, and which of them are stored."""
    read = await services.client.inspect(AsyncInspection.settings, queue)
    values = {name: getattr(read.settings, name) for name in SETTINGS}
    for name in ("lease", "history"):
        values[name] = None if values[name] is None else values[name].total_seconds()
    return {"queue": read.settings.name, **values, "paused": read.paused, "stored": sorted(read.stored)}


async def configure_queue(services: Services, request: Request, action: Configure) -> Document:
    """Change settings of a queue for all processes within a second; settings that are left out stay."""
    changes = {name: getattr(action, name) for name in SETTINGS if name in action.model_fields_set}
    if not changes:
        raise ArgumentInvalid("settings", f"give at least one of {', '.join(SETTINGS)}")
    await store_settings(services, request, action.queue, changes, shown=changes, existing=action.existing)
    return await show_settings(services, action.queue)


async def store_settings(
    services: Services,
    request: Request,
    queue: str,
    changes: Mapping[str, Any],
    *,
    shown: Mapping[str, Any],
    existing: bool = False,
) -> None:
    """Change settings of a queue; the audit log has the values as they are ``shown``."""
    handle = await services.open_queue(queue)
    if existing:
        counted = await services.client.read(handle.select(state="processed").count, services.max_bulk)
        if not counted.exact:
            problem = f"the history holds more than {services.max_bulk:,} items; use mongoq configure --existing"
            raise ArgumentInvalid("existing", problem)
    await services.client.call(handle.configure, **changes, existing=existing)
    record_change(request, "configure", queue, **shown)


# --- schedules ----------------------------------------------------------------------------------


async def list_all_schedules(services: Services) -> Document:
    """Return all schedules, with their next and last ticks."""
    records = await services.client.inspect(AsyncInspection.schedules)
    return {"schedules": [record.to_document() for record in records]}


async def pause_schedule(services: Services, request: Request, action: ScheduleAction) -> Document:
    """Let a schedule make no items until it is resumed."""
    return await _set_schedule_paused(services, request, action.schedule, "pause")


async def resume_schedule(services: Services, request: Request, action: ScheduleAction) -> Document:
    """End the pause of a schedule; what it missed goes by its rule for missed ticks."""
    return await _set_schedule_paused(services, request, action.schedule, "resume")


async def _set_schedule_paused(
    services: Services, request: Request, name: str, verb: Literal["pause", "resume"]
) -> Document:
    broker = await services.client.open()
    await services.client.call(broker.pause_schedule if verb == "pause" else broker.resume_schedule, name)
    record_change(request, f"{verb} schedule", name)
    return (await services.client.inspect(AsyncInspection.schedule, name)).to_document()


async def run_schedule(services: Services, request: Request, action: ScheduleAction) -> Document:
    """Push an extra item of a schedule now; its next tick stays."""
    name = action.schedule
    queue = (await services.client.inspect(AsyncInspection.schedule, name)).queue
    id = await services.client.call((await services.client.open()).run_schedule_now, name)
    record_change(request, "run schedule", name)
    return {"schedule": name, "queue": queue, "id": str(id)}


async def remove_schedule(services: Services, request: Request, action: ScheduleAction) -> Document:
    """Delete a schedule; its items stay. Code that defines it makes it anew when it starts."""
    name = action.schedule
    await services.client.inspect(AsyncInspection.schedule, name)
    removed = await services.client.call((await services.client.open()).remove_schedule, name)
    record_change(request, "remove schedule", name)
    return {"schedule": name, "removed": removed}


# --- pipelines, workers, health, metrics --------------------------------------------------------


async def list_pipelines(services: Services) -> Document:
    """Return the names of the pipelines that the app was made with."""
    return {"pipelines": list(services.pipelines)}


async def show_pipeline(services: Services, name: str) -> Document:
    """Return sources, queues and stages of a pipeline, and the numbers of items on each edge."""
    graph = services.find_graph(name)
    # All queues, because a named one that no caller has used yet would be an error.
    found = await services.client.inspect(AsyncInspection.queues)
    return make_drawing(graph, {queue.name: queue for queue in found}).to_document()


async def list_workers(services: Services) -> Document:
    """Return the live workers, and workers that have ended lately without saying so."""
    records = await services.client.inspect(AsyncInspection.workers)
    return {"workers": [record.to_document() for record in records]}


async def list_bindings(services: Services) -> Document:
    """Return topics, and the queues that are bound to them."""
    bound = await services.client.read((await services.client.open()).bindings)
    return {"bindings": {topic: sorted(queues) for topic, queues in sorted(bound.items())}}


async def show_health(services: Services) -> Response:
    """Return whether the server takes writes and the collection can be used: 200, or else 503 with reasons."""
    try:
        broker = await services.client.open()
        health: Health = await services.client.call(broker.health, within=CONNECT_SECONDS)
    except MongoqError as error:
        health = Health.of([describe_error(error)])
    return respond(health.to_document(), HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE)


async def show_metrics(services: Services) -> Response:
    """Return the state of all queues as metrics; scrapes within five seconds share one reading.

    When no server answers, ``mongoq_up`` is 0. Without the extra ``prometheus`` the answer is 501.
    """
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        from mongoq.monitoring.prometheus import BrokerCollector, read_broker, read_broker_async
    except ImportError as error:
        raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, NEEDED_EXTRA) from error
    if services.metrics is None:
        registry, collector = CollectorRegistry(), BrokerCollector(None)
        registry.register(collector)
        services.metrics = registry, collector
    registry, collector = services.metrics

    async def read() -> Any:
        broker = await services.client.open()
        reader = read_broker_async if isinstance(broker, AsyncBroker) else read_broker
        return await services.client.read(partial(reader, broker, within=SCRAPE_SECONDS))

    await collector.refresh_async(read)
    # In a thread: with thousands of queues, the text alone would hold up the event loop.
    return Response(await to_thread.run_sync(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)
