"""YAML as recipes use it: plain values alone, and no key twice. Imported only where PyYAML is there."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

__all__ = ["load"]

MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it carries no types
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse what would hide a key, before a mapping is made; merges of merges also grow without bounds."""
        seen = set()
        for key, _ in node.value:
            if key.tag == MERGE:
                raise _refusal("merge keys (<<) are not taken; write the keys out", key)
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key is a plain value", key)
            if key.value in seen:
                raise _refusal(f"the key {key.value!r} is given twice", key)
            seen.add(key.value)


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
