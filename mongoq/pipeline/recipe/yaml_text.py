"""YAML for recipes: plain values only, and no duplicate keys. Imported only if PyYAML is installed."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

from mongoq.pipeline.recipe.recipe import MAX_VALUES, NESTING_LIMIT, TOO_DEEP, TOO_MANY, TooMuch

MERGE = "tag:yaml.org,2002:merge"
INTEGER = "tag:yaml.org,2002:int"
KEY_DIGITS = 18
"""Digits of an integer key, at most. Thousands of larger integers can have equal hashes: a quadratic mapping."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it carries no types
    """Loader that composes a limited number of nodes: PyYAML takes seconds for a hundred thousand of them."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count the nodes and the depth of their nesting."""
        self._nodes += 1
        self._depth += 1
        if self._nodes > 2 * MAX_VALUES:  # a key is a node as well
            raise TooMuch(TOO_MANY)
        if self._depth > NESTING_LIMIT:
            raise TooMuch(TOO_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse keys that are written differently and have the same value, such as ``on`` and ``yes``."""
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise _refusal("two of its keys are the same value", node)
        return mapping

    def construct_number(self, node: Any) -> int | float:
        """Refuse numbers in base 60: PyYAML takes quadratic time for them."""
        if ":" in self.construct_scalar(node):
            raise _refusal("numbers in base 60, such as 1:30, are not taken; put them in quotes", node)
        is_int = node.tag == INTEGER
        number: int | float = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
        return number

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse duplicate keys before a mapping is made; nested merges also grow without bounds."""
        keys = set()
        for key, _ in node.value:
            if key.tag == MERGE:
                raise _refusal("merge keys (<<) are not taken; write the keys out", key)
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key is a plain value", key)
            if key.tag == INTEGER and len(key.value) > KEY_DIGITS:
                raise _refusal(f"a number of more than {KEY_DIGITS} digits is no key; put it in quotes", key)
            if key.value in keys:
                raise _refusal(f"the key {key.value!r:.150} is given twice", key)
            keys.add(key.value)


# SafeLoader reads 1:30 as 90, a number in base 60, by the constructors of these two tags.
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _refusal(problem: str, node: yaml.Node) -> Exception:
    error: Exception = yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
    return error


def load(text: bytes) -> Any:
    """Return the value of the only document of a text; raises the errors of PyYAML, which are of many kinds."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
