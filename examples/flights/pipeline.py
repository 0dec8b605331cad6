"""The pipeline: three stages, the queues between them, and the queue of what has failed for good.

Each stage settles an item by one atomic update. An item is therefore in one queue at any moment, and a process that
dies loses nothing: its items come back when their leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import mongoq
from examples.flights.data import row_id
from examples.flights.handlers import check, enrich, enrich_at_first, finish
from examples.flights.model import EnrichedFlight, Flight, RawRow, Reference, Row
from examples.running import ENGINES

__all__ = ["CHECKED", "DONE", "ERRORS", "QUEUES", "RAW", "build", "prepare", "push"]

RAW, CHECKED, DONE = QUEUES = "flights.raw", "flights.checked", "flights.done"
ERRORS = "flights.errors"
LEASE = timedelta(seconds=30)
"""Long enough to be extended in time on a machine that is busy with all rows of the year."""
HISTORY = timedelta(days=30)
RETRY = mongoq.Fixed(0.2)

Handler = Callable[..., Any]


def build(
    reference: Reference,
    *,
    broken: bool = False,
    engine: str = "threads",
    concurrency: int = 4,
    lease: timedelta = LEASE,
) -> mongoq.Pipeline:
    """Return the pipeline; a ``broken`` one has the first version of ``enrich``, which fails for some airports.

    What does not fit the model of a stage goes to the error queue before any handler sees it.
    """
    handlers: list[Handler] = [check, enrich_at_first if broken else enrich, finish]
    checking, enriching, finishing = map(ENGINES[engine].adapted, handlers)
    pipeline = mongoq.Pipeline("flights", errors=ERRORS, inputs=RAW, trail=True)
    common: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "retry": RETRY}
    pipeline.stage(RAW, to=CHECKED, name="validate", model=Row, max_retries=3, **common)(checking)
    with_tables = partial(enriching, reference=reference)
    pipeline.stage(CHECKED, to=DONE, name="enrich", model=Flight, max_retries=1, **common)(with_tables)
    pipeline.sink(DONE, name="finish", model=EnrichedFlight, **common)(finishing)
    return pipeline


def prepare(broker: mongoq.Broker) -> None:
    """Let the last queue keep what is done. There is nothing else to create: a queue exists once an item is in it."""
    broker.queue(DONE).configure(history=HISTORY)


def push(broker: mongoq.Broker, rows: Iterable[RawRow]) -> None:
    """Load some rows, unchecked. Their ids are made from the rows: pushed again, now or in a week, they add nothing."""
    rows = list(rows)
    broker.queue(RAW).push_many(rows, ids=[row_id(row) for row in rows])
