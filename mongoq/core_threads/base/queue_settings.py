# Generated from mongoq/core/base/queue_settings.py by scripts/unasync.py. Do not edit.
"""The control document of a queue: its settings, and whether it is paused. Every process follows it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.core.base.bootstrap import is_broker_ready
from mongoq.core.base.queue_settings import (
    CHECK_PAUSE_SECONDS,
    IN_USE_UPDATE,
    MARK_USED_SECONDS,
    MAX_QUEUES,
    REFRESH_SECONDS,
    _check_changes,
    _log_differences,
    _update,
    logger,
    unusable_settings,
)
from mongoq.core.command import Command, Duplicate
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.retry import retry_until_reply, run_for_callers
from mongoq.core_threads.perform import perform
from mongoq.data.indexes import BEGINNING, CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.data.log_fields import log_fields
from mongoq.data.settings import (
    QueueOptions,
    QueueSettings,
    check_burst,
    check_limit,
    from_stored,
    resolve_settings,
    to_stored,
)
from mongoq.errors import ArgumentInvalid, CollectionUnsuitable


def ensure_ready(context: QueueContext[Any], *, fresh: bool = True) -> None:
    """Make the broker ready, and store the options of all its handles, before a write to a queue.

    With ``fresh`` the settings are read again when they are older than a second, or when the change stream reported a
    change. Almost always there is nothing to do.
    """
    now, state = time.monotonic(), context.state
    saved = context.is_saved(now)
    if saved and now < state.calm_until:
        return
    is_used = now < state.used_until
    is_stale = not saved or not is_used or (fresh and state.stale(REFRESH_SECONDS, context.broker.registry))
    if not is_stale and is_broker_ready(context.broker, write=True):
        if fresh:
            state.calm_until, state.calm_at = now + CHECK_PAUSE_SECONDS, context.broker.clock.now()
            if state.read_at <= state.changed_at:  # the stream has just reported a change
                state.calm_until = -math.inf
        return
    ensure_broker_ready(context.broker, write=True)
    if not is_used:
        mark_used(context.broker, [context.name])
    broker = context.broker
    for name in sorted(broker.unsaved.keys() - {context.name}):
        # What a handle shows has to hold for users of its queue in other processes as well, and items get there
        # without an operation of the handle: by topics, moves, stages, executors of Spark.
        try:
            _adopt(QueueContext(broker, QueueOptions(name, {}), broker.untyped))
        except CollectionUnsuitable:  # operations of that queue raise it
            broker.unsaved.pop(name, None)
    if not is_stale:
        return
    if saved and context.broker.group_commit:
        is_due, key = partial(state.stale, REFRESH_SECONDS), ("settings", context.name)
        run_for_callers(key, is_due, partial(_adopt, context), is_shared=True)
    else:
        _adopt(context)


def _adopt(context: QueueContext[Any]) -> None:
    """Read the control document (``find``), after storing the given options that it lacks.

    Stored options win unless the caller says otherwise: a process that knows nothing of a queue's history must not
    delete it. Options that expired with an idle queue are stored again.
    """
    state, asked_at = context.state, time.monotonic()  # before the read: the document is at least that new
    given, is_new = state.given, context.name in context.broker.unsaved
    document = refresh_settings(context)
    missing = {option: given[option] for option in sorted(given.keys() - state.stored.keys())}
    if missing:
        _add(context, missing, together=document is None)
        refresh_settings(context)  # another process may have stored different values first
    if context.settings_from == "code":
        _apply_code(context, given)
    if is_new or not context.saved:
        _log_differences(context, {**given, **context.options.given})
        context.saved = True
    if given is state.given and given:
        state.saved_at = asked_at
        context.broker.unsaved.pop(context.name, None)


def refresh_settings(context: QueueContext[Any]) -> Mapping[str, Any] | None:
    """Read the control document into the queue's state now (``find``), and return it, or ``None`` without one."""
    asked_at = time.monotonic()
    document = find_one(context.broker, {"_id": CONTROL_PREFIX + context.name})
    control = document or {}
    try:
        settings = from_stored(context.name, control.get("settings", {}))
    except ArgumentInvalid as error:
        raise unusable_settings(context.broker, context.name, error) from error
    context.state.store(paused=bool(control.get("paused")), settings=settings, asked_at=asked_at)
    context.state.ordered = control.get("sequences") is True
    return document


def _add(context: QueueContext[Any], options: Mapping[str, Any], *, together: bool) -> None:
    """Store options that are not stored yet (``update``, upsert).

    A new document gets all of them at once. An existing one gets them one by one, each only if no other process has
    stored it first. A crash in between leaves some of them, and the next process with the other options stores the
    rest.
    """
    # One condition for several options would store none of them once another process has stored one.
    groups = [options] if together else [{option: value} for option, value in options.items()]
    for group in groups:
        try:
            _write(context, _update(group), {f"settings.{option}": {"$exists": False} for option in group})
        except Duplicate:  # another process has just stored one of the options
            if together:
                _add(context, options, together=False)


