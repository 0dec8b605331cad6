"""Each call that changes something, of the app's own routes, by callers that may not; each page, with hostile texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from bson import ObjectId

import mongoq
from tests.web.conftest import HTML, Api, bury, make_pipeline, make_users

SAFE = {"GET", "HEAD", "OPTIONS"}
USERS = "ada:act:a-secret-of-ada\nbob:read:a-secret-of-bob"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
TYPES = (JSON, FORM, "text/plain", "multipart/form-data", "")
HOSTILE = (
    "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>{{ 7 * 7 }}",
    "javascript:alert(1)\u202e\u2066x",
    "../../etc/passwd$where\r\nSet-Cookie: a=b\0",
)
UNSAFE = ("<script>alert", "<img src=x", 'href="javascript:', ">49<", "\0", "root:")
ISOLATED = re.compile(r"<bdi>[^<]*</bdi>|<(pre|code|textarea|title|h1|button)\b.*?</\1>|<[^>]*>", re.DOTALL)
"""Parts of a page out of which a text turns the direction of no other one."""
PIPELINE = "flights"
COUNT = {"count": 1, "topic-entity": "orders"}
BODIES: dict[str, dict[str, Any]] = {
    "/api/settings": {"lease": 60},
    "/v1/dead_set": COUNT,
    "/v1/dead_set/replay": COUNT,
}
"""Fields that calls need beyond what the description says."""


def list_routes(router: Any) -> Iterator[Any]:
    for route in router.routes:
        part = getattr(route, "original_router", None)  # of later versions of FastAPI
        yield from (route,) if part is None else list_routes(part)


def list_calls(api: Api, *, safe: bool) -> list[tuple[str, str]]:
    """Return method and path of each call of an app that changes something, or of each that does not."""
    calls = [(method, route.path) for route in list_routes(api.app) for method in route.methods or ()]
    return sorted((method, path) for method, path in calls if (method in SAFE) is safe)


def is_page(path: str) -> bool:
    return not path.startswith(("/api/", "/v1/"))


def find_needed(described: dict[str, Any], method: str, path: str) -> list[str]:
    """Return the fields that a call needs, by the description of the API."""
    call = described["paths"].get(path, {}).get(method.lower(), {})
    schema = call.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return list(described["components"]["schemas"].get(name, {}).get("required", []))


def test_each_change_is_refused_to_each_caller_that_may_not(
    open_app: Callable[..., Api], queue: mongoq.Queue[Any], broker: mongoq.Broker, raw: Any
) -> None:
    from mongoq.web.access import SecretLink

    bury(queue, 1, 2)
    item = str(queue.push(3))
    broker.schedule("hourly", queue="orders", every=3600)
    # The values of all fields that a call may need: a new one has to be named here.
    values = {"queue": "orders", "payload": {"a": 1}, "id": item, "to": "others", "schedule": "hourly"}
    form = {**values, "payload": "{}", "action": "pause", "confirmed": "1"}
    plain, linked = open_app(), open_app(access=SecretLink())
    anyone, users = open_app(access="act"), open_app(access=make_users(USERS))
    calls, described = list_calls(anyone, safe=False), anyone.get("/api/openapi.json").json()
    assert {("POST", "/api/items/push"), ("DELETE", "/v1/dead_set"), ("POST", "/change"), ("POST", "/edit")} <= {*calls}

    def read_all() -> list[Any]:
        return list(raw.find({"_id": {"$not": re.compile("^stats:")}}).sort("_id"))  # counters come a moment later

    before = read_all()

    def send(api: Api, method: str, path: str, kind: str = "", **headers: str) -> int:
        right = FORM if is_page(path) else JSON
        needed = {name: values[name] for name in find_needed(described, method, path)} | BODIES.get(path, {})
        body = urlencode(form) if is_page(path) else json.dumps(needed)
        answer = api.request(method, path, content=body, headers={"Content-Type": kind or right, **headers})
        return int(answer.status_code)

    for method, path in calls:
        refused = {
            "nobody": (send(users, method, path), 401),
            "by default": (send(plain, method, path), 403),
            "viewer": (send(users, method, path, Authorization="Bearer a-secret-of-bob"), 403),
            "without the link": (send(linked, method, path), 403),
            "foreign origin": (send(anyone, method, path, Origin="https://evil.example"), 403),
            "foreign site": (send(anyone, method, path, **{"Sec-Fetch-Site": "cross-site"}), 403),
            "foreign host": (send(anyone, method, path, Host="evil.example"), 403),
        }
        if (
            method == "POST"
        ):  # a browser sends a DELETE of another site after a question alone, which is answered by 403
            wrong = [kind for kind in TYPES if kind not in ("", FORM if is_page(path) else JSON)]
            refused |= {kind: (send(anyone, method, path, kind), 415) for kind in wrong}
        assert {name: status for name, (status, _) in refused.items()} == {
            name: status for name, (_, status) in refused.items()
        }, (method, path)
    assert read_all() == before
    for method, path in calls:  # the same requests of a caller that may: what was refused was no mistake of this test
        status = send(users, method, path, Authorization="Bearer a-secret-of-ada")
        assert status in ((200, 201, 303, 404, 409, 422) if is_page(path) else (200, 201, 404, 409)), (method, path)
    assert read_all() != before


def test_names_and_payloads_reach_each_page_as_text(
    open_app: Callable[..., Api], broker: mongoq.Broker, raw: Any
) -> None:
    api = open_app(access="act", pipelines=[make_pipeline(PIPELINE)])
    paths = [path for method, path in list_calls(api, safe=True) if method == "GET" and is_page(path)]
    paths = [path for path in paths if path not in ("/events", "/metrics", "/static/{name}")]
    assert {"/", "/queue", "/item", "/letters", "/edit", "/settings", "/workers", "/schedules"} <= {*paths}
    for number, text in enumerate(HOSTILE):
        named = "a" + text.replace("\0", "")  # the name of a queue does not begin with $, and has no NUL
        queue = broker.queue(named, history=60, max_retries=0)
        done = queue.push({named: text}, key=text, headers={"x": text})
        queue.commit(queue.reserve())  # type: ignore[arg-type]  # there is an item
        bury(queue, text, reason=text, error=text)
        [letter] = queue.dead.peek(1)
        broker.bind(f"topic{number}", named)
        broker.schedule(named, queue=named, every=3600)
        raw.insert_one(
            {"_id": f"worker:{text}", "seen": datetime.now(UTC), "every": 60.0, "queues": [{"queue": named, "held": 0}]}
        )
        kinds: tuple[dict[str, Any], ...] = (
            {"name": named, "queue": named, "id": str(letter.id)},
            {"name": named, "queue": named, "id": str(done), "where": text, "state": text, "since": text},
            {"name": text, "queue": text, "id": text, "cursor": text, "reason": text, "error": text, "token": text},
            {"name": PIPELINE, "queue": named, "id": str(ObjectId()), "reason": text, "error": text},
        )
        for path in paths:
            for parameters in kinds:
                check_page(api.request("GET", path, params=parameters, headers=HTML), text)
        for action in ("pause", "replay", "drop", "replay_history", text):
            fields = {"action": action, "queue": named, "reason": text, "error": text, "to": text, "where": text}
            check_page(api.request("POST", "/change", data=fields, headers=HTML), text)
        check_page(api.request("GET", f"/{quote(text)}", headers=HTML), text)


def check_page(answer: Any, text: str) -> None:
    assert answer.status_code < 500, answer.text[:300]
    assert not [value for value in answer.headers.values() if not value.isprintable() or "a=b" in value]
    for evil in UNSAFE:
        place = answer.text.find(evil)
        assert place < 0, (answer.url, text, answer.text[max(0, place - 80) : place + 80])
    turned = re.search("[^\n]*\u202e[^\n]*", ISOLATED.sub("", answer.text))
    assert turned is None, (answer.url, turned)
