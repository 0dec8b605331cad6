"""Pages: one function each, which reads what the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse

from mongoq.model.limits import describe_start
from mongoq.protocol.coordination.heartbeats import workers
from mongoq.protocol.history.dead_letters import FailureGroup
from mongoq.protocol.history.query import make_query
from mongoq.protocol.insight import find_item, read_queues, read_settings
from mongoq.web import readings
from mongoq.web.models import ListedState
from mongoq.web.pages.drawing import draw, draw_rates
from mongoq.web.pages.feed import Feed
from mongoq.web.pages.render import Renderer, root_of
from mongoq.web.pages.renewals import make_route_class
from mongoq.web.pages.settings import make_fields
from mongoq.web.pages.troubles import find_kind, find_troubles, sort_by_trouble
from mongoq.web.pipelines import find_error_queues, make_drawing
from mongoq.web.problems import SAFE_METHODS
from mongoq.web.readings import DONE, FAILED, LetterReadings, PageReadings, QueueReadings
from mongoq.web.routes.letters import open_letters, select, with_page
from mongoq.web.services import Services
from mongoq.web.values import CursorText, FilterText, ItemId, Moment, QueueName

LISTED = 50
"""Items on one page."""
LIVE_COLUMNS = ("id", "state", "due", "priority", "attempts", "key", "payload")
PROCESSED_COLUMNS = ("id", "processed", "attempts", "payload")
BLOCKED_COLUMNS = ("id", "sequence", "blocked_by", "ready_from", "payload")
COLUMNS = {"processed": PROCESSED_COLUMNS, "blocked": BLOCKED_COLUMNS}
"""Columns of the items of a state; others have ``LIVE_COLUMNS``."""
LETTER_COLUMNS = ("id", "reason", "error", "attempts", "payload")
HOLDING_COLUMNS = ("id", "holds", *LETTER_COLUMNS[1:])
"""Columns of letters of which one at least holds a sequence."""
QUEUE_BUDGET = 10_000
"""Documents that the counts of one queue may examine: an open page reads them again and again."""
VISITED = "mongoq_visited"
"""Cookie of a reader who has seen the introduction."""
VISITED_SECONDS = 365 * 86_400
"""Seconds for which a browser keeps that cookie."""
RENEWAL_SECONDS = "5"
"""Seconds after which the page of a server that is away tries again."""
STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""Files that pages load, with their types."""


def make_router(
    services: Services, renderer: Renderer, readings: QueueReadings, letters: LetterReadings, feed: Feed
) -> APIRouter:
    """Return the pages."""
    pages = _Pages(services, renderer, readings, letters, feed)
    router = APIRouter(include_in_schema=False, route_class=make_route_class(PageReadings()))
    router.add_api_route("/", pages.show_overview)
    router.add_api_route("/queue", pages.show_queue)
    router.add_api_route("/item", pages.show_item)
    router.add_api_route("/letters", pages.show_letters)
    router.add_api_route("/pipelines", pages.show_pipelines)
    router.add_api_route("/pipeline", pages.show_pipeline)
    router.add_api_route("/workers", pages.show_workers)
    router.add_api_route("/events", pages.serve_events, route_class_override=APIRoute)
    router.add_api_route("/static/{name}", serve_static, route_class_override=APIRoute)
    return router


async def serve_static(name: str) -> Response:
    """Return a file that pages load."""
    if name not in STATIC:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such file")
    content = files("mongoq.web.pages").joinpath("static", name).read_bytes()
    return Response(content, media_type=STATIC[name], headers={"Cache-Control": "max-age=3600"})


