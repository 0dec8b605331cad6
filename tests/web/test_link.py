"""The secret link: without it all callers on this machine read, with it a browser or a program makes changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import mongoq
from mongoq.web import create_app
from mongoq.web.link import SecretLink
from tests.web.conftest import HOST, Api

READ, CHANGE = "/api/queues", "/api/items/push"
BODY = {"queue": "orders", "payload": 1}
FORM = {"action": "pause", "queue": "orders", "confirmed": "1"}


@pytest.fixture
def link() -> SecretLink:
    return SecretLink()


@pytest.fixture
def linked(broker: mongoq.Broker, link: SecretLink, open_api: Callable[..., Api]) -> Api:
    """An API whose changes need the link."""
    return open_api(create_app(broker, access=link))


def cookies_of(answer: httpx.Response) -> SimpleCookie:
    return SimpleCookie(answer.headers.get("set-cookie", ""))


def test_without_the_link_all_can_be_read_and_nothing_changed(linked: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    assert linked.get(READ).status_code == 200
    refused = linked.post(CHANGE, **BODY)
    assert (refused.status_code, "link" in refused.json()["detail"]) == (403, True)
    page = linked.request("GET", "/queue", params={"name": "orders"}, headers={"Accept": "text/html"})
    assert ("read-only" in page.text, 'action="/change"' in page.text) == (True, False)
    assert linked.request("POST", "/change", data=FORM).status_code == 403
    assert queue.size() == 1


def test_the_link_gives_a_cookie_with_which_changes_are_made(
    linked: Api, link: SecretLink, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)
    opened = linked.get("/link", token=link.token)
    assert (opened.status_code, opened.headers["location"], opened.headers["cache-control"]) == (303, "/", "no-store")
    [cookie] = cookies_of(opened).values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "strict", "/", "")
    assert (cookie["expires"], cookie["max-age"]) == ("", "")  # it ends with the browser
    assert link.token not in (cookie.key, cookie.value)
    assert linked.post(CHANGE, **BODY).status_code == 201
    assert linked.request("POST", "/change", data=FORM).status_code == 303
    assert queue.size() == 2


@pytest.mark.parametrize("token", ["", "x", "ä", "\ud800", "{}x", "x{}"], ids=range(6))
def test_another_token_gives_nothing(
    linked: Api, link: SecretLink, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    wrong = token.format(link.token)
    answer = linked.request("GET", f"/link?token={quote(wrong, errors='surrogatepass')}")
    assert (answer.status_code, "set-cookie" in answer.headers, link.token in answer.text) == (403, False, False)
    assert linked.post(CHANGE, **BODY).status_code == 403
    assert link.token not in caplog.text


def test_a_cookie_of_another_value_or_name_is_none(linked: Api, link: SecretLink) -> None:
    [cookie] = cookies_of(linked.get("/link", token=link.token)).values()
    linked._client.cookies.clear()
    for value in (f"{cookie.key}=", f"{cookie.key}={link.token}", f"other={cookie.value}", f"{cookie.key}=ä"):
        headers = {"Cookie": value.encode()}
        assert linked.request("POST", CHANGE, json=BODY, headers=headers).status_code == 403, value
    headers = {"Cookie": f"{cookie.key}={cookie.value}".encode()}
    assert linked.request("POST", CHANGE, json=BODY, headers=headers).status_code == 201


def test_a_program_sends_the_token_itself(linked: Api, link: SecretLink) -> None:
    for header, status in ((f"Bearer {link.token}", 201), (f"Basic {link.token}", 403), ("Bearer x", 403)):
        headers = {"Authorization": header}
        assert linked.request("POST", CHANGE, json=BODY, headers=headers).status_code == status, header


def test_the_link_of_another_start_gives_nothing(
    linked: Api, broker: mongoq.Broker, link: SecretLink, open_api: Callable[..., Api]
) -> None:
    other = open_api(create_app(broker, access=SecretLink()))
    other._client.cookies = linked.get("/link", token=link.token).cookies
    assert other.get("/link", token=link.token).status_code == 403
    assert other.post(CHANGE, **BODY).status_code == 403


@pytest.mark.parametrize(
    ("address", "host", "headers"),
    [
        (("10.0.0.7", 1), HOST, {}),
        (("127.0.0.1", 1), "http://queues.example.com", {}),
        (("127.0.0.1", 1), HOST, {"X-Forwarded-For": "10.0.0.7"}),
    ],
    ids=range(3),
)
def test_the_link_is_for_this_machine_alone(
    broker: mongoq.Broker, open_api: Callable[..., Api], address: Any, host: str, headers: dict[str, str]
) -> None:
    link = SecretLink()
    api = open_api(create_app(broker, access=link), address=address, host=host)
    answer = api.request("GET", "/link", params={"token": link.token}, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    headers = {**headers, "Authorization": f"Bearer {link.token}"}
    assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://127.0.0.1:9999"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"}],
    ids=range(3),
)
def test_a_page_of_another_port_changes_nothing_with_the_cookie(
    linked: Api, link: SecretLink, queue: mongoq.Queue[Any], headers: dict[str, str]
) -> None:
    linked.get("/link", token=link.token)
    assert linked.request("POST", CHANGE, json=BODY, headers=headers).status_code == 403
    assert queue.size() == 0


def test_no_log_has_the_token(linked: Api, link: SecretLink, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        linked.get("/link", token=link.token)
        linked.request("POST", f"/link?token={link.token}")
        linked.request("POST", CHANGE, json=BODY, headers={"Origin": "http://evil.example"})
        linked.post(CHANGE, **BODY)
    caplog_text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("mongoq"))
    assert "push" in caplog_text
    assert link.token not in caplog_text
    assert link.token not in repr(link)


def test_an_app_without_a_link_has_no_such_path(api: Api) -> None:
    assert api.get("/link", token="x").status_code == 404


def test_a_browser_is_told_on_a_page_that_it_has_no_link(linked: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    html = {"Accept": "text/html,application/xhtml+xml;q=0.9"}
    wrong = linked.request("GET", "/link?token=bad", headers=html)
    assert (wrong.status_code, wrong.headers["content-type"][:9]) == (403, "text/html")
    assert "this is not the link of the running dashboard" in wrong.text
    refused = linked.request("POST", "/change", data=FORM, headers=html)
    assert (refused.status_code, refused.headers["content-type"][:9]) == (403, "text/html")
    assert "changes need the link that the dashboard has printed" in refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]
    for answer in (
        linked.request("GET", "/link?token=bad"),
        linked.request("POST", "/change", data=FORM),
        linked.request("POST", CHANGE, json=BODY, headers=html),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert queue.size() == 1
