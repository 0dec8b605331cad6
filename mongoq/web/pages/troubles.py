"""Troubles of queues: what a person should look at first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from mongoq.model.arguments import DEAD_SUFFIX
from mongoq.protocol.insight import QueueInsight

LONG_WAIT = timedelta(minutes=5)
"""Time after which a due item has waited for long."""


def find_troubles(queue: QueueInsight, *, holds_letters: bool) -> list[str]:
    """Return what is wrong with a queue, in a few words each, the worst first.

    ``holds_letters`` says that it is the dead queue of another one, which needs no consumer.
    """
    troubles = []
    waits = queue.live.number > 0
    if waits and not queue.consumers and not holds_letters:
        troubles.append("no consumer")
    if queue.paused:
        troubles.append("paused")
    if queue.oldest_age is not None and queue.oldest_age > LONG_WAIT and not holds_letters:
        troubles.append("waits for long")
    if queue.expired.number:
        troubles.append("expired leases")
    if queue.dead.number:
        troubles.append("dead letters")
    return troubles


def sort_by_trouble(queues: Iterable[QueueInsight]) -> list[tuple[QueueInsight, list[str]]]:
    """Return the queues with their troubles: those with the most first, and dead queues last."""
    listed = list(queues)
    graves = {queue.dead_queue for queue in listed}
    judged = [
        (queue, find_troubles(queue, holds_letters=queue.name in graves or queue.name.endswith(DEAD_SUFFIX)))
        for queue in listed
    ]
    return sorted(judged, key=lambda pair: (pair[0].name in graves, -len(pair[1]), pair[0].name))
