"""Checks that each log record that names an item, a queue or a worker has them as fields too (`extra=`).

    python scripts/check_log_fields.py

A record's fields are what a log store searches by. Exit status: 0 when all records have them, 1 with a list otherwise.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAMES = re.compile(r"\b(items?|documents?|queues?|worker|run of) (%|id)", re.IGNORECASE)


def find_log_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of methods of `logger`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "logger":
                yield node


def find_texts(tree: ast.Module, call: ast.Call) -> list[str]:
    """Return the texts of a call: its own, or all strings that its variable may have; none for a parameter."""
    assert isinstance(call.func, ast.Attribute)
    text = call.args[1 if call.func.attr == "log" else 0]
    if isinstance(text, ast.Constant):
        return [str(text.value)]
    name = text.value if isinstance(text, ast.Subscript) else text
    return [
        str(part.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(name, ast.Name)
        and any(isinstance(to, ast.Name) and to.id == name.id for to in node.targets)
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant)
    ]


def find_lacking(path: Path) -> Iterator[str]:
    """Yield the places of a module where a record has no fields, and names something or cannot be read."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for call in find_log_calls(tree):
        if any(keyword.arg == "extra" for keyword in call.keywords):
            continue
        texts = find_texts(tree, call)
        if not texts or any(NAMES.search(text) for text in texts):
            yield f"{path.relative_to(ROOT)}:{call.lineno}: a record that names something has no extra=log_fields(…)"


def main() -> int:
    """Print what is lacking, and return the exit status."""
    lacking = [line for path in sorted((ROOT / "mongoq").rglob("*.py")) for line in find_lacking(path)]
    print("\n".join(lacking), end="\n" if lacking else "")
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main())
