"""Handlers: their import paths, their names for people, and the types that their annotations tell."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, Union, get_args, get_origin
from uuid import UUID

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo

from mongoq.data.encoding.error_text import one_line
from mongoq.errors import ArgumentInvalid


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
SCALARS: tuple[type, ...] = (str, bytes, int, float, bool, datetime, date, time, timedelta, Decimal, UUID)
CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
NUMBER_TYPES: tuple[type, ...] = (int, float, bool)
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


def may_hold(kind: type, value_type: type) -> bool:
    """Return whether a value of the class ``value_type`` may be an instance of ``kind``."""
    # The type system allows an int for float, and a float for complex, although they are no subclasses.
    if getattr(kind, "_is_protocol", False) or (value_type, kind) in ((int, float), (int, complex), (float, complex)):
        return True
    try:
        return issubclass(value_type, kind) or issubclass(kind, value_type)
    except TypeError:  # for example a TypedDict
        return True


def why_never(kind: type, model: Any) -> str | None:
    """Return why no value of a class ever fits a model; ``None`` when one may fit, or when it is unknown."""
    wanted = get_origin(model) or model
    if not isinstance(wanted, type):
        return None
    # A pydantic model that is stored as its fields, without a serializer of its own.
    is_stored_by_fields = is_plain(kind) and not kind.__pydantic_decorators__.model_serializers  # type: ignore[attr-defined]
    if is_plain(wanted) and not issubclass(kind, wanted) and kind not in SCALARS:
        return _lacking(kind, wanted) if is_stored_by_fields else None
    document = kind is dict or is_stored_by_fields
    never = (
        (is_plain(wanted) and not issubclass(kind, wanted))
        or (wanted in (str, bytes) and kind in NUMBER_TYPES)
        or (wanted in SCALARS and document)
        or (wanted in CONTAINERS and wanted is not dict and (document or kind in SCALARS))
        or (wanted is dict and kind in SCALARS)
    )
    return f"{kind.__name__} is no {wanted.__name__}" if never else None


def is_plain(model: Any) -> bool:
    """Return whether a class is a pydantic model that accepts documents with its fields, and nothing else."""
    if not isinstance(model, type) or not issubclass(model, BaseModel) or issubclass(model, RootModel):
        return False
    # A "before" or "wrap" validator, or a core schema of its own, may accept any input.
    validators = model.__pydantic_decorators__.model_validators.values()
    # BaseModel has this method itself; only an override changes the values that a class accepts.
    own = any("__get_pydantic_core_schema__" in base.__dict__ for base in model.__mro__ if base is not BaseModel)
    return not own and all(validator.info.mode == "after" for validator in validators)


def _lacking(kind: Any, wanted: Any) -> str | None:
    if kind.model_config.get("extra") == "allow":
        return None
    names = {name for field, info in kind.model_fields.items() for name in _aliases(field, info)}
    # The reader may use any of its names for a field, and the writer may have written it by any of its names.
    missing = [
        field
        for field, info in wanted.model_fields.items()
        if info.is_required()
        # Such a field may be read from several places, or from inside another field.
        and not isinstance(info.validation_alias, AliasChoices | AliasPath)
        and names.isdisjoint(_aliases(field, info))
    ]
    return f"{kind.__name__} lacks {', '.join(missing)} of {wanted.__name__}" if missing else None


def _aliases(field: str, info: FieldInfo) -> set[str]:
    aliases = (field, info.alias, info.validation_alias, info.serialization_alias)
    return {name for name in aliases if isinstance(name, str)}
