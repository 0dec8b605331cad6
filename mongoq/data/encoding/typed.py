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

Models are dumped by field name, without computed fields, so that the stored form validates again. A push tries this
with exactly the bytes that are sent, and compares the result with the original value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, TypeVar
from uuid import UUID

import bson
from bson import Binary, DatetimeMS, Decimal128
from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from mongoq.data.encoding.codec import PLAIN_OPTIONS, find_culprit, parts
from mongoq.data.encoding.error_text import spoken
from mongoq.errors import PayloadInvalid

M = TypeVar("M")
_PLAIN_TYPES = (str, bool, int, float, bytes, datetime, UUID)
_BY_IDENTITY: Any = object.__eq__
_SECRETS = (SecretStr, SecretBytes)
_ARRAYS = (list, tuple, set, frozenset, deque)
BSON_TYPES: Mapping[str, Any] = {kind.__name__: kind for kind in (Decimal128, Binary, DatetimeMS)}
"""Types of BSON that a model may ask for; their values come as Python's types otherwise."""
PYTHON_TYPES: Mapping[Any, type] = {Decimal128: Decimal, Binary: bytes, DatetimeMS: datetime}
"""Python's type for each of them."""
MAX_VALIDATION_ROUNDS = 10
"""Rounds in which a model may ask for them: a validator may run only after another one has passed."""


class TypedValues(Generic[M]):
    """Values of one type, validated and dumped by its ``TypeAdapter``."""

    def __init__(self, adapter: TypeAdapter[M]) -> None:
        self._adapter = adapter

    def dump(self, payload: Any, argument: str) -> tuple[M, Any]:
        """Validate a payload, and return its value, and the form that BSON can hold; raises ``PayloadInvalid``."""
        try:
            value = self._adapter.validate_python(payload, by_name=True, by_alias=True)
            dumped = self._dump_python(value)
        except Exception as error:
            # Validators and serializers are the user's, and may raise anything.
            raise PayloadInvalid(argument, f"does not fit the queue's model: {explain(error)}") from error
        try:
            return value, _convert_dumped(dumped)
        except Exception as failure:
            path, part, cause = find_culprit(argument, dumped, failure, lambda part, _depth: _convert_dumped(part))
            problem = f"does not fit the queue's model: {explain(cause)}"
            if isinstance(part, Decimal):
                problem = "a Decimal that Decimal128 cannot hold, which has 34 digits; store a string"
            if isinstance(part, _SECRETS):
                problem = "a secret would be stored as asterisks; declare a str, or serialize it yourself"
            raise PayloadInvalid(path, problem) from cause

    def verify(self, value: M, returned: Any, argument: str) -> None:
        """Raise ``PayloadInvalid`` unless what BSON returns of a value is equal: the next reserve would bury it."""
        try:
            again = self.from_stored(returned)
            unsure: list[Any] = []
            different = None if _same(value, again, unsure) else _difference(value, again)
            if different is None and unsure:
                # Values that cannot be compared: their stored bytes can.
                stored = (
                    bson.encode({"": each}, codec_options=PLAIN_OPTIONS) for each in (self.to_stored(again), returned)
                )
                different = None if next(stored) == next(stored) else ""
        except Exception as error:  # a validator of the user's may raise anything
            returned_as = "as BSON returns it, with times in UTC and cut to milliseconds"
            problem = f"does not fit the queue's model {returned_as}: {explain(error)}"
            raise PayloadInvalid(argument, problem) from error
        if different is not None:
            raise PayloadInvalid(
                argument + different,
                "would come back as something else, since the model drops or changes a part of it "
                "(an excluded field, a serializer, a subclass, a union, clashing aliases, a value made of a time, "
                "a field typed Any); give the field the exact type of its value",
            )

    def to_stored(self, value: M) -> Any:
        """Return the stored form of a validated value; raises any error for one that cannot be stored."""
        return _convert_dumped(self._dump_python(value))

    def _dump_python(self, value: M) -> Any:
        try:
            return self._adapter.dump_python(value, round_trip=True, by_alias=False)
        except TypeError:
            # A set of models: their documents cannot be in a set.
            return self._adapter.dump_python(value, mode="json", round_trip=True, by_alias=False)

    def load(self, value: Any, argument: str) -> M:
        """Validate a stored value; raises ``PayloadInvalid``."""
        try:
            return self.from_stored(value)
        except Exception as error:  # a validator of the user's may raise anything
            raise PayloadInvalid(argument, f"does not fit the queue's model: {explain(error)}") from error

    def from_stored(self, value: Any) -> M:
        """Validate a stored value; raises the errors of the model."""
        restored = _convert_read(value)
        refusal: ValidationError | None = None
        for _ in range(MAX_VALIDATION_ROUNDS):
            try:
                return self._adapter.validate_python(restored, strict=False, by_name=True, by_alias=True)
            except ValidationError as error:
                refusal = refusal or error
                kinds = _kinds_asked_for(error)
            if not kinds:
                break
            restored = _as_asked_for(restored, kinds)
        assert refusal is not None
        raise refusal


