"""Troubles of queues: what a person should look at first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Literal

from mongoq import QueueInsight
from mongoq.data.arguments import DEAD_SUFFIX

QueueKind = Literal["queue", "dead", "errors"]
"""Kind of a queue: one whose items are processed, a dead queue, or the error queue of a pipeline."""
LONG_WAIT = timedelta(minutes=5)
"""Time after which a due item has waited for long."""
WAITS, FAILING, ERRORS, LETTERS = "waits for long", "failing", "failed items", "dead letters"
EXPIRED, UNCONSUMED, PAUSED = "expired leases", "no consumer", "paused"
STUCK = "stuck sequences"
ORDER = (WAITS, STUCK, FAILING, ERRORS, LETTERS, EXPIRED, UNCONSUMED, PAUSED)
"""Troubles, the one to look at first at the beginning."""


def find_kind(queue: QueueInsight, *, dead: Collection[str], errors: Collection[str]) -> QueueKind:
    """Return the kind of a queue, from the names of all dead queues and of the error queues of pipelines."""
    if queue.name in errors:
        return "errors"
    return "dead" if queue.name in dead or queue.name.endswith(DEAD_SUFFIX) else "queue"


def find_troubles(queue: QueueInsight, kind: QueueKind, *, is_failing: bool) -> list[str]:
    """Return what is wrong with a queue, in a few words each, the worst first.

    Dead queues and error queues need no consumer, and their items may wait for ever; what is in an error queue has no
    other queue that would show it. ``is_failing`` says that items have failed in the last minutes. Blocked items wait
    for others, and not for a consumer; sequences are stuck where there are no others.
    """
    waits = kind == "queue" and queue.claimable.number > 0
    is_late = queue.oldest_age is not None and queue.oldest_age > LONG_WAIT
    found = {
        WAITS: waits and is_late,
        STUCK: queue.blocked.number > 0 and queue.claimable.number == 0,
        FAILING: is_failing,
        ERRORS: kind == "errors" and queue.live.number > 0,
        LETTERS: queue.dead.number > 0,
        EXPIRED: queue.expired.number > 0,
        UNCONSUMED: waits and not queue.consumers,
        PAUSED: queue.paused,
    }
    return [trouble for trouble in ORDER if found[trouble]]


def sort_by_trouble(
    queues: Collection[QueueInsight], *, errors: Collection[str], is_failing: Callable[[str], bool]
) -> list[tuple[QueueInsight, QueueKind, list[str]]]:
    """Return the queues with their kinds and troubles, the one to look at first at the beginning.

    The worst trouble of each decides; of two that wait for long, the one that has waited longer comes first, and of two
    others the one with more troubles. Dead queues come last: the queues that they belong to show their letters.
    """
    dead = {queue.dead_queue for queue in queues if queue.dead_queue is not None}
    judged = []
    for queue in queues:
        kind = find_kind(queue, dead=dead, errors=errors)
        judged.append((queue, kind, find_troubles(queue, kind, is_failing=is_failing(queue.name))))
    return sorted(judged, key=lambda each: _rank(*each))


def _rank(queue: QueueInsight, kind: QueueKind, troubles: list[str]) -> tuple[bool, int, timedelta, int, str]:
    worst = ORDER.index(troubles[0]) if troubles else len(ORDER)
    age = queue.oldest_age if WAITS in troubles else None
    return kind == "dead", worst, -(age or timedelta(0)), -len(troubles), queue.name
