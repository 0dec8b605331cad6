"""Pages: one function each, which reads what the page shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Query, Request, Response
from starlette.responses import StreamingResponse

from mongoq import FailureGroup, QueueInsight
from mongoq.aio import AsyncInspection
from mongoq.data.arguments import DEAD_SUFFIX
from mongoq.data.limits import describe_start
from mongoq.web import items
from mongoq.web.letters import MAX_GROUPS
from mongoq.web.models import ListedState
from mongoq.web.pages.render import render, render_message, root_of
from mongoq.web.pages.settings import make_fields
from mongoq.web.pipelines import draw, draw_rates, make_drawing
from mongoq.web.problems import SAFE_METHODS
from mongoq.web.readings import DONE, FAILED
from mongoq.web.services import COUNT_LIMIT, LISTED, Services
from mongoq.web.values import CursorText, FilterText, ItemId, Moment, QueueName

LIVE_COLUMNS = ("id", "state", "due", "priority", "attempts", "key", "payload")
COLUMNS = {
    "processed": ("id", "processed", "attempts", "payload"),
    "blocked": ("id", "sequence", "blocked_by", "ready_from", "payload"),
}
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
QueueKind = Literal["queue", "dead", "errors"]
"""Kind of a queue: one whose items are processed, a dead queue, or the error queue of a pipeline."""
LONG_WAIT = timedelta(minutes=5)
"""Time after which a due item has waited for long."""
WAITS, FAILING, ERRORS, LETTERS = "waits for long", "failing", "failed items", "dead letters"
EXPIRED, UNCONSUMED, PAUSED = "expired leases", "no consumer", "paused"
STUCK = "stuck sequences"
ORDER = (WAITS, STUCK, FAILING, ERRORS, LETTERS, EXPIRED, UNCONSUMED, PAUSED)
"""Troubles, the one to look at first at the beginning."""


async def serve_static(_services: Services, name: str) -> Response:
    """Return a file that pages load."""
    if name not in STATIC:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such file")
    content = files("mongoq.web.pages").joinpath("static", name).read_bytes()
    return Response(content, media_type=STATIC[name], headers={"Cache-Control": "max-age=3600"})


async def serve_events(services: Services, request: Request) -> Response:
    """Return server-sent events that say when numbers have changed."""
    stream = services.queues.listen(request.headers.get("last-event-id"))
    return StreamingResponse(stream, media_type="text/event-stream")


async def show_overview(services: Services, request: Request) -> Response:
    """Show all queues, the ones in trouble first."""
    readings = services.queues
    queues = await readings.read()
    lines = {queue.name: draw_rates(readings.rates(queue.name)) for queue in queues}
    judged = sort_by_trouble(queues, errors=services.error_queues, is_failing=readings.is_failing)
    unrated = [q.name for q, kind, _ in judged if kind == "queue" and not (q.keeps_history or lines[q.name].points)]
    introduces = VISITED not in request.cookies or "introduction" in request.query_params
    values = {"queues": judged, "lines": lines, "unrated": unrated, "introduces": introduces, "since": readings.since}
    response = render(request, "overview", **values)
    if VISITED not in request.cookies:
        path = root_of(request) or "/"
        response.set_cookie(VISITED, "yes", VISITED_SECONDS, path=path, httponly=True, samesite="lax")
    return response


async def show_queue(
    services: Services,
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
    options: dict[str, Any] = {"where": where or None, "since": since, "until": until, "cursor": cursor}
    page = await services.list_queue(name, state, limit=LISTED, **options)
    [queue] = await services.client.inspect(AsyncInspection.queues, [name], budget=QUEUE_BUDGET)
    dead = () if queue.dead_queue is not None else (name,)
    kind = find_kind(queue, dead=dead, errors=services.error_queues)
    limits = queue.limits
    return render(
        request,
        "queue",
        queue=queue,
        start=limits and describe_start(limits, paused=queue.paused, consumers=queue.consumers),
        kind=kind,
        troubles=find_troubles(queue, kind, is_failing=services.queues.is_failing(name)),
        settings=make_fields(await services.client.inspect(AsyncInspection.settings, name)),
        state=state,
        columns=COLUMNS.get(state, LIVE_COLUMNS),
        listed=page["items"],
        next=page["next"],
        note=page.get("note"),
        **{each: request.query_params.get(each) for each in ("where", "since", "until")},
    )


async def show_item(services: Services, request: Request, id: Annotated[ItemId, Query()]) -> Response:
    """Show all that is known about one item."""
    return render(request, "item", item=await items.show_item(services, id))


async def show_letters(
    services: Services,
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
    is_exact = exact or queue in services.error_queues
    letters = await services.open_letters(queue, exact=is_exact)
    group = partial(services.client.read, letters.select().groups, limit=COUNT_LIMIT, groups=MAX_GROUPS)
    (groups, more), _ = await services.letters.read((letters.name, letters.letters_of), group)
    selected = letters.select(where=where or None, reason=reason or None, error=error or None)
    page = await services.list_items(selected, LISTED, cursor)
    return render(
        request,
        "letters",
        queue=queue,
        exact="true" if is_exact else None,
        dead_queue=letters.name,
        groups=groups,
        chosen=list(filter(partial(_can_choose, groups), groups)),
        more=more,
        grouped=COUNT_LIMIT,
        most_groups=MAX_GROUPS,
        listed=page["items"],
        next=page["next"],
        columns=HOLDING_COLUMNS if any("holds" in item for item in page["items"]) else LETTER_COLUMNS,
        reason=reason,
        error=error,
        where=request.query_params.get("where"),
    )


def _can_choose(groups: Sequence[FailureGroup], group: FailureGroup) -> bool:
    """Return whether reason and error choose the letters of a group, and no others.

    A form cannot ask for letters without an error, and another program may have stored what is no text.
    """
    if not isinstance(group.reason, str) or not group.reason:
        return False
    if group.error is None:
        return all(other is group or other.reason != group.reason for other in groups)
    return isinstance(group.error, str)


async def show_pipelines(services: Services, request: Request) -> Response:
    """Show the names of the pipelines."""
    return render(request, "pipelines", names=list(services.pipelines))


async def show_pipeline(services: Services, request: Request, name: str) -> Response:
    """Show the graph of a pipeline, with the numbers of items on its edges."""
    graph = services.find_graph(name)
    drawing = make_drawing(graph, {queue.name: queue for queue in await services.queues.read()})
    measure = services.queues.measure
    stages = [node for node in drawing.nodes if node.kind == "stage"]
    return render(
        request,
        "pipeline",
        drawing=drawing,
        picture=draw(drawing),
        rates={edge: measure(edge.queues, edge.events) for edge in drawing.edges if edge.passed is not None},
        since=services.queues.since,
        done={node.name: measure(node.sources, DONE) for node in stages},
        failures={node.name: measure(node.sources, FAILED) for node in stages},
        stages=stages,
    )


async def show_workers(services: Services, request: Request) -> Response:
    """Show the workers."""
    return render(request, "workers", workers=await services.client.inspect(AsyncInspection.workers))


async def show_schedules(services: Services, request: Request) -> Response:
    """Show all schedules."""
    return render(request, "schedules", schedules=await services.client.inspect(AsyncInspection.schedules))


async def show_problem(request: Request, problem: dict[str, Any]) -> Response:
    """Return the page for a problem document; a caller who may see no page gets one without links and version."""
    grant = request.scope.get("mongoq.grant")
    if grant is None or grant.level == "none":
        return render(request, "refused", problem["status"], title=problem["title"], text=problem["detail"])
    is_away = problem["status"] == HTTPStatus.SERVICE_UNAVAILABLE
    title = "No server answers" if is_away else problem["title"]
    # A page that was sent as a form would not try again, but be another one.
    is_away = is_away and request.method in SAFE_METHODS
    options = {"nearest": problem.get("nearest", ()), "is_temporary": is_away}
    response = render_message(request, title, problem["detail"], problem["status"], **options)
    if is_away:
        response.headers["Refresh"] = RENEWAL_SECONDS
    return response


# --- troubles of queues: what a person should look at first --------------------------------------


def find_kind(queue: QueueInsight, *, dead: Collection[str], errors: Collection[str]) -> QueueKind:
    """Return the kind of a queue, from the names of all dead queues and of the error queues of pipelines."""
    if queue.name in errors:
        return "errors"
    return "dead" if queue.name in dead or queue.name.endswith(DEAD_SUFFIX) else "queue"


def find_troubles(queue: QueueInsight, kind: QueueKind, *, is_failing: bool) -> list[str]:
    """Return what is wrong with a queue, in a few words each, the worst first.

    Dead queues and error queues need no consumer, and their items may wait for ever; what is in an error queue has no
    other queue that would show it. ``is_failing`` says that items have failed in the last minutes. Blocked items wait
    for others, and not for a consumer; sequences are stuck where there are no others.
    """
    waits = kind == "queue" and queue.claimable.number > 0
    is_late = queue.oldest_age is not None and queue.oldest_age > LONG_WAIT
    found = {
        WAITS: waits and is_late,
        STUCK: queue.blocked.number > 0 and queue.claimable.number == 0,
        FAILING: is_failing,
        ERRORS: kind == "errors" and queue.live.number > 0,
        LETTERS: queue.dead.number > 0,
        EXPIRED: queue.expired.number > 0,
        UNCONSUMED: waits and not queue.consumers,
        PAUSED: queue.paused,
    }
    return [trouble for trouble in ORDER if found[trouble]]


def sort_by_trouble(
    queues: Collection[QueueInsight], *, errors: Collection[str], is_failing: Callable[[str], bool]
) -> list[tuple[QueueInsight, QueueKind, list[str]]]:
    """Return the queues with their kinds and troubles, the one to look at first at the beginning.

    The worst trouble of each decides; of two that wait for long, the one that has waited longer comes first, and of two
    others the one with more troubles. Dead queues come last: the queues that they belong to show their letters.
    """
    dead = {queue.dead_queue for queue in queues if queue.dead_queue is not None}
    judged = []
    for queue in queues:
        kind = find_kind(queue, dead=dead, errors=errors)
        judged.append((queue, kind, find_troubles(queue, kind, is_failing=is_failing(queue.name))))

    def rank(each: tuple[QueueInsight, QueueKind, list[str]]) -> tuple[bool, int, timedelta, int, str]:
        queue, kind, troubles = each
        worst = ORDER.index(troubles[0]) if troubles else len(ORDER)
        age = (queue.oldest_age if WAITS in troubles else None) or timedelta(0)
        return kind == "dead", worst, -age, -len(troubles), queue.name

    return sorted(judged, key=rank)
