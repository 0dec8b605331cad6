"""The table of bodies in the docs names all fields of each call, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
ROW = re.compile(r"^\| (`/api/[^|]*) \| ([^|]*) \|([^|]*)\|$", re.MULTILINE)
NAME = re.compile(r"`(\w+)`")


def test_the_page_names_the_fields_of_each_body(make_app: Callable[[], Any]) -> None:
    shown = {
        path: (set(NAME.findall(needed)), set(NAME.findall(optional)))
        for paths, needed, optional in ROW.findall(PAGE.read_text())
        for path in re.findall(r"`(/api/[\w/]+)`", paths)
    }
    described = make_app().openapi()
    taken = {}
    for path, calls in described["paths"].items():
        if path.startswith("/api/") and "post" in calls:
            reference = calls["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            body = described["components"]["schemas"][reference.rpartition("/")[2]]
            needed = set(body["required"])
            taken[path] = (needed, set(body["properties"]) - needed)
    assert len(taken) == 15
    assert shown == taken
