"""What things are called: names of handlers, where they are imported from, and names as they are shown to people."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, get_origin

from mongoq.errors import ArgumentInvalid

__all__ = ["handler_name", "import_path", "in_a_line", "model_name", "names", "shown", "told"]

PLAIN = re.compile(r"[\w.:@/+-]+")


def handler_name(handler: Any) -> str:
    """Return the name of a function, of what a ``partial`` calls, or of the class of what is called like a function."""
    return str(getattr(_called(handler), "__name__", None) or type(handler).__name__)


def import_path(thing: Any) -> str:
    """Return where a function or a class is imported from, such as ``app.stages:check``; of others, of their class."""
    called = _called(thing)
    if not getattr(called, "__qualname__", None):
        called = type(called)
    return f"{getattr(called, '__module__', None) or 'builtins'}:{called.__qualname__}"


def _called(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    return handler


def shown(name: Any) -> str:
    """Return a name as it is when it is plain, and quoted when it holds blanks, quotes or what cannot be printed."""
    if isinstance(name, str) and PLAIN.fullmatch(name):
        return name
    return f"{name!r:.150}"


def in_a_line(error: BaseException) -> str:
    """Return the message of an error as one line; a long one is cut."""
    return f"{' '.join(str(error).split()):.500}"


def model_name(model: Any) -> str:
    """Return where a model is imported from; of what is no class, such as ``list[int]``, how it is written."""
    return import_path(model) if isinstance(model, type) and get_origin(model) is None else repr(model)


def names(given: Any) -> tuple[Any, ...]:
    """Return one name or several as a tuple; what is neither stays as it is, for a check to tell."""
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def told(given: Any, decorator: str) -> tuple[Any, ...]:
    """Return the names that a decorator was told.

    Raises:
        ArgumentInvalid: it is a function: without its parentheses the decorator would declare nothing.
    """
    if callable(given):
        raise ArgumentInvalid("source", f'the name of a queue, not a function: write @pipeline.{decorator}("queue")')
    return names(given)
