"""The control document of a queue: its settings, and whether it is paused. Every process follows it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.core.base.bootstrap import ensure_broker_ready, is_broker_ready
from mongoq.core.base.find import find_one
from mongoq.core.base.retry import retry_until_reply, run_for_callers
from mongoq.core.command import Command, Duplicate
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.indexes import BEGINNING, CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.data.log_fields import log_fields
from mongoq.data.settings import (
    SETTINGS,
    QueueOptions,
    QueueSettings,
    check_burst,
    check_limit,
    check_options,
    from_stored,
    resolve_settings,
    to_stored,
)
from mongoq.errors import ArgumentInvalid, CollectionUnsuitable

logger = logging.getLogger("mongoq.settings")

MAX_QUEUES = 5_000
"""Queues that one command can mark as used."""
REFRESH_SECONDS = 1.0
"""Seconds after which an operation that depends on the settings reads them again."""
MARK_USED_SECONDS = 86_400.0
"""Seconds after which a process marks a queue as used again."""
IN_USE_UPDATE = {"$unset": {"idle": "", "expires": ""}}
"""Update that keeps control documents which were about to expire with an idle queue (``core.admin``)."""
CHECK_PAUSE_SECONDS = 0.02
"""Seconds for which a check that found nothing to do is not repeated."""


async def ensure_ready(context: QueueContext[Any], *, fresh: bool = True) -> None:
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
    await ensure_broker_ready(context.broker, write=True)
    if not is_used:
        await mark_used(context.broker, [context.name])
    broker = context.broker
    for name in sorted(broker.unsaved.keys() - {context.name}):
        # What a handle shows has to hold for users of its queue in other processes as well, and items get there
        # without an operation of the handle: by topics, moves, stages, executors of Spark.
        try:
            await _adopt(QueueContext(broker, QueueOptions(name, {}), broker.untyped))
        except CollectionUnsuitable:  # operations of that queue raise it
            broker.unsaved.pop(name, None)
    if not is_stale:
        return
    if saved and context.broker.group_commit:
        is_due, key = partial(state.stale, REFRESH_SECONDS), ("settings", context.name)
        await run_for_callers(key, is_due, partial(_adopt, context), is_shared=True)
    else:
        await _adopt(context)


async def _adopt(context: QueueContext[Any]) -> None:
    """Read the control document (``find``), after storing the given options that it lacks.

    Stored options win unless the caller says otherwise: a process that knows nothing of a queue's history must not
    delete it. Options that expired with an idle queue are stored again.
    """
    state, asked_at = context.state, time.monotonic()  # before the read: the document is at least that new
    given, is_new = state.given, context.name in context.broker.unsaved
    document = await refresh_settings(context)
    missing = {option: given[option] for option in sorted(given.keys() - state.stored.keys())}
    if missing:
        await _add(context, missing, together=document is None)
        await refresh_settings(context)  # another process may have stored different values first
    if context.settings_from == "code":
        await _apply_code(context, given)
    if is_new or not context.saved:
        _log_differences(context, {**given, **context.options.given})
        context.saved = True
    if given is state.given and given:
        state.saved_at = asked_at
        context.broker.unsaved.pop(context.name, None)


async def refresh_settings(context: QueueContext[Any]) -> Mapping[str, Any] | None:
    """Read the control document into the queue's state now (``find``), and return it, or ``None`` without one."""
    asked_at = time.monotonic()
    document = await find_one(context.broker, {"_id": CONTROL_PREFIX + context.name})
    control = document or {}
    try:
        settings = from_stored(context.name, control.get("settings", {}))
    except ArgumentInvalid as error:
        raise unusable_settings(context.broker, context.name, error) from error
    context.state.store(paused=bool(control.get("paused")), settings=settings, asked_at=asked_at)
    context.state.ordered = control.get("sequences") is True
    return document


def unusable_settings(broker: BrokerContext, queue: str, error: ArgumentInvalid) -> CollectionUnsuitable:
    """Return the error for stored settings of a queue that cannot be used."""
    id = CONTROL_PREFIX + queue
    problem = f"holds settings of queue {queue!r} that cannot be used ({error}); mend {id!r} in it"
    return CollectionUnsuitable(broker.namespace, problem)


async def _add(context: QueueContext[Any], options: Mapping[str, Any], *, together: bool) -> None:
    """Store options that are not stored yet (``update``, upsert).

    A new document gets all of them at once. An existing one gets them one by one, each only if no other process has
    stored it first. A crash in between leaves some of them, and the next process with the other options stores the
    rest.
    """
    # One condition for several options would store none of them once another process has stored one.
    groups = [options] if together else [{option: value} for option, value in options.items()]
    for group in groups:
        try:
            await _write(context, _update(group), {f"settings.{option}": {"$exists": False} for option in group})
        except Duplicate:  # another process has just stored one of the options
            if together:
                await _add(context, options, together=False)


async def _write(
    context: QueueContext[Any], update: Mapping[str, Any], condition: Mapping[str, Any] | None = None
) -> Any:
    filter = {"_id": CONTROL_PREFIX + context.name, **(condition or {})}
    await retry_until_reply(Command("update_one", {"filter": filter, "update": update, "upsert": True}))


def _update(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"$set": {f"settings.{option}": to_stored(value) for option, value in options.items()}, **IN_USE_UPDATE}


