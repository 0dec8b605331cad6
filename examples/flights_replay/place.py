"""The place of the queues and of their result: departures, and the wrong ones among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient

import mongoq
from examples.flights.handlers import hour_of
from examples.flights.model import EnrichedFlight, Reference, Weather
from examples.flights_replay.pipeline import CHECKED, Departures
from examples.program import CannotStart

__all__ = ["COLLECTION", "DEPARTURES", "Place", "open_place"]

COLLECTION = "flights_replay"
DEPARTURES = "flights_replay_departures"


@dataclass(frozen=True, slots=True)
class Place:
    """A server.

    Attributes:
        broker: of the queues.
        departures: what the pipeline stores.
        uri: where it is.
    """

    broker: mongoq.Broker
    departures: Departures
    uri: str

    @property
    def options(self) -> dict[str, str]:
        """The options by which Spark finds the queues."""
        database, _, collection = self.broker.namespace.partition(".")
        return {"uri": self.uri, "database": database, "collection": collection}

    def now(self) -> datetime:
        """Return the time on the server's clock, which history goes by."""
        moment: datetime = self.departures.database.command("hello")["localTime"]
        return moment.replace(tzinfo=UTC)

    def waiting(self) -> int:
        """Return how many flights wait for the stage."""
        return self.broker.queue(CHECKED).size()

    def flights(self) -> Counter[str]:
        """Count the departures stored, by airport."""
        return Counter(document["origin"] for document in self.departures.find({}, {"origin": 1}))

    def wrong(self, tables: Reference) -> Counter[str]:
        """Count by airport the departures whose weather is not the table's for their own airport and hour."""
        flights = map(EnrichedFlight.model_validate, self.departures.find())
        return Counter(each.origin for each in flights if each.weather != _own_weather(each, tables))


def _own_weather(flight: EnrichedFlight, tables: Reference) -> Weather | None:
    return tables.weather.get((flight.origin, hour_of(flight)))


@contextmanager
def open_place(uri: str) -> Iterator[Place]:
    """Connect to a server on which this example has not run; raises ``CannotStart`` if it has."""
    with (
        mongoq.connect(uri, collection=COLLECTION) as broker,
        MongoClient[dict[str, Any]](uri, tz_aware=True) as client,
    ):
        database = client[broker.namespace.partition(".")[0]]
        if broker.queues() or database[DEPARTURES].find_one():
            there = f"database {database.name!r} has collections {COLLECTION!r} and {DEPARTURES!r} of another run"
            raise CannotStart(f"{there}: drop them, or name another database in the URI")
        yield Place(broker, database[DEPARTURES], uri)
