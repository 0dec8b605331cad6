"""Check that a queue exists: a misspelled name is an error, an empty queue is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX
from mongoq.model.indexes import BEGINNING, CLAIM, HISTORY
from mongoq.protocol.base.queue_settings import CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.protocol.base.topics import TOPICS_ID
from mongoq.spark.read.queue_selection import QueueSelection
from mongoq.spark.read.views import DATE
from mongoq.spark.scan import Scan

__all__ = ["items_of", "refuse_unknown"]

SHOWN = 5
DATES = (("when", CLAIM), ("processed", HISTORY))


def refuse_unknown(scan: Scan, queues: QueueSelection) -> None:
    """Raise ``ArgumentInvalid`` if a queue has no item, live or processed, and no settings or other trace either.

    The check is one index lookup for each date that an item may have. For queues without items the control documents
    are read: a queue has settings or counters, is the dead queue of another, or is bound to a topic. A dead queue may
    be missing while its queue exists. The check only reads, so a crash leaves no trace.
    """
    if queues.prefix:
        if not _has_items(scan, queues.condition(dead=False)) and not _has_items(scan, queues.condition(dead=True)):
            _refuse(scan, "prefix", queues.prefix, f"no queue whose name begins with {queues.prefix!r}")
        return
    for name in queues.names:
        if not any(_has_items(scan, each) or _is_named(scan, each) for each in _either(name)):
            _refuse(scan, "queue" if len(queues.names) == 1 else "queues", name, f"no queue {name!r}")


def items_of(scan: Scan, condition: Any) -> list[str]:
    """Return the names of queues that hold an item and match the condition (two ``distinct``)."""
    names: set[str] = set()
    for date, _ in DATES:
        names |= set(scan.names({"q": condition, date: {"$gte": BEGINNING}}))
    return sorted(names)


def _either(name: str) -> Iterator[str]:
    """Yield a queue and its dead queue, or a dead queue and its queue: one of the two may be missing."""
    yield name
    yield name.removesuffix(DEAD_SUFFIX) if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX


def _has_items(scan: Scan, condition: Any) -> bool:
    return any(scan.has({"q": condition, date: DATE}, hint=scan.index(index.keys)) for date, index in DATES)


def _is_named(scan: Scan, name: str) -> bool:
    # All control documents by a range of _id, an index scan: up to the next character after the colon.
    controls = {"$gte": CONTROL_PREFIX, "$lt": CONTROL_PREFIX[:-1] + chr(ord(":") + 1)}
    ways: Sequence[dict[str, Any]] = (
        {"_id": CONTROL_PREFIX + name},
        {"_id": COUNTERS_PREFIX + name},
        {"_id": controls, "settings.dead": {"$eq": name}},
        {"_id": TOPICS_ID, "bound.queue": {"$eq": name}},
    )
    return any(scan.has(way) for way in ways)


def _refuse(scan: Scan, option: str, name: str, problem: str) -> None:
    names = items_of(scan, {"$gte": ""})
    # cutoff=0: always show the nearest names, even if none is very similar.
    close = get_close_matches(name, names, SHOWN, cutoff=0.0)
    what = ", ".join(map(repr, close)) + (" and others" if len(names) > len(close) else "")
    there = f"which has {what}" if names else "which holds no items at all"
    raise ArgumentInvalid(
        option, f"there is {problem} in {scan.name}, {there}; correct it, or say missing=empty if it may be missing"
    )
