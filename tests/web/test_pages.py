"""Pages: what they show, and what their forms change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

from bson import ObjectId

import mongoq
from tests.waiting import until
from tests.web.conftest import HTML, Api, bury, make_pipeline, open_page, read_form, send_form

ODD = "<script>alert(1)</script>"


def test_the_overview_begins_with_what_to_look_at_first(
    open_app: Callable[..., Api], broker: mongoq.Broker, raw: Any
) -> None:
    broker.queue("a-fine", history=60).push(1)
    broker.queue("a-fine").pop()
    broker.queue("b-paused").configure(lease=5)
    broker.queue("b-paused").pause()
    broker.queue("c-new").push(1)
    bury(broker.queue("d-dying", max_retries=0), 1, 2)
    broker.queue("e-expired").push(1)
    broker.queue("e-expired").reserve(lease=0.001)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    broker.queue("flights.errors").push(1, when=long_ago)
    first, _ = broker.queue("g-stuck").push_many([1, 2], sequence="s")
    raw.delete_one({"_id": first})
    broker.queue("h-late").push(1, when=long_ago)
    broker.queue("i-later").push(1, when=long_ago - timedelta(hours=1))
    until(lambda: broker.queue("e-expired").counts().expired)
    page = open_page(open_app(pipelines=[make_pipeline()]), "/")
    rows = re.findall(r"<bdi>([\w.-]+)</bdi></a></th>(.*?)</tr>", page, re.DOTALL)
    troubles = {name: re.findall(r'<span class="trouble">([^<]+)</span>', row) for name, row in rows}
    assert list(troubles.items()) == [
        ("i-later", ["waits for long", "no consumer"]),
        ("h-late", ["waits for long", "no consumer"]),
        ("g-stuck", ["stuck sequences"]),
        ("flights.errors", ["failed items"]),
        ("d-dying", ["dead letters"]),
        ("e-expired", ["expired leases", "no consumer"]),
        ("c-new", ["no consumer"]),
        ("b-paused", ["paused"]),
        ("a-fine", []),
        ("d-dying.dead", []),
    ]


def test_the_first_visit_has_an_introduction(api: Api) -> None:
    first = api.request("GET", "/", headers=HTML)
    assert "What is shown here</h2>" in first.text
    cookie = first.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=lax" in cookie, "path=/;" in cookie) == (True, True, True)
    second = api.request("GET", "/", headers=HTML)
    assert ("What is shown here</h2>" in second.text, "set-cookie" in second.headers) == (False, False)
    [again] = re.findall(r'href="([^"]+)">What is shown here\?', second.text)
    assert "What is shown here</h2>" in open_page(api, again)


def test_a_run_that_takes_too_long_is_marked(api: Api, raw: Any) -> None:
    now = datetime.now(UTC)
    queues = [{"queue": "orders", "held": 2, "overdue": 3725.5}]
    raw.insert_one({"_id": "worker:host:7:abcd", "started": now, "seen": now, "every": 60.0, "queues": queues})
    assert '(2, <span class="trouble">one for 1h 2m</span>)' in open_page(api, "/workers")
    (worker,) = api.get("/api/workers").json()["workers"]
    assert worker["overdue_seconds"] == {"orders": 3725.5}


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
            assert (words[0], "rm" in words) == ("mongoq", False)
    assert "--sequence customer-17" in open_page(api, "/queue", name="plain", state="blocked")
    assert "blocked</th>" not in open_page(api, "/")
    unmatched = open_page(api, "/queue", name="plain", where='{"a": 1}')
    assert 'No item matches. <a href="/queue?name=plain&amp;state=live">' in unmatched


def test_a_queue_shows_its_items_by_state_and_page(api: Api, queue: mongoq.Queue[Any]) -> None:
    queue.push({"is": "processed"})
    queue.pop()
    queue.push_many(range(1000, 1080))
    for state, is_processed in (("live", False), ("ready", False), ("processed", True)):
        page = unescape(open_page(api, "/queue", name="orders", state=state, where="", since="", until=""))
        assert ('{"is": "processed"}' in page, ">1000<" in page) == (is_processed, not is_processed)
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


def test_a_payload_of_megabytes_is_cut(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push("x" * 5_000_000)
    assert len(open_page(api, "/queue", name="orders")) < 20_000
    assert len(open_page(api, "/item", id=str(id))) < 120_000


def test_letters_are_grouped_and_a_group_goes_back(
    each_api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any], raw: Any
) -> None:
    bury(queue, *range(5))
    bury(queue, 5, 6, reason="gone", error=ValueError("x"))
    page = open_page(each_api, "/letters", queue="orders")
    assert page.index("no such city") < page.index("gone")
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    assert [("<bdi>gone</bdi>" in row, "<bdi>ValueError</bdi>" in row) for row in rows[:2]] == [
        (False, False), (True, True),
    ]  # fmt: skip
    for to, question, done in (
        ("orders.dead", "", ""),
        ("repair", "Send 5 letters to repair, orders.dead?", "5 letters of orders.dead went to repair."),
    ):
        fields = {"action": "replay", "queue": "orders.dead", "reason": "no such city", "to": to}
        asked = send_form(each_api, fields)
        assert (queue.size(), queue.dead.size()) == (0, 7)
        if not done:  # it cannot be, which is said before the question
            assert asked.status_code == 422
            continue
        assert question in asked.text
        assert done in send_form(each_api, read_form(asked.text)).text
    assert (broker.queue("repair").size(), queue.dead.size()) == (5, 2)


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


def test_selected_letters_are_deleted_and_a_queue_is_paused(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, *range(4))
    ids = [str(item.id) for item in queue.dead.peek(2)]
    asked = send_form(api, {"action": "drop", "queue": "orders.dead", "id": ids})
    assert "Delete 2 letters for good, orders.dead?" in asked.text
    send_form(api, read_form(asked.text))
    assert [item.payload for item in queue.dead.peek(9)] == [2, 3]
    nothing = send_form(api, {"action": "drop", "queue": "orders.dead"})
    assert (nothing.status_code, "select letters first" in nothing.text) == (422, True)
    for wrong in ({"action": "purge"}, {"action": "drop", "id": "x"}, {"action": "pause", "queue": ""}):
        answer = send_form(api, {"queue": "orders.dead", **wrong})
        assert (answer.status_code, answer.headers["content-type"][:9]) == (422, "text/html"), wrong
    assert queue.dead.size() == 2
    for action, paused in (("pause", True), ("resume", False)):
        send_form(api, {"action": action, "queue": "orders"})
        assert queue.is_paused() is not paused
        done = send_form(api, {"action": action, "queue": "orders", "confirmed": "yes"})
        assert (done.status_code, done.headers["location"]) == (303, "/queue?name=orders")
        assert queue.is_paused() is paused


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
    for wrong in ({"since": "soon"}, {"where": "{"}, {"where": '{"$where": "1"}'}, {"where": "null"}, {"to": "$x"}):
        assert send_form(api, {"queue": "orders", "action": "replay_history", **wrong}).status_code == 422, wrong


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


def test_a_blocked_item_links_to_the_one_that_it_waits_for(each_api: Api, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    name = ODD
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


def test_a_letter_says_which_sequence_it_holds(api: Api, broker: mongoq.Broker) -> None:
    queue, name = broker.queue("orders", on_dead="hold"), ODD
    first, second, _ = queue.push_many(range(3), sequence=name)
    item = queue.reserve()
    assert item is not None
    queue.bury(item)
    waiting = open_page(api, "/item", id=str(second))
    assert f'It waits for <a href="/item?id={first}"><code>{first}</code></a> (dead), first in its sequence' in waiting
    assert "Replay or remove the dead letter to let it go." in waiting
    letter = open_page(api, "/item", id=str(first))
    assert "It holds the sequence" in letter
    assert name not in letter
    assert '<th scope="col">holds</th>' in open_page(api, "/letters", queue="orders")
    shown = api.get(f"/api/items/{second}").json()
    assert shown["blocked_by"] == [{"id": str(first), "state": "dead"}]
    assert api.get(f"/api/items/{first}").json()["holds"] == name
    [listed] = api.get("/api/letters", queue="orders").json()["items"]
    assert listed["holds"] == name
    assert queue.dead.replay().pushed == 1
    assert "It holds" not in open_page(api, "/item", id=str(first))
    assert "holds" not in api.get(f"/api/items/{first}").json()


def test_a_queue_whose_items_are_all_blocked_says_so(api: Api, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", on_dead="hold")
    queue.push_many(range(9), sequence="a")
    queue.bury(queue.reserve())  # type: ignore[arg-type]  # there is an item
    link = '<a href="/queue?name=orders&amp;state=blocked">8 items are blocked</a>'
    for state in ("live", "ready"):
        page = open_page(api, "/queue", name="orders", state=state)
        assert ("No item waits here" in page, link in page) == (False, True)


def test_the_page_of_a_queue_shows_what_is_used_of_its_limits(api: Api, queue: mongoq.Queue[Any], raw: Any) -> None:
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
    holder = {"by": "worker-1", "number": 2, "wanted": 4, "since": now, "until": now + timedelta(minutes=5)}
    raw.insert_one({"_id": "limit:orders", "holders": [holder]})
    page = open_page(api, "/queue", name="orders")
    assert "workers hold 2 of 2 permits" in page
    assert "<bdi>worker-1</bdi>" in page
