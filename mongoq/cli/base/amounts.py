"""Amounts of items before a change: counted up to a limit, and written as people say them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mongoq.cli.base.confirmation import Confirmation
from mongoq.cli.base.output import Output
from mongoq.cli.base.progress import Meter
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol_threads.base.bootstrap import ensure_broker_ready
from mongoq.sync import Broker

COUNT_LIMIT = 1_000_000
"""Items that a command examines, at most, to say how many it would change."""
ROUGH_LIMIT = 10_000
"""Items that a command examines, at most, to say how many items a change concerns that changes none of them."""
NOTHING = BoundedCount()

CLOCK_MARGIN = timedelta(seconds=0.25)
"""What two processes may differ in the server's time: what came so shortly before a question stays."""


def count_items(
    runner: Any, flow: Any, *args: Any, at_most: int | None = None, limit: int | None = None, **options: Any
) -> BoundedCount:
    """Count items by a flow, and show the progress; ``at_most`` is the limit that the user gave to the command.

    ``runner`` is a broker or a handle of a queue; ``limit`` is the number of items that are examined, at most, a
    million by default.
    """
    limit = COUNT_LIMIT if limit is None else limit
    with Meter() as meter:
        meter.show("counting …")
        counted: BoundedCount = runner._run(flow, *args, limit=limit, progress=meter.count("examined"), **options)
    if at_most is not None and counted.number >= at_most:
        return BoundedCount(at_most)
    return counted


def time_of_count(confirmation: Confirmation, broker: Broker) -> datetime | None:
    """Return the time at which items are counted for a person, who agrees to no later ones; ``None`` with ``--yes``."""
    if confirmation.yes:
        return None
    broker._run(ensure_broker_ready, write=False)  # reads the server's clock
    return broker._context.clock.now() - CLOCK_MARGIN


def agreed_limit(limit: int | None, until: datetime | None, counted: BoundedCount) -> int | None:
    """Return the limit of a change to which a person has agreed: no more than was counted, whatever the clocks say."""
    if until is None or not counted.exact:
        return limit
    return counted.number if limit is None else min(limit, counted.number)


def may_change(confirmation: Confirmation, output: Output, change: str, counted: BoundedCount) -> bool:
    """Return whether to go on with a change of these items; without items there is no question."""
    if counted == NOTHING and not confirmation.dry_run:
        return True
    return confirmation.allows(output, change, count=counted.number, exact=counted.exact)


def changes_nothing(confirmation: Confirmation, counted: BoundedCount) -> bool:
    """Return whether a change that may go on has to leave everything as it is.

    Nobody has agreed to a change of the items that have come since they were counted.
    """
    return counted == NOTHING and not confirmation.yes


def amount(counted: BoundedCount | int, noun: str = "item") -> str:
    """Return a number with its noun: "1 item", "3 items", "more than 1,000,000 items"."""
    if isinstance(counted, int):
        counted = BoundedCount(counted)
    if counted.exact:
        return f"{counted.number:,} {noun if counted.number == 1 else f'{noun}s'}"
    if counted.number > COUNT_LIMIT:
        return f"more than {COUNT_LIMIT:,} {noun}s"
    # Behind the limit nothing is known of the items that a filter selects.
    return f"at least {counted.number:,} {noun}s"
