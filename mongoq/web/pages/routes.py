"""Routes of the pages: a table, and the renewals by which open pages ask for their numbers again."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
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
    shared = _make_shared_route(services)
    for path, function in VIEWS:
        router.add_api_route(path, bind(function, services), methods=["GET"], route_class_override=shared)
    for method, path, function in OTHERS:
        router.add_api_route(path, bind(function, services), methods=[method])
    return router


def _make_shared_route(services: Services) -> type[APIRoute]:
    """Return the class of the routes of pages with numbers.

    An open page asks when numbers have changed, as often as every five seconds. All its readers share one page, which
    takes half a hundredth of the time at most to make. A reader who opens or reloads a page gets it anew.
    """

    class SharedRoute(APIRoute):
        """Route of a page."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the handler of the route."""
            handle = super().get_route_handler()

            async def handle_shared(request: Request) -> Response:
                # What decides about the content of a page: its address, and what its reader may do.
                scope = request.scope
                key = grant_of(scope).level, root_of(request), scope["path"], scope["query_string"]
                if RENEWAL_HEADER not in request.headers:
                    services.pages.forget(*key)
                    return await handle(request)

                async def make() -> bytes:
                    response = await handle(request)
                    if response.status_code != 200:
                        raise _NotShared(response)
                    return bytes(response.body)

                try:
                    body, again = await services.pages.read(key, make)
                except _NotShared as other:
                    return other.response
                return HTMLResponse(body, headers={AGAIN_HEADER: str(math.ceil(again))} if again else {})

            return handle_shared

    return SharedRoute


class _NotShared(Exception):
    """An answer that is no page with numbers.

    Attributes:
        response: the answer.
    """

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response