def _kinds_asked_for(error: ValidationError) -> dict[int, type]:
    """Return the values that must be given in a type of BSON instead of Python's, by their identity."""
    kinds: dict[int, type] = {}
    for fault in error.errors(include_url=False):
        value = fault["input"]
        kind = BSON_TYPES.get(str(fault.get("ctx", {}).get("class"))) if fault["type"] == "is_instance_of" else None
        if fault["type"] in ("value_error", "assertion_error"):
            # A user's own validator failed; it may expect a Decimal128.
            kind = Decimal128
        if kind is not None and isinstance(value, PYTHON_TYPES[kind]):
            kinds[id(value)] = kind
    return kinds


def _as_asked_for(value: Any, kinds: Mapping[int, type]) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_asked_for(part, kinds) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_asked_for(part, kinds) for part in value]
    return kinds[id(value)](value) if id(value) in kinds else value


def _same(one: Any, other: Any, unsure: list[Any]) -> bool:
    """Return whether a value is equal to the value that came back from BSON, which cuts times to milliseconds.

    Private attributes of models and values that compare by identity are ignored. A value that cannot be compared counts
    as equal, and is added to ``unsure``.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(part, other[key], unsure) for key, part in one.items())
    if isinstance(one, list | tuple | deque) and isinstance(other, list | tuple | deque):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(_same(part, again, unsure) for part, again in zip(one, other, strict=True))
    if isinstance(one, set | frozenset) and isinstance(other, set | frozenset):
        return set(map(_comparable, one)) == set(map(_comparable, other))
    if type(one) is type(other) and type(one).__eq__ is _BY_IDENTITY:
        return True
    if isinstance(one, BaseModel) or (is_dataclass(one) and not isinstance(one, type)):
        return type(one) is type(other) and _same(_attributes(one), _attributes(other), unsure)
    return _equal(one, other, unsure)


def _equal(one: Any, other: Any, unsure: list[Any]) -> bool:
    try:
        one, other = _comparable(one), _comparable(other)
        equal = one == other
        if equal is not True and equal is not False:
            raise TypeError("no bool")
        return equal or bool(one != one and other != other)  # noqa: PLR0124  # NaN
    except Exception:
        # Arrays, frames, signalling NaN: compare facts that their stored form may lack, and the index of a frame.
        unsure.append(one)
        if type(one) is not type(other):
            return False
        if callable(equals := getattr(type(one), "equals", None)):
            return bool(equals(one, other))
        return all(getattr(one, name, None) == getattr(other, name, None) for name in ("dtype", "shape"))


def _comparable(value: Any) -> Any:
    """Return a value in a form that equals its form from BSON: times in milliseconds, plain bytes."""
    if isinstance(value, datetime):
        return value.utcoffset() is not None, int(DatetimeMS(value))
    if isinstance(value, DatetimeMS):
        return True, int(value)
    if isinstance(value, Binary) and value.subtype == 0:
        return bytes(value)
    return tuple(map(_comparable, value)) if type(value) is tuple else value


def _difference(one: Any, other: Any) -> str:
    """Return the path to the first part in which two values differ."""
    if isinstance(one, BaseModel) and isinstance(other, BaseModel):
        one, other = _attributes(one), _attributes(other)
    mine, others = parts(one), dict(parts(other))
    if len(mine) == len(others) and type(one) is type(other):
        for step, part in mine:
            if step in others and not _same(part, others[step], []):
                return step + _difference(part, others[step])
    return ""


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that a model or a dataclass compares, without private ones."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
    return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}


def explain(error: Exception) -> str:
    """Return the faults in one line, without the input, which may be private."""
    if not isinstance(error, ValidationError):
        return spoken(error)
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault['msg']}" for fault in faults[:5]]
    return "; ".join(lines) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")


def _convert_dumped(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Enum):
        return _convert_dumped(value.value)
    if isinstance(value, Mapping):
        return {_key(key): _convert_dumped(part) for key, part in value.items()}
    if isinstance(value, _ARRAYS):
        return [_convert_dumped(part) for part in value]
    if isinstance(value, _PLAIN_TYPES) or type(value).__module__.partition(".")[0] == "bson":
        return value
    if isinstance(value, Decimal):
        return Decimal128(value)
    if isinstance(value, BaseModel):
        return _convert_dumped(value.model_dump(round_trip=True))
    if isinstance(value, _SECRETS):
        raise TypeError("a secret")
    return to_jsonable_python(value)


def _key(key: Any) -> str:
    if isinstance(key, str) and not isinstance(key, Enum):
        return key
    # Pydantic writes a key as text in its own way; a mapping with one key shows it.
    return str(next(iter(to_jsonable_python({key: None}))))


def _convert_read(value: Any) -> Any:
    """Return a stored value with Python's decimals; what holds none of them stays the same object."""
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, Mapping):
        document = {key: _convert_read(part) for key, part in value.items()}
        return document if any(part is not value[key] for key, part in document.items()) else value
    if isinstance(value, list):
        array = list(map(_convert_read, value))
        return array if any(new is not old for new, old in zip(array, value, strict=True)) else value
    return value
