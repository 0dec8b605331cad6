"""The time of items in each stage, and the throughput of each stage, from their trails.

A hop says when a worker took the item (``taken``) and when it settled it (``settled``). The hop before says when the
item came to the queue: it waited from then on until it was taken. Nothing tells when items came to the first queue, nor
when a dead letter was sent back: of these there is no waiting time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["PAUSE", "TRAIL", "StageTimes", "Times", "stage_times"]

TRAIL = (
    "array<struct<queue: string, stage: string, by: string, taken: timestamp, settled: timestamp, "
    "attempts: int, ended: string, to: string>>"
)
"""The type of the column ``_trail``."""
PAUSE = 1000
"""Milliseconds; when a stage settles nothing for longer, nobody was at work, or there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds: half of the items took no longer than ``median``, 95 of 100 no longer than ``most``."""

    median: float
    most: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times of one stage, from trails.

    Attributes:
        stage: its name.
        items: how many it has settled; one that came again is counted again.
        per_second: how many it settled in a second, pauses left out; ``None`` if there were never two in a row.
        waiting: from when an item came to the queue until it was taken; ``None`` where no trail tells.
        running: from when it was taken until it was settled: the handler, and the time in the worker's hands before.
    """

    stage: str
    items: int
    per_second: float | None
    waiting: Times | None
    running: Times


def stage_times(trails: DataFrame) -> list[StageTimes]:
    """Sum up the column ``_trail`` of items, stage by stage, in the order in which items meet them."""
    from pyspark.sql import functions as F  # noqa: N812

    gap = F.when(F.col("gap") <= PAUSE, F.col("gap"))
    sums = _hops(trails).groupBy("stage")
    totals = sums.agg(
        F.count("*").alias("items"),
        (F.count(gap) * 1000 / F.sum(gap)).alias("per_second"),
        F.percentile("waiting", [0.5, 0.95]).alias("waiting"),
        F.percentile("running", [0.5, 0.95]).alias("running"),
        F.min("place").alias("place"),
    )
    return [
        StageTimes(row["stage"], row["items"], row["per_second"], _times(row["waiting"]), Times(*row["running"]))
        for row in totals.orderBy("place", "stage").collect()
    ]


def _hops(trails: DataFrame) -> DataFrame:
    """Return a row for each hop, with its times in milliseconds."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    before = F.when(F.col("place") > 0, F.get("_trail", F.col("place") - 1))
    hops = trails.select("_trail", F.posexplode("_trail").alias("place", "hop"))
    settled = hops.select(
        "place",
        "hop.stage",
        _milliseconds(F.col("hop.settled")).alias("settled"),
        (_milliseconds(F.col("hop.settled")) - _milliseconds(F.col("hop.taken"))).alias("running"),
        F.when(before["to"] == F.col("hop.queue"), _since(before["settled"])).alias("waiting"),
    )
    in_order = Window.partitionBy("stage").orderBy("settled")
    return settled.withColumn("gap", F.col("settled") - F.lag("settled").over(in_order))


def _since(settled: Column) -> Column:
    """Return how long it waited. Clocks of two workers agree to a millisecond or so: none takes it before it came."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.greatest(_milliseconds(F.col("hop.taken")) - _milliseconds(settled), F.lit(0))


def _milliseconds(moment: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.unix_millis(moment)


def _times(totals: Any) -> Times | None:
    return None if totals is None else Times(*totals)
