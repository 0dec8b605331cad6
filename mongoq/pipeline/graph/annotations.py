"""Types of payloads from a handler's annotations. ``UNTOLD`` stands for an annotation that is missing or unreadable."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, MutableSequence, Sequence
from functools import partial
from typing import Annotated, Any, Final, Union, get_args, get_origin

__all__ = ["UNTOLD", "classes", "elements", "returned", "taken"]

UNTOLD: Final = object()
LISTS = (list, Sequence, MutableSequence, Collection, Iterable)


def taken(handler: Any) -> Any:
    """Return the annotation of a handler's first argument."""
    try:
        first = next(iter(inspect.signature(handler).parameters))
    except (TypeError, ValueError, StopIteration):  # no argument, or a function written in C without a signature
        return UNTOLD
    return _annotation(handler, first)


def returned(handler: Any) -> Any:
    """Return the annotation of a handler's return value."""
    return _annotation(handler, "return")


def _annotation(handler: Any, name: str) -> Any:
    function = _function(handler)
    try:
        told = getattr(function, "__annotations__", {})
        if name not in told:
            return UNTOLD
        alone = types.FunctionType(_alone.__code__, getattr(function, "__globals__", {}))
        alone.__annotations__ = {name: told[name]}  # one annotation alone: others that cannot be resolved do not matter
        return typing.get_type_hints(alone, include_extras=True)[name]
    except Exception:  # a string annotation is an expression that is evaluated, and may raise anything
        return UNTOLD


def _alone() -> None:
    pass


def _function(handler: Any) -> Any:
    """Return the function whose annotations hold; ``None`` if a wrapper may have changed what they mean."""
    # Annotations of a partial are those of its function. A class and a wrapped function (functools.wraps) leave the
    # types open.
    while isinstance(handler, partial):
        handler = handler.func
    if inspect.isclass(handler):
        return None
    function: Callable[..., Any] | None = handler if inspect.isroutine(handler) else getattr(type(handler), "__call__")  # noqa: B004, B009
    return None if hasattr(function, "__wrapped__") else function


def classes(annotation: Any) -> list[type] | None:
    """Return the classes of which a value of this annotation is one; ``None`` if the annotation leaves them open."""
    if get_origin(annotation) is Annotated:
        return classes(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [classes(part) for part in get_args(annotation)]
        known = [part for part in parts if part is not None]
        return [kind for part in known for kind in part] if len(known) == len(parts) else None
    kind = get_origin(annotation) or annotation
    return [kind] if isinstance(kind, type) and kind not in (object, Any) else None


def elements(annotation: Any) -> Any:
    """Return the annotation of a list's elements; ``UNTOLD`` if the annotation is not a list."""
    kind = get_origin(annotation)
    if kind is Annotated:
        return elements(get_args(annotation)[0])
    return get_args(annotation)[0] if kind in LISTS else UNTOLD
