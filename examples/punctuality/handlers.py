"""The work of the stages: functions of payloads. A ``Fork`` makes several items of one, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from examples.flights.handlers import check, hour_of
from examples.flights.model import LATE, Weather
from examples.punctuality.model import Answer, Movement, NumberedFlight, NumberedRow, Question
from examples.punctuality.queues import ARRIVALS, DEPARTURES, FLIGHTS, QUESTIONS, Sorted
from mongoq import Dead, Fork, Move

__all__ = ["WeatherTable", "judge", "look_up", "validate"]

WeatherTable = Mapping[tuple[str, datetime], Weather]


def validate(line: NumberedRow) -> Fork | Dead:
    """Make of a row its flight, and the question for its weather; one that cannot be used is dead."""
    flight = check(line.row)
    if isinstance(flight, Dead):
        return flight
    numbered = NumberedFlight(number=line.number, **dict(flight))
    question = Question(number=line.number, airport=flight.origin, hour=hour_of(flight))
    return Fork([Move(FLIGHTS, payload=numbered), Move(QUESTIONS, payload=question)])


def look_up(question: Question, weather: WeatherTable) -> Answer:
    """Answer a question from the table of hourly weather."""
    return Answer(number=question.number, weather=weather.get((question.airport, question.hour)))


def judge(flight: NumberedFlight, answer: Answer) -> Fork:
    """Make of a flight and its weather a departure and an arrival, each late or on time.

    A flight that was diverted has no arrival, and the ``Fork`` has ``None`` in its place.
    """
    rain = _rain(answer.weather)
    departure = _movement(DEPARTURES, flight, flight.origin, flight.departure_delay, rain)
    arrival = _movement(ARRIVALS, flight, flight.destination, flight.arrival_delay, rain)
    return Fork([departure, arrival])


def _rain(weather: Weather | None) -> bool | None:
    return None if weather is None or weather.precip is None else weather.precip > 0


def _movement(to: Sorted, flight: NumberedFlight, airport: str, delay: int | None, rain: bool | None) -> Move | None:
    if delay is None:
        return None
    name = f"{flight.carrier} {flight.flight}"
    payload = Movement(number=flight.number, flight=name, airport=airport, delay=delay, rain=rain)
    return Move(to.late if delay > LATE else to.on_time, payload=payload)
