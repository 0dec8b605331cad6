"""Changes that a reader or a program has agreed to concern what was counted, and nothing that came later."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.web.conftest import Api, bury, read_form, send_form

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def test_a_confirmed_change_of_letters_leaves_those_that_came_after_the_question(
    each_api: Api, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for action in ("drop", "replay"):
        queue.dead.purge()
        queue.push("pushed before the question, dead after it", delay=0)
        later = queue.reserve()
        assert later is not None
        bury(queue, 1, 2, 3, reason="no such city", error=ValueError("x"))
        kind = {"action": action, "queue": "orders.dead", "reason": "no such city", "error": "ValueError"}
        asked = send_form(each_api, kind)
        assert "3 letters" in asked.text
        queue.bury(later, reason="no such city", error=ValueError("x"))
        bury(queue, 4, reason="no such city", error=ValueError("x"))
        with caplog.at_level(logging.INFO, "mongoq.audit"):
            assert "3 letters of orders.dead" in send_form(each_api, read_form(asked.text)).text
        assert [item.payload for item in queue.dead.peek(9)] == [later.payload, 4]
        line = caplog.records[-1].getMessage()
        assert ("'no such city'" in line, "'ValueError'" in line, "(3 items)" in line) == (True, True, True)


def test_the_question_names_what_is_chosen_and_leads_back(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1, reason="<b>no such city", error=ValueError("x"))
    kind = {"action": "drop", "queue": "orders.dead", "reason": "<b>no such city", "error": "ValueError"}
    page = send_form(api, kind).text
    text = unescape(re.sub(r"<[^>]+>", "", page))
    assert ("reason: <b>no such city" in text, "error: ValueError" in text) == (True, True)
    assert re.findall(r"<(\w+)[^>]* autofocus>([^<]+)", page) == [("a", "Go back")]
    queue.dead.purge()
    assert "No letter" in send_form(api, kind).text


def test_copies_of_what_was_processed_after_the_question_are_not_pushed(
    api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many([1, 2, 3])
    queue.pop()
    asked = send_form(api, {"action": "replay_history", "queue": "orders", "to": "again", "where": '{"$gt": 0}'})
    assert "Push 1 copy" in asked.text
    queue.pop()
    assert "1 copy pushed" in send_form(api, read_form(asked.text)).text
    dry = api.post("/api/history/replay", queue="orders", to="more", dry_run=True).json()
    queue.pop()
    done = api.post("/api/history/replay", queue="orders", to="more", until=dry["until"]).json()
    assert (dry["number"], done["number"], broker.queue("more").size()) == (2, 2, 2)


def test_a_program_names_the_time_of_its_dry_run(api: Api, queue: mongoq.Queue[Any]) -> None:
    bury(queue, 1, 2)
    for verb in ("drop", "replay", "move"):
        to = {"to": "repair"} if verb == "move" else {}
        dry = api.post(f"/api/letters/{verb}", queue="orders", dry_run=True, **to).json()
        queue.purge()
        bury(queue, verb)
        body = {"queue": "orders", "until": dry["until"], **to}
        assert api.post(f"/api/letters/{verb}", **body).json()["number"] == dry["number"]
        assert [item.payload for item in queue.dead.peek(9)] == [verb]
    queue.purge()
    for options, state in (({"when": LATER}, None), ({"sequence": "one"}, None), ({"sequence": "two"}, "blocked")):
        queue.purge()
        queue.push_many([1, 2, 3], **options)
        dry = api.post("/api/items/purge", queue="orders", state=state, dry_run=True).json()
        later = ObjectId.from_datetime(datetime.now(UTC) + timedelta(seconds=5))
        queue.push(4, id=later, **options)
        body = {"queue": "orders", "state": state, "until": dry["until"]}
        done = api.post("/api/items/purge", **body, dry_run=True).json()["number"], api.post("/api/items/purge", **body)
        assert (done[0], done[1].json()["number"]) == (dry["number"], dry["number"])
        assert queue.get(later) is not None


def test_any_time_is_a_bound(api: Api, queue: mongoq.Queue[Any]) -> None:
    for until, left in (("0001-01-01T00:00:00Z", 1), ("30m", 1), ("2110-01-01", 0), ("9999-12-31T23:59:59.999Z", 0)):
        queue.dead.purge()
        queue.purge()
        bury(queue, 2)
        queue.push(1)
        for path in ("items/purge", "letters/drop"):
            answer = api.post(f"/api/{path}", queue="orders", until=until)
            assert (answer.status_code, answer.json().get("number")) == (200, 1 - left), (path, until)
        queue.purge()
        bury(queue, 3)
        fields = {"action": "drop", "queue": "orders.dead", "reason": "no such city", "confirmed": "yes", "most": "9"}
        answer = send_form(api, {**fields, "counted": until})
        assert (answer.status_code, queue.dead.size() > 0) == (200, left == 1)
    for wrong in ({"counted": "soon"}, {"counted": "-1"}):
        assert send_form(api, {**fields, **wrong}).status_code == 422


def test_the_question_says_what_runs_without_a_letter_that_holds_its_sequence(
    each_api: Api, broker: mongoq.Broker
) -> None:
    queue = broker.queue("orders", on_dead="hold", max_retries=0)
    ids = queue.push_many(range(4), sequence="<b>customer-17")
    queue.push_many(range(3), sequence="other")
    for item in queue.reserve_many(2):
        queue.bury(item, reason="no such city")
    by_id = {"action": "drop", "queue": "orders.dead", "id": str(ids[0])}
    page = send_form(each_api, by_id).text
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())
    assert f"<b>customer-17 of orders: 3 items, first {ids[1]}" in text
    assert "other of orders" not in text
    by_kind = send_form(each_api, {"action": "drop", "queue": "orders.dead", "reason": "no such city"}).text
    assert by_kind.count("items, first") == 2
    dry = each_api.post("/api/letters/drop", queue="orders", ids=[str(ids[0])], dry_run=True).json()
    assert dry["releases"] == [{"queue": "orders", "sequence": "<b>customer-17", "items": 3, "first": str(ids[1])}]
