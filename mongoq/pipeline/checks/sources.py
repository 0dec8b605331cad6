"""What is wrong with one source, whatever the rest of the graph is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.names import in_a_line
from mongoq.pipeline.graph.source import BATCH, LEASE, Source
from mongoq.worker.sources.plan import source_plan

__all__ = ["source_faults"]

FINE: dict[str, Any] = {"batch": BATCH, "every": None, "lease": LEASE, "coroutines": True}
"""Options with nothing wrong; async generators are, since asyncio may run them."""


def source_faults(source: Source) -> Iterator[str]:
    """Return what is wrong with a source, without its name."""
    told: dict[str, Any] = {"batch": source.batch, "every": source.every, "lease": source.lease}
    for handler, options in [(source.handler, FINE), *((_nothing, FINE | {key: told[key]}) for key in told)]:
        try:
            source_plan("", "", None, handler, **options)
        except ArgumentInvalid as invalid:
            yield in_a_line(invalid)


def _nothing(_position: Any) -> Iterator[Any]:
    yield from ()
