"""Late or on time, by weather: one aggregation over the queues that the pipeline has filled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pymongo.collection import Collection

from examples.punctuality.queues import ARRIVALS, DEPARTURES, OUTPUTS, Sorted

__all__ = ["Group", "Share", "read_report"]

NAMES = {False: "dry", True: "rain", None: "not measured"}
ALL = "all"
PIPELINE: list[dict[str, Any]] = [
    {"$match": {"q": {"$in": OUTPUTS}, "processed": {"$exists": False}}},
    {"$group": {"_id": {"queue": "$q", "rain": {"$ifNull": ["$payload.rain", None]}}, "n": {"$sum": 1}}},
]

Found = Counter[tuple[str, bool | None]]


@dataclass(frozen=True, slots=True)
class Share:
    """The number of movements, and of the late ones."""

    all: int
    late: int

    def __str__(self) -> str:
        """Return the share of the late ones; of none there is none."""
        return f"{self.late / self.all:.1%}" if self.all else "–"


@dataclass(frozen=True, slots=True)
class Group:
    """The flights of one kind of weather, or all of them.

    Attributes:
        weather: at the airport of the departure, in the hour that it was planned for.
        departures: of these flights.
        arrivals: of the same flights; one that was diverted has none.
    """

    weather: str
    departures: Share
    arrivals: Share


def read_report(collection: Collection[dict[str, Any]]) -> list[Group]:
    """Count what is late and what is on time, in each kind of weather and in all."""
    groups = collection.aggregate(PIPELINE)
    counts: Found = Counter({(group["_id"]["queue"], group["_id"]["rain"]): group["n"] for group in groups})
    return [*(_group(name, counts, (rain,)) for rain, name in NAMES.items()), _group(ALL, counts, tuple(NAMES))]


def _group(name: str, counts: Found, weathers: tuple[bool | None, ...]) -> Group:
    return Group(name, _share(DEPARTURES, counts, weathers), _share(ARRIVALS, counts, weathers))


def _share(queues: Sorted, counts: Found, weathers: tuple[bool | None, ...]) -> Share:
    late, on_time = (sum(counts[queue, rain] for rain in weathers) for queue in queues)
    return Share(late + on_time, late)
