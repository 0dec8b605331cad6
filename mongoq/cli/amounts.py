"""Amounts of items before a change: counted up to a limit, and written as people say them."""

from __future__ import annotations

from typing import Any

from mongoq.cli.progress import Meter
from mongoq.protocol.history.pages import BoundedCount

COUNT_LIMIT = 1_000_000
"""Items that a command examines, at most, to say how many it would change."""


def count_items(runner: Any, flow: Any, *args: Any, at_most: int | None = None, **options: Any) -> BoundedCount:
    """Count items by a flow, shown as progress; ``at_most`` is the limit that the user gave to the command.

    ``runner`` is a broker or a handle of a queue.
    """
    with Meter("counting …"):
        counted: BoundedCount = runner._run(flow, *args, limit=COUNT_LIMIT, **options)
    if at_most is not None and counted.number >= at_most:
        return BoundedCount(at_most)
    return counted


def amount(counted: BoundedCount | int, noun: str = "item") -> str:
    """Return a number with its noun: "1 item", "3 items", "more than 1,000,000 items"."""
    if isinstance(counted, int):
        counted = BoundedCount(counted)
    noun = noun if counted.number == 1 and not counted.is_more else f"{noun}s"
    if not counted.is_more:
        return f"{counted.number:,} {noun}"
    # Beyond the limit nothing is known of items that a filter selects.
    return f"{'more than' if counted.number >= COUNT_LIMIT else 'at least'} {counted.number:,} {noun}"
