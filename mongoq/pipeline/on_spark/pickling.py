"""Cloudpickle, extended by functions with a ``functools.cache`` that no module has.

Cloudpickle pickles a cached function by its name, so a function of a script would be missing in the executors. Here its
plain function is sent, and the cache begins empty there.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from functools import lru_cache, update_wrapper
from typing import Any

from pyspark import cloudpickle

__all__ = ["dumps"]

Cached = type(lru_cache(abs))


def dumps(value: Any) -> bytes:
    """Return a value as bytes for ``pickle.loads``; raises the errors that pickling the value raises."""
    with io.BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Cached) and not _is_found(obj):
            told = {"function": obj.__wrapped__}
            return _empty, (obj.cache_parameters(),), told, None, None, _filled
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _is_found(function: Any) -> bool:
    """Return whether the function's module has it by this name; functions of ``__main__`` are in the script only."""
    module = str(getattr(function, "__module__", None))
    found: Any = None if module == "__main__" else sys.modules.get(module)
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is function


class _Behind:
    """The function behind a cache. It may refer to the cache itself, so it is set after the cache was made."""

    function: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)


def _empty(parameters: Mapping[str, Any]) -> Any:
    return lru_cache(**parameters)(_Behind())


def _filled(cached: Any, told: Mapping[str, Any]) -> None:
    cached.__wrapped__.function = told["function"]
    update_wrapper(cached, told["function"])
