"""Who may read and change by HTTP, and what each answer tells the browser."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.web.conftest import HOST, HTML, Api, bury, make_users, open_page, send_form

SECRET = "a-secret-of-ada"
USERS = f"ada:act:{SECRET}\n# a comment\n\nbob:read:sha256:{sha256(b'a-secret-of-bob').hexdigest()}\n"
READ, CHANGE = "/api/queues", "/api/items/push"
BODY = {"queue": "orders", "payload": 1}
LOCAL, AWAY = ("127.0.0.1", 1), ("10.0.0.7", 1)


def ask(api: Api, **options: Any) -> tuple[int, int]:
    """Return the statuses of a call that reads and one that changes."""
    changed = api.request("POST", CHANGE, json=BODY, **options).status_code
    return api.request("GET", READ, **options).status_code, changed


def test_by_default_no_page_offers_a_change(open_app: Callable[..., Api], queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1)
    api = open_app()
    assert api.get(READ).status_code == 200
    for page in (open_page(api, "/queue", name="orders"), open_page(api, "/letters", queue="orders")):
        assert ("<button name" in page, "read-only" in page) == (False, True)
    fields = {"action": "replay", "queue": "orders.dead", "reason": "no such city", "confirmed": "yes"}
    assert (send_form(api, fields).status_code, queue.dead.size()) == (403, 1)


def test_without_authentication_only_this_machine_is_answered(open_app: Callable[..., Api]) -> None:
    for address, host, status in (
        (LOCAL, HOST, 200),
        (LOCAL, "http://localhost:8080", 200),
        (("::1", 1), "http://[::1]:8080", 200),
        (AWAY, HOST, 403),
        (LOCAL, "http://queues.example.com", 403),  # DNS rebinding, or a proxy on this machine
        (LOCAL, "http://127.0.0.1.example.com", 403),
    ):
        api = open_app(access="act", address=address, host=host)
        assert ask(api) == (status, 201 if status == 200 else 403), (address, host)
        assert api.get("/api/openapi.json").status_code == status
    api = open_app(access="act")
    for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"):
        assert ask(api, headers={header: "127.0.0.1"}) == (403, 403), header


def test_users_have_secrets_and_levels(open_app: Callable[..., Api]) -> None:
    api = open_app(access=make_users(USERS), address=AWAY, host="http://queues.example.com")
    for options, statuses in (
        ({}, (401, 401)),
        ({"headers": {"Authorization": f"Bearer {SECRET}"}}, (200, 201)),
        ({"auth": ("ada", SECRET)}, (200, 201)),
        ({"auth": ("bob", "a-secret-of-bob")}, (200, 403)),
        ({"headers": {"Authorization": "Bearer a-secret-of-bob"}}, (200, 403)),
        ({"auth": ("bob", SECRET)}, (401, 401)),
        ({"auth": ("eve", SECRET)}, (401, 401)),
        *(
            ({"headers": {"Authorization": header}}, (401, 401))
            for header in ("", "Basic", "Basic x", "Basic YWRh", f"bearer {SECRET} x", f"Basic {SECRET}", "Bearer ")
        ),
    ):
        assert ask(api, **options) == statuses, options
    assert api.get(READ).headers["www-authenticate"].startswith('Basic realm="mongoq"')


def test_users_that_cannot_be_read_are_an_error_without_their_secrets() -> None:
    for text, problem in (
        ("", "no user"),
        ("ada", "line 1"),
        ("\nada:act", "line 2"),
        ("ada:admin:a-secret-of-ada", "level in line 1"),
        ("ada:act:ä-secret-of-ada", "line 1 has characters that are not ASCII"),
        # A token that belongs to two users would have the level of the first one.
        (f"bob:read:{SECRET}\nada:act:{SECRET}", "secret in line 2 is that of another user"),
    ):
        with pytest.raises(mongoq.ArgumentInvalid, match=problem) as raised:
            make_users(text)
        assert "secret-of" not in str(raised.value)


def test_users_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_app: Callable[..., Api]
) -> None:
    users, path = type(make_users(USERS)), tmp_path / "users.txt"
    path.write_text(USERS, encoding="utf-8-sig")  # it may begin with a mark
    monkeypatch.setenv("MONGOQ_WEB_USERS", USERS)
    for access in (users.from_file(path), users.from_environment()):
        assert ask(open_app(access=access), auth=("ada", SECRET)) == (200, 201)
    with pytest.raises(mongoq.ArgumentInvalid, match="FileNotFoundError"):
        users.from_file(tmp_path / "none.txt")
    monkeypatch.delenv("MONGOQ_WEB_USERS")
    with pytest.raises(mongoq.ArgumentInvalid, match="not set"):
        users.from_environment()


def test_a_function_of_the_application_decides(
    open_app: Callable[..., Api], caplog: pytest.LogCaptureFixture, broker: mongoq.Broker
) -> None:
    from starlette.authentication import SimpleUser

    def decide(request: Any) -> Any:
        request.scope["user"] = SimpleUser("ada")
        return request.headers["x-level"]

    async def decide_async(request: Any) -> Any:
        return decide(request)

    for access in (decide, decide_async):
        api = open_app(access=access, host="http://queues.example.com")
        for level, statuses in (("none", (403, 403)), ("read", (200, 403)), ("act", (200, 201))):
            caplog.clear()
            with caplog.at_level(logging.INFO, "mongoq.audit"):
                assert ask(api, headers={"x-level": level}) == statuses
        [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
        assert record.mongoq_user == "ada"  # type: ignore[attr-defined]

    def fail(request: Any) -> Any:
        raise ValueError("a private text")

    for wrong in (fail, lambda request: "admin", lambda request: None):  # nobody is let in
        answer = open_app(access=wrong).get(READ)
        assert (answer.status_code, "private" in answer.text) == (500, False)
    for no_access in ("none", "write", None, 1):
        with pytest.raises(mongoq.ArgumentInvalid, match="access"):
            open_app(access=no_access)


def test_a_page_of_another_site_changes_nothing(open_app: Callable[..., Api], queue: mongoq.Queue[Any]) -> None:
    api = open_app(access="act", origins=("https://Queues.Example.com:443/", "http://[::1]:80"))
    fields = {"action": "pause", "queue": "orders", "confirmed": "yes"}
    refused: list[dict[str, str]] = [
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": f"{HOST}:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ]
    for headers in refused:
        assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == 403, headers
        assert api.request("POST", "/change", data=fields, headers=headers).status_code == 403, headers
    assert (queue.size(), queue.is_paused()) == (0, False)
    answered: list[dict[str, str]] = [
        {},
        {"Origin": HOST},
        {"Origin": HOST, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://queues.example.com", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://[::1]", "Sec-Fetch-Site": "cross-site"},
    ]
    for headers in answered:
        assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == 201, headers
        assert api.request("POST", "/change", data=fields, headers=headers).status_code == 303, headers
    assert (queue.size(), queue.is_paused()) == (len(answered), True)


def test_an_origin_is_read_as_browsers_send_it(open_app: Callable[..., Api]) -> None:
    api = open_app(access="act", origins=("http://localhost:8080",))
    for origin, status in (("http://localhost:8080", 201), ("http://localhost", 403)):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert api.request("POST", CHANGE, json=BODY, headers=headers).status_code == status


def test_what_is_no_origin_is_an_error(open_app: Callable[..., Api]) -> None:
    place = "https://queues.example.com"
    for origin in (
        *("queues.example.com", "https://", "ftp://queues.example.com", f"{place}/queues", f"{place}?x", f"{place}:x"),
        *("https://ada@queues.example.com", "https://*.example.com", "https://queues.exämple.com", "null", None),
    ):
        with pytest.raises(mongoq.ArgumentInvalid, match=r"origins.*https://queues\.example\.com"):
            open_app(origins=[origin])
    with pytest.raises(mongoq.ArgumentInvalid, match="origins"):
        open_app(origins=place)


def test_a_host_that_cannot_be_read_is_no_fault(open_app: Callable[..., Api]) -> None:
    for access in ("read", lambda _request: "act"):
        api = open_app(access=access)
        for method in ("GET", "POST"):
            assert api.request(method, "/nothing", headers={"Host": "[", **HTML}).status_code in (403, 404)
    for origin in ("null", "http://["):
        answer = api.request("POST", "/change", data={"action": "pause"}, headers={"Host": "", "Origin": origin})
        assert answer.status_code == 403


def test_each_answer_tells_the_browser_to_run_nothing_of_others(api: Api) -> None:
    for path in (READ, "/nothing", "/api/items?queue=none", "/api/openapi.json", "/"):
        headers = api.request("GET", path, headers=HTML).headers
        for rule in ("default-src 'none'", "frame-ancestors 'none'"):
            assert rule in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_each_change_is_in_the_audit_log(
    open_app: Callable[..., Api], queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bury(queue, 1)
    api = open_app(access=make_users(USERS))
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        for user, secret, body in (
            ("ada", SECRET, {"queue": "orders", "dry_run": True}),
            ("ada", SECRET, {"queue": "orders"}),
            ("bob", "a-secret-of-bob", {"queue": "orders"}),
        ):
            api.request("POST", "/api/letters/replay", json=body, auth=(user, secret))
        open_app().request("POST", "/x%1b[31m%0d%0aINFO fake")
    [done, refused, fake] = [record for record in caplog.records if record.name == "mongoq.audit"]
    fields = (done.mongoq_user, done.mongoq_action, done.mongoq_queue, done.mongoq_number)  # type: ignore[attr-defined]
    assert fields == ("ada", "replay letters", "orders.dead", 1)
    assert (refused.levelname, refused.mongoq_user) == ("WARNING", "bob")  # type: ignore[attr-defined]
    assert fake.getMessage().isprintable()
    assert SECRET not in caplog.text


def test_a_browser_without_access_gets_a_page_that_shows_nothing_else(
    queue: mongoq.Queue[Any], open_app: Callable[..., Api]
) -> None:
    queue.push(1)
    foreign = open_app(access="act", address=AWAY)
    nobody = open_app(access=make_users(USERS))
    for api, status, login in ((foreign, 403, False), (nobody, 401, True)):
        for path in ("/", "/queue?name=orders", "/link?token=<b>", "/nothing"):
            answer = api.request("GET", path, headers=HTML)
            assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")
            assert ("www-authenticate" in answer.headers) is login
            assert answer.text.count("<h1>") == 1
            for hidden in ("orders", "<a ", "<script", "<link", "<b>", mongoq.__version__):
                assert hidden not in answer.text, hidden
        assert api.request("GET", "/api/queues", headers=HTML).headers["content-type"] == "application/problem+json"
        assert api.request("GET", "/").headers["content-type"] == "application/problem+json"


def test_failed_logins_are_logged_with_their_callers_and_limited(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.web.access.WINDOW_SECONDS", 3_600.0)  # however long the test takes
    app = make_app(access=make_users(USERS))
    one, *others = [Api(app, address=(f"10.0.0.{number}", 1)) for number in range(15)]
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        assert one.get(READ).status_code == 401  # a browser asks like this before it knows that it needs a password
        assert not caplog.records
        for number in range(10):
            assert one.request("GET", READ, auth=("ada", f"wrong-secret-{number}")).status_code == 401
        records = [record for record in caplog.records if "10.0.0.0" in record.getMessage()]
        assert {record.levelname for record in records} == {"WARNING"}
        assert len(records) == 11  # ten logins, and the beginning of the limit
        for auth in (("ada", "wrong-secret-11"), ("ada", SECRET)):
            limited = one.request("GET", READ, auth=auth)
            assert (limited.status_code, 0 < int(limited.headers["retry-after"]) <= 3_600) == (429, True)
            assert one.request("GET", "/", auth=auth, headers=HTML).status_code == 429
        assert (one.get(READ).status_code, len(caplog.records)) == (401, 11)
        known, new, *rest = others
        assert known.request("GET", READ, auth=("ada", SECRET)).status_code == 200
        for api in rest:
            for number in range(9):
                api.request("GET", READ, auth=("ada", f"wrong-secret-{number}"))
        # In all, the limit is reached; a caller that has logged in before is no part of it.
        assert known.request("GET", READ, auth=("ada", SECRET)).status_code == 200
        assert new.request("GET", READ, auth=("ada", SECRET)).status_code == 429
    assert "secret" not in caplog.text
    for api in (one, *others):
        api.close()


def test_the_limit_of_logins_ends() -> None:
    from mongoq.web.access import Attempts

    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    for _ in range(10):
        assert attempts.find_wait("10.0.0.7") == 0
        attempts.record_failure("10.0.0.7")
        now[0] += 1
    assert (attempts.find_wait("10.0.0.7"), attempts.find_wait("10.0.0.8")) == (50, 0)
    now[0] += 50
    assert attempts.find_wait("10.0.0.7") == 0


def test_a_refused_change_is_logged_with_its_caller(
    open_app: Callable[..., Api], caplog: pytest.LogCaptureFixture
) -> None:
    users = open_app(access=make_users(USERS), address=AWAY)
    for api, options, user in (
        (users, {}, ""),
        (users, {"auth": ("bob", "a-secret-of-bob")}, "bob"),
        (users, {"auth": ("ada", SECRET), "headers": {"Origin": "http://evil.example"}}, "ada"),
        (open_app(access="act", address=AWAY), {}, "10.0.0.7"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, "mongoq.audit"):
            assert api.request("POST", CHANGE, json=BODY, **options).status_code in (401, 403)
        [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
        assert (record.levelname, record.mongoq_user) == ("WARNING", user)  # type: ignore[attr-defined]
        for text in ("10.0.0.7", "POST", CHANGE):
            assert text in record.getMessage()
