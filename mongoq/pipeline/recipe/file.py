"""Content of a recipe: a mapping, or a file of JSON or YAML; its size is limited, so that any file is safe to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.graph.names import in_a_line
from mongoq.pipeline.recipe.size import TOO_DEEP, TooMuch, check_size

__all__ = ["recipe_content", "without_doubles"]

FILE_BYTES = 1024 * 1024


def recipe_content(recipe: Any) -> tuple[str, Any]:
    """Return a title for errors until the recipe's name is known, and the content of the recipe.

    Raises:
        GraphInvalid: the recipe cannot be read, or is too large.
        ArgumentInvalid: the argument is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    if isinstance(recipe, Mapping):
        title, content = "recipe", recipe
    elif isinstance(recipe, str | PathLike):
        title, content = _of_file(Path(recipe))
    else:
        raise ArgumentInvalid("recipe", f"a mapping, or the path of a file, not {type(recipe).__name__}")
    try:
        check_size(content)
    except TooMuch as error:
        raise GraphInvalid(title, [f"recipe: {error}"]) from None
    return title, content


def _of_file(path: Path) -> tuple[str, Any]:
    load = _loader(path)
    # One byte more than the limit: enough to see that the file is too large, without reading all of it.
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except ValueError as error:
        raise ArgumentInvalid("recipe", f"no path of a file: {error}") from error
    if len(text) > FILE_BYTES:
        raise GraphInvalid(path.name, [f"recipe: more than {FILE_BYTES:,} bytes; that is no recipe, or several"])
    try:
        return path.name, load(text)
    except TooMuch as error:
        raise GraphInvalid(path.name, [f"recipe: {error}"]) from None
    except RecursionError:
        raise GraphInvalid(path.name, [f"recipe: {TOO_DEEP}"]) from None
    except Exception as error:  # PyYAML raises many kinds of errors, for example for an impossible date
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise GraphInvalid(path.name, [f"recipe: it cannot be read: {reason}"]) from error


def _loader(path: Path) -> Callable[[bytes], Any]:
    if path.suffix.lower() == ".json":
        return lambda text: json.loads(text, object_pairs_hook=without_doubles)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ArgumentInvalid("recipe", f"a file whose name ends in .yaml, .yml or .json, not {path.name!r:.150}")
    try:
        from mongoq.pipeline.recipe import yaml_text
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        raise ArgumentInvalid(
            "recipe", "YAML needs PyYAML; install mongoq-driver[yaml], or write the recipe as JSON"
        ) from error
    return yaml_text.load


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object; raises ``ValueError`` for a duplicate key."""
    whole: dict[str, Any] = {}
    for key, value in pairs:
        if key in whole:
            raise ValueError(f"the key {key!r:.150} is given twice")
        whole[key] = value
    return whole
