"""Checks of one source on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.names import in_a_line
from mongoq.pipeline.graph.source import BATCH, LEASE, Source
from mongoq.worker.sources.plan import source_plan

__all__ = ["source_faults"]

FINE: dict[str, Any] = {"batch": BATCH, "every": None, "lease": LEASE, "coroutines": True}
"""Valid options of a source, to check one value at a time. Async generators are valid: asyncio may run them."""


def source_faults(source: Source) -> Iterator[str]:
    """Return the faults of a source, without its name."""
    told: dict[str, Any] = {"batch": source.batch, "every": source.every, "lease": source.lease}
    # Each value is checked alone, beside valid ones: source_plan raises at the first fault, and all are reported.
    for handler, options in [(source.handler, FINE), *((_nothing, FINE | {key: told[key]}) for key in told)]:
        try:
            source_plan("", "", None, handler, **options)
        except ArgumentInvalid as invalid:
            yield in_a_line(invalid)


def _nothing(_position: Any) -> Iterator[Any]:
    yield from ()
