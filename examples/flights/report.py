"""Spark reads the history and the dead letters straight from the queues, and sums them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from examples.flights.model import LATE
from examples.flights.pipeline import DONE, ERRORS
from examples.flights.timings import TRAIL, StageTimes, stage_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Delays", "Report", "read_report"]

COLUMNS = (
    "airline string, scheduled timestamp, departure_delay int, "  # fields of the payload
    "weather struct<wind_speed: double, precip: double, visib: double>, "
    f"_trail {TRAIL}"
)
LETTERS = (
    "_origin struct<queue: string, id: string, reason: string, attempts: int, key: string, at: timestamp, "
    "stage: string, delivery: string>, "
    f"_trail {TRAIL}"
)
NEW_YORK = "America/New_York"

Classes = Sequence[tuple[float, str]]
"""Names of ranges of a number, each with its upper bound, which it does not hold."""

WEATHER: dict[str, tuple[str, Classes]] = {
    "visibility": (
        "weather.visib",
        [(1, "under 1 mile"), (5, "1 to 5 miles"), (10, "5 to 10 miles"), (inf, "10 miles")],
    ),
    "rain": ("weather.precip", [(0.005, "none"), (0.1, "under 0.1 inch"), (inf, "0.1 inch or more")]),
    "wind": ("weather.wind_speed", [(10, "under 10 mph"), (20, "10 to 20 mph"), (inf, "20 mph or more")]),
}
UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Delays:
    """The departure delays of a group of flights.

    Attributes:
        group: what they have in common.
        flights: how many there are.
        mean: their mean delay in minutes; leaving early counts as less than zero.
        late: the share that left more than 15 minutes late.
    """

    group: str
    flights: int
    mean: float
    late: float


@dataclass(frozen=True, slots=True)
class Report:
    """The report that Spark computes.

    Attributes:
        flights: how many are in the history.
        carriers: delays by airline, the latest first.
        hours: delays by the hour of the day in New York that the departure was planned for, ``"05"`` and so on.
        weather: delays by class of visibility, rain and wind.
        dead: how many dead letters there are by queue and reason.
        stages: how long items were in each stage, and how many left it in a second, in the order of the line.
    """

    flights: int
    carriers: list[Delays]
    hours: list[Delays]
    weather: dict[str, list[Delays]]
    dead: list[tuple[str, str, int]]
    stages: list[StageTimes]


def read_report(spark: SparkSession, uri: str, database: str, collection: str) -> Report:
    """Let Spark read and sum up. The history is read once, for all questions, and so are the dead letters."""
    options = {"uri": uri, "database": database, "collection": collection, "missing": "empty"}
    history, letters = _history(spark, options).persist(), _letters(spark, options).persist()
    try:
        return _report(history, letters)
    finally:
        history.unpersist()
        letters.unpersist()


def _report(history: DataFrame, letters: DataFrame) -> Report:
    from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

    return Report(
        flights=history.count(),
        carriers=sorted(_delays(history, F.col("airline")), key=_latest_first),
        hours=_by_hour(history),
        weather={name: _by_class(history, F.col(column), classes) for name, (column, classes) in WEATHER.items()},
        dead=_dead(letters),
        stages=stage_times(history.select("_trail").unionByName(letters.select("_trail"))),
    )


def _latest_first(delays: Delays) -> tuple[float, str]:
    return -delays.late, delays.group


def _history(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The processed items of the last queue, their payloads as columns."""
    reader = spark.read.format("mongoq").options(**options, queue=DONE, view="history")
    return reader.schema(COLUMNS).load()


def _letters(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The dead letters."""
    reader = spark.read.format("mongoq").options(**options, queue=ERRORS, view="live")
    return reader.schema(LETTERS).load()


def _dead(letters: DataFrame) -> list[tuple[str, str, int]]:
    """Count which queues they come from, and why."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = letters.groupBy("_origin.queue", "_origin.reason").count()
    rows = counts.orderBy(F.desc("count"), "queue", "reason").collect()
    return [(row["queue"], row["reason"], row["count"]) for row in rows]


def _delays(history: DataFrame, group: Column) -> list[Delays]:
    from pyspark.sql import functions as F  # noqa: N812

    delay = F.col("departure_delay")
    late = F.avg(F.when(delay > LATE, 1.0).otherwise(0.0))
    sums = history.groupBy(group.alias("group")).agg(F.count("*"), F.avg(delay), late)
    return [Delays(group or "unknown", *numbers) for group, *numbers in sums.collect()]


def _by_hour(history: DataFrame) -> list[Delays]:
    """Sum up by the hour at the airport, where people get up and storms come up, not by that of the server."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.date_format(F.from_utc_timestamp("scheduled", NEW_YORK), "HH")
    return sorted(_delays(history, hour), key=lambda delays: delays.group)


def _by_class(history: DataFrame, number: Column, classes: Classes) -> list[Delays]:
    from pyspark.sql import functions as F  # noqa: N812

    name = F.when(number.isNull(), UNMEASURED)
    for bound, label in classes:
        name = name.when(number < bound, label)
    order = [*(label for _, label in classes), UNMEASURED]
    return sorted(_delays(history, name), key=lambda delays: order.index(delays.group))
