"""What a payload may be, and that it comes back equal through every operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

import mongoq
from tests.shells import Shell

SIZE_LIMIT = 16 * 1024 * 1024 - 64 * 1024
"""Bytes that a payload may take."""
HOSTILE: dict[str, Any] = {
    "$set": {"$inc": {"payload": 1}},
    "a.b": "$$NOW",
    "": {"": [{"": 1}]},
    "$where": "function() { return true }",
    "q": "elsewhere",
    "token": None,
    "$ref": "only the name",
    "nested": [{"$each": [1]}, {"$numberLong": "1"}, "$payload", "{$gt: ''}"],
    "\u2028": "\ud7ff\U0001f980",
    "_id": 1,
}

VALUES = [
    None,
    0,
    -1,
    2**63 - 1,
    Int64(5),
    1.5,
    float("inf"),
    True,
    "",
    "text with \0 in it",
    b"\x00\xff",
    [],
    {},
    [1, [2, [3, None]]],
    {"a": {"b": [{"c": 1}]}},
    datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC),
    datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-5))),
    UUID("12345678123456781234567812345678"),
    ObjectId("65e06e6e0000000000000001"),
    Decimal128("1.10"),
    Regex("^a", "i"),
    Timestamp(5, 1),
    HOSTILE,
]


@pytest.mark.every_shell("motor")
async def test_a_value_comes_back_equal(shell: Shell) -> None:
    queue = shell.queue()
    for value in [*VALUES, Code("x"), MaxKey()]:
        await queue.push(value)
        item = await queue.pop()
        assert item.payload == value
        if not isinstance(value, datetime):
            assert isinstance(item.payload, type(value))


@pytest.mark.every_shell
async def test_tuples_come_back_as_lists_and_dates_in_utc(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push({"t": (1, 2), "at": datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))})
    payload = (await queue.pop()).payload
    assert payload == {"t": [1, 2], "at": datetime(2023, 12, 31, 22, 0, 0, 123000, tzinfo=UTC)}
    assert payload["at"].utcoffset() == timedelta(0)


@pytest.mark.every_shell
async def test_hostile_keys_survive_every_operation(shell: Shell) -> None:
    queue = shell.queue(history=60)
    id = await queue.push(HOSTILE, headers={"h": HOSTILE})
    item = await queue.reserve()
    assert (item.payload, item.headers) == (HOSTILE, {"h": HOSTILE})
    await queue.rollback(item, error=ValueError("$set"))
    await queue.release(await queue.reserve())
    await queue.move(await queue.reserve(), "second", payload=HOSTILE, headers={"h": HOSTILE})
    second = shell.queue("second", history=60)
    await second.move(await second.reserve(), "orders", patch={"$set": {"patched": HOSTILE}})
    expected = {**HOSTILE, "patched": HOSTILE}
    await queue.bury(await queue.reserve(), reason="$where", error=ValueError("$$ROOT"))
    dead = await queue.dead.reserve()
    assert (dead.payload, dead.origin.reason, dead.headers) == (expected, "$where", {"h": HOSTILE})
    await queue.dead.move(dead, "orders")
    item = await queue.reserve()
    assert item.payload == expected
    await queue.commit(item, payload=HOSTILE)
    (processed,) = [processed async for processed in queue.history()]
    assert (processed.id, processed.payload) == (id, HOSTILE)
    assert (await queue.get(id)).payload == HOSTILE


class Unreadable(Mapping[str, Any]):
    """A mapping that raises what no encoder expects."""

    def __getitem__(self, key: str) -> Any:
        raise LookupError("nobody is there")

    __iter__ = __len__ = __contains__ = __getitem__  # type: ignore[assignment]


REFUSED: list[tuple[Any, str]] = [
    (datetime(2024, 1, 1), "payload: a naive datetime"),
    ({"$ref": "c", "$id": 1}, "payload: .*DBRef"),
    ({"a": [{"$ref": "c", "$id": 1, "$db": "d"}]}, r"payload\.a\[0\]: .*DBRef"),
    ({"n": 2**63}, r"payload\.n: an integer beyond 64 bits"),
    ("\ud800", "payload: a string with lone surrogates"),
    ({"\udfff": 1}, r"payload: its key '\\udfff' has lone surrogates"),
    ({"\udfff": {"n": 2**63}}, r"payload\.\\udfff\.n: an integer beyond 64 bits"),
    ({"a\0b": 1}, "payload: a document that BSON cannot hold"),
    ({1: 2}, "payload: keys are strings, not int"),
    (object(), "payload: BSON cannot hold a builtins.object"),
    ({"s": {1, 2}}, r"payload\.s: BSON cannot hold a builtins.set"),
    (Decimal("1.1"), "payload: BSON cannot hold a decimal.Decimal"),
    (re.compile("a"), "payload: a compiled pattern"),
    (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "payload: "),
    (Binary(b"short", 4), "payload: a Binary of the UUID subtype"),
    (Code("f", {"x": Binary(b"a", 4)}), r"payload\.scope\.x: a Binary of the UUID subtype"),
    (DBRef("c", 1, at=datetime(2024, 1, 1)), r"payload\.at: a naive datetime"),
    ({"a": Unreadable()}, r"payload\.a: a .*Unreadable that cannot be read: LookupError: nobody is there"),
    (RawBSONDocument(bson.encode({"s": "ok"}).replace(b"ok", b"\xff\xff")), "payload: raw BSON that cannot be read"),
]


async def test_a_value_that_would_not_come_back_equal_is_refused_everywhere(shell: Shell) -> None:
    nat = pytest.importorskip("pandas").NaT
    queue = shell.queue(history=60)
    await queue.push("good")
    item = await queue.reserve()
    before = shell.raw.find_one({"_id": item.id})
    for value, message in [*REFUSED, (nat, "payload: NaT is no time"), ([nat], r"payload\[0\]: NaT is no time")]:
        for attempt in (
            lambda value=value: queue.push(value),
            lambda value=value: queue.commit(item, payload=value),
            lambda value=value: queue.move(item, "next", payload=value),
        ):
            with pytest.raises(mongoq.PayloadInvalid, match=message):
                await attempt()
        with pytest.raises(mongoq.PayloadInvalid, match=r"^headers"):
            await queue.push(1, headers={"h": value})
        with pytest.raises(mongoq.PayloadInvalid, match=r"^patch\.\$set\.x"):
            await queue.move(item, "next", patch={"$set": {"x": value}})
    assert shell.raw.find_one({"_id": item.id}) == before
    assert await queue.size() == 1


async def test_nesting_has_a_limit_and_a_loop_is_found(shell: Shell) -> None:
    queue = shell.queue()
    deep: dict[str, Any] = {}
    for _ in range(99):
        deep = {"d": deep}
    await queue.push(deep)
    item = await queue.reserve()
    assert item.payload == deep
    await queue.move(item, "orders", payload=deep)
    with pytest.raises(mongoq.PayloadInvalid, match="nested deeper than 100 levels"):
        await queue.push({"d": deep})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(mongoq.PayloadInvalid, match="nested deeper"):
        await queue.push(loop)


async def test_an_item_at_the_limit_goes_through_every_operation(shell: Shell) -> None:
    room = SIZE_LIMIT - len(bson.encode({"payload": {"b": b""}}))
    payload = {"b": b"x" * room}
    queue = shell.queue(history=60, lease=5)
    headers = {"h": "x" * (16 * 1024 - 40)}
    await queue.push(payload, headers=headers)
    await queue.rollback(await queue.reserve(), error=ValueError("x" * 100_000))
    await queue.release(await queue.reserve())
    await queue.extend(await queue.reserve())
    shell.clock.advance(6)
    await queue.move(await queue.reserve(), "second", payload=payload, headers=headers)
    second = shell.queue("second")
    await second.move(await second.reserve(), "second", patch={"$set": {"n": 1}})
    await second.move(await second.reserve(), "orders", patch={"$unset": {"n": 1}})
    await queue.bury(await queue.reserve(), reason="x" * 512, error=ValueError("y" * 100_000))
    await queue.dead.move(await queue.dead.reserve(), "orders")
    await queue.commit(await queue.reserve(), payload=payload)
    async for item in queue.history():
        assert item.payload == payload
    with pytest.raises(mongoq.PayloadTooLarge) as caught:
        await queue.push({"b": b"x" * (room + 1)})
    assert (caught.value.size, caught.value.limit) == (SIZE_LIMIT + 1, SIZE_LIMIT)


async def test_a_patch_cannot_grow_an_item_beyond_what_can_be_claimed(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push({"b": b"x" * (SIZE_LIMIT - 100_000), "l": []})
    item = await queue.reserve()
    with pytest.raises(mongoq.PayloadTooLarge, match="patch"):
        await queue.move(item, "next", patch={"$set": {"more": b"y" * 200_000}})
    with pytest.raises(mongoq.PayloadTooLarge, match="patch"):
        await queue.move(item, "next", patch={"$set": {"l.140000": 1}})
    await queue.move(item, "next", patch={"$set": {"more": b"y" * 50_000}})
    assert await shell.queue("next").reserve() is not None


class Color(Enum):
    RED = "red"


class Part(BaseModel):
    name: str
    price: Decimal


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    id: UUID
    at: datetime
    day: date
    clock: time
    length: timedelta
    raw: bytes
    color: Color
    tags: frozenset[str]
    pair: tuple[int, str]
    parts: list[Part]
    by_number: dict[int, str]
    amount: Decimal
    kind: Literal["a", "b"] = "a"
    aliased: Annotated[int, Field(alias="Aliased")] = 3
    maybe: float | None = None


ORDER = Order(
    id=UUID(int=5),
    at=datetime(2024, 1, 1, 12, tzinfo=UTC),
    day=date(2024, 2, 29),
    clock=time(12, 30),
    length=timedelta(days=1, seconds=5),
    raw=b"\x00\xff",
    color=Color.RED,
    tags=frozenset({"x"}),
    pair=(1, "one"),
    parts=[Part(name="bolt", price=Decimal("1.10"))],
    by_number={1: "one"},
    amount=Decimal("123456789.123456789"),
)


@pytest.mark.every_shell("motor")
async def test_a_typed_payload_is_stored_as_the_table_says_and_comes_back_equal(shell: Shell) -> None:
    queue = shell.queue(model=Order)
    id = await queue.push(ORDER)
    payload = shell.raw.find_one({"_id": id})["payload"]
    assert {name: payload[name] for name in payload if name not in ("id", "at", "raw")} == {
        "day": "2024-02-29",
        "clock": "12:30:00",
        "length": "P1DT5S",
        "color": "red",
        "tags": ["x"],
        "pair": [1, "one"],
        "parts": [{"name": "bolt", "price": Decimal128("1.10")}],
        "by_number": {"1": "one"},
        "amount": Decimal128("123456789.123456789"),
        "kind": "a",
        "aliased": 3,
        "maybe": None,
    }
    assert isinstance(payload["at"], datetime)
    item = await queue.reserve()
    assert item.payload == ORDER
    await queue.commit(item)


async def test_a_model_goes_into_an_untyped_queue_as_a_document(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(Part(name="bolt", price=Decimal("1.5")))
    assert (await queue.pop()).payload == {"name": "bolt", "price": Decimal128("1.5")}


class Hidden(BaseModel):
    a: int
    b: int = Field(default=1, exclude=True)


class Swapped(BaseModel):
    model_config = ConfigDict(validate_by_name=True)

    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Doubled(BaseModel):
    n: int

    @field_serializer("n")
    def twice(self, n: int) -> int:
        return 2 * n


class Base(BaseModel):
    n: int


class Derived(Base):
    more: int


@pytest.mark.parametrize(
    ("model", "payload", "message"),
    [
        (Hidden, Hidden(a=1, b=2), "payload.b: would"),
        (Swapped, Swapped(a=1, b=2), "payload.a: would"),
        (Doubled, Doubled(n=1), "payload.n: would"),
        (list[Doubled], [Doubled(n=0), Doubled(n=1)], "payload[1].n: would"),
        (dict[str, Hidden], {"x": Hidden(a=1, b=2)}, "payload.x.b: would"),
        (Base, Derived(n=1, more=2), "payload: would"),
        (dict[int | str, int], {1: 1, "1": 2}, "payload: would"),
        (date | str, date(2024, 1, 1), "payload: would"),
        (dict[tuple[int, int], str], {(1, 2): "x"}, "payload: does not fit"),
    ],
    ids=str,
)
async def test_a_payload_that_its_model_would_change_is_refused(
    shell: Shell, model: Any, payload: Any, message: str
) -> None:
    queue = shell.queue(model=model)
    with pytest.raises(mongoq.PayloadInvalid, match="^" + re.escape(message)):
        await queue.push(payload)
    assert await queue.size() == 0


class Unfinished(BaseModel):
    lines: "list[Line]"  # noqa: F821, UP037  # type: ignore[name-defined]


async def test_a_model_that_is_not_fully_defined_is_refused_before_it_buries_anything(shell: Shell) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^model: .*Line"):
        shell.queue(model=Unfinished)


class Secret(BaseModel):
    password: SecretStr


class Moody(BaseModel):
    n: int

    def model_post_init(self, context: Any) -> None:
        if self.n == 13:
            raise RuntimeError("thirteen")


@pytest.mark.parametrize(
    ("model", "payload", "message"),
    [
        (Part, {"name": 1}, "name: Input should be a valid string; price: Field required"),
        (Part, None, "Input should be a valid dictionary"),
        (Part, {"name": "x", "price": Decimal("1." + "1" * 40)}, r"^payload\.price: a Decimal .*34 digits"),
        (list[Part], [{"name": "x", "price": Decimal("9E9999")}], r"^payload\[0\]\.price: a Decimal"),
        (Secret, Secret(password=SecretStr("hunter2")), r"^payload\.password: .*asterisks"),
        (Moody, {"n": 13}, "RuntimeError: thirteen"),
    ],
)
async def test_a_payload_that_the_model_refuses_is_not_pushed(
    shell: Shell, model: Any, payload: Any, message: str
) -> None:
    queue = shell.queue(model=model)
    with pytest.raises(mongoq.PayloadInvalid, match=message) as caught:
        await queue.push(payload)
    assert "hunter2" not in str(caught.value)
    assert await queue.size() == 0


@pytest.mark.every_shell
@pytest.mark.parametrize("bad", [{"name": 5}, {"n": 13}], ids=str)
async def test_an_undecodable_payload_is_buried_and_the_next_one_comes(shell: Shell, bad: Any) -> None:
    model = Moody if bad == {"n": 13} else Part
    good: Mapping[str, Any] = {"n": 1} if model is Moody else {"name": "bolt", "price": "1"}
    await shell.queue().push(bad, headers={"h": 1})
    queue = shell.queue(model=model)
    await queue.push(good)
    assert (await queue.reserve()).payload == model.model_validate(good)
    (dead,) = await queue.dead.peek()
    assert (dead.payload, dead.headers) == (bad, {"h": 1})
    assert dead.origin.reason.startswith("payload: does not fit the queue's model: ")
    assert dead.error.type == "mongoq.errors.PayloadInvalid"


@pytest.mark.parametrize("history", [None, 60])
async def test_pop_buries_an_undecodable_payload_too(shell: Shell, history: float | None) -> None:
    id = await shell.queue().push("bad")
    queue = shell.queue(model=Part, history=history)
    await queue.push({"name": "bolt", "price": "1"})
    assert (await queue.pop()).payload.name == "bolt"
    (dead,) = await queue.dead.peek()
    assert (dead.id, dead.payload, dead.origin.attempts, dead.processed) == (id, "bad", 1, None)


async def test_an_undecodable_payload_is_raised_with_the_raw_item_when_asked(shell: Shell) -> None:
    await shell.queue().push("bad")
    queue = shell.queue(model=Part)
    with pytest.raises(mongoq.PayloadInvalid) as caught:
        await queue.reserve(on_invalid="raise")
    item = caught.value.item
    assert (item.payload, item.state) == ("bad", "reserved")
    assert await queue.reserve() is None
    await queue.move(item, "orders", payload={"name": "mended", "price": 1})
    assert (await queue.reserve()).payload.name == "mended"


async def test_looking_at_an_undecodable_payload_raises_with_the_raw_item(shell: Shell) -> None:
    id = await shell.queue().push("bad")
    queue = shell.queue(model=Part)
    for look in (lambda: queue.get(id), lambda: queue.peek()):
        with pytest.raises(mongoq.PayloadInvalid, match="without a model") as caught:
            await look()
        assert caught.value.item.payload == "bad"
    assert (await shell.queue().get(id)).payload == "bad"
