"""What another program has written, and names that no browser likes: no page and no call breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

from bson import Binary, DatetimeMS, Decimal128, ObjectId, Regex
from pymongo.errors import BulkWriteError

import mongoq
from tests.web.conftest import HTML, Api, bury, open_page, read_form, send_form

PAST = datetime(2026, 11, 1, tzinfo=UTC)
FIELDS = ("error", "origin", "trail", "key", "priority", "attempts", "headers")
TEXTS = [
    '<script>alert("x")</script>',
    "javascript:alert(1)",
    "'\"><img src=x onerror=alert(1)>",
    "a\u202eb",
    "{{ 7 * 7 }}",
]


def other_types() -> list[Any]:
    nested: Any = 1
    for _ in range(80):
        nested = {"a": [nested]}
    return [
        *(True, None, "", [1, "a"], {}, DatetimeMS(2**60), Binary(b"\0\1", 5), Decimal128("NaN")),
        {"type": 1, "queue": [1], "reason": {"b": 2}, "message": [], "at": 5, "traceback": 1},
        *([{"queue": 1, "ended": "x"}, 5, None], nested, "x" * 300_000, "\x1b[31m\r\n\u202e", Regex("a")),
    ]


def test_fields_of_other_types_are_shown(api: Api, queue: mongoq.Queue[Any], raw: Any) -> None:
    bury(queue, 1)
    envelope = {"q": "orders.dead", "payload": 1, "when": PAST, "priority": 0, "attempts": 0, "reserved": False}
    documents = [
        {**envelope, "_id": ObjectId(), "key": f"{field}{place}", field: value}  # at most one live item has a key
        for field in FIELDS
        for place, value in enumerate(other_types())
    ]
    odd = [{**envelope, "_id": value} for value in other_types() if not isinstance(value, Regex | list | bool)]
    with suppress(BulkWriteError):  # two kinds of none are one key
        raw.insert_many([*documents, *odd], ordered=False)
    assert raw.count_documents({"q": "orders.dead"}) > 100
    ids = raw.distinct("_id", {"q": "orders.dead", "_id": {"$type": "objectId"}})
    calls: list[tuple[str, dict[str, Any]]] = [
        *(("/", {}), ("/queue", {"name": "orders.dead"}), ("/letters", {"queue": "orders"})),
        *(("/api/items", {"queue": "orders.dead", "limit": 500}), ("/api/letters/groups", {"queue": "orders"})),
        ("/v1/dead_set", {"count": 200, "topic-entity": "orders"}),
        *(("/item", {"id": str(id)}) for id in ids),
        *((f"/api/items/{id}", {}) for id in ids),
    ]
    for path, parameters in calls:
        answer = api.request("GET", path, params=parameters, headers=HTML)
        assert answer.status_code == 200, (path, parameters, answer.text[:200])
        if not path.startswith(("/api/", "/v1/")):
            assert len(answer.content) < 400_000
    page = open_page(api, "/letters", queue="orders")
    links = re.findall(r'href="/item\?id=([^"]*)"', page)
    boxes = re.findall(r'type="checkbox" name="id" value="([^"]*)"', page)
    assert links
    assert all(ObjectId.is_valid(id) for id in links + boxes)


def test_what_users_have_stored_stays_text(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    for text in TEXTS:
        queue = broker.queue(text[:100], max_retries=0, history=60)
        queue.configure(max_running=2)
        queue.push({text: text}, headers={"x": text}, key=text)
        queue.bury(queue.reserve(), reason=text, error=text)  # type: ignore[arg-type]  # there is an item
        [letter] = queue.dead.peek(9)
        blocked = queue.push_many(range(2), sequence=text)[1]
        now = datetime.now(UTC)
        holder = {"by": text, "number": 2, "wanted": 4, "since": now, "until": now + timedelta(minutes=5)}
        raw.insert_one({"_id": f"limit:{queue.name}", "holders": [holder]})
        broker.schedule(text, queue=text, every=3600)
        raw.update_one({"_id": f"schedule:{text}"}, {"$set": {"source": text}})
        for path, parameters in (
            *(("/", {}), ("/schedules", {}), ("/queue", {"name": queue.name}), ("/letters", {"queue": queue.name})),
            *(("/item", {"id": str(id)}) for id in (letter.id, blocked)),
            ("/queue", {"name": queue.name, "state": "blocked"}),
        ):
            page = open_page(api, path, **parameters)
            for evil in ("<script>alert", "onerror=alert(1)>", 'href="javascript:', ">49<"):
                assert evil not in page, (path, text)
        assert api.get(f"/api/items/{letter.id}").json()["payload"] == {text: text}


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


def test_a_name_does_not_turn_the_question_around_it(api: Api, broker: mongoq.Broker) -> None:
    name, shown = "orders\u2069\u202e!doog rof", "orders\\u2069\\u202e!doog rof"
    letters = f"{name}.dead"
    bury(broker.queue(name, max_retries=0), 1, 2)
    broker.schedule(name, queue=name, every=3600)
    forms: list[tuple[str, dict[str, Any]]] = [
        ("/change", {"action": "pause", "queue": name}),
        ("/change", {"action": "drop", "queue": letters, "reason": "no such city"}),
        ("/change", {"action": "replay", "queue": letters, "reason": "no such city", "to": name}),
        ("/change", {"action": "replay_history", "queue": name}),
        ("/schedules/change", {"action": "remove", "schedule": name}),
    ]
    pages = [api.request("POST", path, data=fields, headers=HTML).text for path, fields in forms]
    pages.append(send_form(api, read_form(pages[2])).text)
    for page in pages:
        texts = re.findall(r"<(?:h1|title|button|p><bdi)>([^<]*)<", page)
        assert any(shown in text for text in texts), page
        assert not any("\u202e" in text for text in texts)


def test_the_path_of_a_mount_is_escaped(open_app: Callable[..., Api], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    api = open_app(access="act", mounted_at="/очередь 1")
    root = "/%D0%BE%D1%87%D0%B5%D1%80%D0%B5%D0%B4%D1%8C%201"
    done = api.request("POST", f"{root}/change", data={"action": "pause", "queue": "orders", "confirmed": "yes"})
    assert (done.status_code, done.headers["location"]) == (303, f"{root}/queue?name=orders")
    assert f'href="{root}/queue?name=orders"' in open_page(api, f"{root}/")


def test_letters_without_an_error_are_not_chosen_by_a_reason_that_others_have(
    open_app: Callable[..., Api], queue: mongoq.Queue[Any]
) -> None:
    """The form of a group names reason and error; without an error it would stand for all letters of the reason."""
    bury(queue, 1, reason="gone", error=None)
    assert 'value="gone"><button name="action"' in open_page(open_app(access="act"), "/letters", queue="orders")
    bury(queue, 2, 3, reason="gone", error=ValueError("x"))
    again = open_page(open_app(access="act"), "/letters", queue="orders")
    assert ('value="gone"><button name="action"' in again, 'name="error" value="ValueError"' in again) == (False, True)


def test_a_field_of_a_form_that_is_nested_too_deeply_is_no_fault(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1)
    for depth in (990, 100_000):
        deep = "[" * depth + "]" * depth
        for fields in ({"json:reason": deep}, {"json:reason": '{"a": 1}'}, {"json:reason": "1"}):
            answer = send_form(api, {"action": "drop", "queue": "orders.dead", **fields})
            assert (answer.status_code, "this is no form of a page" in answer.text) == (422, True)
