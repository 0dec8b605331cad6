"""The pipeline: a source, two stages and a join.

The source stores with the rows how many it has read, in one transaction, so that a process that dies leaves no doubt:
the next one goes on behind the last row that is in the queue. What a fork makes of an item is there with the item gone,
or not at all, and so is the pair that a join makes of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import mongoq
from examples.flights.data import raw_rows
from examples.punctuality.handlers import WeatherTable, judge, look_up, validate
from examples.punctuality.model import Answer, NumberedFlight, NumberedRow, Question
from examples.punctuality.queues import ERRORS, FLIGHTS, OUTPUTS, QUESTIONS, RAW, WEATHER
from examples.running import ENGINES

__all__ = ["BUSY", "JUDGE", "LEASE", "NAME", "SOURCE", "build", "numbered_rows"]

NAME, SOURCE, JUDGE = "punctuality", "rows", "judge"
BUSY = (RAW, QUESTIONS, FLIGHTS, WEATHER, f"{NAME}.{JUDGE}.joined")
"""The queues that are empty when the work is done, in the order in which items meet them."""
LEASE = timedelta(seconds=30)
BATCH = 250
"""Rows that are stored in one transaction."""


def build(
    folder: Path,
    rows: int,
    weather: WeatherTable,
    *,
    engine: str = "threads",
    concurrency: int = 4,
    lease: timedelta = LEASE,
) -> mongoq.Pipeline:
    """Return the pipeline over so many rows of the file in a folder.

    Args:
        folder: of the CSV files.
        rows: how many of the flights, spread over the year; another number is another selection, and wants another
            collection.
        weather: by airport and the beginning of the hour in UTC.
        engine: what will run it.
        concurrency: how many runs of each handler at a time.
        lease: how long the source and the items of a process that has died stay with it.
    """
    handlers: list[Callable[..., Any]] = [validate, look_up, judge]
    parting, looking_up, judging = map(ENGINES[engine].adapted, handlers)
    pipeline = mongoq.Pipeline(NAME, errors=ERRORS, outputs=OUTPUTS)
    pipeline.source(to=RAW, name=SOURCE, batch=BATCH, lease=lease)(partial(numbered_rows, folder=folder, rows=rows))
    common: dict[str, Any] = {"concurrency": concurrency, "lease": lease}
    pipeline.stage(RAW, to=[FLIGHTS, QUESTIONS], name="validate", model=NumberedRow, **common)(parting)
    answering = partial(looking_up, weather=weather)
    pipeline.stage(QUESTIONS, to=WEATHER, name="look_up", model=Question, **common)(answering)
    models = [NumberedFlight, Answer]
    pipeline.join([FLIGHTS, WEATHER], on="number", to=OUTPUTS, name=JUDGE, model=models, **common)(judging)
    return pipeline


def numbered_rows(position: int | None, *, folder: Path, rows: int) -> Iterator[mongoq.Record]:
    """Yield the rows that were not read before; the position behind each is the number of rows read."""
    read = position or 0
    for number, row in enumerate(islice(raw_rows(folder, rows), read, None), start=read + 1):
        yield mongoq.Record({"number": number, "row": row}, position=number)