async def _apply_code(context: QueueContext[Any], given: Mapping[str, Any]) -> None:
    """Replace stored options by the ones given in code (one ``findAndModify``), each once in a process.

    Once only: otherwise processes with different code, or an operator and a handle made anew for each request, would
    undo each other's changes for ever. The reply is the document before this very update.
    """
    state, options = context.state, set(given.items())
    changed = {option: value for option, value in options - state.asserted if state.stored.get(option, value) != value}
    if changed:
        other = [{f"settings.{option}": {"$ne": to_stored(value)}} for option, value in changed.items()]
        arguments = {"filter": {"_id": CONTROL_PREFIX + context.name, "$or": other}, "update": _update(changed)}
        before: Any = await perform(Command("find_one_and_update", arguments))
        await refresh_settings(context)
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


_warned: set[tuple[int, str, str]] = set()
"""Queues already warned about, by process id, namespace and queue name."""


def _log_differences(context: QueueContext[Any], options: Mapping[str, Any]) -> None:
    """Log the stored options that differ from the ones given in code, as a warning once per queue and process."""
    settings = context.state.stored
    differing = [
        f"{option}={settings[option]}, not by the {value} given in code"
        for option, value in options.items()
        if settings.get(option, value) != value
    ]
    if not differing:
        return
    which = os.getpid(), context.broker.namespace, context.name
    level = logging.DEBUG if which in _warned else logging.WARNING
    _warned.add(which)
    hint = 'queue.configure() changes what is stored, and settings="code" lets the code do so'
    words = context.name, "; ".join(differing), hint
    logger.log(level, "queue %r goes by its stored %s; %s", *words, extra=log_fields(queue=context.name))


async def mark_used(broker: BrokerContext, queues: Sequence[str]) -> None:
    """Mark queues as used, so that their control documents stay (``update`` of documents about to expire)."""
    for start in range(0, len(queues), MAX_QUEUES):
        names = queues[start : start + MAX_QUEUES]
        ids = [prefix + name for name in names for prefix in (CONTROL_PREFIX, COUNTERS_PREFIX)]
        ending = [{"idle": {"$exists": True}}, {"expires": {"$exists": True}}]
        await perform(Command("update_many", {"filter": {"_id": {"$in": ids}, "$or": ending}, "update": IN_USE_UPDATE}))
        for name in names:
            state = broker.state(name)
            state.told_used, state.used_until = True, time.monotonic() + MARK_USED_SECONDS


def _check_changes(context: QueueContext[Any], options: Mapping[str, Any], *, existing: bool) -> Mapping[str, Any]:
    """Return the settings that a call of ``configure`` changes, checked as far as they can be alone."""
    changes = check_options(context.name, **options)
    if not isinstance(existing, bool):
        raise ArgumentInvalid("existing", f"a bool, not {type(existing).__name__}")
    if existing and "history" not in changes:
        raise ArgumentInvalid("existing", "tells history= to hold for what is kept already; give history= as well")
    if not changes:
        raise ArgumentInvalid(
            "configure",
            f"give at least one of {'=, '.join(SETTINGS)}=; queue.settings tells what is known",
        )
    return changes


async def try_configure(context: QueueContext[Any], options: Mapping[str, Any], *, existing: bool) -> QueueSettings:
    """Return the settings that ``configure`` would lead to, and write nothing (``find`` of the control document)."""
    changes = _check_changes(context, options, existing=existing)
    await refresh_settings(context)
    before, state = context.settings, context.state
    check_limit(context.name, changes, dead=before.dead)
    check_burst(changes, rate=before.rate)
    return resolve_settings(context.name, {**state.given, **state.stored, **changes})


async def configure(context: QueueContext[Any], options: Mapping[str, Any], *, existing: bool) -> QueueSettings:
    """Change the stored settings (``update`` of the control document), and the retention of kept items if asked.

    A crash between the two commands leaves the retention of kept items as it was: configure again.
    """
    changes = _check_changes(context, options, existing=existing)
    await ensure_ready(context)
    check_limit(context.name, changes, dead=context.settings.dead)
    check_burst(changes, rate=context.settings.rate)
    context.state.given = {**context.state.given, **changes}
    await _write(context, _update(changes))
    await refresh_settings(context)
    context.broker.wake(context.name)
    if existing:
        # As if the kept items had been processed under this retention; remembered ids are kept as was promised.
        history = changes["history"]
        length = 0 if history is None else int(history.total_seconds() * 1000)
        expires = {"$max": ["$once", {"$add": ["$processed", length]}]}
        filter = {"q": context.name, "processed": {"$gte": BEGINNING}, "payload": {"$exists": True}}
        update = [{"$set": {"expires": expires}}]
        await retry_until_reply(Command("update_many", {"filter": filter, "update": update}))
    return context.settings


async def mark_ordered(context: QueueContext[Any], *, joined: bool) -> None:
    """Note that the queue has sequences (``update`` of the control document, upsert), unless that is known.

    Written in a caller's transaction (``joined``), the note may be undone, so this process does not rely on it.
    """
    if context.state.ordered:
        return
    await _write(context, {"$set": {"sequences": True}, **IN_USE_UPDATE})
    context.state.ordered = not joined


async def is_paused(context: QueueContext[Any]) -> bool:
    """Ask the server whether the queue is paused (``find`` of one control document)."""
    await refresh_settings(context)
    return context.state.paused


async def set_paused(context: QueueContext[Any], paused: bool) -> None:
    """Pause or resume the queue (``update`` of one control document, upsert)."""
    await ensure_ready(context)
    await _write(context, {"$set": {"paused": paused}, **IN_USE_UPDATE})
    context.state.store(paused=paused)
    if not paused:
        context.broker.wake(context.name)
