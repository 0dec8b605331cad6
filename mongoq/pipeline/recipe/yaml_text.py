"""YAML as recipes use it: plain values alone, and no key twice. Imported only where PyYAML is there."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

from mongoq.pipeline.recipe.size import MOST_VALUES, NESTING_LIMIT, TOO_DEEP, TOO_MANY, TooMuch

__all__ = ["load"]

MERGE = "tag:yaml.org,2002:merge"
INTEGER = "tag:yaml.org,2002:int"
KEY_DIGITS = 18
"""Larger integers can have the same hash by thousands, and a mapping of them takes the square of their number."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it carries no types
    """Composes no more nodes than a recipe may have values: PyYAML takes seconds for a hundred thousand."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count the nodes, and how deep they are nested."""
        self._nodes += 1
        self._depth += 1
        if self._nodes > 2 * MOST_VALUES:  # a key is a node as well
            raise TooMuch(TOO_MANY)
        if self._depth > NESTING_LIMIT:
            raise TooMuch(TOO_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse keys that are written differently and mean the same, such as ``on`` and ``yes``."""
        made = super().construct_mapping(node, deep)
        if len(made) < len(node.value):
            raise _refusal("two of its keys are the same value", node)
        return made

    def construct_number(self, node: Any) -> int | float:
        """Refuse numbers in base 60, which take a time that grows with the square of their length."""
        if ":" in self.construct_scalar(node):
            raise _refusal("numbers in base 60, such as 1:30, are not taken; put them in quotes", node)
        is_int = node.tag == INTEGER
        number: int | float = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
        return number

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse what would hide a key, before a mapping is made; merges of merges also grow without bounds."""
        seen = set()
        for key, _ in node.value:
            if key.tag == MERGE:
                raise _refusal("merge keys (<<) are not taken; write the keys out", key)
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key is a plain value", key)
            if key.tag == INTEGER and len(key.value) > KEY_DIGITS:
                raise _refusal(f"a number of more than {KEY_DIGITS} digits is no key; put it in quotes", key)
            if key.value in seen:
                raise _refusal(f"the key {key.value!r:.150} is given twice", key)
            seen.add(key.value)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _refusal(problem: str, node: yaml.Node) -> Exception:
    error: Exception = yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
    return error


def load(text: bytes) -> Any:
    """Return the value of the one document of a text; raises what PyYAML raises, and that is many kinds."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
