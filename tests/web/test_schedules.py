"""Schedules in the HTTP API and on their page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from bson import ObjectId

import mongoq
from tests.web.conftest import Api, open_page

ODD = "<script>alert(1)</script>"


@pytest.fixture
def hourly(broker: mongoq.Broker) -> mongoq.Broker:
    broker.schedule("hourly", queue="reports", every=3600, payload={"a": 1})
    return broker


def send(api: Api, **fields: str) -> Any:
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
    return api.request("POST", "/schedules/change", content=urlencode(fields), headers=headers)


def test_schedules_are_listed_and_changed(
    each_api: Api, hourly: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    (document,) = each_api.get("/api/schedules").json()["schedules"]
    assert (document["schedule"], document["queue"], document["paused"]) == ("hourly", "reports", False)
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        assert each_api.post("/api/schedules/pause", schedule="hourly").json()["paused"] is True
        assert hourly.schedules()[0].paused
        assert each_api.post("/api/schedules/resume", schedule="hourly").json()["paused"] is False
        done = each_api.post("/api/schedules/run", schedule="hourly").json()
        item = hourly.queue("reports").get(ObjectId(done["id"]))
        assert item is not None
        assert item.payload == {"a": 1}
        assert each_api.post("/api/schedules/remove", schedule="hourly").json()["removed"] is True
    assert hourly.schedules() == []
    for action in ("pause", "resume", "run", "remove"):
        assert f"{action} schedule 'hourly'" in caplog.text


@pytest.mark.usefixtures("hourly")
def test_mistakes_are_named(api: Api) -> None:
    for action in ("pause", "resume", "run", "remove"):
        answer = api.post(f"/api/schedules/{action}", schedule="hourl")
        assert answer.status_code == 404
        assert "'hourly'" in answer.json()["detail"]
        assert api.post(f"/api/schedules/{action}", schedule="$x").status_code == 422
        assert api.post(f"/api/schedules/{action}", schedule="hourly", more=1).status_code == 422


def test_readers_change_nothing(hourly: mongoq.Broker, open_app: Callable[..., Api]) -> None:
    api = open_app(access="read")
    for action in ("pause", "run", "remove"):
        assert api.post(f"/api/schedules/{action}", schedule="hourly").status_code == 403
        assert send(api, action=action, schedule="hourly", confirmed="yes").status_code == 403
    assert "Run now" not in open_page(api, "/schedules")
    (record,) = hourly.schedules()
    assert not record.paused
    assert hourly.queue("reports").size() == 0


def test_the_page_shows_schedules_and_their_troubles(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    assert "There are no schedules" in open_page(api, "/schedules")
    broker.schedule(ODD, queue=ODD, every=3600)
    page = open_page(api, "/schedules")
    assert ODD not in page
    assert "every 3600 s" in page
    assert 'aria-current="page"' in page
    raw.update_one({"_id": f"schedule:{ODD}"}, {"$set": {"source": ODD}})
    page = open_page(api, "/schedules")
    assert "it cannot be read" in page
    assert ODD not in page


def test_the_page_shows_the_next_tick_in_its_zone_and_what_is_over(api: Api, broker: mongoq.Broker, raw: Any) -> None:
    broker.schedule("report", queue="reports", cron="0 6 1 7 *", timezone="Europe/Berlin")
    page = open_page(api, "/schedules")
    assert "-07-01T04:00:00" in page
    assert "-07-01T06:00:00+02:00" in page
    assert ">over<" not in page
    broker.schedule("once", queue="reports", at=datetime(2020, 1, 1, tzinfo=UTC))
    assert open_page(api, "/schedules").count(">over<") == 1
    by_name = {document["schedule"]: document for document in api.get("/api/schedules").json()["schedules"]}
    assert [by_name[name]["over"] for name in ("once", "report")] == [True, False]
    assert by_name["report"]["timezone"] == "Europe/Berlin"
    assert by_name["report"]["next_local"].endswith("-07-01T06:00:00.000+02:00")
    raw.update_one({"_id": "schedule:once"}, {"$set": {"what": 5}})
    assert ">over<" not in open_page(api, "/schedules")
    raw.update_one({"_id": "schedule:report"}, {"$set": {"what.timezone": ODD}})
    page = open_page(api, "/schedules")
    assert "-07-01T04:00:00" in page
    assert ODD not in page


def test_a_form_asks_first(api: Api, hourly: mongoq.Broker) -> None:
    question = send(api, action="pause", schedule="hourly")
    assert "Let hourly make no items until it is resumed?" in question.text
    assert 'action="/schedules/change"' in question.text
    assert not hourly.schedules()[0].paused
    for action in ("pause", "resume", "run"):
        answer = send(api, action=action, schedule="hourly", confirmed="yes")
        assert (answer.status_code, answer.headers["location"]) == (303, "/schedules")
        assert hourly.schedules()[0].paused is (action == "pause")
    assert hourly.queue("reports").size() == 1
    assert send(api, action="remove", schedule="hourly", confirmed="yes").status_code == 303
    assert hourly.schedules() == []
    assert send(api, action="pause", schedule="hourly").status_code == 404
    assert send(api, action="explode", schedule="hourly").status_code == 422
    assert send(api, schedule="hourly").status_code == 422
    assert api.post("/schedules/change", action="pause").status_code == 415
