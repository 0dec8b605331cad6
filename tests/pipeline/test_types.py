"""Types that cannot go together, by annotations and models; whatever may fit is let pass."""

from __future__ import annotations

import functools
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, NewType, Protocol, TypeVar

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    TypeAdapter,
    model_serializer,
    model_validator,
)
from typing_extensions import TypedDict

import mongoq
from tests.pipeline.stations import Flight, Numbered

T = TypeVar("T")


class Large(Flight):
    """One that fits wherever a flight does."""


class Aliased(BaseModel):
    flight_number: int = Field(alias="number")
    airline: str = Field(validation_alias="carrier")


class Chosen(BaseModel):
    number: int = Field(validation_alias=AliasChoices("n", "no"))


class Written(BaseModel):
    flight_number: int = Field(serialization_alias="number")
    airline: str = Field(alias="carrier")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Made(BaseModel):
    """It may write what it likes."""

    number: int

    @model_serializer
    def write(self) -> dict[str, Any]:
        return {"number": self.number, "carrier": "UA"}


class Lenient(BaseModel):
    """It may take anything."""

    number: int
    carrier: str

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"number": 1, "carrier": "UA"}


class Strict(BaseModel):
    number: int
    carrier: str

    @model_validator(mode="after")
    def look(self) -> Strict:
        return self


class Names(RootModel[list[str]]):
    pass


class Box(BaseModel, Generic[T]):
    content: T


class Page(TypedDict):
    number: int


class HasNumber(Protocol):
    number: int


@dataclass
class Point:
    x: int


class Colour(Enum):
    RED = "red"


Number = NewType("Number", int)


def annotated(takes: Any = Any, returned: Any = Any) -> Callable[..., Any]:
    def handler(payload):  # type: ignore[no-untyped-def]
        return payload

    handler.__annotations__ = {"payload": takes, "return": returned}
    return handler


def faults_of(handler: Callable[..., Any], *, model: Any = None, target: Any = None, **options: Any) -> list[str]:
    """Return the faults of a stage, and of the one behind it."""
    pipeline = mongoq.Pipeline("line", outputs=options.pop("outputs", ()))
    pipeline.stage("in", **({"to": "out", "name": "first"} | options), model=model)(handler)
    pipeline.sink("out", name="second", model=target)(lambda payload: None)
    try:
        pipeline.check()
    except mongoq.GraphInvalid as invalid:
        return [fault.removeprefix("stage 'first': ") for fault in invalid.faults]
    return []


# --- what is taken -------------------------------------------------------------------------------


def test_what_a_handler_takes_is_not_what_the_model_makes() -> None:
    for model, takes in [
        (Flight, dict),
        (Flight, int | str),
        (Flight, typing.Optional[Numbered]),  # noqa: UP045
        (Flight, Annotated[str, "what"]),
        (Flight, "Numbered"),
        (datetime, str),
        (list[int], set[int]),
        (dict, Flight),
    ]:
        (fault,) = faults_of(annotated(takes), model=model)
        assert fault.startswith("model: the handler takes ")
        assert fault.endswith("; let them agree")


def test_what_a_handler_takes_may_be_what_the_model_makes() -> None:
    for model, takes in [
        (Flight, Flight),
        (Large, Flight),
        (Flight, Large),
        (Flight, T),
        (Flight, HasNumber),
        (Flight, Flight | dict),
        (Flight, "Nonsense"),
        (Flight, "1 / 0"),
        (Flight, Number),
        (Lenient, dict),
        (Names, list),
        (int, float),
        (list[int], Sequence[int]),
        (dict, Page),
        (SecretStr, str),
        (Colour, str),
        (TypeAdapter(int), str),
        (Annotated[int, BeforeValidator(str)], str),
        (None, str | None),
        (None, Flight | dict),
    ]:
        assert faults_of(annotated(takes), model=model) == [], (model, takes)


def test_a_model_that_was_forgotten() -> None:
    for takes, name in [(Flight | Numbered, "Flight"), (Point, "Point")]:
        (fault,) = faults_of(annotated(takes))
        assert "without a model payloads come as they are stored" in fault
        assert fault.endswith(f"add model={name}")


def test_a_model_that_pydantic_cannot_use() -> None:
    (fault,) = faults_of(annotated(), model=object())
    assert fault.startswith("model: pydantic cannot work with <object")
    (unresolved,) = faults_of(annotated(), model=TypeAdapter("Nonsense", config=None))
    assert unresolved.startswith("model: pydantic cannot work with")


# --- what is returned ----------------------------------------------------------------------------


def test_what_a_handler_returns_fits_no_reader() -> None:
    for target, returned, reason in [
        (Flight, "Numbered", "Numbered lacks carrier of Flight"),
        (Flight, Numbered | mongoq.Move | mongoq.Drop | None, "Numbered lacks carrier of Flight"),
        (Aliased, Numbered, "Numbered lacks airline of Aliased"),
        (Box[int], Flight, "Flight lacks content of Box[int]"),
        (Strict, Numbered, "Numbered lacks carrier of Strict"),
        (Flight, int, "int is no Flight"),
        (str, float | bool, "float is no str"),
        (int, dict[str, int], "dict is no int"),
        (datetime, Flight, "Flight is no datetime"),
        (list[str], str, "str is no list"),
    ]:
        (fault,) = faults_of(annotated(returned=returned), target=target)
        assert fault.startswith("the handler returns ")
        assert fault.endswith(f"which stage 'second' cannot take from 'out': {reason}; change one of them")


