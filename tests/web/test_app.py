"""The app by itself and inside another one, the server away, and whatever OpenAPI allows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pymongo import MongoClient

import mongoq
from mongoq.web import create_app
from tests.waiting import until
from tests.web.conftest import Api


def test_the_app_can_be_mounted(open_api: Any, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    outer = FastAPI()
    outer.mount("/queues", create_app(broker, access="act"))
    api = open_api(outer)
    assert api.get("/queues/api/items", queue="orders").json()["items"][0]["payload"] == 1
    assert api.get("/queues/nothing").status_code == 404


def test_a_connection_string_connects_at_the_first_call(
    open_api: Any, uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("mails").push(1)
    place = uri.replace("/?", f"/{database}?")
    api = open_api(create_app(place))
    assert [each["queue"] for each in api.get("/api/queues").json()["queues"]] == ["mails"]


@pytest.mark.prove
def test_a_server_that_is_away_is_unavailable_until_it_is_back(
    open_api: Any, uri: str, database: str, client: MongoClient[Any], broker: mongoq.Broker
) -> None:
    name = f"web-{database}"
    place = uri.replace("/?", f"/{database}?") + f"&appName={name}&serverSelectionTimeoutMS=500"
    broker.queue("mails").push(1)
    with mongoq.connect(place) as other:
        api = open_api(create_app(other, access="act"))
        assert api.get("/api/queues").status_code == 200
        failing = {"failCommands": ["find", "aggregate", "hello", "ping", "insert"], "appName": name}
        client.admin.command(
            "configureFailPoint", "failCommand", mode="alwaysOn", data=failing | {"closeConnection": True}
        )
        try:
            away = api.get("/api/queues")
            health = api.get("/api/health")
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        assert (away.status_code, away.headers.get("retry-after")) == (503, "5"), away.text
        assert "127.0.0.1" not in away.text
        assert (health.status_code, health.json()["healthy"]) == (503, False)
        until(lambda: api.get("/api/queues").status_code == 200)


def test_no_server_at_all_is_unavailable_and_names_no_password(open_api: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"mongodb://ada:a-password@127.0.0.1:{free.getsockname()[1]}/?serverSelectionTimeoutMS=200"
        api = open_api(create_app(place))
        for path in ("/api/queues", "/api/health"):
            answer = api.get(path)
            assert (answer.status_code, "a-password" in answer.text) == (503, False)


@pytest.mark.parametrize("broker", [1, None, b"mongodb://localhost"])
def test_what_is_no_broker_is_an_error(broker: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="broker"):
        create_app(broker)


def test_the_address_may_have_any_method_and_nothing_breaks(api: Api) -> None:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "XYZ"):
        answer = api.request(method, "/api/queues")
        assert answer.status_code in (200, 404, 405), method


@pytest.fixture
def served(broker: mongoq.Broker) -> Iterator[str]:
    """The address of a real server, on a port of the system's choice."""
    config = uvicorn.Config(create_app(broker, access="act"), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    [listening] = server.servers[0].sockets
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_a_real_server_serves_it(served: str, queue: mongoq.Queue[Any]) -> None:
    queue.push({"city": "Paris"})
    with httpx.Client(base_url=served) as client:
        assert client.get("/api/items", params={"queue": "orders"}).json()["items"][0]["payload"] == {"city": "Paris"}
        too_long = client.post(
            "/api/items/push",
            content=iter([b"x" * (1 << 20)] * 18),
            headers={"content-type": "application/json"},
        )
        assert too_long.status_code == 413
    assert queue.size() == 1


@pytest.mark.parametrize("root", ["/ops/queues", "/a"])
def test_a_prefix_may_be_removed_by_the_proxy_or_not(open_api: Any, broker: mongoq.Broker, root: str) -> None:
    broker.queue("orders").push(1)
    api = open_api(create_app(broker, root_path=f"{root}/"))
    html = {"Accept": "text/html"}
    for prefix in ("", root):
        page = api.request("GET", f"{prefix}/queue", params={"name": "orders"}, headers=html)
        assert (page.status_code, f'href="{root}/workers"' in page.text) == (200, True)
        missing = api.request("GET", f"{prefix}/api/nothing", headers=html)
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    assert api.get(f"{root}x/api/queues").status_code == 404


@pytest.mark.parametrize("root", ["queues", "/", "/a b", "/../x", "//x", "/a?b", "/queue", "/api", "/api/items", 1])
def test_a_prefix_that_cannot_be_used_is_an_error(broker: mongoq.Broker, root: Any) -> None:
    if root == "/":
        assert create_app(broker, root_path=root).root_path == ""
        return
    with pytest.raises(mongoq.ArgumentInvalid, match="root_path"):
        create_app(broker, root_path=root)


def test_no_answer_names_the_host_that_was_called(open_api: Any, broker: mongoq.Broker) -> None:
    """Behind a proxy it is another one than the browser sees."""
    api = open_api(create_app(broker, access=lambda _request: "act"), host="http://backend.example.com")
    for path in ("/api/queues/", "/workers/", "/", "/api/openapi.json"):
        answer = api.request("GET", path, headers={"Accept": "text/html"})
        assert "backend.example.com" not in answer.text + str(answer.headers), path
