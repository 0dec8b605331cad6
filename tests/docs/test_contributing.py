"""CONTRIBUTING names modules, functions and classes: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`((?:mongoq|tests|scripts)/[\w/]+\.py)(?::([\w.]+))?`")


def has_name(body: list[ast.stmt], name: str) -> bool:
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == first:
            return not rest or has_name(node.body, rest)
    return False


def test_every_place_that_is_named_exists() -> None:
    places = PLACE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert places
    for path, name in places:
        assert (ROOT / path).is_file(), f"there is no {path}"
        tree = ast.parse((ROOT / path).read_text())
        assert not name or has_name(tree.body, name), f"{path} has no {name}"
