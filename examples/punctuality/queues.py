"""The names of the queues, in the order in which items meet them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ARRIVALS", "DEPARTURES", "ERRORS", "FLIGHTS", "OUTPUTS", "QUESTIONS", "RAW", "WEATHER", "Sorted"]


class Sorted(NamedTuple):
    """The two queues of departures, or of arrivals."""

    late: str
    on_time: str


RAW, FLIGHTS = "raw", "flights"
QUESTIONS, WEATHER = "questions", "weather"
DEPARTURES = Sorted("departures.late", "departures.on_time")
ARRIVALS = Sorted("arrivals.late", "arrivals.on_time")
OUTPUTS = (*DEPARTURES, *ARRIVALS)
ERRORS = "errors"
