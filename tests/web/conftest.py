"""The HTTP API of a broker of each kind, called without a socket, a browser, and servers for it."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

import mongoq
from tests.waiting import until
from tests.web.chromium import CHROMIUM, DRIVER

if TYPE_CHECKING:
    import httpx

HOST = "http://127.0.0.1"
HTML = {"accept": "text/html"}
LOCAL = ("127.0.0.1", 50_000)


class Api:
    """Calls an app on one event loop, as a server would.

    Attributes:
        app: the app.
    """

    def __init__(
        self, app: Any, *, address: tuple[str, int] = LOCAL, host: str = HOST, runner: asyncio.Runner | None = None
    ) -> None:
        import httpx

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


class Served:
    """An app on the server of ``mongoq dashboard``, with its limits or others."""

    def __init__(self, app: Any, **limits: Any) -> None:
        from mongoq.web.server import make_server

        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # else the system takes megabytes unread
        self._server = make_server(app, **limits)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        until(lambda: self._server.started)
        self.address = listening.getsockname()

    def send(self, head: str, body: bytes, *, length: int | None = None) -> socket.socket:
        """Send a request, and return its connection as soon as it is worked on."""
        state = self._server.server_state
        before = state.total_requests
        connection = socket.create_connection(self.address)
        lines = f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{lines}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)
        until(lambda: state.tasks or state.total_requests > before)
        return connection

    def count_connections(self) -> int:
        return len(self._server.server_state.connections)

    def is_idle(self) -> bool:
        """Return whether no connection and no request is left."""
        return not self._server.server_state.connections and not self._server.server_state.tasks

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def queue(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    return broker.queue("orders", history=3600, max_retries=0)


def make_users(text: str) -> Any:
    from mongoq.web import Users

    return Users(text)


@pytest.fixture
def make_app(broker: mongoq.Broker) -> Callable[..., Any]:
    """Makes an app for the broker of the test, or for another one."""
    from mongoq.web import create_app

    return lambda target=broker, **options: create_app(target, **options)


@pytest.fixture
def open_app(make_app: Callable[..., Any]) -> Iterator[Callable[..., Api]]:
    """Opens apps, by themselves or mounted below a path, and closes them."""
    opened: list[Api] = []

    def open_one(
        *arguments: Any,
        address: tuple[str, int] = LOCAL,
        host: str = HOST,
        runner: asyncio.Runner | None = None,
        mounted_at: str = "",
        **options: Any,
    ) -> Api:
        app = make_app(*arguments, **options)
        if mounted_at:
            from fastapi import FastAPI

            outer = FastAPI()
            outer.mount(mounted_at, app)
            app = outer
        opened.append(Api(app, address=address, host=host, runner=runner))
        return opened[-1]

    yield open_one
    for api in opened:
        api.close()


@pytest.fixture
def api(open_app: Callable[..., Api]) -> Api:
    """The API for everybody on this machine, with changes."""
    return open_app(access="act")


@pytest.fixture(params=["threads", "asyncio"])
def each_api(request: pytest.FixtureRequest, uri: str, database: str, open_app: Callable[..., Api]) -> Iterator[Api]:
    """The API of a sync and of an asyncio broker."""
    if request.param == "threads":
        yield open_app(access="act")
        return
    runner = asyncio.Runner()
    other = runner.run(mongoq.connect_async(uri, database=database).__aenter__())
    yield open_app(other, access="act", runner=runner)
    runner.run(other.close())


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window; it can reach this machine only."""
    from selenium import webdriver

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
def serve_it() -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(app: Any, **limits: Any) -> Served:
        running.append(Served(app, **limits))
        return running[-1]

    yield start
    for served in running:
        served.stop()


@pytest.fixture
def serve(serve_it: Callable[..., Served]) -> Callable[[Any], str]:
    """Serves apps on ports of the system's choice, and returns their addresses."""
    return lambda app: "{}:{}".format(*serve_it(app).address)


def open_page(api: Api, path: str, **parameters: Any) -> str:
    """Return the text of a page as a browser gets it."""
    answer = api.request("GET", path, params=parameters or None, headers=HTML)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def send_form(api: Api, fields: dict[str, Any]) -> Any:
    """Send the form of a change."""
    return api.request("POST", "/change", data=fields, headers=HTML)


def read_form(page: str) -> dict[str, list[str]]:
    """Return the hidden fields of a page that asks."""
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'type="hidden" name="([\w:]+)" value="([^"]*)"', page):
        fields.setdefault(name, []).append(unescape(value))
    return fields


def bury(queue: mongoq.Queue[Any], *payloads: Any, reason: str = "no such city", error: Any = None) -> None:
    """Push items, and bury them."""
    queue.push_many(payloads)
    for item in queue.reserve_many(len(payloads)):
        queue.bury(item, reason=reason, error=error)


def list_all(api: Api, path: str, **parameters: Any) -> list[Any]:
    """Return all items of a list, answer by answer."""
    items: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = api.get(path, **parameters, **cursor).json()
        items += answer["items"]
        if answer["next"] is None:
            return items
        cursor = {"cursor": answer["next"]}


def make_pipeline(name: str = "flights") -> mongoq.Pipeline:
    """A pipeline with a source, two stages, failures, and a way back."""
    pipeline = mongoq.Pipeline(name, errors="flights.errors")

    @pipeline.source(to="raw", name="files")
    def read(position: Any) -> Any:
        yield from ()

    @pipeline.stage("raw", to="checked", name="check")
    def check(flight: Any) -> Any:
        if flight is None:
            raise ValueError("no flight")
        return flight

    @pipeline.stage("checked", to="raw", name="again")
    def again(flight: Any) -> Any:
        return flight

    return pipeline


@pytest.fixture
def freeze_clock() -> Callable[[Api], Callable[[float], None]]:
    """Stops the clock of an app's readings, and returns what moves it on.

    An app tells rates when it has been looking for two minutes, and takes no clock from a user.
    """

    def freeze(api: Api) -> Callable[[float], None]:
        now = [1_000.0]
        api.app.state.queues._reading._clock = lambda: now[0]
        return lambda seconds: now.append(now.pop() + seconds)

    return freeze