def test_what_a_handler_returns_may_fit() -> None:
    for target, returned in [
        (Flight, Large),
        (Flight, dict[str, Any]),
        (Flight, Any),
        (Flight, T),
        (Flight, Point),
        (Flight, Numbered | dict),
        (Flight, "Nonsense"),
        (Flight, mongoq.Move | mongoq.Drop | None),
        (Flight, Open),
        (Flight, Made),
        (Flight, Names),
        (Flight, Written),
        (Aliased, Flight),
        (Chosen, Flight),
        (Lenient, int),
        (Numbered, Flight),
        (str, bytes),
        (str, Decimal),
        (float, int),
        (Colour, str),
        (dict, Flight),
        (Annotated[str, BeforeValidator(str)], int),
        (TypeAdapter(str), int),
        (None, Numbered),
    ]:
        assert faults_of(annotated(returned=returned), target=target) == [], (target, returned)


def test_several_where_one_payload_is_due() -> None:
    for returned in (list[Flight], tuple[int, int], Iterator[int], AsyncIterator[int], list[int] | mongoq.Drop):
        (fault,) = faults_of(annotated(returned=returned))
        assert fault.endswith("where one payload is due; return that, or a document around it")
        sink = mongoq.Pipeline("line")
        sink.sink("in")(annotated(returned=returned))
        sink.check()


def test_a_return_that_was_forgotten() -> None:
    expected = ["the handler returns None, where a payload is due; return one, or declare a sink, or none='drop'"]
    assert faults_of(annotated(returned=None)) == expected
    assert faults_of(annotated(returned=None), batch=10) == expected
    assert faults_of(annotated(returned=None), none="drop") == []


def test_of_several_targets_one_has_to_be_chosen() -> None:
    for returned in (dict, str | None):
        (fault,) = faults_of(annotated(returned=returned), to=["out", "other"], outputs="other")
        assert fault.endswith("and of several targets it is to choose one; return a Move")
    for returned in (mongoq.Move, mongoq.Outcome | None, dict | mongoq.Move, Any):
        assert faults_of(annotated(returned=returned), to=["out", "other"], outputs="other") == []


def test_each_reader_of_the_target_is_asked() -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.stage("in", to="out", name="first")(annotated(returned=Numbered))
    for name, model in [("a", Numbered), ("b", Flight), ("c", None)]:
        pipeline.sink("out", name=name, model=model, shared=True)(lambda payload: None)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    assert [fault.split(",")[1] for fault in caught.value.faults] == [
        " which stage 'b' cannot take from 'out': Numbered lacks carrier of Flight; change one of them"
    ]


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_is_taken_as_a_list() -> None:
    for takes in (list[Flight], Sequence[Flight], list, Any, "list[Flight]"):
        assert faults_of(annotated(takes), model=Flight, batch=5) == []
    for takes in (Flight, str, dict[str, Any]):
        assert "with batch= it is given a list of payloads" in faults_of(annotated(takes), batch=5)[0]


def test_the_payloads_of_a_batch_are_those_of_the_model() -> None:
    (fault,) = faults_of(annotated(list[Numbered]), model=Flight, batch=5)
    assert fault == "model: the handler takes Numbered, and the model makes Flight; let them agree"
    (forgotten,) = faults_of(annotated(list[Flight]), batch=5)
    assert forgotten.endswith("add model=Flight")


def test_a_batch_returns_a_list_of_what_fits() -> None:
    assert faults_of(annotated(returned=list[Flight | None]), target=Flight, batch=5) == []
    assert faults_of(annotated(returned=list[mongoq.Move | Exception]), target=Flight, batch=5) == []
    (fault,) = faults_of(annotated(returned=Flight), batch=5)
    assert fault.endswith("and with batch= a list with an entry for each is due")
    (unfit,) = faults_of(annotated(returned=list[Numbered]), target=Flight, batch=5)
    assert "Numbered lacks carrier of Flight" in unfit
    (nested,) = faults_of(annotated(returned=list[list[int]]), batch=5)
    assert "returns list, where one payload is due" in nested


# --- handlers of all kinds -----------------------------------------------------------------------


class Desk:
    def take(self, flight: str) -> int:
        return 1

    def __call__(self, flight: str) -> int:
        return 1


async def take(flight: str) -> int:
    return 1


def take_two(bound: bytes, flight: str) -> int:
    return 1


def test_annotations_are_read_off_all_kinds_of_handlers() -> None:
    for handler in (Desk().take, Desk(), take, functools.partial(take_two, b"")):
        taken, returned = faults_of(handler, model=Flight, target=Flight)
        assert taken == "model: the handler takes str, and the model makes Flight; let them agree"
        assert "int is no Flight" in returned


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def converted(payload: Any) -> Any:
        return function(payload)

    return converted


class Taking:
    def __init__(self, flight: str) -> None:
        pass


def test_what_is_wrapped_or_does_not_say_is_let_pass() -> None:
    for handler in (wrapped(take), Taking, print, dict):
        assert faults_of(handler, model=Flight, target=Flight) == []


def test_one_annotation_that_cannot_be_resolved_does_not_hide_another() -> None:
    (fault,) = faults_of(annotated("Nonsense", "Numbered"), target=Flight)
    assert "Numbered lacks carrier of Flight" in fault
