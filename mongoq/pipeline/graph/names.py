"""Names: of handlers, of the modules that they are imported from, and in a form for people."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, get_origin

from mongoq.errors import ArgumentInvalid

__all__ = ["handler_name", "import_path", "in_a_line", "model_name", "names", "shown", "told"]

PLAIN = re.compile(r"[\w.:@/+-]+")


def handler_name(handler: Any) -> str:
    """Return the name of a function, of the function inside a ``partial``, or of the class of a callable object."""
    return str(getattr(_called(handler), "__name__", None) or type(handler).__name__)


def import_path(thing: Any) -> str:
    """Return the import path of a function or class, such as ``app.stages:check``; other objects have their class's."""
    called = _called(thing)
    if not getattr(called, "__qualname__", None):
        called = type(called)
    return f"{getattr(called, '__module__', None) or 'builtins'}:{called.__qualname__}"


def _called(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    return handler


def shown(name: Any) -> str:
    """Return a plain name unchanged; a name with blanks, quotes or unprintable characters is quoted."""
    if isinstance(name, str) and PLAIN.fullmatch(name):
        return name
    return f"{name!r:.150}"


def in_a_line(error: BaseException) -> str:
    """Return the message of an error as one line; a long one is cut."""
    return f"{' '.join(str(error).split()):.500}"


def model_name(model: Any) -> str:
    """Return the import path of a model; for a model that is no class, such as ``list[int]``, its ``repr``."""
    return import_path(model) if isinstance(model, type) and get_origin(model) is None else repr(model)


def names(given: Any) -> tuple[Any, ...]:
    """Return one name or several as a tuple; another value stays as it is, and a check reports it."""
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def told(given: Any, decorator: str) -> tuple[Any, ...]:
    """Return the names that a decorator was called with.

    Raises:
        ArgumentInvalid: the argument is a function: without parentheses the decorator would declare nothing.
    """
    if callable(given):
        raise ArgumentInvalid("source", f'the name of a queue, not a function: write @pipeline.{decorator}("queue")')
    return names(given)
