"""Handlers: their import paths, their names for people, and the types that their annotations tell."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, Union, get_args, get_origin

from mongoq.errors import ArgumentInvalid
from mongoq.model.encoding.error_text import one_line


class ImportFailed(Exception):
    """The path cannot be imported; the message has the reason."""


def import_object(path: Any) -> Any:
    """Return the object that a path names.

    Raises:
        ImportFailed: the path names nothing, or the module raises an error (also ``SystemExit``).
    """
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not module or not name:
        raise ImportFailed(f"an import path such as 'package.module:function', not {path!r:.150}")
    try:
        target = import_module(module)
        for step in name.split("."):
            target = getattr(target, step)
    # An imported module may raise anything, also SystemExit, but Ctrl-C of the user has to end the program.
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise ImportFailed(f"{path!r:.150} cannot be imported: {reason}; mend that, or the path") from error
    return target


PLAIN_NAME = re.compile(r"[\w.:@/+-]+")


def handler_name(handler: Any) -> str:
    """Return the name of a function, of the function inside a ``partial``, or of the class of a callable object."""
    return str(getattr(_called_function(handler), "__name__", None) or type(handler).__name__)


def import_path(thing: Any) -> str:
    """Return the import path of a function or class, such as ``app.stages:check``; other objects have their class's."""
    called = _called_function(thing)
    if not getattr(called, "__qualname__", None):
        called = type(called)
    return f"{getattr(called, '__module__', None) or 'builtins'}:{called.__qualname__}"


def _called_function(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    return handler


def quote_if_odd(name: Any) -> str:
    """Return a plain name unchanged; a name with blanks, quotes or unprintable characters is quoted."""
    if isinstance(name, str) and PLAIN_NAME.fullmatch(name):
        return name
    return f"{name!r:.150}"


def in_a_line(error: BaseException) -> str:
    """Return the message of an error as one line; a long one is cut."""
    return f"{one_line(str(error)):.500}"


def model_name(model: Any) -> str:
    """Return the import path of a model; for a model that is no class, such as ``list[int]``, its ``repr``."""
    return import_path(model) if isinstance(model, type) and get_origin(model) is None else repr(model)


def names(queues: Any) -> tuple[Any, ...]:
    """Return one name or several as a tuple; another value stays as it is, and a check reports it."""
    return tuple(queues) if isinstance(queues, list | tuple) else (queues,)


def decorator_names(queues: Any, decorator: str) -> tuple[Any, ...]:
    """Return the names that a decorator was called with.

    Raises:
        ArgumentInvalid: the argument is a function: without parentheses the decorator would declare nothing.
    """
    if callable(queues):
        raise ArgumentInvalid("source", f'the name of a queue, not a function: write @pipeline.{decorator}("queue")')
    return names(queues)


UNKNOWN_ANNOTATION: Final = object()
LIST_TYPES = (list, Sequence, MutableSequence, Collection, Iterable)


def argument_type(handler: Any) -> Any:
    """Return the annotation of a handler's first argument."""
    try:
        first = next(iter(inspect.signature(handler).parameters))
    except (TypeError, ValueError, StopIteration):  # no argument, or a function written in C without a signature
        return UNKNOWN_ANNOTATION
    return _annotation(handler, first)


def return_type(handler: Any) -> Any:
    """Return the annotation of a handler's return value."""
    return _annotation(handler, "return")


def _annotation(handler: Any, name: str) -> Any:
    # Annotations of a partial are those of its function. A class and a wrapped function (functools.wraps) leave the
    # types open.
    function = _called_function(handler)
    if inspect.isclass(function):
        return UNKNOWN_ANNOTATION
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__")  # noqa: B004, B009
    try:
        annotations = getattr(function, "__annotations__", {})
        if name not in annotations or hasattr(function, "__wrapped__"):
            return UNKNOWN_ANNOTATION
        # One annotation alone: others that cannot be resolved do not matter.
        alone: Any = types.SimpleNamespace(__annotations__={name: annotations[name]})
        return typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception:  # a string annotation is an expression that is evaluated, and may raise anything
        return UNKNOWN_ANNOTATION


def classes(annotation: Any) -> list[type] | None:
    """Return the classes of which a value of this annotation is one; ``None`` if the annotation leaves them open."""
    if get_origin(annotation) is Annotated:
        return classes(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [classes(part) for part in get_args(annotation)]
        known_parts = [part for part in parts if part is not None]
        return [kind for part in known_parts for kind in part] if len(known_parts) == len(parts) else None
    kind = get_origin(annotation) or annotation
    return [kind] if isinstance(kind, type) and kind not in (object, Any) else None


def elements(annotation: Any) -> Any:
    """Return the annotation of a list's elements; ``UNKNOWN_ANNOTATION`` if the annotation is not a list."""
    kind = get_origin(annotation)
    if kind is Annotated:
        return elements(get_args(annotation)[0])
    return get_args(annotation)[0] if kind in LIST_TYPES else UNKNOWN_ANNOTATION
