"""Pages for people: the same reads and changes as the HTTP API, as HTML.

Here are the table of the pages, and the renewals by which open pages ask for their numbers again. ``views`` has a
function for each page, ``changes`` the forms that ask before a change, ``render`` fills the templates. The pages work
without the script; with it they renew themselves.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse

from mongoq.web.guard import grant_of
from mongoq.web.pages import changes, editing, settings, views
from mongoq.web.pages.render import RENEWAL_HEADER, root_of
from mongoq.web.services import Services, bind

AGAIN_HEADER = "x-mongoq-again"
"""Header of the answer to a renewal: seconds after which a newer page can be had."""
VIEWS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("/", views.show_overview),
    ("/queue", views.show_queue),
    ("/item", views.show_item),
    ("/letters", views.show_letters),
    ("/pipelines", views.show_pipelines),
    ("/pipeline", views.show_pipeline),
    ("/workers", views.show_workers),
)
"""Pages with numbers, which open pages renew."""
OTHERS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/events", views.serve_events),
    ("GET", "/static/{name}", views.serve_static),
    ("GET", "/schedules", views.show_schedules),
    ("POST", "/change", changes.change),
    ("POST", "/schedules/change", changes.change_schedule),
    ("GET", "/settings", settings.show),
    ("POST", "/settings", settings.save),
    ("GET", "/edit", editing.show),
    ("POST", "/edit", editing.push),
)


def make_router(services: Services) -> APIRouter:
    """Return the pages, and the calls that their forms are sent to."""
    router = APIRouter(include_in_schema=False)
    for path, function in VIEWS:
        router.add_api_route(path, bind(_share(function), services), methods=["GET"])
    for method, path, function in OTHERS:
        router.add_api_route(path, bind(function, services), methods=[method])
    return router


def _share(function: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """Return the function of a page, with renewals that its readers share.

    An open page asks when numbers have changed, as often as every five seconds. All its readers share one page, which
    takes half a hundredth of the time at most to make. A reader who opens or reloads a page gets it anew.
    """

    @wraps(function)
    async def answer(services: Services, *, request: Request, **arguments: Any) -> Response:
        # What decides about the content of a page: its address, and what its reader may do.
        scope = request.scope
        key = grant_of(scope).level, root_of(request), scope["path"], scope["query_string"]
        make = partial(function, services, request=request, **arguments)
        if RENEWAL_HEADER not in request.headers:
            services.pages.forget(*key)
            return await make()
        response, again = await services.pages.read(key, make)
        if response.status_code != HTTPStatus.OK:
            services.pages.forget(*key)
            return response
        return HTMLResponse(bytes(response.body), headers={AGAIN_HEADER: str(math.ceil(again))} if again else {})

    return answer
