"""What things are called: names of handlers, where they are imported from, and names as they are shown to people."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

__all__ = ["handler_name", "import_path", "shown"]

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
