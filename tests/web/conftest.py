"""The HTTP API of a broker of each kind, called without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import mongoq
from mongoq.web import create_app

HOST = "http://127.0.0.1"
LOCAL = ("127.0.0.1", 50_000)


class Api:
    """Calls an app on one event loop, as a server would.

    Attributes:
        app: the app.
    """

    def __init__(
        self, app: Any, *, address: tuple[str, int] = LOCAL, host: str = HOST, runner: asyncio.Runner | None = None
    ) -> None:
        self.app = app
        self._runner = runner or asyncio.Runner()
        transport = httpx.ASGITransport(app=app, client=address, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=host)
        self._lifespan = app.router.lifespan_context(app)
        self.run(self._lifespan.__aenter__())

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.request("GET", path, params=parameters)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def run(self, awaitable: Any) -> Any:
        return self._runner.run(awaitable)

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._lifespan.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture
def broker(uri: str, database: str) -> Iterator[mongoq.Broker]:
    """A broker of the test's own, to push and to look."""
    with mongoq.connect(uri, database=database) as opened:
        yield opened


@pytest.fixture
def queue(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    return broker.queue("orders", history=3600, max_retries=0)


@pytest.fixture
def open_api() -> Iterator[Callable[..., Api]]:
    """Opens apps, and closes them."""
    opened: list[Api] = []

    def open_one(app: Any, **options: Any) -> Api:
        opened.append(Api(app, **options))
        return opened[-1]

    yield open_one
    for api in opened:
        api.close()


@pytest.fixture
def api(broker: mongoq.Broker, open_api: Callable[..., Api]) -> Api:
    """The API for everybody on this machine, with changes."""
    return open_api(create_app(broker, access="act"))


@pytest.fixture(params=["threads", "asyncio"])
def each_api(
    request: pytest.FixtureRequest, broker: mongoq.Broker, uri: str, database: str, open_api: Callable[..., Api]
) -> Iterator[Api]:
    """The API of a sync and of an asyncio broker."""
    if request.param == "threads":
        yield open_api(create_app(broker, access="act"))
        return
    runner = asyncio.Runner()
    other = runner.run(mongoq.connect_async(uri, database=database).__aenter__())
    yield open_api(create_app(other, access="act"), runner=runner)
    runner.run(other.close())
