"""Ids of pushes, made of the rows' content, so that a row that is written again is pushed once.

A row's position is never part of its id, because a task that runs again may see its rows in another order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark

from mongoq.spark.types.values import INTEGERS, Values, convert_structs

PREFIX_BYTES = 2
HASH_BYTES = 10
"""Bytes of an id's hash. With a billion rows of one job, two have equal ids with a probability of 4e-7. The ids of a
job have a common prefix, which keeps their index entries together.
"""
KEY_BYTES = 32
FIRST_SLOTS = 1024
Plain = Callable[[Any], bytes]


class Occurrences:
    """Counts equal hashes, in 16 to 32 bytes for each new one; a set of bytes takes more than 100."""

    def __init__(self) -> None:
        self._slots = array("q", bytes(8 * FIRST_SLOTS))
        self._used = 0
        self._again: dict[bytes, int] = {}

    def counts(self, digests: Sequence[bytes]) -> dict[int, int]:
        """Return how often hashes were there before, by their positions; new hashes are left out."""
        if (self._used + len(digests)) * 2 > len(self._slots):
            self._grow(len(digests))
        slots, before, mask = self._slots, {}, len(self._slots) - 1
        for index, digest in enumerate(digests):
            number = hash(digest) or 1  # 0 marks a free slot
            place = number & mask
            while (slot := slots[place]) and slot != number:
                place = (place + 1) & mask
            if slot:
                before[index] = self._again[digest] = self._again.get(digest, 0) + 1
            else:
                slots[place] = number
        self._used += len(digests) - len(before)
        return before

    def _grow(self, more: int) -> None:
        old, size = self._slots, len(self._slots)
        while (self._used + more) * 2 > size:
            size *= 2
        self._slots = slots = array("q", bytes(8 * size))
        for number in filter(None, old):
            place = number & (size - 1)
            while slots[place]:
                place = (place + 1) & (size - 1)
            slots[place] = number


class ContentIds:
    """Ids made of the whole content of a push, and of the number of equal pushes before it in the partition.

    Args:
        job: parts that distinguish this write from others; the same when the write is repeated.
        partition: number of the partition, because each counts by itself.
    """

    def __init__(self, job: Sequence[str], partition: int) -> None:
        self._job = _join_texts("content", *job)
        self._partition = str(partition)
        self._prefix = _prefix(self._job)
        self._occurrences = Occurrences()
        self._begun: dict[Hashable, Any] = {}

    def ids(self, queue: str, options: Hashable, payloads: Sequence[bytes]) -> list[bytes]:
        """Return the ids of pushes to one queue with the same options and these payloads as BSON."""
        hashing, digests = self._begin_hash(queue, options), []
        for payload in payloads:
            hashed = hashing.copy()
            hashed.update(payload)
            digests.append(hashed.digest())
        for place, again in self._occurrences.counts(digests).items():
            digests[place] = blake2b(digests[place] + again.to_bytes(8), digest_size=HASH_BYTES).digest()
        prefix = self._prefix
        return [prefix + digest for digest in digests]

    def _begin_hash(self, queue: str, options: Hashable) -> Any:
        key = queue, options
        if key not in self._begun:
            # A bound for memory: with a new key for each row the cache would grow forever.
            if len(self._begun) >= FIRST_SLOTS:
                self._begun.clear()
            named = _join_texts(self._partition, queue, repr(options))
            self._begun[key] = blake2b(key=_hash_within(named, self._job), digest_size=HASH_BYTES)
        return self._begun[key]


class ValueIds:
    """Ids made of the value of one column, of the queue, and of a label: the same in every job and partition.

    Args:
        label: distinguishes writes of the same values.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._queues: dict[str, tuple[bytes, bytes]] = {}

    def ids(self, queue: str, values: Sequence[bytes]) -> list[bytes]:
        """Return the ids of pushes by their values, given as ``canonical_of`` converts them."""
        if queue not in self._queues:
            named = _join_texts("value", queue, self._label)
            self._queues[queue] = _prefix(named), _hash_within(named)
        prefix, key = self._queues[queue]
        return [prefix + blake2b(value, key=key, digest_size=HASH_BYTES).digest() for value in values]


def _join_texts(*parts: str) -> bytes:
    """Return texts as bytes; different texts give different bytes."""
    encoded = [part.encode(errors="surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(4) + part for part in encoded)


def _hash_within(named: bytes, within: bytes = b"") -> bytes:
    return blake2b(named, key=blake2b(within, digest_size=KEY_BYTES).digest(), digest_size=KEY_BYTES).digest()


def _prefix(named: bytes) -> bytes:
    return blake2b(named, digest_size=PREFIX_BYTES).digest()


def canonical_of(type: spark.DataType) -> Values:
    """Return the converter of a column to bytes: equal for equal values of any width, different for different values.

    Raises:
        TypeError: equal values of this type may differ, as doubles do.
    """
    if isinstance(type, spark.StructType):
        names = [name.encode() for name in type.fieldNames()]
        parts = [canonical_of(field.dataType) for field in type.fields]
        return lambda array: convert_structs(array, parts, partial(_struct, names))
    for kinds, name, plain in CANONICAL:
        if isinstance(type, kinds):
            return partial(_canonical, name, plain)
    raise TypeError(f"type {type.simpleString()} makes no id; cast it to a string, or name another column")


def _canonical(name: bytes, plain: Plain, array: pa.Array) -> list[Any]:
    # Times and dates as their integers, independent of the time zone in which they are shown.
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.view(pa.int32())
    return [None if value is None else name + plain(value) for value in array.to_pylist()]


def _text(value: Any) -> bytes:
    return str(value).encode(errors="surrogatepass")


def _number(value: Decimal) -> bytes:
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).encode()


CANONICAL: tuple[tuple[tuple[type[spark.DataType], ...], bytes, Plain], ...] = (
    ((spark.StringType,), b"s", _text),
    (INTEGERS, b"i", _text),
    ((spark.BooleanType,), b"b", _text),
    ((spark.DecimalType,), b"n", _number),
    ((spark.BinaryType,), b"x", bytes),
    ((spark.DateType,), b"d", _text),
    ((spark.TimestampType,), b"t", _text),
    ((spark.TimestampNTZType,), b"w", _text),
)


def _struct(names: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    parts = [part for name, value in zip(names, values, strict=True) for part in (name, value or b"")]
    return b"{" + b"".join(len(part).to_bytes(4) + part for part in parts)
