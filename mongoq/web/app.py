"""App: puts client, calls and guard together."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

from mongoq import __version__
from mongoq.aio import AsyncBroker
from mongoq.data.arguments import count
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.web import api, pages
from mongoq.web.access import Access, SecretLink, Users, check_access
from mongoq.web.client import BrokerClient
from mongoq.web.guard import Guard
from mongoq.web.pages.views import show_problem
from mongoq.web.pipelines import check_pipelines
from mongoq.web.problems import RESPONSES, add_handlers, describe
from mongoq.web.services import Services

MAX_BULK = 10_000
"""Items that one change may concern, at most, by default."""
DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE = "https://queues.example.com"
MAX_PORT = 65_535
ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5})?)?/?", re.ASCII)
"""An origin in small letters; a browser sends a name in Punycode."""
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
"""Prefix of addresses: segments that need no encoding, and none that a browser resolves."""


def create_app(
    broker: Broker | AsyncBroker | str,
    *,
    access: Access | Users | SecretLink = "read",
    database: str | None = None,
    collection: str | None = None,
    max_bulk: int = MAX_BULK,
    pipelines: Iterable[Pipeline] = (),
    origins: Collection[str] = (),
    root_path: str = "",
) -> FastAPI:
    """Return an ASGI app with dashboard and HTTP API of a broker, to be served by itself or mounted in another app.

    ```python
    app.mount("/queues", create_app(broker, access=Users.from_file("users.txt")))
    ```

    Args:
        broker: the broker, or a connection string: then the app connects when it is first called. An ``AsyncBroker``
            belongs to the event loop that serves the app.
        access: who may do what. ``"read"`` or ``"act"`` holds for callers on this machine, and nobody else is answered.
            ``Users`` have names and secrets. A function of the application, plain or ``async``, gets the request and
            returns ``"none"``, ``"read"`` or ``"act"``.
        database: the database, with a connection string; default the one in the string, else ``mongoq``.
        collection: the collection, with a connection string; default ``mongoq``.
        max_bulk: items that one change may concern, at most.
        pipelines: pipelines that the dashboard draws, with the numbers of their queues.
        origins: origins besides the app's own whose pages may send changes, such as ``"https://queues.example.com"``.
        root_path: prefix of the addresses behind a proxy, such as ``"/queues"``, whether the proxy removes it or not.
            An app that is mounted in another one needs none.

    Raises:
        ArgumentInvalid: an argument cannot be used; it is named.
        GraphInvalid: a pipeline has faults.
    """
    client = BrokerClient(broker, database=database, collection=collection)
    services = Services(client, count(max_bulk, "max_bulk"), check_pipelines(pipelines))

    @asynccontextmanager
    async def close_at_end(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await client.close()

    # The pages for people that FastAPI offers load scripts from another host.
    app = FastAPI(
        title="mongoq",
        version=__version__,
        description="Queues on MongoDB: look into them, and repair them.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=close_at_end,
        responses=RESPONSES,
        redirect_slashes=False,  # it would name the host that a proxy has called
    )
    app.include_router(api.make_router(services))
    if isinstance(access, SecretLink):
        app.include_router(access.make_router())
    app.include_router(pages.make_router(services))
    app.state.queues = services.queues
    add_handlers(app, show_problem)
    app.root_path = _check_root_path(root_path, _find_paths(app))
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # the way that FastAPI documents
    options: dict[str, Any] = {"access": check_access(access), "origins": _check_origins(origins)}
    app.add_middleware(Guard, show_page=show_problem, **options)
    return app


def _find_paths(router: Any) -> Iterator[str]:
    """Yield the paths of an app or a router; later versions of FastAPI keep those of a part in the part."""
    for route in router.routes:
        part = getattr(route, "original_router", None)
        yield from (route.path,) if part is None else _find_paths(part)


def _check_origins(origins: Collection[str]) -> frozenset[str]:
    """Return origins as browsers send them: in small letters, and without a port that the scheme stands for.

    Raises:
        ArgumentInvalid: one of them is no origin.
    """
    if isinstance(origins, str):
        raise ArgumentInvalid("origins", f"give a list of them, such as [{EXAMPLE!r}]")
    checked = set()
    text: Any
    for text in origins:
        found = ORIGIN.fullmatch(text.strip().lower()) if isinstance(text, str) and text.isascii() else None
        if found is None or int(found["port"] or 0) > MAX_PORT:
            raise ArgumentInvalid("origins", f"an origin is scheme and host, such as {EXAMPLE}, not {text!r:.120}")
        scheme, port = found["scheme"], int(found["port"] or 0)
        checked.add(f"{scheme}://{found['host']}" + ("" if port in (0, DEFAULT_PORTS[scheme]) else f":{port}"))
    return frozenset(checked)


def _check_root_path(root_path: Any, paths: Iterable[str]) -> str:
    """Return the prefix that a proxy adds to the paths of an app, without a slash at its end.

    Raises:
        ArgumentInvalid: it is no prefix of paths, or an app with these paths has one that begins so: for a proxy that
            removes the prefix, both would be the same.
    """
    if not isinstance(root_path, str):
        raise ArgumentInvalid("root_path", f"a path such as /queues, not {root_path!r:.60}")
    prefix = root_path.rstrip("/")
    if not prefix:
        return ""
    if not ROOT_PATH.fullmatch(prefix):
        raise ArgumentInvalid(
            "root_path", f"a path such as /queues, of letters, digits and -._~, not {root_path!r:.60}"
        )
    if any(f"{path}/".startswith(f"{prefix}/") for path in paths):
        raise ArgumentInvalid("root_path", f"{prefix} is a path of the app itself; choose another one")
    return prefix
