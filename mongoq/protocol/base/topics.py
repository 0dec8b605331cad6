"""Topics: the queues bound to each, stored in one control document that every producer goes by.

One document holds the bindings of all topics, so that a producer reads it once a second at most, however many queues
it pushes to, and so that no two bindings made at the same moment can make a chain.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mongoq.errors import ArgumentInvalid, CollectionUnsuitable
from mongoq.model.arguments import queue_name
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.queue_settings import CALM_SECONDS, RECHECK_SECONDS, REFRESH_SECONDS, ensure_ready
from mongoq.protocol.flow.commands import Flow, Shared
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["TOPICS_ID", "Bound", "bindings_in", "ensure_ready_to_push", "read_bindings", "refresh_bindings"]

TOPICS_ID = "topics:mongoq"

Bound = Mapping[str, tuple[str, ...]]
"""The queues bound to each topic."""


def ensure_ready_to_push(context: QueueContext[Any]) -> Flow[None] | tuple[()]:
    """Do what must come before a push: it is ``ensure_ready``, and the bindings are ``refresh_bindings``.

    Almost always there is nothing to do, and no flow is made.
    """
    now = time.monotonic()
    if (
        context.saved
        and context.state.lost_at < context.saved_at > now - RECHECK_SECONDS
        and now < context.broker.calm_until
    ):
        return ()
    return _ensure_ready_to_push(context)


def _ensure_ready_to_push(context: QueueContext[Any]) -> Flow[None]:
    yield from ensure_ready(context, fresh=False)
    yield from refresh_bindings(context.broker)
    context.broker.calm_until = time.monotonic() + CALM_SECONDS


def refresh_bindings(broker: BrokerContext) -> Flow[None] | tuple[()]:
    """Know the bindings as they were a second ago at most, or as the change stream told.

    Almost always there is nothing to do, and no flow is made.
    """
    if not broker.topics.stale(REFRESH_SECONDS, broker.hub):
        return ()
    return _refresh_bindings(broker)


def _refresh_bindings(broker: BrokerContext) -> Flow[None]:
    if broker.lanes is None:
        yield from read_bindings(broker)
    else:
        yield from Shared[None](broker.lanes.lane("topics", _read_for_callers), broker)


def _read_for_callers(brokers: list[BrokerContext]) -> Flow[list[None]]:
    """Read them once for all who ask; those who came while they were read know them by now."""
    if brokers[0].topics.stale(REFRESH_SECONDS):
        yield from read_bindings(brokers[0])
    return [None] * len(brokers)


def read_bindings(broker: BrokerContext) -> Flow[Bound]:
    """Read the bindings (``find`` of one control document)."""
    asked_at = time.monotonic()
    bound = bindings_in(broker, (yield from find_one(broker, {"_id": TOPICS_ID})))
    broker.topics.put(bound, asked_at)
    return bound


def bindings_in(broker: BrokerContext, document: Mapping[str, Any] | None) -> Bound:
    """Return the queues that the document binds to each topic."""
    bound: dict[str, list[str]] = {}
    try:
        for binding in (document or {}).get("bound", ()):
            bound.setdefault(queue_name(binding["topic"]), []).append(queue_name(binding["queue"]))
    except (ArgumentInvalid, KeyError, TypeError) as error:
        problem = f"holds bindings of topics that cannot be used ({error!r}); mend {TOPICS_ID!r} in it"
        raise CollectionUnsuitable(broker.namespace, problem) from error
    return {topic: tuple(dict.fromkeys(queues)) for topic, queues in bound.items()}
