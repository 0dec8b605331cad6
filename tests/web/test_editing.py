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
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions

import mongoq
from tests.web.conftest import HTML, Api, open_page, read_form

BYTES = CodecOptions[Any](uuid_representation=UuidRepresentation.STANDARD)
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
    each_api: Api, broker: mongoq.Broker, raw: Any, id: str
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
    [stored] = raw.find({"q": "again", "when": {"$exists": True}})
    expected = {**TYPED, "int": "7", "lines": [{**TYPED["lines"][0], "city": "Bern"}, *TYPED["lines"][1:]]}  # type: ignore[index]
    assert bson.encode(stored["payload"], codec_options=BYTES) == bson.encode(expected, codec_options=BYTES)
    again = each_api.request("POST", "/edit", data=form, headers=HTML)
    assert (again.status_code, "a copy of this item was pushed before" in again.text) == (422, True)
    form["label"] = ["second"]
    assert each_api.request("POST", "/edit", data=form, headers=HTML).status_code == 200
    assert broker.queue("again").size() == 2


def test_what_cannot_be_used_is_explained_beside_its_field(api: Api, queue: mongoq.Queue[Any], id: str) -> None:
    for fields, problem in (
        ({"payload": '{"a": 1'}, "not valid JSON: Expecting ',' delimiter: line 1 column 8"),
        ({"payload": '{"a": {"$oid": "x"}}'}, "extended JSON that means no value"),
        ({"payload": '{"a": 1, "a": 2}'}, "name 'a' occurs twice"),
        ({"payload": ""}, "not valid JSON"),
        ({"payload": "null"}, "null is no payload"),
        ({"payload": '{"a": 9999999999999999999999}'}, "payload.a"),
        ({"payload": "1", "to": "$x"}, "cannot begin with"),
        ({"payload": "1", "label": "x" * 3000}, "bytes"),
    ):
        name = list(fields)[-1]
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


def test_a_reader_has_no_editor(open_app: Callable[..., Api], id: str) -> None:
    api = open_app()
    assert "/edit" not in open_page(api, "/item", id=id)
    assert api.request("GET", f"/edit?id={id}", headers=HTML).status_code == 403
    assert send(api, id=id, payload="3", confirmed="yes").status_code == 403


def test_a_payload_is_read_from_the_form_as_it_was(api: Api, queue: mongoq.Queue[Any], raw: Any) -> None:
    payloads: list[Any] = [
        *(Int64(-5), 5, 5.0, "x", True, [1, [2]], {"$set": {"a.b": 1}}, {"": Regex("a.b", "i")}),
    ]
    for payload in payloads:
        id = str(queue.push(payload))
        queue.pop()
        text = read_text(open_page(api, "/edit", id=id))
        assert send(api, id=id, payload=text, confirmed="yes", to="again").status_code == 200, payload
        [stored] = raw.find({"q": "again", "when": {"$exists": True}})
        assert bson.encode({"v": stored["payload"]}) == bson.encode({"v": payload})
        raw.delete_many({"q": "again", "when": {"$exists": True}})


def test_what_only_looks_like_extended_json_or_is_too_long_is_not_edited(api: Api, queue: mongoq.Queue[Any]) -> None:
    for payload, problem in (
        ({"a": {"$oid": "65f0c0ffee65f0c0ffee0001"}}, "would change the types"),
        ({"$numberLong": "7"}, "would change the types"),
        ({"$date": "soon"}, "would change the types"),
        ({"note": "x" * 500_000}, "a form takes 500,000 at most"),
    ):
        id = queue.push(payload)
        queue.pop()
        answer = api.request("GET", f"/edit?id={id}", headers=HTML)
        assert (answer.status_code, problem in answer.text) == (409, True), answer.text


def test_differences_have_paths_and_types(api: Api, queue: mongoq.Queue[Any]) -> None:
    id = str(queue.push({"a": 1, "b": [1, {"c": None}], "gone": 1, "same": 2**40}))
    queue.pop()
    after = '{"a": {"$numberLong": "1"}, "b": [1, {"c": 0.5}, 3], "new": [], "same": 1099511627776}'
    page = send(api, id=id, payload=after).text
    rows = [
        [
            " ".join(unescape(re.sub(r"<[^>]+>", "", cell)).split())
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    seen = {row[0]: " ".join(row[1:]) for row in rows}
    assert {path: seen.get(path) for path in ("a", "b[1].c", "b[2]", "gone", "new", "same")} == {
        "a": "1 int 1 long, another type",
        "b[1].c": "null null 0.5 double, another type",
        "b[2]": "not there 3 int",
        "gone": "1 int left out",
        "new": "not there [] array",
        "same": None,
    }
