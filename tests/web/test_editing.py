"""The editor: the payload of a copy of a processed item, with its types, a preview and errors beside the fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from pymongo import MongoClient

import mongoq
from mongoq.model.encoding.extended_json import read_json
from mongoq.web import create_app
from mongoq.web.pages.editing import BYTES, MAX_EDITED_CHARACTERS, NotEditable, edit_text, find_differences
from tests.web.conftest import Api
from tests.web.test_pages import HTML, open_page, read_form

TYPED = {
    "small long": Int64(7),
    "int": 7,
    "long": 2**40,
    "double": 7.0,
    "nan": float("inf"),
    "decimal": Decimal128("7.10"),
    "at": datetime(2026, 11, 26, 14, 30, tzinfo=UTC),
    "id": ObjectId("65f0c0ffee65f0c0ffee0001"),
    "bytes": b"\x00\xff",
    "uuid": UUID(int=7),
    "lines": [{"city": "Zürich", "note": "a\r\nb\u2028c\u202e<script>"}, [], {}, None, True],
}


def read_text(page: str) -> str:
    [text] = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    return unescape(text)


def send(api: Api, **fields: str) -> Any:
    return api.request("POST", "/edit", data=fields, headers=HTML)


@pytest.fixture
def id(queue: mongoq.Queue[Any]) -> str:
    pushed = queue.push(TYPED)
    queue.pop()
    return str(pushed)


def test_a_payload_is_edited_seen_and_pushed_with_its_types(
    each_api: Api, broker: mongoq.Broker, client: MongoClient[Any], database: str, id: str
) -> None:
    assert f'href="/edit?id={id}"' in open_page(each_api, "/item", id=id)
    text = read_text(open_page(each_api, "/edit", id=id))
    edited = text.replace("Zürich", "Bern").replace('"int": 7', '"int": "7"').replace("\n", "\r\n")
    asked = send(each_api, id=id, payload=edited, to="again")
    assert asked.status_code == 200
    seen = " ".join(unescape(re.sub(r"<[^>]+>", "", asked.text)).split())
    assert 'lines[0].city "Zürich" string "Bern" string' in seen
    assert 'int 7 int "7" string, another type' in seen
    assert "data-events" not in asked.text
    assert broker.queue("again").size() == 0
    form = read_form(asked.text[: asked.text.index("Edit it further")])
    done = each_api.request("POST", "/edit", data=form, headers=HTML)
    assert "1 copy with the edited payload was pushed to again." in done.text
    [stored] = client[database]["mongoq"].find({"q": "again", "when": {"$exists": True}})
    expected = {**TYPED, "int": "7", "lines": [{**TYPED["lines"][0], "city": "Bern"}, *TYPED["lines"][1:]]}  # type: ignore[index]
    assert bson.encode(stored["payload"], codec_options=BYTES) == bson.encode(expected, codec_options=BYTES)
    again = each_api.request("POST", "/edit", data=form, headers=HTML)
    assert (again.status_code, "a copy of this item was pushed before" in again.text) == (422, True)
    form["label"] = ["second"]
    assert each_api.request("POST", "/edit", data=form, headers=HTML).status_code == 200
    assert broker.queue("again").size() == 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"payload": '{"a": 1'}, "not valid JSON: Expecting ',' delimiter: line 1 column 8"),
        ({"payload": '{"a": {"$oid": "x"}}'}, "extended JSON that means no value"),
        ({"payload": '{"a": 1, "a": 2}'}, "name 'a' occurs twice"),
        ({"payload": ""}, "not valid JSON"),
        ({"payload": "null"}, "null is no payload"),
        ({"payload": '{"a": 9999999999999999999999}'}, "payload.a"),
        ({"payload": "1", "to": "$x"}, "cannot begin with"),
        ({"payload": "1", "label": "x" * 3000}, "bytes"),
    ],
)
def test_what_cannot_be_used_is_explained_beside_its_field(
    api: Api, queue: mongoq.Queue[Any], fields: dict[str, str], problem: str
) -> None:
    id, name = str(queue.push(TYPED)), list(fields)[-1]
    queue.pop()
    for confirmed in ({}, {"confirmed": "yes"}):
        answer = send(api, id=id, **fields, **confirmed)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (422, "text/html")
        [beside] = re.findall(rf'id="problem-{name}">([^<]*)<', answer.text)
        assert problem in unescape(beside)
        assert read_text(answer.text) == fields["payload"]
    assert queue.size() == 0


def test_only_what_was_processed_is_edited(api: Api, broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    live = queue.push(1)
    other = broker.queue("plain")
    other.push(2, id=(remembered := ObjectId()))
    other.pop()
    for id, status in ((live, 409), (remembered, 409), (ObjectId(), 404), ("x", 422)):
        assert api.request("GET", f"/edit?id={id}", headers=HTML).status_code == status, id
        assert send(api, id=str(id), payload="3", confirmed="yes").status_code == status, id
    assert (queue.size(), other.size()) == (1, 0)


def test_a_reader_has_no_editor(open_api: Callable[..., Api], broker: mongoq.Broker, id: str) -> None:
    api = open_api(create_app(broker))
    assert "/edit" not in open_page(api, "/item", id=id)
    assert api.request("GET", f"/edit?id={id}", headers=HTML).status_code == 403
    assert send(api, id=id, payload="3", confirmed="yes").status_code == 403


def test_a_payload_that_json_would_change_is_not_edited(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = queue.push({"note": "x" * MAX_EDITED_CHARACTERS})
    queue.pop()
    answer = api.request("GET", f"/edit?id={id}", headers=HTML)
    assert (answer.status_code, "a form takes 500,000 at most" in answer.text) == (409, True)


@pytest.mark.parametrize(
    "payload",
    [TYPED, Int64(-5), 5, 5.0, "x", True, [1, [2]], {"$set": {"a.b": 1}}, {"": Regex("a.b", "i")}],
)
def test_a_payload_is_read_from_the_form_as_it_was(payload: Any) -> None:
    text = edit_text(payload)
    assert bson.encode({"v": read_json(text)}, codec_options=BYTES) == bson.encode({"v": payload}, codec_options=BYTES)


@pytest.mark.parametrize(
    "payload", [{"a": {"$oid": "65f0c0ffee65f0c0ffee0001"}}, {"$numberLong": "7"}, {"$date": "soon"}]
)
def test_what_only_looks_like_extended_json_is_not_edited(payload: Any) -> None:
    with pytest.raises(NotEditable, match="would change the types"):
        edit_text(payload)


def test_differences_have_paths_and_types() -> None:
    before = {"a": 1, "b": [1, {"c": None}], "d": float("nan"), "gone": 1, "big": 2**40}
    after = {"a": Int64(1), "b": [1, {"c": 0.5}, 3], "d": float("nan"), "new": [], "big": Int64(2**40)}
    found = {
        each.path: (each.kind_before, each.kind_after, each.is_other_type) for each in find_differences(before, after)
    }
    assert found == {
        "a": ("int", "long", True),
        "b[1].c": ("null", "double", True),
        "b[2]": ("", "int", False),
        "gone": ("int", "", False),
        "new": ("", "array", False),
    }
    assert [each.path for each in find_differences(1, [])] == [""]
