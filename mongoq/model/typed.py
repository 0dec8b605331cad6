"""Typed payloads: pydantic values as BSON, and back.

| Python                                   | stored as                    |
|------------------------------------------|------------------------------|
| str, int, float, bool, None, bytes       | themselves                   |
| datetime (aware), UUID, ObjectId         | themselves (BSON has a type) |
| Decimal                                  | Decimal128, 34 digits        |
| Enum                                     | its value                    |
| date, time, timedelta                    | ISO 8601 text                |
| set, frozenset, tuple, deque             | array (of models: as JSON)   |
| mappings                                 | document, keys as text       |
| everything else                          | what pydantic writes as JSON |

Models are dumped by field name, without computed fields, so that what is stored validates again. Whether it does, and
to an equal value, is tried before it is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, TypeVar
from uuid import UUID

from bson.decimal128 import Decimal128
from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from mongoq.errors import PayloadInvalid
from mongoq.model.error_text import spoken

__all__ = ["TypedValues", "parts"]

M = TypeVar("M")
_PLAIN = (str, bool, int, float, bytes, datetime, UUID)
_BY_IDENTITY: Any = object.__eq__
_SECRETS = (SecretStr, SecretBytes)
_ARRAYS = (list, tuple, set, frozenset, deque)


class TypedValues(Generic[M]):
    """Values of one type, by its ``TypeAdapter``."""

    def __init__(self, adapter: TypeAdapter[M]) -> None:
        self._adapter = adapter

    def dump(self, payload: Any, argument: str) -> Any:
        """Validate and return what BSON can hold; raises ``PayloadInvalid``."""
        try:
            value = self._adapter.validate_python(payload, by_name=True, by_alias=True)
            stored = self.stored(value)
            again = self._loaded(stored)
        except _Unstorable as error:
            raise PayloadInvalid(argument + error.path, error.problem) from error.__cause__
        except Exception as error:  # validators and serializers are the user's, and may raise anything
            raise PayloadInvalid(argument, f"does not fit the queue's model: {explain(error)}") from error
        if not _same(value, again):
            raise PayloadInvalid(
                argument + _difference(value, again),
                "would come back as something else, since the model drops or changes a part of it "
                "(an excluded field, a serializer, a subclass, a union, clashing aliases)",
            )
        return stored

    def stored(self, value: M) -> Any:
        """Return what BSON holds of a value that was validated."""
        dumped = self._dumped(value)
        try:
            return _stored(dumped)
        except Exception as error:
            raise _culprit("", dumped, error) from error

    def _dumped(self, value: M) -> Any:
        try:
            return self._adapter.dump_python(value, round_trip=True, by_alias=False)
        except TypeError:  # a set of models: their documents cannot be in a set
            return self._adapter.dump_python(value, mode="json", round_trip=True, by_alias=False)

    def load(self, value: Any, argument: str) -> M:
        """Validate what was stored; raises ``PayloadInvalid``."""
        try:
            return self._loaded(value)
        except Exception as error:  # a validator of the user's may raise anything
            raise PayloadInvalid(argument, f"does not fit the queue's model: {explain(error)}") from error

    def _loaded(self, value: Any) -> M:
        return self._adapter.validate_python(_restored(value), strict=False, by_name=True, by_alias=True)


def _same(one: Any, other: Any) -> bool:
    """Say whether two values are equal, private attributes of models and values that cannot be compared aside."""
    if isinstance(one, BaseModel):
        return type(one) is type(other) and _same(_fields(one), _fields(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(part, other[key]) for key, part in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if type(one) is type(other) and type(one).__eq__ is _BY_IDENTITY:
        return True
    return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124  # NaN


def _difference(one: Any, other: Any) -> str:
    """Return the path to the first part in which two values differ."""
    for step, part, again in _pairs(one, other):
        if not _same(part, again):
            return step + _difference(part, again)
    return ""


def _pairs(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return the parts of two values that have the same places."""
    if isinstance(one, BaseModel) and isinstance(other, BaseModel):
        one, other = _fields(one), _fields(other)
    mine, others = parts(one), dict(parts(other))
    if mine and len(mine) == len(others) and type(one) is type(other):
        for step, part in mine:
            if step in others:
                yield step, part, others[step]


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a value, each after the step to it in a path: ``.key`` or ``[place]``."""
    if isinstance(value, Mapping):
        return [(f".{key}", part) for key, part in value.items() if isinstance(key, str)]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    return []


def _fields(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields} | (model.model_extra or {})


def explain(error: Exception) -> str:
    """Return the faults in one line, without the input, which may be private."""
    if not isinstance(error, ValidationError):
        return spoken(error)
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault['msg']}" for fault in faults[:5]]
    return "; ".join(shown) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")


class _Unstorable(Exception):
    """A value at ``path`` that BSON cannot hold."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'value'}: {problem}")
        self.path, self.problem = path, problem


def _culprit(path: str, value: Any, error: Exception) -> _Unstorable:
    """Find the part that cannot be stored, by trying ever smaller ones."""
    for step, part in parts(value):
        try:
            _stored(part)
        except Exception as smaller:
            return _culprit(path + step, part, smaller)
    if isinstance(value, Decimal):
        return _Unstorable(path, "a Decimal that Decimal128 cannot hold, which has 34 digits; store a string")
    if isinstance(value, _SECRETS):
        return _Unstorable(path, "a secret would be stored as asterisks; declare a str, or serialize it yourself")
    return _Unstorable(path, f"does not fit the queue's model: {explain(error)}")


def _stored(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Enum):
        return _stored(value.value)
    if isinstance(value, Mapping):
        return {_key(key): _stored(part) for key, part in value.items()}
    if isinstance(value, _ARRAYS):
        return [_stored(part) for part in value]
    if isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] == "bson":
        return value
    if isinstance(value, Decimal):
        return Decimal128(value)
    if isinstance(value, BaseModel):
        return _stored(value.model_dump(round_trip=True))
    if isinstance(value, _SECRETS):
        raise TypeError("a secret")
    return to_jsonable_python(value)


def _key(key: Any) -> str:
    if isinstance(key, str) and not isinstance(key, Enum):
        return key
    return str(next(iter(to_jsonable_python({key: None}))))


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _rebuilt(value, value.items(), dict)
    if isinstance(value, list):
        return _rebuilt(value, enumerate(value), lambda parts: [part for _, part in parts])
    return value.to_decimal() if isinstance(value, Decimal128) else value


def _rebuilt(value: Any, parts: Iterable[tuple[Any, Any]], build: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    restored = [(key, _restored(part)) for key, part in parts]
    changed = any(new is not value[key] for key, new in restored)
    return build(restored) if changed else value
