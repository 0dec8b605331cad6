"""Who may read and change by HTTP, and what each answer tells the browser."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.authentication import SimpleUser

import mongoq
from mongoq.web import Users, create_app
from tests.web.conftest import HOST, Api

SECRET = "a-secret-of-ada"
USERS = f"ada:act:{SECRET}\n# a comment\n\nbob:read:sha256:{sha256(b'a-secret-of-bob').hexdigest()}\n"
READ, CHANGE = "/api/queues", "/api/items/push"
BODY = {"queue": "orders", "payload": 1}


@pytest.fixture
def open_with(broker: mongoq.Broker, open_api: Callable[..., Api]) -> Callable[..., Api]:
    """Opens the API with an access."""

    def open_one(access: Any, origins: tuple[str, ...] = (), **options: Any) -> Api:
        return open_api(create_app(broker, access=access, origins=origins), **options)

    return open_one


def test_by_default_nothing_can_be_changed(open_api: Any, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    api = open_api(create_app(broker))
    paths: dict[str, Any] = api.get("/api/openapi.json").json()["paths"]
    changes = [(path, method) for path, methods in paths.items() for method in methods if method != "get"]
    assert len(changes) == 17
    for path, method in changes:
        assert api.request(method.upper(), path, json={"queue": "orders"}).status_code == 403, path
    assert api.get(READ).status_code == 200


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        (("127.0.0.1", 1), "http://127.0.0.1", 200),
        (("127.0.0.1", 1), "http://localhost:8080", 200),
        (("::1", 1), "http://[::1]:8080", 200),
        (("10.0.0.7", 1), "http://127.0.0.1", 403),
        (("127.0.0.1", 1), "http://queues.example.com", 403),  # DNS rebinding, or a proxy on this machine
        (("127.0.0.1", 1), "http://127.0.0.1.example.com", 403),
    ],
    ids=range(6),
)
def test_without_authentication_only_this_machine_is_answered(
    open_with: Any, address: tuple[str, int], host: str, status: int
) -> None:
    api = open_with("act", address=address, host=host)
    assert api.get(READ).status_code == status
    assert api.get("/api/openapi.json").status_code == status
    assert api.post(CHANGE, **BODY).status_code == (201 if status == 200 else 403)


def test_users_have_secrets_and_levels(open_with: Any) -> None:
    api = open_with(Users(USERS), address=("10.0.0.7", 1), host="http://queues.example.com")

    def ask(**options: Any) -> tuple[int, int]:
        return api.request("GET", READ, **options).status_code, api.request(
            "POST", CHANGE, json=BODY, **options
        ).status_code

    def bearer(secret: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {secret}"}

    assert ask() == (401, 401)
    assert ask(headers=bearer(SECRET)) == (200, 201)
    assert ask(auth=("ada", SECRET)) == (200, 201)
    assert ask(auth=("bob", "a-secret-of-bob")) == (200, 403)
    assert ask(headers=bearer("a-secret-of-bob")) == (200, 403)
    assert ask(auth=("bob", SECRET)) == (401, 401)
    assert ask(auth=("eve", SECRET)) == (401, 401)
    for header in (
        "",
        "Basic",
        "Basic x",
        "Basic YWRh",
        "Digest x",
        f"bearer {SECRET} x",
        f"Basic {SECRET}",
        "Bearer ",
    ):
        assert ask(headers={"Authorization": header}) == (401, 401), header
    assert api.get(READ).headers["www-authenticate"].startswith('Basic realm="mongoq"')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no user"),
        ("ada", "line 1"),
        ("\nada:act", "line 2"),
        ("ada:admin:a-secret-of-ada", "level in line 1"),
        ("ada:none:a-secret-of-ada", "level in line 1"),
        ("ada:act:short", "fewer than 12"),
        ("ada:act:sha256:abc", "hash in line 1"),
        (f"ada:act:{SECRET}\nada:read:another-secret", "line 2 occurs twice"),
        (":act:a-secret-of-ada", "line 1"),
    ],
    ids=range(9),
)
def test_users_that_cannot_be_read_are_an_error_without_their_secrets(text: str, problem: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=problem) as raised:
        Users(text)
    assert "secret-of" not in str(raised.value)
    assert "short" not in str(raised.value)


def test_users_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.txt"
    path.write_text(USERS)
    monkeypatch.setenv("MONGOQ_WEB_USERS", USERS)
    for users in (Users.from_file(path), Users.from_environment()):
        assert users.check(f"Bearer {SECRET}").user == "ada"
    with pytest.raises(mongoq.ArgumentInvalid, match="FileNotFoundError"):
        Users.from_file(tmp_path / "none.txt")
    monkeypatch.delenv("MONGOQ_WEB_USERS")
    with pytest.raises(mongoq.ArgumentInvalid, match="not set"):
        Users.from_environment()


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(("level", "statuses"), [("none", (403, 403)), ("read", (200, 403)), ("act", (200, 201))])
def test_a_function_of_the_application_decides(
    open_with: Any, kind: str, level: str, statuses: tuple[int, int]
) -> None:
    def decide(request: Any) -> Any:
        assert request.headers["x-user"] == "ada"
        return level

    async def decide_async(request: Any) -> Any:
        return decide(request)

    api = open_with(decide if kind == "plain" else decide_async, host="http://queues.example.com")
    headers = {"x-user": "ada"}
    answers = (api.request("GET", READ, headers=headers), api.request("POST", CHANGE, json=BODY, headers=headers))
    assert tuple(answer.status_code for answer in answers) == statuses


def test_a_function_that_fails_lets_nobody_in(open_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Any) -> Any:
        raise ValueError("a private text")

    for access in (fail, lambda request: "admin", lambda request: None):
        answer = open_with(access).get(READ)
        assert (answer.status_code, "private" in answer.text) == (500, False)


@pytest.mark.parametrize("access", ["none", "write", None, 1])
def test_an_access_that_is_none_is_an_error(broker: mongoq.Broker, access: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="access"):
        create_app(broker, access=access)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),  # a program that is no browser
        ({"Origin": HOST}, 201),
        ({"Origin": HOST, "Sec-Fetch-Site": "same-origin"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Origin": "https://queues.example.com", "Sec-Fetch-Site": "cross-site"}, 201),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": HOST, "Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=range(11),
)
def test_a_page_of_another_site_changes_nothing(
    open_with: Any, queue: mongoq.Queue[Any], headers: dict[str, str], status: int
) -> None:
    api = open_with("act", origins=("https://queues.example.com",))
    assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == status
    assert queue.size() == (1 if status == 201 else 0)


def test_each_answer_tells_the_browser_to_run_nothing_of_others(api: Api) -> None:
    for path in (READ, "/nothing", "/api/items?queue=none", "/api/openapi.json"):
        headers = api.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_each_change_is_in_the_audit_log(
    open_with: Any, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(1)
    queue.bury(queue.reserve())  # type: ignore[arg-type]
    api = open_with(Users(USERS))
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        api.request("POST", "/api/letters/replay", json={"queue": "orders", "dry_run": True}, auth=("ada", SECRET))
        api.request("POST", "/api/letters/replay", json={"queue": "orders"}, auth=("ada", SECRET))
        api.request("POST", "/api/letters/replay", json={"queue": "orders"}, auth=("bob", "a-secret-of-bob"))
    [done, refused] = [record for record in caplog.records if record.name == "mongoq.audit"]
    fields = (done.mongoq_user, done.mongoq_action, done.mongoq_queue, done.mongoq_number)  # type: ignore[attr-defined]
    assert fields == ("ada", "replay letters", "orders.dead", 1)
    assert (refused.levelname, refused.mongoq_user) == ("WARNING", "bob")  # type: ignore[attr-defined]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("origin", "sent"),
    [
        ("https://queues.example.com", "https://queues.example.com"),
        ("https://Queues.Example.com:443/", "https://queues.example.com"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_an_origin_is_read_as_browsers_send_it(open_with: Any, origin: str, sent: str) -> None:
    api = open_with("act", origins=(origin,))
    headers = {"Origin": sent, "Sec-Fetch-Site": "cross-site"}
    assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == 201


@pytest.mark.parametrize(
    "origins",
    [
        "https://queues.example.com",
        ["queues.example.com"],
        ["https://"],
        ["ftp://queues.example.com"],
        ["https://queues.example.com/queues"],
        ["https://queues.example.com?x"],
        ["https://ada@queues.example.com"],
        ["https://*.example.com"],
        ["https://queues.example.com:x"],
        ["https://queues.exämple.com"],
        ["null"],
        [None],
    ],
    ids=range(12),
)
def test_what_is_no_origin_is_an_error(broker: mongoq.Broker, origins: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=r"origins.*https://queues\.example\.com"):
        create_app(broker, origins=origins)


def test_a_user_that_the_application_has_put_into_the_request_is_in_the_audit_log(
    open_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(request: Any) -> str:
        request.scope["user"] = SimpleUser("ada")
        return "act"

    with caplog.at_level(logging.INFO, "mongoq.audit"):
        assert open_with(decide).post(CHANGE, **BODY).status_code == 201
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert record.mongoq_user == "ada"  # type: ignore[attr-defined]


def test_a_browser_without_access_gets_a_page_that_shows_nothing_else(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], open_api: Callable[..., Api]
) -> None:
    queue.push(1)
    html = {"Accept": "text/html"}
    foreign = open_api(create_app(broker, access="act"), address=("10.0.0.7", 1))
    nobody = open_api(create_app(broker, access=Users(USERS)))
    for api, status, login in ((foreign, 403, False), (nobody, 401, True)):
        for path in ("/", "/queue?name=orders", "/link?token=<b>", "/nothing"):
            answer = api.request("GET", path, headers=html)
            assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")
            assert ("www-authenticate" in answer.headers) is login
            assert answer.text.count("<h1>") == 1
            for hidden in ("orders", "<a ", "<script", "<link", "<b>", mongoq.__version__):
                assert hidden not in answer.text, hidden
        assert api.request("GET", "/api/queues", headers=html).headers["content-type"] == "application/problem+json"
        assert api.request("GET", "/").headers["content-type"] == "application/problem+json"
