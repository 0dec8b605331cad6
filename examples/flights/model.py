"""The payloads of the queues: a line of the CSV file, a checked flight, an enriched flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

__all__ = ["LATE", "Airport", "EnrichedFlight", "Flight", "Plane", "RawRow", "Reference", "Row", "Weather"]

RawRow = dict[str, Any]
"""A line as the CSV reader gives it: all strings, and ``NA`` for what is not known."""

UNKNOWN = ("", "NA")
LATE = 15
"""Minutes; what is delayed by more is late."""


def _clock_time(value: Any) -> Any:
    """Read ``5`` as 00:05, ``517`` as 05:17, and ``2400`` as the midnight that ends the day."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit()):
        return value
    hour, minute = divmod(int(value), 100)
    return time(hour % 24 if value == "2400" else hour, minute)


ClockTime = Annotated[time, BeforeValidator(_clock_time)]
Minutes = Annotated[int, Field(ge=-1440, le=14400)]
Count = Annotated[int, Field(ge=0, le=100_000)]
Code = Annotated[str, Field(pattern=r"^[A-Z0-9]{2,8}$")]


class Table(BaseModel):
    """A line of one of the CSV files."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: None if value in UNKNOWN else value for name, value in values.items()}


class Row(Table):
    """A line of flights.csv, read strictly: what does not fit is not guessed."""

    model_config = ConfigDict(extra="forbid")

    year: Annotated[int, Field(ge=1970, le=2100)]
    month: int
    day: int
    dep_time: ClockTime | None
    sched_dep_time: ClockTime
    dep_delay: Minutes | None
    arr_time: ClockTime | None
    sched_arr_time: ClockTime
    arr_delay: Minutes | None
    carrier: Code
    flight: Count
    tailnum: Code | None
    origin: Code
    dest: Code
    air_time: Count | None
    distance: Count
    hour: int
    minute: int
    time_hour: AwareDatetime

    @model_validator(mode="after")
    def _on_a_day_that_exists(self) -> Self:
        _ = self.date
        return self

    @property
    def date(self) -> date:
        """The day of the scheduled departure in New York."""
        return date(self.year, self.month, self.day)


class Flight(BaseModel):
    """A flight that departed; times are UTC, delays are minutes."""

    carrier: str
    flight: int
    tail: str | None
    origin: str
    destination: str
    scheduled: AwareDatetime
    departed: AwareDatetime
    departure_delay: int
    arrival_delay: int | None  # a diverted flight has none
    air_time: int | None
    distance: int


class Airport(Table):
    """An airport, and where it lies."""

    name: str
    lat: float
    lon: float
    tzone: str | None


class Plane(Table):
    """A plane, as the registry describes it."""

    manufacturer: str | None
    model: str | None
    year: int | None
    seats: int | None


class Weather(Table):
    """An hour of weather: degrees Fahrenheit, miles per hour, inches, miles."""

    temp: float | None
    wind_speed: float | None
    precip: float | None
    visib: float | None


class EnrichedFlight(Flight):
    """A flight with its airline, plane, airports and weather; ``None`` where the tables know nothing."""

    airline: str | None
    plane: Plane | None
    origin_airport: Airport | None
    destination_airport: Airport | None
    weather: Weather | None


@dataclass(frozen=True, slots=True)
class Reference:
    """The tables that flights are enriched from.

    Attributes:
        airlines: names by carrier.
        airports: by FAA code.
        planes: by tail number.
        weather: by airport and the beginning of the hour in UTC.
    """

    airlines: Mapping[str, str]
    airports: Mapping[str, Airport]
    planes: Mapping[str, Plane]
    weather: Mapping[tuple[str, datetime], Weather]
