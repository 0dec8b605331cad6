"""Each log record that names an item, a queue or a worker in its words has them as fields as well."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.log_fields import log_fields

ROOT = Path(mongoq.__file__).parent
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAMES = re.compile(r"\b(items?|documents?|queues?|worker|run of) (%|id)", re.IGNORECASE)
"""Words that name an item, a queue or a worker."""


def log_calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "logger":
                yield node


def texts_of(tree: ast.Module, call: ast.Call) -> list[str]:
    """Return the texts of a call: its own, or all strings that its variable may have; none for a parameter."""
    assert isinstance(call.func, ast.Attribute)
    text = call.args[1 if call.func.attr == "log" else 0]
    if isinstance(text, ast.Constant):
        return [str(text.value)]
    name = text.value if isinstance(text, ast.Subscript) else text
    assert isinstance(name, ast.Name), ast.dump(text)
    return [
        str(part.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name.id for to in node.targets)
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant)
    ]


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_record_that_names_something_has_its_fields(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lacking = [
        f"{path}:{call.lineno}"
        for call in log_calls(tree)
        if not any(keyword.arg == "extra" for keyword in call.keywords)
        and ((texts := texts_of(tree, call)) == [] or any(NAMES.search(text) for text in texts))
    ]
    assert lacking == []


def test_the_calls_are_found() -> None:
    calls = [call for path in modules() for call in log_calls(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(calls) > 80
    assert sum(any(keyword.arg == "extra" for keyword in call.keywords) for call in calls) > 40


def test_the_fields_do_not_clash_with_attributes_of_a_record() -> None:
    item: Any = SimpleNamespace(queue="orders", id=ObjectId(), attempts=2)
    fields = log_fields(item, worker="host:1:a/1", duration=1 / 3)
    record = logging.makeLogRecord({})
    assert set(fields) == {
        "mongoq_queue",
        "mongoq_item",
        "mongoq_attempt",
        "mongoq_worker",
        "mongoq_duration",
    }
    assert not set(fields) & set(vars(record))
    assert fields["mongoq_item"] == str(item.id)
    assert fields["mongoq_duration"] == 0.333333
    assert log_fields() == {}
