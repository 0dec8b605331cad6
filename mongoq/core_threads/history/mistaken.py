# Generated from mongoq/core/history/mistaken.py by scripts/unasync.py. Do not edit.
"""Mistaken calls: a misspelt name of a queue, a replay from the wrong one, a history that is not kept; what helps.

Queues of dead letters are found by what they hold: the error queue of a pipeline is stored nowhere as a dead queue.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from mongoq.core.history.mistaken import (
    MAX_SEARCHED,
    MAX_SUGGESTIONS,
    MIN_SIMILARITY,
    NO_HISTORY,
    QUEUES_TOGETHER,
    SAMPLED,
    _has_died,
    _nearest,
    _other,
    choose_candidates,
    died_in,
    logger,
)
from mongoq.core.history.query import BoundedCount
from mongoq.core.history.read import in_state
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import aggregate_all, find_one
from mongoq.core_threads.base.topics import read_bindings as read_topics
from mongoq.core_threads.history.read import find_queues, queues, read_controls
from mongoq.data.arguments import DEAD_SUFFIX
from mongoq.data.copies import COPY_MARK
from mongoq.data.indexes import BEGINNING, CLAIM_ORDER, CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.data.item import Document
from mongoq.data.settings import from_stored, resolve_settings
from mongoq.errors import ArgumentInvalid, QueueUnknown


def refuse_mistake(context: QueueContext[Any], *, letters: bool) -> None:
    """Raise if a replay that found nothing was certainly a mistake (a few ``find`` and ``aggregate``).

    ``letters`` is true for a replay of dead letters, and false for one of a history. A queue that no caller has used
    yet is no mistake by itself: only a name that is very similar to one in use counts as misspelt.
    """
    broker, name = context.broker, context.name
    dead = read_dead_queues(broker)
    owner, there = name.removesuffix(DEAD_SUFFIX), None
    if letters and not (_holds(broker, name)):
        is_named = owner == name and name in dead.values()
        there = name if is_named else dead.get(owner, owner + DEAD_SUFFIX)
        if there == name or not (_holds(broker, there)):
            there = next(iter(find_letters_of(broker, owner)), None)
        if there is not None:
            problem = f"{name!r} holds no dead letters: those of {owner!r} are in {there!r}"
            raise ArgumentInvalid("replay", f"{problem}; send them back with broker.dead_queue({there!r}).replay()")
    is_dead_queue = owner != name or name in dead.values() or bool(find_letter_queues(broker, [name]))
    if not letters and is_dead_queue and (_holds(broker, name)) and not (_holds(broker, name, "processed")):
        problem = f"{name!r} is a dead queue: it holds dead letters, and no history that could be copied"
        call = f"broker.dead_queue({name!r}).replay()"
        if owner != name:
            call = f"broker.queue({owner!r}).dead.replay(), or {call}"
        raise ArgumentInvalid("replay", f"{problem}; send the letters back with {call}")
    names = _find_known_queues(broker, dead)
    if not names & {name, _other(name)}:
        near = _nearest(name, names)
        if near:
            raise QueueUnknown(name, near, broker.namespace)


def explain_no_history(context: QueueContext[Any]) -> str | None:
    """Return how to have a queue keep its processed items (``find``); ``None`` if it does."""
    ensure_broker_ready(context.broker, write=False)
    control = find_one(context.broker, {"_id": CONTROL_PREFIX + context.name}, {"settings": 1})
    try:
        stored = from_stored(context.name, (control or {}).get("settings", {}))
    except ArgumentInvalid:  # the next call that needs the settings says so
        return None
    given = {**context.assumed, **context.state.given, **stored, **context.overriding}
    if resolve_settings(context.name, given).history is not None:
        return None
    return NO_HISTORY.format(context.name, shlex.quote(context.name))


def log_no_history(context: QueueContext[Any]) -> None:
    """Log why nothing was found, if the queue keeps no history (``find``)."""
    text = explain_no_history(context)
    if text is not None:
        logger.info("%s", text, extra={"mongoq_queue": context.name})


def refuse_unknown(broker: BrokerContext, name: str) -> None:
    """Raise ``QueueUnknown`` for a queue that holds no item and that no control document names.

    One to three ``find`` for a queue that is known; otherwise also what the names of all queues take. The dead queue of
    a known queue is known, and the queue of a known dead queue as well.
    """
    if is_known(broker, name):
        return
    names = _find_known_queues(broker, (read_dead_queues(broker)))
    # All items of a queue may be dead letters.
    names |= {other.removesuffix(DEAD_SUFFIX) for other in names}
    if not names & {name, _other(name)}:
        near = get_close_matches(name, sorted(choose_candidates(name, names)), MAX_SUGGESTIONS, MIN_SIMILARITY)
        raise QueueUnknown(name, tuple(near), broker.namespace)


def is_known(broker: BrokerContext, name: str) -> bool:
    """Return whether a queue holds an item, live or processed, has a control document, or is bound.

    One to four ``find``.
    """
    ensure_broker_ready(broker, write=False)
    used = (
        in_state(name, None, BEGINNING),
        # Remembered ids count too, and a filter for history would pass over each of them.
        {"q": name, "processed": {"$gte": BEGINNING}},
        {"_id": {"$in": [CONTROL_PREFIX + name, COUNTERS_PREFIX + name]}},
    )
    for filter in used:
        if (find_one(broker, filter, {"_id": 1})) is not None:
            return True
    bound = read_topics(broker)
    return name in bound or any(name in queues for queues in bound.values())


def _holds(broker: BrokerContext, queue: str, state: Any = None) -> bool:
    return (find_one(broker, in_state(queue, state, BEGINNING), {"_id": 1})) is not None


def read_dead_queues(broker: BrokerContext) -> dict[str, str]:
    """Return the dead queue of each queue that stores the name of its dead queue."""
    where = {"settings.dead": {"$type": "string"}}
    controls = read_controls(broker, CONTROL_PREFIX, ["settings.dead"], where=where)
    return {name: control["settings"]["dead"] for name, control in controls.items()}


def _find_known_queues(broker: BrokerContext, dead: dict[str, str]) -> set[str]:
    """Return the names of all queues that hold an item, or that a control document names."""
    names = set(queues(broker)) | dead.keys() | set(dead.values())
    for prefix in (CONTROL_PREFIX, COUNTERS_PREFIX):
        names |= (read_controls(broker, prefix, ())).keys()
    bound = read_topics(broker)
    return names.union(bound, *bound.values())


def find_letter_queues(broker: BrokerContext, names: Iterable[str]) -> list[str]:
    """Return those of the queues that hold dead letters (an ``aggregate`` of their first items for each 100 queues).

    All of their first items have died in another queue, and one of them is still as its burial left it: items that were
    sent back and went on keep their ``origin`` as well, but none of them has the time of the burial. A queue with other
    items among its first ones counts as ordinary: commands for letters would take these too.
    """
    fields = {"$project": {"q": 1, "when": 1, "origin": 1, COPY_MARK: 1}}
    first: list[Document] = _read_first(broker, names, 1, fields)
    samples: dict[str, list[Document]] = {item["q"]: [] for item in first if _has_died(item)}
    for item in _read_first(broker, samples, SAMPLED, fields):
        samples[item["q"]].append(item)
    return [
        name
        for name, items in samples.items()
        if all(map(_has_died, items)) and any(item["origin"].get("at") == item["when"] for item in items)
    ]


def find_letters_of(broker: BrokerContext, name: str) -> list[str]:
    """Return the sorted names of the queues with letters that died in this queue or stage."""
    letters = find_letter_queues(broker, (find_queues({"$gte": ""})))
    stages = {"$match": died_in(name)}, {"$limit": 1}, {"$project": {"q": 1}}
    first = _read_first(broker, letters, MAX_SEARCHED, *stages)
    return sorted(document["q"] for document in first)


def count_letters_by_queue(
    broker: BrokerContext, names: Sequence[str], limit: int
) -> dict[Any, dict[str, BoundedCount]]:
    """Count the letters of queues by the queue that they died in, among the first ``limit`` letters of each."""
    group = {"$group": {"_id": {"q": "$q", "died": "$origin.queue"}, "n": {"$sum": 1}}}
    counts: dict[Any, dict[str, BoundedCount]] = {}
    groups = _read_first(broker, names, limit + 1, group)
    totals: Counter[str] = Counter()
    for each in groups:
        totals[each["_id"]["q"]] += each["n"]
    for each in groups:
        queue, died = each["_id"]["q"], each["_id"].get("died")
        counts.setdefault(died, {})[queue] = BoundedCount(each["n"], totals[queue] <= limit)
    return counts


def _read_first(broker: BrokerContext, names: Iterable[str], limit: int, *stages: Mapping[str, Any]) -> list[Any]:
    """Run these stages on the first live items of each queue, in the order of claims."""
    rest: list[Mapping[str, Any]] = [{"$sort": dict(CLAIM_ORDER)}, {"$limit": limit}, *stages]
    parts = [[{"$match": in_state(name, None, BEGINNING)}, *rest] for name in names]
    rows: list[Any] = []
    for start in range(0, len(parts), QUEUES_TOGETHER):
        rows += aggregate_all(broker, parts[start : start + QUEUES_TOGETHER])
    return rows
