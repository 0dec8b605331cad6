"""Topics: the queues bound to each, stored in one control document that every producer reads.

One document holds the bindings of all topics. So a producer reads it at most once a second, however many queues it
pushes to, and two bindings made at the same moment cannot form a chain.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from mongoq.errors import ArgumentInvalid, CollectionUnsuitable
from mongoq.model.arguments import queue_name
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.queue_settings import CHECK_PAUSE_SECONDS, REFRESH_SECONDS, ensure_ready, is_saved
from mongoq.protocol.base.retry import run_for_callers
from mongoq.protocol.state.context import BrokerContext, QueueContext

TOPICS_ID = "topics:mongoq"

Bound = Mapping[str, tuple[str, ...]]
"""Queue names bound to each topic."""


async def ensure_ready_to_push(context: QueueContext[Any]) -> None:
    """Make the queue ready (``ensure_ready``), and refresh the bindings (``refresh_bindings``) before a push.

    Almost always there is nothing to do.
    """
    now, broker = time.monotonic(), context.broker
    if now < broker.calm_until and is_saved(context, now):
        return
    await ensure_ready(context, fresh=False)
    await refresh_bindings(broker)
    broker.calm_until = time.monotonic() + CHECK_PAUSE_SECONDS


async def refresh_bindings(broker: BrokerContext) -> None:
    """Read the bindings again when they are older than a second, or when the change stream reported a change."""
    if broker.topics.stale(REFRESH_SECONDS, broker.registry):
        await run_for_callers("topics", partial(_read_stale, broker), is_shared=broker.group_commit)


async def _read_stale(broker: BrokerContext) -> None:
    if broker.topics.stale(REFRESH_SECONDS, broker.registry):  # another caller may have read them
        await read_bindings(broker)


async def read_bindings(broker: BrokerContext) -> Bound:
    """Read the bindings (``find`` of one control document)."""
    asked_at = time.monotonic()
    bound = bindings_in(broker, (await find_one(broker, {"_id": TOPICS_ID})))
    broker.topics.store(bound, asked_at)
    return bound


def bindings_in(broker: BrokerContext, document: Mapping[str, Any] | None) -> Bound:
    """Return the queues that the control document binds to each topic."""
    bound: dict[str, list[str]] = {}
    try:
        for binding in (document or {}).get("bound", ()):
            bound.setdefault(queue_name(binding["topic"]), []).append(queue_name(binding["queue"]))
    except (ArgumentInvalid, KeyError, TypeError) as error:
        problem = f"holds bindings of topics that cannot be used ({error!r}); mend {TOPICS_ID!r} in it"
        raise CollectionUnsuitable(broker.namespace, problem) from error
    return {topic: tuple(dict.fromkeys(queues)) for topic, queues in bound.items()}
