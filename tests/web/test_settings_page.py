"""The page of settings: what it shows, and what its form changes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

import mongoq
from tests.web.conftest import HTML, Api, open_page

SETTINGS = (
    *("lease", "history", "max_retries", "dead", "max_running", "rate", "burst", "max_in_sequence"),
    *("on_expired", "on_dead"),
)


def read_inputs(page: str) -> dict[str, str]:
    """Return the fields of the form of settings, as a browser would send them."""
    form = page[page.rindex('<form method="post"') :]
    fields = {name: unescape(value) for name, value in re.findall(r'name="([^"]+)"[^>]*? value="([^"]*)"', form)}
    for name, options in re.findall(r'<select [^>]*name="(\w+)"[^>]*>(.*?)</select>', form):
        fields[name] = unescape(re.findall(r"<option selected>([^<]*)|<option>([^<]*)", options)[0][0])
    return fields


def save(api: Api, fields: dict[str, str], **changes: str) -> Any:
    return api.request("POST", "/settings?name=orders", data={**fields, **changes}, headers=HTML)


def settings_of(broker: mongoq.Broker, name: str = "orders") -> Any:
    """Return the stored settings, as a process reads them that knows nothing of the queue."""
    queue = broker.queue(name)
    queue.is_paused()
    return queue.settings


def test_each_setting_is_shown_with_its_default_and_changed(each_api: Api, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push(1)
    assert 'href="/settings?name=orders"' in open_page(each_api, "/queue", name="orders")
    page = open_page(each_api, "/settings", name="orders")
    fields = read_inputs(page)
    assert set(fields) == {"queue", *SETTINGS} | {f"shown:{name}" for name in SETTINGS}
    assert (fields["lease"], fields["history"], fields["max_retries"], fields["dead"]) == (
        "30s", "1h", "10", "orders.dead",
    )  # fmt: skip
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())
    assert "time that processed items are kept, or None to delete them. Stored; default: none." in text
    assert "duration of a reservation unless reserve gives another. Not stored" in text
    assert "Write a duration such as 90s, 5m, 2h or 7d, or none." in text
    done = save(each_api, fields, lease="90s", history="none", max_retries="3", dead="lost")
    assert (done.status_code, done.headers["location"]) == (
        303, "/settings?name=orders&changed=lease%2Chistory%2Cmax_retries%2Cdead",
    )  # fmt: skip
    assert "Changed: dead, history, lease, max retries." in unescape(
        each_api.request("GET", done.headers["location"], headers=HTML).text
    )
    stored = settings_of(broker)
    assert (stored.lease, stored.history, stored.max_retries, stored.dead) == (timedelta(seconds=90), None, 3, "lost")


def test_only_what_the_reader_has_changed_is_stored(
    api: Api, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    fields = read_inputs(open_page(api, "/settings", name="orders"))
    queue.configure(lease=7)  # somebody else, meanwhile
    with caplog.at_level(logging.INFO, "mongoq.audit"):
        save(api, fields, max_retries="4")
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert (record.mongoq_action, record.mongoq_queue) == ("configure", "orders")  # type: ignore[attr-defined]
    assert "max_retries '4'" in record.getMessage()
    read = api.get("/api/settings", queue="orders").json()
    assert (read["lease"], read["max_retries"], read["stored"]) == (7.0, 4, ["lease", "max_retries"])
    done = save(api, fields)
    assert (done.status_code, done.headers["location"]) == (303, "/settings?name=orders")


def test_a_form_with_an_unknown_field_changes_nothing(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    before = settings_of(broker)
    fields = read_inputs(open_page(api, "/settings", name="orders"))
    for unknown in ("name", "shown:name"):
        answer = save(api, fields, **{"lease": "9s", unknown: "x"})
        assert (answer.status_code, answer.headers["content-type"][:9]) == (422, "text/html")
        assert f"{unknown}: no setting of a queue; the settings are lease, history" in unescape(answer.text)
    assert settings_of(broker) == before


def test_a_setting_that_cannot_be_used_is_explained_beside_its_field(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    before = settings_of(broker)
    fields = read_inputs(open_page(api, "/settings", name="orders"))
    for name, text, problem in (
        ("lease", "soon", "'soon' is not a duration such as 90s, 5m, 2h or 7d"),
        ("lease", "0", "must be a millisecond or longer"),
        ("lease", "none", "'none' is not a duration"),
        ("lease", "", "'' is not a duration"),
        ("history", "999999d", "cannot be longer than"),
        ("max_running", "1.5", "'1.5' is not a whole number, or none"),
        ("dead", "orders", "cannot be its own dead queue"),
        ("dead", "$x", "cannot begin with '$'"),
        ("dead", "", "'' is not the name of a queue, or none"),
        ("rate", "", "'' is not a rate such as 100/m, or none"),
    ):
        answer = save(api, fields, **{"max_retries": "4", name: text})
        assert (answer.status_code, answer.headers["content-type"][:9]) == (422, "text/html")
        [beside] = re.findall(rf'id="problem-{name}">([^<]*)<', answer.text)
        assert problem in unescape(beside)
        described = f'aria-describedby="about-{name} problem-{name}" aria-invalid'
        assert f'id="set-{name}" name="{name}" {described}' in answer.text
        entered = read_inputs(answer.text)
        assert (entered[name], entered[f"shown:{name}"], entered["max_retries"]) == (text, fields[name], "4")
    assert settings_of(broker) == before


def test_settings_of_an_unknown_queue_name_the_nearest_one(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    fields = read_inputs(open_page(api, "/settings", name="orders"))
    for answer in (
        api.request("GET", "/settings?name=oders", headers=HTML),
        save(api, fields, queue="oders", lease="1s"),
    ):
        assert (answer.status_code, 'href="/queue?name=orders"' in answer.text) == (404, True)
    assert save(api, {}, lease="1s").status_code == 422


def test_a_reader_sees_the_settings_and_changes_none(
    open_app: Callable[..., Api], api: Api, broker: mongoq.Broker
) -> None:
    broker.queue("orders", lease=7).push(1)
    fields = read_inputs(open_page(api, "/settings", name="orders"))
    reader = open_app()
    page = open_page(reader, "/settings", name="orders")
    assert "7s" in page
    assert 'method="post"' not in page
    assert save(reader, fields, lease="9s").status_code == 403
    foreign = api.request(
        "POST", "/settings", data={**fields, "lease": "9s"}, headers={**HTML, "sec-fetch-site": "cross-site"}
    )
    assert foreign.status_code == 403
    assert settings_of(broker).lease == timedelta(seconds=7)
