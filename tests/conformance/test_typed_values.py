"""Typed payloads as BSON returns them: what is pushed is what the next reserve can read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId, Regex, Timestamp
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    model_validator,
)

import mongoq
from tests.shells import Shell

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
WEST = timezone(timedelta(hours=-5))


class Span(BaseModel):
    start: datetime
    end: datetime

    @model_validator(mode="after")
    def is_in_order(self) -> Span:
        if not self.end > self.start:
            raise ValueError("it ends before it starts")
        return self


def at_five_past_the_hour_there(value: datetime) -> datetime:
    if value.utcoffset() != timedelta(hours=-5):
        raise ValueError("the zone of the branch")
    return value


class Visit(BaseModel):
    at: Annotated[datetime, AfterValidator(at_five_past_the_hour_there)]


class Visits(BaseModel):
    visits: list[Visit]


class Local(BaseModel):
    """What is derived from a time changes with its zone."""

    at: datetime
    hour: int = 0

    @model_validator(mode="after")
    def derive(self) -> Local:
        self.hour = self.at.hour
        return self


def whole_ticks(value: datetime) -> datetime:
    if value.microsecond % 1000 == 0:
        raise RuntimeError("a time as precise as that")
    return value


BURIED: list[tuple[Any, Any, str]] = [
    (Span, Span(start=MOMENT, end=MOMENT + timedelta(microseconds=300)), "payload: .*ends before it starts"),
    (Visits, {"visits": [{"at": MOMENT.astimezone(WEST)}]}, r"payload: .*visits\.0\.at: .*zone of the branch"),
    (Local, Local(at=MOMENT.astimezone(WEST)), "payload.hour: would come back as something else"),
    (Annotated[datetime, AfterValidator(whole_ticks)], MOMENT, "payload: .*RuntimeError: a time as precise as that"),
]


@pytest.mark.parametrize(("model", "payload", "message"), BURIED, ids=[str(each[2]) for each in BURIED])
async def test_what_reserve_would_bury_is_refused_before_it_is_sent(
    shell: Shell, model: Any, payload: Any, message: str
) -> None:
    await shell.queue("plain").push(1)
    item = await shell.queue("plain").reserve()
    before = list(shell.raw.find())
    queue, plain = shell.queue(model=model), shell.queue("plain", model=model)
    for attempt in (
        lambda: queue.push(payload),
        lambda: queue.push(payload, key="k", on_duplicate="replace"),
        lambda: plain.commit(item, payload=payload),
        lambda: plain.move(item, queue, payload=payload),
    ):
        with pytest.raises(mongoq.PayloadInvalid, match=message):
            await attempt()
    with pytest.raises(mongoq.PayloadInvalid, match=message.replace("payload", r"payloads\[0\]", 1)):
        await queue.push_many([payload])
    assert [document for document in shell.raw.find() if "q" in document] == [
        document for document in before if "q" in document
    ]


class Stored(BaseModel):
    """Fields of BSON's own types."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    price: Decimal128
    amount: Decimal
    blob: Binary
    other: Binary
    plain: bytes
    at: DatetimeMS
    far: DatetimeMS
    time: datetime
    id: ObjectId
    number: Int64
    pattern: Regex[str]
    stamp: Timestamp
    several: list[Decimal128] = Field(default_factory=list)
    named: dict[str, Binary | None] = Field(default_factory=dict)
    maybe: Decimal128 | None = None


STORED = Stored(
    price=Decimal128("1.10"),
    amount=Decimal("2.20"),
    blob=Binary(b"blob"),
    other=Binary(b"other", 128),
    plain=b"plain",
    at=DatetimeMS(1_714_979_289_123),
    far=DatetimeMS(2**60),
    time=MOMENT,
    id=ObjectId(),
    number=Int64(5),
    pattern=Regex("^a", "i"),
    stamp=Timestamp(5, 1),
    several=[Decimal128("1E+3"), Decimal128("NaN")],
    named={"a": Binary(b"named"), "b": None},
    maybe=Decimal128("-0"),
)


@pytest.mark.every_shell("motor")
async def test_fields_of_the_types_of_bson_come_back_equal(shell: Shell) -> None:
    queue = shell.queue(model=Stored, history=60)
    id = await queue.push(STORED)
    payload = shell.raw.find_one({"_id": id}, {"payload.price": 1, "payload.amount": 1})["payload"]
    assert (payload["price"], payload["amount"]) == (Decimal128("1.10"), Decimal128("2.20"))
    expected = STORED.model_copy(update={"time": MOMENT.replace(microsecond=123000)})
    item = await queue.reserve()
    assert item.payload == expected
    assert isinstance(item.payload.several[0], Decimal128)
    assert isinstance(item.payload.named["a"], Binary)
    await queue.commit(item, payload=item.payload)
    assert (await queue.get(id)).payload == expected


def a_decimal128(value: Any) -> Decimal128:
    if not isinstance(value, Decimal128):
        raise ValueError("a Decimal128")
    return value


