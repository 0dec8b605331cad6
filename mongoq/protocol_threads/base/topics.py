# Generated from mongoq/protocol/base/topics.py by scripts/unasync.py. Do not edit.
"""Topics: the queues bound to each, stored in one control document that every producer reads.

One document holds the bindings of all topics. So a producer reads it at most once a second, however many queues it
pushes to, and two bindings made at the same moment cannot form a chain.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from mongoq.protocol.base.queue_settings import CHECK_PAUSE_SECONDS, REFRESH_SECONDS, is_saved
from mongoq.protocol.base.topics import TOPICS_ID, Bound, bindings_in
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.protocol_threads.base.find import find_one
from mongoq.protocol_threads.base.queue_settings import ensure_ready
from mongoq.protocol_threads.base.retry import run_for_callers


def ensure_ready_to_push(context: QueueContext[Any]) -> None:
    """Make the queue ready (``ensure_ready``), and refresh the bindings (``refresh_bindings``) before a push.

    Almost always there is nothing to do.
    """
    now, broker = time.monotonic(), context.broker
    if now < broker.calm_until and is_saved(context, now):
        return
    ensure_ready(context, fresh=False)
    refresh_bindings(broker)
    broker.calm_until = time.monotonic() + CHECK_PAUSE_SECONDS


def refresh_bindings(broker: BrokerContext) -> None:
    """Read the bindings again when they are older than a second, or when the change stream reported a change."""
    if broker.topics.stale(REFRESH_SECONDS, broker.registry):
        run_for_callers("topics", partial(_read_stale, broker), is_shared=broker.group_commit)


def _read_stale(broker: BrokerContext) -> None:
    if broker.topics.stale(REFRESH_SECONDS, broker.registry):  # another caller may have read them
        read_bindings(broker)


def read_bindings(broker: BrokerContext) -> Bound:
    """Read the bindings (``find`` of one control document)."""
    asked_at = time.monotonic()
    bound = bindings_in(broker, (find_one(broker, {"_id": TOPICS_ID})))
    broker.topics.store(bound, asked_at)
    return bound
