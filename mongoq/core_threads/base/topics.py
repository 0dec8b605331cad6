# Generated from mongoq/core/base/topics.py by scripts/unasync.py. Do not edit.
"""Topics: the queues bound to each, stored in one control document that every producer reads.

One document holds the bindings of all topics. So a producer reads it at most once a second, however many queues it
pushes to, and two bindings made at the same moment cannot form a chain.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from mongoq.core.base.queue_settings import CHECK_PAUSE_SECONDS, REFRESH_SECONDS
from mongoq.core.base.topics import Bound, _check_alive, _queue_names, bindings_in
from mongoq.core.command import Command, Duplicate, Refused
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready, ensure_transactional
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_lost_race, retry_until_reply, run_for_callers
from mongoq.data.arguments import queue_name
from mongoq.data.indexes import TOPICS_ID
from mongoq.errors import ArgumentInvalid


def ensure_ready_to_push(context: QueueContext[Any]) -> None:
    """Make the queue ready (``ensure_ready``), and refresh the bindings (``refresh_bindings``) before a push.

    Almost always there is nothing to do.
    """
    now = time.monotonic()
    if now < context.broker.calm_until and context.is_saved(now):
        return
    ensure_ready(context, fresh=False)
    refresh_bindings(context.broker)
    context.broker.calm_until = time.monotonic() + CHECK_PAUSE_SECONDS


def refresh_bindings(broker: BrokerContext) -> None:
    """Read the bindings again when they are older than a second, or when the change stream reported a change."""
    is_stale = partial(broker.topics.stale, REFRESH_SECONDS, broker.registry)
    if is_stale():
        run_for_callers("topics", is_stale, partial(read_bindings, broker), is_shared=broker.group_commit)


def read_bindings(broker: BrokerContext) -> Bound:
    """Read the bindings (``find`` of one control document)."""
    asked_at = time.monotonic()
    bound = bindings_in(broker, (find_one(broker, {"_id": TOPICS_ID})))
    broker.topics.store(bound, asked_at)
    return bound


def bind(broker: BrokerContext, topic: str, queues: Iterable[str]) -> tuple[str, ...]:
    """Bind queues to a topic, and return all queues bound to it now (``findAndModify``, upsert).

    The filter refuses a chain, so that two callers cannot make one at the same moment; the upsert then fails with a
    duplicate key, the document itself.
    """
    name, names = _check_alive(topic, "topic"), _queue_names(queues)
    if not names:
        raise ArgumentInvalid("queues", f"name at least one queue to bind to topic {name!r}")
    for place, queue in enumerate(names):
        if _check_alive(queue, f"queues[{place}]") == name:
            raise ArgumentInvalid(f"queues[{place}]", f"{name!r} cannot be bound to itself")
    (ensure_broker_ready(broker, write=True) if broker.serverless else ensure_transactional(broker))
    # A filter that matches the document only when these bindings make no chain.
    filter = {"_id": TOPICS_ID, "bound.topic": {"$nin": names}, "bound.queue": {"$ne": name}}
    update = {"$addToSet": {"bound": {"$each": [{"topic": name, "queue": queue} for queue in names]}}}

    def upsert() -> tuple[str, ...]:
        try:
            return (_change(broker, filter, update, upsert=True))[name]
        except Duplicate:
            # Either there would be a chain, or another process has just inserted the document.
            bound = read_bindings(broker)
            end = "and what is pushed to a topic goes no further than one step"
            for queue in names:
                if bound.get(queue):
                    problem = f"{queue!r} is a topic itself, {end}; bind {', '.join(bound[queue])} to {name!r} instead"
                    raise ArgumentInvalid("queues", problem) from None
            for other, topics in bound.items():
                if name in topics:
                    problem = f"{name!r} is bound to topic {other!r}, {end}; bind the queues to {other!r} instead"
                    raise ArgumentInvalid("topic", problem) from None
            raise

    return retry_lost_race(upsert)


def unbind(broker: BrokerContext, topic: str, queues: Iterable[str]) -> tuple[str, ...]:
    """Remove bindings, all of the topic when no queue is named, and return the queues that stay (``findAndModify``)."""
    name, names = queue_name(topic, "topic"), _queue_names(queues)
    ensure_broker_ready(broker, write=True)
    which: dict[str, Any] = {"topic": name, **({"queue": {"$in": names}} if names else {})}
    bound = _change(broker, {"_id": TOPICS_ID}, {"$pull": {"bound": which}}, upsert=False)
    return bound.get(name, ())


def bindings(broker: BrokerContext) -> dict[str, tuple[str, ...]]:
    """Read the bindings of all topics (``find`` of one control document)."""
    ensure_broker_ready(broker, write=False)
    return dict(read_bindings(broker))


def _change(broker: BrokerContext, filter: dict[str, Any], update: dict[str, Any], *, upsert: bool) -> Bound:
    asked_at = time.monotonic()
    arguments = {"filter": filter, "update": update, "upsert": upsert, "return_document": True}
    try:
        document: Any = retry_until_reply(Command("find_one_and_update", arguments))
    except Refused:
        read_bindings(broker)  # raises an error that names the malformed binding
        raise
    bound = bindings_in(broker, document)
    broker.topics.store(bound, asked_at, is_written=True)
    return bound