def _write(context: QueueContext[Any], update: Mapping[str, Any], condition: Mapping[str, Any] | None = None) -> Any:
    filter = {"_id": CONTROL_PREFIX + context.name, **(condition or {})}
    retry_until_reply(Command("update_one", {"filter": filter, "update": update, "upsert": True}))


def _apply_code(context: QueueContext[Any], given: Mapping[str, Any]) -> None:
    """Replace stored options by the ones given in code (one ``findAndModify``), each once in a process.

    Once only: otherwise processes with different code, or an operator and a handle made anew for each request, would
    undo each other's changes for ever. The reply is the document before this very update.
    """
    state, options = context.state, set(given.items())
    changed = {option: value for option, value in options - state.asserted if state.stored.get(option, value) != value}
    if changed:
        other = [{f"settings.{option}": {"$ne": to_stored(value)}} for option, value in changed.items()]
        arguments = {"filter": {"_id": CONTROL_PREFIX + context.name, "$or": other}, "update": _update(changed)}
        before: Any = perform(Command("find_one_and_update", arguments))
        refresh_settings(context)
        context.broker.wake(context.name)
        stored = (before or {}).get("settings", {})
        for option, value in sorted(changed.items()):
            old = stored.get(option, value)
            if old == to_stored(value):
                continue
            is_time = option in ("lease", "history") and isinstance(old, int | float)
            words = context.name, option, timedelta(seconds=old) if is_time else old, value
            text = 'queue %r: stored %s %s -> %s, as given in code (settings="code")'
            logger.info(text, *words, extra=log_fields(queue=context.name))
    state.asserted |= options


def mark_used(broker: BrokerContext, queues: Sequence[str]) -> None:
    """Mark queues as used, so that their control documents stay (``update`` of documents about to expire)."""
    for start in range(0, len(queues), MAX_QUEUES):
        names = queues[start : start + MAX_QUEUES]
        ids = [prefix + name for name in names for prefix in (CONTROL_PREFIX, COUNTERS_PREFIX)]
        ending = [{"idle": {"$exists": True}}, {"expires": {"$exists": True}}]
        perform(Command("update_many", {"filter": {"_id": {"$in": ids}, "$or": ending}, "update": IN_USE_UPDATE}))
        for name in names:
            state = broker.state(name)
            state.told_used, state.used_until = True, time.monotonic() + MARK_USED_SECONDS


def try_configure(context: QueueContext[Any], options: Mapping[str, Any], *, existing: bool) -> QueueSettings:
    """Return the settings that ``configure`` would lead to, and write nothing (``find`` of the control document)."""
    changes = _check_changes(context, options, existing=existing)
    refresh_settings(context)
    before, state = context.settings, context.state
    check_limit(context.name, changes, dead=before.dead)
    check_burst(changes, rate=before.rate)
    return resolve_settings(context.name, {**state.given, **state.stored, **changes})


def configure(context: QueueContext[Any], options: Mapping[str, Any], *, existing: bool) -> QueueSettings:
    """Change the stored settings (``update`` of the control document), and the retention of kept items if asked.

    A crash between the two commands leaves the retention of kept items as it was: configure again.
    """
    changes = _check_changes(context, options, existing=existing)
    ensure_ready(context)
    check_limit(context.name, changes, dead=context.settings.dead)
    check_burst(changes, rate=context.settings.rate)
    context.state.given = {**context.state.given, **changes}
    _write(context, _update(changes))
    refresh_settings(context)
    context.broker.wake(context.name)
    if existing:
        # As if the kept items had been processed under this retention; remembered ids are kept as was promised.
        history = changes["history"]
        length = 0 if history is None else int(history.total_seconds() * 1000)
        expires = {"$max": ["$once", {"$add": ["$processed", length]}]}
        filter = {"q": context.name, "processed": {"$gte": BEGINNING}, "payload": {"$exists": True}}
        update = [{"$set": {"expires": expires}}]
        retry_until_reply(Command("update_many", {"filter": filter, "update": update}))
    return context.settings


def mark_ordered(context: QueueContext[Any], *, joined: bool) -> None:
    """Note that the queue has sequences (``update`` of the control document, upsert), unless that is known.

    Written in a caller's transaction (``joined``), the note may be undone, so this process does not rely on it.
    """
    if context.state.ordered:
        return
    _write(context, {"$set": {"sequences": True}, **IN_USE_UPDATE})
    context.state.ordered = not joined


def is_paused(context: QueueContext[Any]) -> bool:
    """Ask the server whether the queue is paused (``find`` of one control document)."""
    refresh_settings(context)
    return context.state.paused


def set_paused(context: QueueContext[Any], paused: bool) -> None:
    """Pause or resume the queue (``update`` of one control document, upsert)."""
    ensure_ready(context)
    _write(context, {"$set": {"paused": paused}, **IN_USE_UPDATE})
    context.state.store(paused=paused)
    if not paused:
        context.broker.wake(context.name)