class _Pages:
    """Reads what each page shows."""

    def __init__(
        self, services: Services, renderer: Renderer, readings: QueueReadings, letters: LetterReadings, feed: Feed
    ) -> None:
        self._readings = readings
        self._letters = letters
        self._services = services
        self._client = services.client
        self._renderer = renderer
        self._feed = feed
        self._error_queues = find_error_queues(services.pipelines.values())

    async def serve_events(self, request: Request) -> Response:
        """Return server-sent events that say when numbers have changed."""
        stream = self._feed.listen(request.headers.get("last-event-id"))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def show_overview(self, request: Request) -> Response:
        """Show all queues, the ones in trouble first."""
        queues = await self._readings.read()
        lines = {queue.name: draw_rates(self._readings.rates(queue.name)) for queue in queues}
        judged = sort_by_trouble(queues, errors=self._error_queues, is_failing=self._readings.is_failing)
        unrated = [q.name for q, kind, _ in judged if kind == "queue" and not (q.keeps_history or lines[q.name].points)]
        introduces = VISITED not in request.cookies or "introduction" in request.query_params
        response = self._renderer.page(
            request,
            "overview",
            queues=judged,
            lines=lines,
            unrated=unrated,
            introduces=introduces,
            since=self._readings.since,
        )
        if VISITED not in request.cookies:
            path = root_of(request) or "/"
            response.set_cookie(VISITED, "yes", VISITED_SECONDS, path=path, httponly=True, samesite="lax")
        return response

    async def show_queue(
        self,
        *,
        request: Request,
        name: QueueName,
        state: ListedState = "live",
        where: FilterText = None,
        since: Moment = None,
        until: Moment = None,
        cursor: CursorText = None,
    ) -> Response:
        """Show one queue, and items of it."""
        handle = await self._services.open_queue(name)
        [queue] = await self._client.read(read_queues, [name], budget=QUEUE_BUDGET)
        read = await self._client.read(read_settings, name)
        dead = () if queue.dead_queue is not None else (name,)
        kind = find_kind(queue, dead=dead, errors=self._error_queues)
        first, last = await self._services.read_times(since, until)
        selected: Any = None if state == "live" else state
        wanted = make_query(handle._context, since=first, until=last, where=where or None, state=selected, page=LISTED)
        page = await self._services.list_items(handle, wanted, cursor)
        limits = queue.limits
        start = limits and describe_start(limits, paused=queue.paused, consumers=queue.consumers)
        return self._renderer.page(
            request,
            "queue",
            queue=queue,
            start=start,
            kind=kind,
            troubles=find_troubles(queue, kind, is_failing=self._readings.is_failing(name)),
            settings=make_fields(read),
            state=state,
            columns=COLUMNS.get(state, LIVE_COLUMNS),
            listed=page["items"],
            next=page["next"],
            note=page.get("note"),
            where=request.query_params.get("where"),
            since=request.query_params.get("since"),
            until=request.query_params.get("until"),
        )

    async def show_item(self, request: Request, id: Annotated[ItemId, Query()]) -> Response:
        """Show all that is known about one item."""
        item = await self._client.read(find_item, id)
        if item is None:
            text = (
                f"There is no item {id}. It may have been settled in a queue without history, its time in the history "
                "may be over, or it was deleted or never existed. The settings of a queue say for how long it keeps "
                "processed items."
            )
            return self._renderer.message(request, "No such item", text, HTTPStatus.NOT_FOUND)
        return self._renderer.page(request, "item", item=await self._services.describe_item(item))

    async def show_letters(
        self,
        *,
        request: Request,
        queue: QueueName,
        exact: bool = False,
        where: FilterText = None,
        reason: str | None = None,
        error: str | None = None,
        cursor: CursorText = None,
    ) -> Response:
        """Show dead letters, in groups and one by one."""
        is_exact = exact or queue in self._error_queues
        letters = await open_letters(self._services, queue, exact=is_exact)
        groups, more = await self._letters.read(letters)
        chosen = select(letters, ids=None, where=where or None, stage=None, reason=reason or None, error=error or None)
        page = await self._services.list_items(letters, with_page(chosen, LISTED), cursor)
        return self._renderer.page(
            request,
            "letters",
            queue=queue,
            exact="true" if is_exact else None,
            dead_queue=letters.name,
            groups=groups,
            chosen=list(filter(partial(_can_choose, groups), groups)),
            more=more,
            grouped=readings.GROUPED_LETTERS,
            most_groups=readings.MAX_GROUPS,
            listed=page["items"],
            next=page["next"],
            columns=HOLDING_COLUMNS if any("holds" in item for item in page["items"]) else LETTER_COLUMNS,
            reason=reason,
            error=error,
            where=request.query_params.get("where"),
        )

    async def show_pipelines(self, request: Request) -> Response:
        """Show the names of the pipelines."""
        return self._renderer.page(request, "pipelines", names=list(self._services.pipelines))

    async def show_pipeline(self, request: Request, name: str) -> Response:
        """Show the graph of a pipeline, with the numbers of items on its edges."""
        if name not in self._services.pipelines:
            return self._renderer.message(request, "No such pipeline", f"There is no pipeline {name!r:.120}.", 404)
        queues = {queue.name: queue for queue in await self._readings.read()}
        drawing = make_drawing(self._services.pipelines[name].graph, queues)
        measure = self._readings.measure
        rates = {edge: measure(edge.queues, edge.events) for edge in drawing.edges if edge.passed is not None}
        stages = [node for node in drawing.nodes if node.kind == "stage"]
        return self._renderer.page(
            request,
            "pipeline",
            drawing=drawing,
            picture=draw(drawing),
            rates=rates,
            since=self._readings.since,
            done={node.name: measure(node.sources, DONE) for node in stages},
            failures={node.name: measure(node.sources, FAILED) for node in stages},
            stages=stages,
        )

    async def show_workers(self, request: Request) -> Response:
        """Show the workers."""
        return self._renderer.page(request, "workers", workers=await self._client.read(workers))


def _can_choose(groups: Sequence[FailureGroup], group: FailureGroup) -> bool:
    """Return whether reason and error choose the letters of a group, and no others.

    A form cannot ask for letters without an error, and another program may have stored what is no text.
    """
    if not isinstance(group.reason, str) or not group.reason:
        return False
    if group.error is None:
        return all(other is group or other.reason != group.reason for other in groups)
    return isinstance(group.error, str)


async def show_problem(renderer: Renderer, request: Request, problem: dict[str, Any]) -> Response:
    """Return the page for a problem document; a caller who may see no page gets one without links and version."""
    grant = request.scope.get("mongoq.grant")
    if grant is None or grant.level == "none":
        return renderer.page(request, "refused", problem["status"], title=problem["title"], text=problem["detail"])
    is_away = problem["status"] == HTTPStatus.SERVICE_UNAVAILABLE
    title = "No server answers" if is_away else problem["title"]
    # A page that was sent as a form would not try again, but be another one.
    is_away = is_away and request.method in SAFE_METHODS
    nearest = problem.get("nearest", ())
    response = renderer.message(
        request, title, problem["detail"], problem["status"], nearest=nearest, is_temporary=is_away
    )
    if is_away:
        response.headers["Refresh"] = RENEWAL_SECONDS
    return response
