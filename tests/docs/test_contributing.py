"""CONTRIBUTING and the page on the architecture name modules, functions and classes: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`((?:mongoq|tests|scripts)/[\w/]+\.py)(?::([\w.]+))?`")
PLACES = sorted(set(PLACE.findall((ROOT / "CONTRIBUTING.md").read_text())))

CELL = re.compile(r"\| `(mongoq(?:\.\w+)*)`: ([^|]+) \|")
PARTS = sorted(
    (package, name)
    for package, names in CELL.findall((ROOT / "docs" / "architecture.md").read_text())
    for name in re.findall(r"`([\w.]+)`", names)
)


def has_name(body: list[ast.stmt], name: str) -> bool:
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == first:
            return not rest or has_name(node.body, rest)
    return False


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_that_is_named_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert not name or has_name(tree.body, name), f"{path} has no {name}"


@pytest.mark.parametrize(("package", "name"), PARTS)
def test_a_part_of_a_package_exists(package: str, name: str) -> None:
    folder = ROOT / package.replace(".", "/")
    files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    assert any(has_name(ast.parse(file.read_text()).body, name) for file in files), f"{package} has no {name}"


def test_there_are_places() -> None:
    assert len(PLACES) > 30
    assert len(PARTS) > 15
