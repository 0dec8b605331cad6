"""Values that the driver or the server would change without a word: they come back equal, or are refused."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import bson
import pytest
from bson import SON, Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, Regex, Timestamp
from bson.codec_options import CodecOptions, TypeCodec, TypeDecoder, TypeEncoder, TypeRegistry
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.shells import Shell

ZERO = Timestamp(0, 0)
Point = namedtuple("Point", "x y")  # as others write it


class Level(IntEnum):
    HIGH = 1


class Color(StrEnum):
    RED = "red"


class Twice(Mapping[str, Any]):
    """A mapping that holds a key twice, as those of headers of HTTP do."""

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b", "a"])

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> Any:
        return {"a": 1, "b": 2}[key]


def raw(document: Mapping[str, Any], old: bytes = b"", new: bytes = b"") -> RawBSONDocument:
    """A document with some bytes in place of others of the same length."""
    return RawBSONDocument(bson.encode(document).replace(old, new))


DOUBLE = raw({"a": 1, "b": 2}, b"\x10b\0", b"\x10a\0")
KEPT = {
    "a zero timestamp in a document": {"t": ZERO, "l": [ZERO]},
    "all flags of a pattern": Regex("a", "ilmsux"),
    "another long": {"n": Int64(5), "big": 2**40, "small": 5},
    "a negative zero": -0.0,
    "the smallest keys": [MinKey(), MaxKey()],
    "code with a scope": Code("f", {"a": {"t": ZERO}}),
    "a reference": DBRef("c", 1, "d", more=2),
    "binaries": [Binary(b"x", 1), Binary(b"x", 2), Binary(b"x" * 16, 3), Binary(b"x" * 16, 5), Binary(b"", 200)],
    "a signalling NaN": [Decimal128("sNaN"), Decimal128("-0E+5")],
    "keys in their order": OrderedDict(b=1, a=SON([("z", 1), ("y", OrderedDict(x=1, w=2))])),
    "members of enums": [Level.HIGH, Color.RED],
    "times beyond Python's": [DatetimeMS(2**62), DatetimeMS(-(2**62))],
    "raw": raw({"a": {"b": [1, {"c": Regex("a", "i"), "at": datetime(2024, 1, 1, tzinfo=UTC)}]}}),
    "a named tuple": [Point(1, 2)],
}
REFUSED: dict[str, tuple[Any, str]] = {
    "flags that BSON lacks": (Regex("a", re.ASCII), "BSON has no letter"),
    "a pattern of bytes": (Regex(b"a", "i"), "a regular expression of bytes"),
    "raw with a field twice": (DOUBLE, "raw BSON that would come back as something else"),
    "raw that is double deep within": (raw({"a": [{"b": 1, "c": 2}]}, b"\x10c\0", b"\x10b\0"), "raw BSON that would"),
    "raw with an option unknown": (raw({"a": Regex("a", "i")}, b"a\0i\0", b"a\0q\0"), "raw BSON that would come"),
    "raw undefined": (raw({"a": None}, b"\x0aa\0", b"\x06a\0"), "raw BSON that would come back"),
    "raw shaped like a reference": (raw({"$ref": "c", "$id": 1}), "DBRef"),
    "a mapping with a key twice": (Twice(), "holds a key twice"),
    "mutable bytes": (bytearray(b"x"), "bytearray"),
    "a key with NUL": ({"a": {"b\0": 1}}, r"\.a: a document that BSON cannot hold"),
}


def alike(value: Any) -> Any:
    """What is to come back, distinguished by type, order of keys and sign."""
    if isinstance(value, RawBSONDocument):
        value = bson.decode(value.raw, CodecOptions(tz_aware=True))
    if isinstance(value, Mapping):
        return {key: alike(part) for key, part in value.items()}, list(value)
    if isinstance(value, list | tuple):
        return [alike(part) for part in value]
    if isinstance(value, int | str) and type(value) not in (bool, Int64, Code):
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, Regex):
        return value.pattern, int(value.flags)
    return repr(value.astimezone(UTC) if isinstance(value, datetime) else value)


class Ways:
    """The ways on which a value goes into a queue and comes back."""

    def __init__(self, shell: Shell, value: Any) -> None:
        self.shell, self.value = shell, value
        self.queue = shell.queue(history=60)

    async def push(self) -> Any:
        await self.queue.push(self.value)
        return (await self.queue.pop()).payload

    async def push_with_a_key(self) -> Any:
        await self.queue.push(self.value, key="k", on_duplicate="replace")
        return (await self.queue.pop()).payload

    async def push_with_headers(self) -> Any:
        await self.queue.push(1, headers={"h": self.value})
        return (await self.queue.pop()).headers["h"]

    async def push_many(self) -> Any:
        await self.queue.push_many([1, self.value])
        return (await self.queue.reserve_many(2))[1].payload

    async def commit(self) -> Any:
        id = await self.queue.push(1)
        await self.queue.commit(await self.queue.reserve(), payload=self.value)
        return (await self.queue.get(id)).payload

    async def move(self) -> Any:
        return (await self._moved(payload=self.value)).payload

    async def move_with_a_patch(self) -> Any:
        return (await self._moved(patch={"$set": {"x": self.value}})).payload["x"]

    async def move_with_headers(self) -> Any:
        return (await self._moved(headers={"h": self.value})).headers["h"]

    async def _moved(self, **options: Any) -> Any:
        await self.queue.push({})
        await self.queue.move(await self.queue.reserve(), "next", **options)
        return await self.shell.queue("next").pop()


WAYS = [name for name in vars(Ways) if not name.startswith("_")]


async def ways(shell: Shell, value: Any) -> dict[str, Any]:
    """Send a value on each way, and return what has come back from it; or the error."""
    back: dict[str, Any] = {}
    for way in WAYS:
        try:
            back[way] = await getattr(Ways(shell, value), way)()
        except mongoq.PayloadInvalid as error:
            back[way] = error
        for name in ("orders", "next"):
            await shell.queue(name).purge(state=None)
            await shell.queue(name).purge(state="reserved")
    return back


@pytest.mark.every_shell("motor")
async def test_a_value_comes_back_unchanged_on_every_way(shell: Shell) -> None:
    for name, value in KEPT.items():
        for way, back in (await ways(shell, value)).items():
            assert alike(back) == alike(value), (name, way)


async def test_a_zero_timestamp_as_the_whole_payload_is_refused_on_every_way(shell: Shell) -> None:
    for way, back in (await ways(shell, ZERO)).items():
        if way.startswith(("push_with_h", "move_with")):
            assert back == ZERO, way
        else:
            assert isinstance(back, mongoq.PayloadInvalid), way
            assert "Timestamp(0, 0)" in str(back)


async def test_a_value_that_would_change_is_refused_on_every_way(shell: Shell) -> None:
    for name, (value, message) in REFUSED.items():
        for way, back in (await ways(shell, value)).items():
            assert isinstance(back, mongoq.PayloadInvalid), (name, way)
            assert re.search(message, str(back)), (name, way)


class DateDecoder(TypeDecoder):
    bson_type = datetime

    def transform_bson(self, value: datetime) -> str:
        return value.isoformat()


class DecimalEncoder(TypeEncoder):
    python_type = Decimal

    def transform_python(self, value: Decimal) -> Decimal128:
        return Decimal128(value)


class DecimalCodec(DecimalEncoder, TypeCodec):
    bson_type = Decimal128

    def transform_bson(self, value: Decimal128) -> Decimal:
        return value.to_decimal()


REGISTRIES = {
    "DateDecoder": TypeRegistry([DateDecoder()]),
    "DecimalEncoder": TypeRegistry([DecimalEncoder()]),
    "DecimalCodec": TypeRegistry([DecimalCodec()]),
    "fallback_encoder=<": TypeRegistry(fallback_encoder=str),
}


async def test_a_type_registry_is_refused_by_name_as_a_broker_is_made(raw: Any, uri: str) -> None:
    from tests.clients import opened

    async with opened("aio", uri) as aio, opened("motor", uri) as motor:
        brokers = ((mongoq.Broker, raw), (mongoq.AsyncBroker, aio["d"]["c"]), (mongoq.AsyncBroker, motor["d"]["c"]))
        for kind, collection in brokers:
            for name, registry in REGISTRIES.items():
                options = CodecOptions(type_registry=registry)
                with pytest.raises(mongoq.ArgumentInvalid, match=f"^collection: .*type_registry.*{name}"):
                    kind(collection.with_options(codec_options=options))
            kind(collection.with_options(codec_options=CodecOptions(type_registry=TypeRegistry())))


def test_another_class_of_documents_is_kept(raw: Any) -> None:
    broker = mongoq.Broker(raw.with_options(codec_options=CodecOptions(document_class=OrderedDict)))
    queue = broker.queue("orders", history=60)
    queue.push({"b": 1, "a": {"c": 1}})
    item = queue.reserve()
    assert item is not None
    assert type(item.payload) is type(item.payload["a"]) is OrderedDict
    queue.commit(item)
    assert [type(processed.payload) for processed in queue.history()] == [OrderedDict]
    broker.close()
