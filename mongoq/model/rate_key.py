"""Keys of rates: which bucket an item belongs to, by a function of its payload or by a field of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import bson

from mongoq.errors import ArgumentInvalid
from mongoq.model.item import Item

MISSING = b"missing"
"""Key of the items without the field: they share a bucket."""
EXAMPLE = "give the name of a field, such as 'customer.id', or a function of the payload"


@dataclass(frozen=True, slots=True)
class RateKey:
    """The option ``rate_key`` of a consumer.

    Attributes:
        path: parts of the dotted name of a field; empty for a function.
        function: function of the payload; ``None`` for a field.
    """

    path: tuple[str, ...]
    function: Callable[[Any], Any] | None

    def read(self, item: Item[Any]) -> bytes:
        """Return the key of an item in the form that is hashed; raises what the function raises, or ``ValueError``."""
        if self.function is not None:
            return encode_key(self.function(item.payload))
        value = item.stored("payload")
        for part in self.path:
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        return encode_key(value)


def check_rate_key(value: Any) -> RateKey | None:
    """Return the option; raises ``ArgumentInvalid`` if it is neither a field's name nor a function."""
    if value is None:
        return None
    if isinstance(value, str):
        parts = tuple(value.split("."))
        if not all(parts):
            raise ArgumentInvalid("rate_key", f"{value!r:.60} has an empty part; {EXAMPLE}")
        return RateKey(parts, None)
    if callable(value):
        return RateKey((), value)
    raise ArgumentInvalid("rate_key", f"a field or a function, not {type(value).__name__}; {EXAMPLE}")


def encode_key(value: Any) -> bytes:
    """Return a key as BSON. Equal numbers are one key, as for the server; a bool is no number.

    Raises:
        ValueError: BSON cannot hold the value.
    """
    try:
        return bson.encode({"key": _normalize(value)})
    except Exception as error:
        raise ValueError(f"the rate key {value!r:.60} cannot be stored as BSON: {error}") from None


def _normalize(value: Any) -> Any:
    """Return a value in which whole floats are ints: ``1.0`` is the key ``1``."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normalize(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(part) for part in value]
    return value
