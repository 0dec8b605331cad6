"""Pages: what they show, and what their forms change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from typing import Any

import pytest
from bson import ObjectId
from fastapi import FastAPI
from pymongo import MongoClient

import mongoq
from mongoq.web import create_app
from tests.docs.commands import check_command
from tests.web.conftest import Api
from tests.web.test_letters import bury

HTML = {"accept": "text/html"}
HOSTILE = [
    '<script>alert("x")</script>',
    "javascript:alert(1)",
    "'\"><img src=x onerror=alert(1)>",
    "a\u202eb",
    "{{ 7 * 7 }}",
]


def open_page(api: Api, path: str, **parameters: Any) -> str:
    answer = api.request("GET", path, params=parameters or None, headers=HTML)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def send_form(api: Api, fields: dict[str, Any]) -> Any:
    return api.request("POST", "/change", data=fields, headers=HTML)


def read_form(page: str) -> dict[str, list[str]]:
    """Return the hidden fields of a page that asks."""
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'type="hidden" name="([\w:]+)" value="([^"]*)"', page):
        fields.setdefault(name, []).append(unescape(value))
    return fields


def test_the_overview_begins_with_the_queues_in_trouble(each_api: Api, broker: mongoq.Broker) -> None:
    broker.queue("a-fine", history=60).push(1)
    broker.queue("a-fine").pop()
    queue = broker.queue("orders", max_retries=0)
    bury(queue, 1, 2)
    queue.push(3)
    queue.pause()
    page = open_page(each_api, "/")
    names = re.findall(r"<bdi>([\w.-]+)</bdi></a></th>", page)
    assert names == ["orders", "a-fine", "orders.dead"]
    for trouble in ("no consumer", "paused", "dead letters"):
        assert f'<span class="trouble">{trouble}</span>' in page


def test_the_first_visit_has_an_introduction(api: Api) -> None:
    first = api.request("GET", "/", headers=HTML)
    assert "What is shown here</h2>" in first.text
    cookie = first.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=lax" in cookie, "path=/;" in cookie) == (True, True, True)
    second = api.request("GET", "/", headers=HTML)
    assert ("What is shown here</h2>" in second.text, "set-cookie" in second.headers) == (False, False)
    [again] = re.findall(r'href="([^"]+)">What is shown here\?', second.text)
    assert "What is shown here</h2>" in open_page(api, again)


def test_an_empty_page_says_what_to_do_next(api: Api, broker: mongoq.Broker) -> None:
    pages = [open_page(api, "/"), open_page(api, "/workers"), open_page(api, "/pipelines")]
    assert ["There are no queues yet" in pages[0], "No worker runs" in pages[1]] == [True, True]
    queue = broker.queue("it's; rm -rf", history=60)
    queue.push(1)
    queue.pop()
    broker.queue("plain", lease=7).push(1)
    broker.queue("plain").pop()
    for name in (queue.name, "plain"):
        pages += [open_page(api, "/queue", name=name, state=state) for state in ("live", "reserved", "scheduled")]
        pages += [open_page(api, "/queue", name=name, state="expired")]
    pages += [open_page(api, "/queue", name="plain", state="processed")]
    queue.push(1)
    queue.bury(queue.reserve(), reason="x")  # type: ignore[arg-type]  # there is an item
    queue.dead.purge()
    pages += [open_page(api, "/letters", queue=queue.name)]
    for page in pages:
        assert 'class="empty"' in page
        commands = [unescape(each) for each in re.findall(r"<code>(mongoq [^<]*)</code>", page)]
        assert commands or "No lease has run out" in page
        for command in commands:
            words = shlex.split(command)
            check_command(words)
            assert "rm" not in words
    unmatched = open_page(api, "/queue", name="plain", where='{"a": 1}')
    assert 'No item matches. <a href="/queue?name=plain&amp;state=live">' in unmatched


@pytest.mark.parametrize("state", ["live", "ready", "processed"])
def test_a_queue_shows_its_items_by_state(api: Api, queue: mongoq.Queue[Any], state: str) -> None:
    queue.push({"is": "processed"})
    queue.pop()
    queue.push({"is": "ready"})
    page = unescape(open_page(api, "/queue", name="orders", state=state, where="", since="", until=""))
    assert ('{"is": "processed"}' in page, '{"is": "ready"}' in page) == (state == "processed", state != "processed")


def test_a_list_of_many_items_has_a_next_page(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(1000, 1080))
    page, shown = open_page(api, "/queue", name="orders"), []
    for _ in range(2):
        shown += re.findall(r"<bdi>(1\d\d\d)</bdi></code></td>", page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        page = open_page(api, unescape(following[1])) if following else ""
    assert shown == [str(number) for number in range(1000, 1080)]
    assert page == ""


def test_an_item_shows_its_failure_its_payload_and_its_way(api: Api, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", max_retries=0)
    queue.push({"city": None})
    try:
        {}["city"]
    except KeyError as error:
        queue.rollback(queue.reserve(), error=error)  # type: ignore[arg-type]  # there is an item
    [letter] = queue.dead.peek(9)
    page = unescape(open_page(api, "/item", id=str(letter.id)))
    for text in ("KeyError", "test_pages.py", '"city": null', "orders.dead"):
        assert text in page


def test_a_settled_item_says_when_it_was_settled(api: Api, broker: mongoq.Broker) -> None:
    queue = broker.queue("plain")
    queue.push(1, id=(id := ObjectId()))
    queue.rollback(queue.reserve())  # type: ignore[arg-type]  # there is an item
    queue.commit(queue.reserve())  # type: ignore[arg-type]
    processed = api.get(f"/api/items/{id}").json()["processed"]
    page = open_page(api, "/item", id=str(id))
    text = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert f"It was settled in plain at {processed[:19]}" in text
    assert "after 2 runs" in text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_users_have_stored_stays_text(api: Api, broker: mongoq.Broker, text: str) -> None:
    queue = broker.queue(text[:100], max_retries=0, history=60)
    queue.push({text: text}, headers={"x": text}, key=text)
    queue.bury(queue.reserve(), reason=text, error=text)  # type: ignore[arg-type]  # there is an item
    [letter] = queue.dead.peek(9)
    paths = [
        ("/", {}),
        ("/queue", {"name": queue.name}),
        ("/item", {"id": str(letter.id)}),
        ("/letters", {"queue": queue.name}),
    ]
    for path, parameters in paths:
        page = open_page(api, path, **parameters)
        assert "<script>alert" not in page
        assert "onerror=alert(1)>" not in page
        assert 'href="javascript:' not in page
        assert ">49<" not in page


def test_a_payload_of_megabytes_is_cut(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push("x" * 5_000_000)
    assert len(open_page(api, "/queue", name="orders")) < 20_000
    assert len(open_page(api, "/item", id=str(id))) < 120_000


def test_letters_are_grouped_and_a_group_goes_back(each_api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, *range(5))
    bury(queue, 5, 6, reason="gone", error=ValueError("x"))
    page = open_page(each_api, "/letters", queue="orders")
    assert page.index("no such city") < page.index("gone")
    asked = send_form(each_api, {"action": "replay", "queue": "orders.dead", "reason": "no such city"})
    assert "Send 5 letters back to their queues, orders.dead?" in asked.text
    assert (queue.size(), queue.dead.size()) == (0, 7)
    done = send_form(each_api, read_form(asked.text))
    assert "5 letters of orders.dead went back." in done.text
    assert (queue.size(), queue.dead.size()) == (5, 2)


def test_many_letters_with_three_causes_are_three_rows(
    api: Api, broker: mongoq.Broker, client: MongoClient[Any], database: str
) -> None:
    queue = broker.queue("orders", max_retries=0)
    bury(queue, 1)
    bury(queue, 2, error=KeyError("city"))
    bury(queue, 3, reason="gone", error=ValueError("x"))
    collection, first = client[database]["mongoq"], {}
    for letter in list(collection.find({"q": "orders.dead", "when": {"$exists": True}})):
        first[letter["origin"].get("reason"), letter.get("error", {}).get("type")] = letter["_id"]
        last = letter["origin"]["at"] + timedelta(hours=5)
        copies = [{**letter, "_id": ObjectId(), "origin": {**letter["origin"], "at": last}} for _ in range(3_333)]
        collection.insert_many([{**copy, "when": copy["when"] + timedelta(minutes=1)} for copy in copies])
    page = open_page(api, "/letters", queue="orders")
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    assert len(rows) == 3
    for (reason, error), id in first.items():
        [row] = [row for row in rows if str(id) in row]
        assert "3,334" in row
        assert (f"<bdi>{reason}</bdi>" in row, f"<bdi>{error or ''}</bdi>" in row) == (True, True)
        begins, ends = map(datetime.fromisoformat, re.findall(r'datetime="([^"]+)"', row))
        assert ends - begins == timedelta(hours=5)
    assert "<bdi>x</bdi>" in page  # the message of an example


def test_a_reason_of_several_lines_chooses_its_letters(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1, 2, reason="no such\r\ncity\n")
    bury(queue, 3)
    page = open_page(api, "/letters", queue="orders")
    group = read_form(next(form for form in page.split("<form") if "json:reason" in form))
    # A browser would send each end of a line as CR LF.
    assert not [value for [value] in group.values() if "\n" in value or "\r" in value]
    asked = send_form(api, {**group, "action": "replay"})
    assert "Send 2 letters back" in asked.text
    again = read_form(asked.text)
    assert not [value for [value] in again.values() if "\n" in value or "\r" in value]
    assert "2 letters of orders.dead went back." in send_form(api, again).text
    wrong = send_form(api, {**group, "json:reason": "no JSON", "action": "replay"})
    assert (wrong.status_code, queue.dead.size()) == (422, 1)


def test_selected_letters_are_deleted(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, *range(4))
    ids = [str(item.id) for item in queue.dead.peek(2)]
    asked = send_form(api, {"action": "drop", "queue": "orders.dead", "id": ids})
    assert "Delete 2 letters for good, orders.dead?" in asked.text
    send_form(api, read_form(asked.text))
    assert [item.payload for item in queue.dead.peek(9)] == [2, 3]
    nothing = send_form(api, {"action": "drop", "queue": "orders.dead"})
    assert (nothing.status_code, "select letters first" in nothing.text) == (422, True)
    assert queue.dead.size() == 2


def test_a_processed_item_is_pushed_once_more(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push(1)
    queue.pop()
    fields = {"action": "replay_history", "queue": "orders", "id": str(id)}
    assert "Push 1 copy of processed items to orders?" in send_form(api, fields).text
    assert "1 copy pushed to orders." in send_form(api, {**fields, "confirmed": "yes"}).text
    assert "0 copies pushed to orders. 1 were pushed before." in send_form(api, {**fields, "confirmed": "yes"}).text
    assert queue.size() == 1


def test_what_a_search_of_the_history_shows_is_pushed_once_more(
    api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many([{"n": number} for number in range(6)])
    queue.commit_many(queue.reserve_many(6))
    search = {"name": "orders", "state": "processed", "where": '{"n": {"$gte": 4}}', "since": "1h"}
    fields = read_form(open_page(api, "/queue", **search).rpartition('method="post"')[2])
    assert fields == {"queue": ["orders"], "where": ['{"n": {"$gte": 4}}'], "since": ["1h"]}
    asked = send_form(api, {**fields, "action": "replay_history", "to": "again"})
    assert "Push 2 copies of processed items to again?" in asked.text
    assert broker.queue("again").size() == 0
    confirmed = read_form(asked.text)
    assert confirmed["since"][0].startswith("20")
    send_form(api, confirmed)
    assert [item.payload["n"] for item in broker.queue("again").peek(9)] == [4, 5]
    for wrong in ({"since": "soon"}, {"where": "{"}, {"where": '{"$where": "1"}'}, {"to": "$x"}):
        assert send_form(api, {"queue": "orders", "action": "replay_history", **wrong}).status_code == 422, wrong


def test_letters_go_to_another_queue(api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1, 2)
    fields = {"action": "replay", "queue": "orders.dead", "reason": "no such city", "to": "repair"}
    asked = send_form(api, fields)
    assert "Send 2 letters to repair, orders.dead?" in asked.text
    assert "2 letters of orders.dead went to repair." in send_form(api, read_form(asked.text)).text
    assert broker.queue("repair").size() == 2


def test_a_queue_is_paused_and_resumed(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    for action, paused in (("pause", True), ("resume", False)):
        send_form(api, {"action": action, "queue": "orders"})
        assert queue.is_paused() is not paused
        done = send_form(api, {"action": action, "queue": "orders", "confirmed": "yes"})
        assert (done.status_code, done.headers["location"]) == (303, "/queue?name=orders")
        assert queue.is_paused() is paused


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        ("action=purge&queue=orders", "application/x-www-form-urlencoded", 422),
        ("action=pause", "application/x-www-form-urlencoded", 422),
        ("action=drop&queue=orders&id=x", "application/x-www-form-urlencoded", 422),
    ],
)
def test_a_form_that_cannot_be_used_changes_nothing(
    api: Api, queue: mongoq.Queue[Any], content: str, content_type: str, status: int
) -> None:
    queue.push(1)
    answer = api.request("POST", "/change", content=content, headers={**HTML, "content-type": content_type})
    assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")
    assert not queue.is_paused()


def test_a_reader_sees_no_buttons_and_changes_nothing(
    open_api: Callable[..., Api], broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    bury(queue, 1)
    api = open_api(create_app(broker))
    for path, parameters in (("/queue", {"name": "orders"}), ("/letters", {"queue": "orders"})):
        page = open_page(api, path, **parameters)
        assert "<button name" not in page
        assert "read-only" in page
    fields = {"action": "replay", "queue": "orders.dead", "reason": "no such city", "confirmed": "yes"}
    assert send_form(api, fields).status_code == 403
    assert queue.dead.size() == 1


def test_mistakes_are_pages_that_help(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    unknown = api.request("GET", "/queue?name=oders", headers=HTML)
    assert (unknown.status_code, 'href="/queue?name=orders"' in unknown.text) == (404, True)
    gone = api.request("GET", f"/item?id={ObjectId()}", headers=HTML)
    assert (gone.status_code, "settled in a queue without history" in gone.text) == (404, True)
    for path in ("/item?id=x", "/queue?name=orders&where={", "/queue?name=orders&cursor=x", "/queue"):
        answer = api.request("GET", path, headers=HTML)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (422, "text/html"), path
    assert api.request("GET", "/nothing", headers=HTML).status_code == 404
    assert api.request("GET", "/static/../render.py", headers=HTML).status_code == 404


def test_the_pages_work_where_the_app_is_mounted(
    open_api: Callable[..., Api], broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)
    outer = FastAPI()
    outer.mount("/admin/queues", create_app(broker, access="act"))
    api = open_api(outer)
    page = open_page(api, "/admin/queues/")
    addresses = re.findall(r'(?:href|src|action|data-events)="([^"#]+)"', page)
    assert addresses
    assert all(address.startswith("/admin/queues/") for address in addresses)
    for address in addresses:
        if "events" not in address and not address.endswith("/item"):
            assert api.request("GET", unescape(address), headers=HTML).status_code == 200, address


def test_a_blocked_item_links_to_the_one_that_it_waits_for(each_api: Api, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    name = HOSTILE[0]
    first, second, *_ = queue.push_many(range(60), sequence=name)
    assert '<th scope="col">blocked</th>' in open_page(each_api, "/")
    listed = open_page(each_api, "/queue", name="orders", state="blocked")
    assert f'<a href="/item?id={first}"><code>{first}</code></a> (ready)' in listed
    assert (str(second) in listed, name in listed) == (True, False)
    [following] = re.findall(r'rel="next" href="([^"]+)"', listed)
    assert '"/item?id=' in open_page(each_api, unescape(following))
    assert 'state=blocked">59</a>' in open_page(each_api, "/queue", name="orders")
    page = open_page(each_api, "/item", id=str(second))
    assert f'It waits for <a href="/item?id={first}"><code>{first}</code></a> (ready), first in its sequence' in page
    assert name not in page
    assert "It waits for" not in open_page(each_api, "/item", id=str(first))
    raw.delete_one({"_id": first})
    assert "mongoq repair-sequences orders" in open_page(each_api, "/item", id=str(second))


def test_a_letter_says_which_sequence_it_holds(each_api: Api, broker: mongoq.Broker) -> None:
    queue, name = broker.queue("orders", on_dead="hold"), HOSTILE[0]
    first, second, _ = queue.push_many(range(3), sequence=name)
    item = queue.reserve()
    assert item is not None
    queue.bury(item)
    waiting = open_page(each_api, "/item", id=str(second))
    assert f'It waits for <a href="/item?id={first}"><code>{first}</code></a> (dead), first in its sequence' in waiting
    assert "Replay or remove the dead letter to let it go." in waiting
    letter = open_page(each_api, "/item", id=str(first))
    assert "It holds the sequence" in letter
    assert name not in letter
    assert '<th scope="col">holds</th>' in open_page(each_api, "/letters", queue="orders")
    shown = each_api.get(f"/api/items/{second}").json()
    assert shown["blocked_by"] == [{"id": str(first), "state": "dead"}]
    assert each_api.get(f"/api/items/{first}").json()["holds"] == name
    [listed] = each_api.get("/api/letters", queue="orders").json()["items"]
    assert listed["holds"] == name
    assert queue.dead.replay().pushed == 1
    assert "It holds" not in open_page(each_api, "/item", id=str(first))
    assert "holds" not in each_api.get(f"/api/items/{first}").json()


def test_a_queue_without_blocked_items_says_nothing_of_them(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    assert "blocked</th>" not in open_page(api, "/")
    assert "<dt>blocked" not in open_page(api, "/queue", name="orders")
    assert "--sequence customer-17" in open_page(api, "/queue", name="orders", state="blocked")


@pytest.mark.parametrize("name", ["worker", *HOSTILE])
def test_the_page_of_a_queue_shows_what_is_used_of_its_limits(
    api: Api, queue: mongoq.Queue[Any], raw: Any, name: str
) -> None:
    queue.push(1)
    assert "<h2>Limits</h2>" not in open_page(api, "/queue", name="orders")
    queue.configure(max_running=2)
    assert "<p>no worker consumes the queue</p>" in open_page(api, "/queue", name="orders")
    queue.pause()
    assert "<p>the queue is paused; no worker" in open_page(api, "/queue", name="orders")
    queue.resume()
    now = datetime.now(UTC)
    record = {"seen": now, "every": 60.0, "queues": [{"queue": "orders", "held": 0}]}
    raw.insert_one({"_id": "worker:host:1:x/1", **record})
    assert "<p>an item may start now</p>" in open_page(api, "/queue", name="orders")
    holder = {"by": name, "number": 2, "wanted": 4, "since": now, "until": now + timedelta(minutes=5)}
    raw.insert_one({"_id": "limit:orders", "holders": [holder]})
    page = open_page(api, "/queue", name="orders")
    assert "workers hold 2 of 2 permits" in page
    assert f"<bdi>{escape(name)}</bdi>" in page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
