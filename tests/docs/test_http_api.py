"""The calls on the page of the HTTP API are sent, and answered with the fields that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mongoq

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "http-api.md"
CALL = re.compile(r"^\$ (curl .*?)^(\{.*?)(?=^\$|^```)", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r'"(\w+)":')


def test_the_calls_of_the_page_answer_as_it_shows(uri: str, database: str) -> None:
    from mongoq.web import create_app
    from tests.web.conftest import Api

    calls = [(shlex.split(command), answer) for command, answer in CALL.findall(PAGE.read_text())]
    assert len(calls) == 6
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders")
        api = Api(create_app(broker, access="act"), host="http://localhost:8080")
        for (_curl, _silent, address, *body), shown in calls:
            queue.push({"id": 2})
            queue.bury(queue.reserve(), reason="no such city")  # type: ignore[arg-type]  # there is an item
            parts = urlsplit(address)
            options: dict[str, Any] = {}
            if body:
                options = {"content": body[1], "headers": {"content-type": "application/json"}}
            answer = api.request("POST" if body else "GET", f"{parts.path}?{parts.query}", **options)
            assert set(FIELD.findall(shown)) <= set(FIELD.findall(answer.text)), address
        api.close()


def test_the_python_of_the_page_runs_and_writes_nothing_into_the_checkout() -> None:
    assert ROOT not in (Path.cwd(), *Path.cwd().parents)
    program = "\n".join(re.findall(r"^```python.*?\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {}
    exec(program, names)
    assert [route.path for route in names["shop"].routes][-1] == "/queues"
    assert Path("users.txt").is_file()
    assert not (ROOT / "users.txt").exists()


def test_all_calls_are_on_the_page(broker: mongoq.Broker) -> None:
    from mongoq.web import create_app

    page = PAGE.read_text()
    paths = create_app(broker).openapi()["paths"]
    for path in paths:
        assert path in page or f"/{path.rpartition('/')[2]}`" in page, path
