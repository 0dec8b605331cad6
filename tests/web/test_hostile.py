"""Documents that another program has written, and requests that no browser sends: no page and no call breaks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, ObjectId, Regex
from fastapi import FastAPI
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, DuplicateKeyError, NetworkTimeout, ServerSelectionTimeoutError

import mongoq
from mongoq.model.encoding.extended_json import read_json
from mongoq.web import Users, create_app, guard, values
from mongoq.web.client import MAX_THREADS, BrokerClient
from mongoq.web.pages.render import LONG_CHARACTERS, SHORT_CHARACTERS, make_address, show_long, show_short
from tests.web.conftest import HOST, Api
from tests.web.test_access import SECRET, USERS
from tests.web.test_letters import bury
from tests.web.test_pages import HTML, open_page, read_form, send_form

PAST = datetime.now(UTC) - timedelta(minutes=1)
NESTED: Any = 1
for _ in range(80):
    NESTED = {"a": [NESTED]}
OTHER_TYPES: list[Any] = [
    *(1, float("nan"), True, None, "", [], [1, "a"], {}, {"a": 1}, DatetimeMS(2**60), PAST, Binary(b"\0\1", 5)),
    {"type": 1, "queue": [1], "reason": {"b": 2}, "message": [], "at": 5, "traceback": 1},
    *(Decimal128("NaN"), Regex("a"), Code("x"), NESTED, "x" * 300_000, "\x1b[31m\r\n\u202e"),
    [{"queue": 1, "ended": "x"}, 5, None],
]
NOT_IDS = (Regex, list)
"""Types that the server takes for no ``_id``."""


@pytest.mark.parametrize("field", ["_id", "error", "origin", "trail", "key", "priority", "attempts", "headers"])
def test_fields_of_other_types_are_shown(
    api: Api, client: MongoClient[Any], queue: mongoq.Queue[Any], database: str, field: str
) -> None:
    bury(queue, 1)
    values = [value for value in OTHER_TYPES if field != "_id" or not isinstance(value, NOT_IDS)]
    envelope = {"q": "orders.dead", "payload": 1, "when": PAST, "priority": 0, "attempts": 0, "reserved": False}
    ids = []
    for place, value in enumerate(values):
        own = {"key": str(place)}  # at most one live item has a key
        document = {"_id": ObjectId(), **envelope, **own, field: value}
        with suppress(DuplicateKeyError):  # two kinds of NaN are one
            ids.append(client[database]["mongoq"].insert_one(document).inserted_id)
    calls = [
        *(("/", {}), ("/queue", {"name": "orders.dead"}), ("/letters", {"queue": "orders"})),
        *(("/api/items", {"queue": "orders.dead"}), ("/api/letters/groups", {"queue": "orders"})),
        ("/v1/dead_set", {"count": 100, "topic-entity": "orders"}),
        *(
            call
            for id in ids
            if isinstance(id, ObjectId)
            for call in (("/item", {"id": str(id)}), (f"/api/items/{id}", {}))
        ),
    ]
    for path, parameters in calls:
        answer = api.request("GET", path, params=parameters, headers=HTML)
        assert answer.status_code == 200, (path, parameters, answer.text[:200])
        if not path.startswith(("/api/", "/v1/")):
            assert len(answer.content) < 4 * LONG_CHARACTERS
    page = open_page(api, "/letters", queue="orders")
    links = re.findall(r'href="/item\?id=([^"]*)"', page)
    boxes = re.findall(r'type="checkbox" name="id" value="([^"]*)"', page)
    assert links
    assert all(ObjectId.is_valid(id) for id in links + boxes)


def test_a_payload_of_megabytes_is_cut() -> None:
    """16 MiB of numbers as JSON would hold up the whole app for seconds."""
    for value in ([1] * 10**6, {str(place): place for place in range(10**5)}, [["x" * 99] * 10] * 10**5, "x" * 10**6):
        for show, limit in ((show_short, SHORT_CHARACTERS), (show_long, LONG_CHARACTERS)):
            text = show(value)
            assert limit <= len(text) <= limit + 40
            assert "…" in text
    assert show_short([1, {"a": "b"}]) == '[1, {"a": "b"}]'
    wanted = json.dumps([1] * 60)[: SHORT_CHARACTERS - 1] + "…"
    assert show_short([1] * 60) == show_short([1] * 10**6) == wanted


def test_names_of_queues_are_whole_in_addresses(api: Api, broker: mongoq.Broker) -> None:
    for name in ("a/b?c#d&e%f+g h", "\u202eabc", "..", "ü" * 60, '"><b>', "a\r\nb"):
        queue = broker.queue(name, max_retries=0)
        bury(queue, 1)
        [link] = [
            unescape(link) for link in re.findall(r'href="(/letters\?[^"]*)"', open_page(api, "/queue", name=name))
        ]
        assert "1</a>" in open_page(api, link)
        done = send_form(api, {"action": "pause", "queue": name, "confirmed": "yes"})
        assert (done.status_code, "\n" in done.headers["location"]) == (303, False)
        assert open_page(api, done.headers["location"])
        assert queue.is_paused()
    assert make_address("", "/queue", name="\ud800") == "/queue?name=%5Cud800"


def test_the_path_of_a_mount_is_escaped(open_api: Callable[..., Api], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    outer = FastAPI()
    outer.mount("/очередь 1", create_app(broker, access="act"))
    api = open_api(outer)
    root = "/%D0%BE%D1%87%D0%B5%D1%80%D0%B5%D0%B4%D1%8C%201"
    done = api.request("POST", f"{root}/change", data={"action": "pause", "queue": "orders", "confirmed": "yes"})
    assert (done.status_code, done.headers["location"]) == (303, f"{root}/queue?name=orders")
    assert f'href="{root}/queue?name=orders"' in open_page(api, f"{root}/")


def test_letters_without_an_error_are_not_chosen_by_a_reason_that_others_have(
    api: Api, queue: mongoq.Queue[Any]
) -> None:
    """The form of a group names reason and error; without an error it would stand for all letters of the reason."""
    bury(queue, 1, reason="gone", error=None)
    assert 'value="gone"><button name="action"' in open_page(api, "/letters", queue="orders")
    bury(queue, 2, 3, reason="gone", error=ValueError("x"))
    again = create_app_page(api, queue)
    assert 'value="gone"><button name="action"' not in again
    assert 'name="error" value="ValueError"' in again


def create_app_page(api: Api, queue: mongoq.Queue[Any]) -> str:
    """Return the page of letters with groups that are read anew, as after a change of the reader."""
    [letter, *_] = queue.dead.peek(1)
    fields = {"action": "replay", "queue": "orders.dead", "id": str(letter.id), "to": "elsewhere", "confirmed": "yes"}
    bury(queue, 9, reason="gone", error=None)
    send_form(api, fields)
    return open_page(api, "/letters", queue="orders")


def test_a_target_that_cannot_be_is_refused_before_the_question(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1)
    for to in ("$x", "orders.dead", "x" * 200):
        fields = {"action": "replay", "queue": "orders.dead", "reason": "no such city", "to": to}
        assert send_form(api, fields).status_code == 422, to


def test_large_letters_of_the_dead_set_come_in_one_reply(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, *("x" * 6_000_000 for _ in range(4)))
    answer = api.get("/v1/dead_set", **{"count": 4, "topic-entity": "orders"})
    assert (answer.status_code, len(answer.content) < 17_000_000) == (200, True)
    assert 0 < len(answer.json()["messages"]) < 4


def test_a_document_with_many_names_and_one_twice_is_refused_at_once() -> None:
    """The search for the name compared each with each: 17 MB of them kept the app busy for hours."""
    text = "{" + ", ".join(f'"{number}": 1' for number in (*range(200_000), 199_999)) + "}"
    with pytest.raises(ValueError, match="name '199999' occurs twice"):
        read_json(text)


def test_the_text_null_is_no_filter(api: Api, queue: mongoq.Queue[Any]) -> None:
    """It would stand for all items, and a replay would copy the whole history."""
    queue.push(1)
    queue.pop()
    assert api.get("/api/history", queue="orders", where="null").status_code == 422
    for where in ("null", "5", "[]"):
        fields = {"action": "replay_history", "queue": "orders", "where": where, "confirmed": "yes"}
        assert send_form(api, fields).status_code == 422
    assert queue.size() == 0


def test_a_large_body_is_read_in_a_thread(api: Api, queue: mongoq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def read(body: Any) -> Any:
        threads.append(threading.current_thread())
        return read_json(body)

    monkeypatch.setattr(values, "read_json", read)
    assert api.post("/api/items/push", queue="orders", payload="x" * 70_000).status_code == 201
    assert threads[0] is not threading.main_thread()
    assert api.post("/api/items/push", queue="orders", payload="x" * 80_000 + "\0").status_code == 201
    for content in (b"[" * 100_000, b'"' + b"\xff" * 100_000 + b'"'):
        answer = api.request("POST", "/api/items/push", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "body")


def test_a_body_with_many_wrong_fields_has_a_short_answer(api: Api) -> None:
    answer = api.post("/api/items/push", queue="orders", payload=1, **{f"{'x' * 300}{n}": 1 for n in range(2_000)})
    assert (answer.status_code, len(answer.json()["fields"])) == (422, 100)
    assert len(answer.content) < 100_000


@pytest.mark.parametrize("origin", ["http://[", "null", "", "http://", "http://[::1", "http://127.0.0.1.evil.example"])
def test_an_origin_that_cannot_be_read_changes_nothing(api: Api, queue: mongoq.Queue[Any], origin: str) -> None:
    for headers in ({"Origin": origin}, {"Origin": origin, "Host": "127.0.0.1"}):
        answer = api.request("POST", "/api/items/push", json={"queue": "orders", "payload": 1}, headers=headers)
        assert answer.status_code == 403
    assert queue.size() == 0


def test_a_request_without_host_is_of_no_origin(open_api: Callable[..., Api], broker: mongoq.Broker) -> None:
    api = open_api(create_app(broker, access=lambda _request: "act"))
    for origin in ("null", "http://["):
        answer = api.request("POST", "/change", data={"action": "pause"}, headers={"Host": "", "Origin": origin})
        assert answer.status_code == 403


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "\x1b"])
def test_a_host_that_cannot_be_read_is_no_fault(open_api: Callable[..., Api], broker: mongoq.Broker, host: str) -> None:
    for access in ("read", lambda _request: "read"):
        api = open_api(create_app(broker, access=access))
        for method in ("GET", "POST"):
            assert api.request(method, "/nothing", headers={"Host": host, **HTML}).status_code in (403, 404)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"])
def test_a_request_that_a_proxy_passes_on_is_not_of_this_machine(api: Api, header: str) -> None:
    assert api.request("GET", "/api/queues", headers={header: "127.0.0.1"}).status_code == 403


def test_refusals_in_the_log_have_no_control_characters(
    open_api: Callable[..., Api], broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/x%1b[31m%0d%0aINFO fake"
    with caplog.at_level(logging.INFO, "mongoq"):
        open_api(create_app(broker)).request("POST", path)
        open_api(create_app(broker, access="act")).request("POST", path, headers={"Origin": "http://evil.example"})
    messages = [record.getMessage() for record in caplog.records if record.name == "mongoq.audit"]
    assert len(messages) == 2
    assert all(message.isprintable() for message in messages), messages


def test_two_users_have_two_secrets() -> None:
    """A token that belongs to two users would have the level of the first one."""
    with pytest.raises(mongoq.ArgumentInvalid, match="secret in line 2 is that of another user"):
        Users(f"bob:read:{SECRET}\nada:act:{SECRET}")


def test_a_file_of_users_may_begin_with_a_mark(tmp_path: Any) -> None:
    path = tmp_path / "users.txt"
    path.write_text(USERS, encoding="utf-8-sig")
    assert Users.from_file(path).check(f"Bearer {SECRET}").user == "ada"


def test_a_server_that_is_away_is_named_in_the_log_alone(
    open_api: Callable[..., Api], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise mongoq.ServerUnavailable("no usable MongoDB server answered at db7.internal:27017")

    monkeypatch.setattr(mongoq, "connect", fail)
    api = open_api(create_app("mongodb://db7.internal/shop", access="act"))
    for path in ("/", "/api/queues", "/api/health", "/queue?name=orders"):
        answer = api.request("GET", path, headers=HTML)
        assert (answer.status_code, "internal" in answer.text) == (503, False), path
        assert "no MongoDB server answers" in answer.text
    assert "db7.internal" in caplog.text


def test_calls_that_wait_for_a_server_share_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    async def ask() -> list[Any]:
        client = BrokerClient("mongodb://127.0.0.1:1/shop")
        loop, waiting = asyncio.get_running_loop(), asyncio.Event()

        def fail(*_arguments: Any, **_options: Any) -> Any:
            attempts.append(1)
            asyncio.run_coroutine_threadsafe(waiting.wait(), loop).result(60)
            raise mongoq.ServerUnavailable("away")

        monkeypatch.setattr(mongoq, "connect", fail)
        calls = [asyncio.ensure_future(client.open()) for _ in range(20)]
        while client._connecting.statistics().tasks_waiting < 19:
            await asyncio.sleep(0)
        waiting.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(ask())} == {mongoq.ServerUnavailable}
    assert len(attempts) == 1


def test_forms_of_other_sites_and_frames_are_refused(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    fields = {"action": "pause", "queue": "orders", "confirmed": "yes"}
    headers = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert api.request("POST", "/change", data=fields, headers=headers).status_code == 403
    assert api.request("GET", "/change", params=fields, headers=HTML).status_code == 405
    assert not queue.is_paused()
    for page in (open_page(api, "/"), send_form(api, {"action": "pause", "queue": "orders"}).text):
        assert read_form(page) is not None
    assert "frame-ancestors 'none'" in api.request("GET", f"{HOST}/", headers=HTML).headers["content-security-policy"]


def test_a_body_that_does_not_come_is_not_waited_for(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is told to end waits for such requests, otherwise without an end."""
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)
    app = create_app(broker, access=lambda _request: "act")
    sent: list[Any] = []

    async def receive() -> Any:
        if not sent_body:
            sent_body.append(True)
            return {"type": "http.request", "body": b"a", "more_body": True}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    for path, content_type in (
        ("/change", b"application/x-www-form-urlencoded"),
        ("/api/items/push", b"application/json"),
    ):
        sent_body: list[bool] = []
        headers = [(b"host", b"127.0.0.1"), (b"content-type", content_type)]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        scope |= {"client": ("127.0.0.1", 1), "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 1)}
        asyncio.run(app(scope, receive, send))
        assert sent.pop(0)["status"] == 408
        sent.clear()


@pytest.mark.parametrize(
    "error",
    [AutoReconnect("db7.internal: closed"), NetworkTimeout("db7.internal"), mongoq.ServerUnavailable("db7.internal")],
    ids=["lost", "timeout", "away"],
)
def test_a_change_whose_reply_is_lost_is_in_doubt(
    api: Api, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    queue.push(1)

    async def lose(*_arguments: Any, **_options: Any) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerClient, "call", lose)
        pushed = api.post("/api/items/push", queue="orders", payload=1)
        form = send_form(api, {"action": "pause", "queue": "orders", "confirmed": "yes"})
        read = api.get("/api/items", queue="orders")
    for answer in (pushed, form):
        assert (answer.status_code, "may have happened" in answer.text) == (503, True)
        assert not answer.headers.keys() & {"retry-after", "refresh"}
        assert "internal" not in answer.text
    assert (read.headers["retry-after"], "may have happened" in read.text) == ("5", False)
    assert "db7.internal" in caplog.text
    doubts = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert [record.mongoq_user for record in doubts] == ["127.0.0.1"] * 2  # type: ignore[attr-defined]


def test_a_fault_is_a_problem_document_without_its_text(
    api: Api, queue: mongoq.Queue[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("a private text")

    monkeypatch.setattr(BrokerClient, "read", fail)
    answer = api.request("GET", "/queue?name=orders", headers=HTML)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "content-security-policy" in answer.headers
    assert ("RuntimeError" in answer.text, "private" in answer.text) == (True, False)
    assert "a private text" in caplog.text  # with its traceback


def test_reads_that_wait_for_a_thread_share_the_failure_of_a_server(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    are_waiting = threading.Event()

    def fail(*_arguments: Any, **_options: Any) -> Any:
        attempts.append(1)
        are_waiting.wait(60)
        raise ServerSelectionTimeoutError("away")

    monkeypatch.setattr(broker, "_run_within", fail)

    async def ask() -> list[Any]:
        client = BrokerClient(broker)
        calls = [asyncio.ensure_future(client.read(print)) for _ in range(3 * MAX_THREADS)]
        while client._limiter is None or client._limiter.statistics().tasks_waiting < 2 * MAX_THREADS:
            await asyncio.sleep(0)
        are_waiting.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(ask())} == {ServerSelectionTimeoutError}
    assert 1 <= len(attempts) <= MAX_THREADS
