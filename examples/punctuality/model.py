"""The payloads of the queues. Each has the number of its row, by which the join pairs items."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel

from examples.flights.model import Flight, Row, Weather

__all__ = ["Answer", "Movement", "NumberedFlight", "NumberedRow", "Question"]


class NumberedRow(BaseModel):
    """A line of flights.csv, and which of the lines that are read it is, from 1 up."""

    number: int
    row: Row


class NumberedFlight(Flight):
    """A flight that departed, and the number of its row."""

    number: int


class Question(BaseModel):
    """A question: the weather at this airport, in the hour that begins then."""

    number: int
    airport: str
    hour: AwareDatetime


class Answer(BaseModel):
    """The weather of an hour; ``None`` where the table does not know it."""

    number: int
    weather: Weather | None


class Movement(BaseModel):
    """A departure or an arrival.

    Attributes:
        number: of the row.
        flight: as it is called, ``UA 1545``.
        airport: where.
        delay: minutes; early is less than zero.
        rain: whether it rained at the airport of the departure in the hour that it was planned for; ``None``: that was
            not measured.
    """

    number: int
    flight: str
    airport: str
    delay: int
    rain: bool | None
