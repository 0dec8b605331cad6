"""Content of a recipe: a mapping, or a file of JSON or YAML; its size is limited, so that any file is safe to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.graph.handlers import in_a_line

FILE_BYTES = 1024 * 1024
MAX_VALUES = 20_000
"""Values of a recipe, at most; each is counted at every place where it occurs: a few YAML aliases make billions."""
MAX_TEXT_LENGTH = 1024 * 1024
"""Characters and bytes of all values and keys, at most, counted in the same way."""
MAX_STAGES = 1_000
"""Entries of ``stages`` and of ``sources``, at most: checks compare stages with each other."""
NESTING_LIMIT = 60
INTEGER_BITS = 1024
"""Bits of an integer, at most: Python refuses to write very large integers in digits, so no error could show them."""
TOO_MANY = f"more than {MAX_VALUES:,} values, aliases counted as what they stand for; write less"
TOO_DEEP = f"nested deeper than {NESTING_LIMIT} levels"


class TooMuch(Exception):
    """The recipe is larger than its limits."""


class _Size(NamedTuple):
    """Size of a value.

    Attributes:
        values: number of values: itself, and all values inside.
        levels: depth of nesting.
        text: number of characters and bytes in them.
    """

    values: int = 1
    levels: int = 1
    text: int = 0


def check_size(content: Any) -> None:
    """Raise ``TooMuch`` if the content is larger than a recipe may be."""
    size = _size(content, 1, {})
    if size.values > MAX_VALUES:
        raise TooMuch(TOO_MANY)
    if size.levels > NESTING_LIMIT:
        raise TooMuch(TOO_DEEP)
    if size.text > MAX_TEXT_LENGTH:
        raise TooMuch(f"more than {MAX_TEXT_LENGTH:,} characters, aliases counted as what they stand for; write less")
    for part in ("stages", "sources"):
        listed = content.get(part) if isinstance(content, Mapping) else None
        if isinstance(listed, list | tuple) and len(listed) > MAX_STAGES:
            raise TooMuch(f"{len(listed):,} {part}, and {MAX_STAGES:,} is the limit; make several pipelines of it")


def _size(value: Any, level: int, sizes_by_id: dict[int, _Size]) -> _Size:
    """Measure a value; a part that occurs at several places is measured once."""
    if level > NESTING_LIMIT:
        raise TooMuch(TOO_DEEP)
    if isinstance(value, str | bytes):
        return _Size(text=len(value))
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        raise TooMuch(f"an integer of more than {INTEGER_BITS:,} bits; write a smaller one")
    parts = _parts(value)
    if parts is None:
        return _Size()
    # By identity: an alias of YAML is the same object at each place, and measuring it again would take exponential
    # time.
    if id(value) not in sizes_by_id:
        sizes = [_size(part, level + 1, sizes_by_id) for part in parts]
        keys = sum(len(key) for key in value if isinstance(key, str)) if isinstance(value, Mapping) else 0
        sizes_by_id[id(value)] = _Size(
            1 + sum(size.values for size in sizes),
            1 + max((size.levels for size in sizes), default=0),
            keys + sum(size.text for size in sizes),
        )
    return sizes_by_id[id(value)]


def _parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else None


def recipe_content(recipe: Any) -> tuple[str, Any]:
    """Return a title for errors until the recipe's name is known, and the content of the recipe.

    Raises:
        GraphInvalid: the recipe cannot be read, or is too large.
        ArgumentInvalid: the argument is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    if not isinstance(recipe, Mapping | str | PathLike):
        raise ArgumentInvalid("recipe", f"a mapping, or the path of a file, not {type(recipe).__name__}")
    title = "recipe" if isinstance(recipe, Mapping) else Path(recipe).name
    try:
        content = recipe if isinstance(recipe, Mapping) else _read_file(Path(recipe))
        check_size(content)
    except TooMuch as error:
        raise GraphInvalid(title, [f"recipe: {error}"]) from None
    return title, content


def _read_file(path: Path) -> Any:
    load = _loader(path)
    # One byte more than the limit: enough to see that the file is too large, without reading all of it.
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except ValueError as error:
        raise ArgumentInvalid("recipe", f"no path of a file: {error}") from error
    if len(text) > FILE_BYTES:
        raise TooMuch(f"more than {FILE_BYTES:,} bytes; that is no recipe, or several")
    try:
        return load(text)
    except TooMuch:
        raise
    except RecursionError:
        raise TooMuch(TOO_DEEP) from None
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
        hint = "YAML needs PyYAML; install mongoq-driver[yaml], or write the recipe as JSON"
        raise ArgumentInvalid("recipe", hint) from error
    return yaml_text.load


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object; raises ``ValueError`` for a duplicate key."""
    whole: dict[str, Any] = {}
    for key, value in pairs:
        if key in whole:
            raise ValueError(f"the key {key!r:.150} is given twice")
        whole[key] = value
    return whole
