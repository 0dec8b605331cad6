"""The replay by Spark: read a period of history, select the wrong flights, write them back to the queue.

All three steps are safe to do again. The period is over, so that the history in it is the same whenever it is read, and
holds no copy that comes of the replay. The id of each copy is made of that of its original, the queue and the label: a
job that was interrupted is done again and pushes what is missing, and one that is done twice pushes nothing more, also
when the copies are long done.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from examples.flights_replay.pipeline import CHECKED, DONE, KENNEDY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Period", "send_back", "wrong_weather"]


@dataclass(frozen=True, slots=True)
class Period:
    """When the faulty version was at work, on the server's clock: from ``since`` until just before ``until``."""

    since: datetime
    until: datetime


def wrong_weather(spark: SparkSession, place: dict[str, str], period: Period) -> DataFrame:
    """Return the flights that the faulty version has done wrong, each with its id and its payload as BSON.

    The server finds the period by its index, and sends those flights alone: the filter is evaluated there.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read.format("mongoq").options(**place, queue=DONE, view="history", pushdown="true")
    within = reader.options(since=period.since.isoformat(), until=period.until.isoformat())
    history = within.schema("_id string, _payload binary, origin string").load()
    return history.where(f"origin <> '{KENNEDY}'").select("_id", "_payload")


def send_back(flights: DataFrame, place: dict[str, str], *, label: str) -> None:
    """Push a copy of each to the queue of the stage that was mended.

    The payload goes as it is, to the last byte. The stage takes a ``Flight``, and what the faulty version has added
    is no part of that.
    """
    writer = flights.write.format("mongoq").options(**place, to=CHECKED, idColumn="_id", label=label)
    writer.mode("append").save()
