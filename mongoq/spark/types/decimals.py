"""Decimal128 values as Arrow decimals, by their digits: an order of magnitude faster than with ``decimal``."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import pyarrow as pa
import pyspark.sql.types as spark
from bson import Decimal128

__all__ = ["decimal_array"]

HALVES = Struct("<QQ")
"""The 128 bits, from the lowest: 113 of the coefficient, 14 of the exponent, and the sign."""
EXPONENT_PLACE, EXPONENT_MASK, EXPONENT_BIAS = 49, 0x3FFF, 6176
HIGH_MASK = (1 << EXPONENT_PLACE) - 1
LARGEST = 10**34 - 1
SPECIAL = 3
"""Value of the two bits below the sign in NaN, in infinities, and in encodings that no writer uses."""
TENS = [10**place for place in range(39)]
NULL = bytes(16)


def decimal_array(values: Sequence[Decimal128 | None], type: spark.DecimalType) -> pa.Array | None:
    """Return the numbers as an Arrow array, or ``None`` if one of them does not fit exactly."""
    scale, limit, parts = type.scale, TENS[type.precision], []
    for value in values:
        if value is None:
            parts.append(NULL)
            continue
        number = _scaled(value.bid, scale)
        if number is None or not -limit < number < limit:
            return None
        parts.append(number.to_bytes(16, "little", signed=True))
    return _array(values, pa.decimal128(type.precision, scale), b"".join(parts))


def _scaled(bid: bytes, scale: int) -> int | None:
    """Return the number in units of ``10 ** -scale``, or ``None`` if it is no whole number of them, or is special."""
    low, high = HALVES.unpack(bid)
    coefficient: int = (high & HIGH_MASK) << 64 | low
    shift = (high >> EXPONENT_PLACE & EXPONENT_MASK) - EXPONENT_BIAS + scale
    # All of these are left to the slow path, which converts or refuses them one by one.
    if high >> 61 & SPECIAL == SPECIAL or coefficient > LARGEST or not -len(TENS) < shift < len(TENS):
        return None
    if shift < 0:
        coefficient, rest = divmod(coefficient, TENS[-shift])
        if rest:
            return None
    elif shift:
        coefficient *= TENS[shift]
    return -coefficient if high >> 63 else coefficient


def _array(values: Sequence[Decimal128 | None], type: pa.DataType, numbers: bytes) -> pa.Array:
    valid = None if None not in values else pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type, len(values), [valid, pa.py_buffer(numbers)])