Precise = Annotated[Decimal128, PlainValidator(a_decimal128)]


class Touchy:
    """A value that cannot be compared."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("not comparable")

    __hash__ = None  # type: ignore[assignment]


Shy = Annotated[
    Touchy,
    BeforeValidator(lambda value: value if isinstance(value, Touchy) else Touchy(value)),
    PlainSerializer(lambda touchy: touchy.n),
]
LOOSE = ConfigDict(arbitrary_types_allowed=True)


def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=LOOSE)


async def test_what_cannot_be_compared_comes_back_as_it_was(shell: Shell) -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    array = Annotated[np.ndarray, BeforeValidator(np.asarray), PlainSerializer(lambda array: array.tolist())]
    frame = Annotated[pd.DataFrame, BeforeValidator(pd.DataFrame), PlainSerializer(lambda frame: frame.to_dict("list"))]
    cases: list[tuple[Any, Any, Any]] = [
        (Precise, Decimal128("1.50"), str),
        (dict[str, Precise], {"a": Decimal128("1.50")}, str),
        (array, np.array([1.5, float("nan")]), lambda array: array.tolist()[0]),
        (dict[str, array], {"a": np.zeros((2, 2)), "b": np.array([])}, lambda values: values["a"].tolist()),
        (frame, pd.DataFrame({"a": [1, 2]}), lambda frame: frame.to_dict("list")),
        (list[Shy], [Touchy(1), Touchy(2)], lambda values: [shy.n for shy in values]),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal("NaN"), str),
    ]
    for kind, value, shape in cases:
        queue = shell.queue(model=adapter(kind))
        await queue.push(value)
        back = (await queue.pop()).payload
        assert (type(back), shape(back)) == (type(value), shape(value))


async def test_what_cannot_be_compared_comes_back_or_is_refused(shell: Shell) -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    array = Annotated[np.ndarray, BeforeValidator(np.asarray), PlainSerializer(lambda array: array.tolist())]
    halved = Annotated[np.ndarray, BeforeValidator(np.asarray), PlainSerializer(lambda array: (array / 2).tolist())]
    frame = Annotated[pd.DataFrame, BeforeValidator(pd.DataFrame), PlainSerializer(lambda frame: frame.to_dict("list"))]
    cases: list[tuple[Any, Any]] = [
        (pd.DataFrame, pd.DataFrame({"a": [1]})),
        (Any, np.array([1, 2])),
        (array, np.array([1, 2], dtype="int8")),
        (frame, pd.DataFrame({"a": [1, 2]}, index=[5, 6])),
        (halved, np.array([1.0, 2.0])),
        (dict[str, halved], {"a": np.array([1.0, 2.0])}),
        (Touchy, Touchy(1)),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal("sNaN")),
        (Decimal, Decimal("sNaN")),
    ]
    for kind, value in cases:
        queue = shell.queue(model=adapter(kind))
        try:
            await queue.push(value)
        except mongoq.PayloadInvalid:
            assert await queue.size() == 0
        else:
            assert repr((await queue.pop()).payload) == repr(value)


@dataclass(frozen=True)
class Reading:
    at: datetime
    value: float


async def test_times_are_cut_wherever_they_are(shell: Shell) -> None:
    cases: list[tuple[Any, Any]] = [
        (Reading, Reading(MOMENT, float("nan"))),
        (set[datetime], {MOMENT, MOMENT + timedelta(seconds=1)}),
        (tuple[datetime, str], (MOMENT.astimezone(WEST), "x")),
        (Any, {"at": MOMENT, "ms": DatetimeMS(5), "blob": Binary(b"x")}),
        (bytes, Binary(b"x")),
    ]
    for kind, value in cases:
        queue = shell.queue(model=kind)
        await queue.push(value)
        back = (await queue.pop()).payload
        assert type(back) is (bytes if kind is bytes else type(value))
        await queue.push(back)
        assert repr((await queue.pop()).payload) == repr(back)


async def test_a_value_that_cannot_be_compared_is_refused_wherever_it_is_given(shell: Shell) -> None:
    odd = pytest.importorskip("numpy").array([1, 2])
    queue = shell.queue(history=60)
    await queue.push({"l": [1]})
    item = await queue.reserve()
    for attempt in (
        lambda: queue.push(odd),
        lambda: queue.push({"a": [odd]}),
        lambda: queue.push(1, headers={"h": odd}),
        lambda: queue.push(1, headers=odd),
        lambda: queue.commit(item, payload=odd),
        lambda: queue.move(item, "next", payload=odd),
        lambda: queue.move(item, "next", headers=odd),
        *(lambda operator=operator: queue.move(item, "next", patch={operator: {"l": odd}}) for operator in PATCHES),
        lambda: queue.move(item, "next", patch=odd),
    ):
        with pytest.raises(mongoq.ArgumentInvalid):
            await attempt()
    await queue.commit(item)


PATCHES = ("$set", "$inc", "$mul", "$min", "$push", "$addToSet", "$pullAll", "$pop")
