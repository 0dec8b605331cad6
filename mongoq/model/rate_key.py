"""Keys of rates: which bucket an item belongs to, by a function of its payload or by a field of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import bson
from bson import Decimal128, Int64
from bson.decimal128 import create_decimal128_context

from mongoq.errors import ArgumentInvalid
from mongoq.model.encoding.codec import PLAIN_OPTIONS
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
    """Return a key as BSON. Numbers that the server calls equal are one key, whatever their types; a bool is no number.

    Raises:
        ValueError: BSON cannot hold the value.
    """
    try:
        return bson.encode({"key": _normalize(value)}, codec_options=PLAIN_OPTIONS)
    except Exception as error:
        raise ValueError(f"the rate key {value!r:.60} cannot be stored as BSON: {error}") from None


def _normalize(value: Any) -> Any:
    """Return a value in which equal numbers have the same type: an int if it fits, else a float, else a decimal."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, float | Decimal):
        return _normalize_number(value)
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normalize(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(part) for part in value]
    return value


def _normalize_number(value: Any) -> Any:
    if value.is_nan() if isinstance(value, Decimal) else math.isnan(value):
        return math.nan
    if math.isfinite(value) and -(2**63) <= value < 2**63 and value == int(value):
        return int(value)
    if value == (double := float(value)):
        return double
    with localcontext(create_decimal128_context()) as context:
        return Decimal128(context.normalize(value))
