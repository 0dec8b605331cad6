"""Renewals: the requests by which open pages ask for their numbers again.

An open page asks when numbers have changed, as often as every five seconds. All its readers share one page, which takes
half a hundredth of the time at most to make. A reader who opens or reloads a page gets it anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

from mongoq.web.guard import grant_of
from mongoq.web.pages.render import RENEWAL_HEADER, root_of
from mongoq.web.readings import PageReadings

AGAIN_HEADER = "x-mongoq-again"
"""Header of the answer to it: seconds after which a newer page can be had."""


def make_route_class(pages: PageReadings) -> type[APIRoute]:
    """Return the class of the routes of pages, whose renewals share what ``pages`` keeps."""

    class SharedRoute(APIRoute):
        """Route of a page."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the handler of the route."""
            handle = super().get_route_handler()

            async def handle_shared(request: Request) -> Response:
                key = _make_key(request)
                if RENEWAL_HEADER not in request.headers:
                    pages.forget(key)
                    return await handle(request)

                async def make() -> bytes:
                    response = await handle(request)
                    if response.status_code != 200:
                        raise _NotShared(response)
                    return bytes(response.body)

                try:
                    body, again = await pages.read(key, make)
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


def _make_key(request: Request) -> tuple[Any, ...]:
    """Return what decides about the content of a page: its address, and what its reader may do."""
    return grant_of(request.scope).level, root_of(request), request.scope["path"], request.scope["query_string"]
