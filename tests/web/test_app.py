"""The app by itself and inside another one, and the server away."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

import mongoq
from tests.proxy import Proxy
from tests.waiting import until
from tests.web.conftest import HTML, Api, open_page


def test_the_app_can_be_mounted(open_app: Callable[..., Api], queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    api = open_app(access="act", mounted_at="/admin/queues")
    assert api.get("/admin/queues/api/items", queue="orders").json()["items"][0]["payload"] == 1
    assert api.get("/admin/queues/nothing").status_code == 404
    page = open_page(api, "/admin/queues/")
    addresses = re.findall(r'(?:href|src|action|data-events)="([^"#]+)"', page)
    assert addresses
    assert all(address.startswith("/admin/queues/") for address in addresses)
    for address in addresses:
        if "events" not in address and not address.endswith("/item"):
            assert api.request("GET", unescape(address), headers=HTML).status_code == 200, address


def test_a_connection_string_connects_at_the_first_call(
    open_app: Callable[..., Api], uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("mails").push(1)
    api = open_app(uri.replace("/?", f"/{database}?"))
    assert [each["queue"] for each in api.get("/api/queues").json()["queues"]] == ["mails"]
    with pytest.raises(mongoq.ArgumentInvalid, match="broker"):
        open_app(1)


@pytest.mark.prove  # the driver waits for a server until the ten seconds of a read are over
def test_a_server_that_is_away_is_unavailable_until_it_is_back(
    open_app: Callable[..., Api], uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("mails").push(1)
    with (
        Proxy(uri) as proxy,
        mongoq.connect(proxy.uri_with(serverSelectionTimeoutMS="500"), database=database) as other,
    ):
        api = open_app(other, access="act")
        assert api.get("/api/queues").status_code == 200
        proxy.stop()
        away = api.get("/api/queues")
        health = api.get("/api/health")
        assert (away.status_code, away.headers.get("retry-after")) == (503, "5"), away.text
        assert "127.0.0.1" not in away.text
        assert (health.status_code, health.json()["healthy"]) == (503, False)
        with Proxy(uri, port=proxy.port):
            until(lambda: api.get("/api/queues").status_code == 200)


def test_no_server_at_all_is_unavailable_and_names_no_password(open_app: Callable[..., Api]) -> None:
    # Nothing listens at port 1, which is of the system.
    api = open_app("mongodb://ada:a-password@127.0.0.1:1/?serverSelectionTimeoutMS=200")
    for path in ("/api/queues", "/api/health"):
        answer = api.get(path)
        assert (answer.status_code, "a-password" in answer.text) == (503, False)
    scrape = api.get("/metrics")
    assert (scrape.status_code, "mongoq_up 0.0" in scrape.text) == (200, True)


def test_the_address_may_have_any_method_and_nothing_breaks(api: Api) -> None:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "XYZ"):
        answer = api.request(method, "/api/queues")
        assert answer.status_code in (200, 404, 405), method
    assert api.request("GET", "/change", params={"action": "pause"}, headers=HTML).status_code == 405


def test_a_real_server_serves_it(serve: Callable[[Any], str], make_app: Any, queue: mongoq.Queue[Any]) -> None:
    import httpx

    queue.push({"city": "Paris"})
    with httpx.Client(base_url=f"http://{serve(make_app(access='act'))}") as client:
        assert client.get("/api/items", params={"queue": "orders"}).json()["items"][0]["payload"] == {"city": "Paris"}
        too_long = client.post(
            "/api/items/push",
            content=iter([b"x" * (1 << 20)] * 18),
            headers={"content-type": "application/json"},
        )
        assert too_long.status_code == 413
    assert queue.size() == 1


def test_a_prefix_may_be_removed_by_the_proxy_or_not(open_app: Callable[..., Api], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    for root in ("/ops/queues", "/a"):
        api = open_app(root_path=f"{root}/")
        for prefix in ("", root):
            page = api.request("GET", f"{prefix}/queue", params={"name": "orders"}, headers=HTML)
            assert (page.status_code, f'href="{root}/workers"' in page.text) == (200, True)
            assert api.request("GET", prefix or "/", headers=HTML).status_code == 200
            missing = api.request("GET", f"{prefix}/api/nothing", headers=HTML)
            assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
        assert api.get(f"{root}x/api/queues").status_code == 404


def test_a_prefix_that_cannot_be_used_is_an_error(make_app: Callable[..., Any]) -> None:
    make_app(root_path="/")
    for root in ("queues", "/a b", "/../x", "//x", "/a?b", "/queue", "/api", "/api/items", 1):
        with pytest.raises(mongoq.ArgumentInvalid, match="root_path"):
            make_app(root_path=root)


def test_no_answer_names_the_host_that_was_called(open_app: Callable[..., Api]) -> None:
    """Behind a proxy it is another one than the browser sees."""
    api = open_app(access=lambda _request: "act", host="http://backend.example.com")
    for path in ("/api/queues/", "/workers/", "/", "/api/openapi.json"):
        answer = api.request("GET", path, headers=HTML)
        assert "backend.example.com" not in answer.text + str(answer.headers), path
