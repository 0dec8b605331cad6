"""The content of a recipe: from a mapping, or from a file of JSON or YAML; bounded, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.naming import in_a_line

__all__ = ["recipe_content"]

FILE_BYTES = 1024 * 1024
MOST_VALUES = 100_000
"""Values of a recipe, each counted as often as it turns up: a few aliases of YAML make billions."""
NESTING_LIMIT = 60


def recipe_content(recipe: Any) -> tuple[str, Any]:
    """Return what a recipe is called while its name is not known, and what it holds.

    Raises:
        GraphInvalid: it cannot be read, or is too large.
        ArgumentInvalid: it is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    if isinstance(recipe, Mapping):
        title, content = "recipe", recipe
    elif isinstance(recipe, str | PathLike):
        title, content = _of_file(Path(recipe))
    else:
        raise ArgumentInvalid("recipe", f"a mapping, or the path of a file, not {type(recipe).__name__}")
    _check_size(title, content)
    return title, content


def _of_file(path: Path) -> tuple[str, Any]:
    load = _loader(path)
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except ValueError as error:
        raise ArgumentInvalid("recipe", f"no path of a file: {error}") from error
    if len(text) > FILE_BYTES:
        raise GraphInvalid(path.name, [f"recipe: more than {FILE_BYTES:,} bytes; that is no recipe, or several"])
    try:
        return path.name, load(text)
    except Exception as error:  # PyYAML raises many kinds for values that are none of their type
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise GraphInvalid(path.name, [f"recipe: it cannot be read: {reason}"]) from error


def _loader(path: Path) -> Callable[[bytes], Any]:
    if path.suffix.lower() == ".json":
        return lambda text: json.loads(text, object_pairs_hook=_unique)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ArgumentInvalid("recipe", f"a file whose name ends in .yaml, .yml or .json, not {path.name!r:.150}")
    try:
        from mongoq.pipeline import yaml_text
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        raise ArgumentInvalid(
            "recipe", "YAML needs PyYAML; install mongoq-driver[yaml], or write the recipe as JSON"
        ) from error
    return yaml_text.load


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return whole


class _TooMuch(Exception):
    """More than a recipe may hold."""


def _check_size(title: str, content: Any) -> None:
    try:
        values, levels = _size(content, 1, {})
        if values > MOST_VALUES:
            raise _TooMuch(f"more than {MOST_VALUES:,} values, aliases counted as what they stand for; write less")
        if levels > NESTING_LIMIT:
            raise _TooMuch(f"nested deeper than {NESTING_LIMIT} levels")
    except _TooMuch as error:
        raise GraphInvalid(title, [f"recipe: {error}"]) from None


def _size(value: Any, level: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values it holds, itself included, and over how many levels; each part is looked at once."""
    if level > NESTING_LIMIT:
        raise _TooMuch(f"nested deeper than {NESTING_LIMIT} levels")
    parts: Iterable[Any] | None = None
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    if parts is None:
        return 1, 1
    if id(value) not in known:
        sizes = [_size(part, level + 1, known) for part in parts]
        known[id(value)] = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    return known[id(value)]
