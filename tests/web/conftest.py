"""The HTTP API of a broker of each kind, called without a socket, and a browser with servers for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from selenium import webdriver

import mongoq
from mongoq.web import create_app
from tests.waiting import until
from tests.web.chromium import CHROMIUM, DRIVER

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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window; it can reach this machine only."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    profile = tmp_path_factory.mktemp("browser")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # Chromium refuses to run as root otherwise, as in most containers
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1200,760",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    opened.set_page_load_timeout(120)
    yield opened
    opened.quit()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serves apps on ports of the system's choice, and returns their addresses."""
    running: list[tuple[Any, uvicorn.Server, threading.Thread]] = []

    def start(app: Any) -> str:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((app, server, thread))
        until(lambda: server.started)
        return f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for app, server, thread in running:
        app.state.feed.close()
        server.should_exit = True
        thread.join()
