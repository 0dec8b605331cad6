# Generated from mongoq/core/insight.py by scripts/unasync.py. Do not edit.
"""Insight: reads of many queues for people and for monitoring, which examine a bounded number of documents.

The counts of a queue are read from the index of live items up to a limit; above it they say "at least". One
``aggregate`` reads 25 queues: its parts are joined by ``$unionWith``, and each of them ends at its limit. 500 queues
take 0.4 s of the server's processor. Where there are many queues that hold few items, one reads 100 of them, whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bson import ObjectId

from mongoq.core.base.queue_settings import unusable_settings
from mongoq.core.command import Command
from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.counters import events_in
from mongoq.core.history.query import BoundedCount
from mongoq.core.history.read import count_states, in_state
from mongoq.core.insight import (
    HAS_SEQUENCES,
    KEYS_PER_DOCUMENT,
    MAX_LISTED_SEQUENCES,
    NO_ITEMS,
    QUEUES_TOGETHER,
    RECENT,
    SHALLOW_ITEMS,
    SHALLOW_TOGETHER,
    QueueInsight,
    StoredSettings,
    _make_insights,
    _parts,
    _settings_of,
    _share,
    logger,
)
from mongoq.core.push.insert import live_filter
from mongoq.core.sequence.hold import CONTROLS_PER_PAGE
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import aggregate_all, find_few, find_one
from mongoq.core_threads.base.topics import read_bindings
from mongoq.core_threads.coordination.heartbeats import workers
from mongoq.core_threads.coordination.limits import read_limits_of
from mongoq.core_threads.history.mistaken import (
    count_letters_by_queue,
    find_letter_queues,
    find_letters_of,
    read_dead_queues,
    refuse_unknown,
)
from mongoq.core_threads.history.read import find_queues, read_controls
from mongoq.core_threads.perform import perform
from mongoq.core_threads.sequence.hold import find_held, find_letters, find_miscounted, find_uncounted, read_heads
from mongoq.data.arguments import DEAD_SUFFIX, count, object_id, queue_name
from mongoq.data.envelope import to_plain
from mongoq.data.indexes import BEGINNING, CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.data.item import Document, Item, state_of
from mongoq.data.process import EVENTS
from mongoq.data.push_options import check_key
from mongoq.data.sequence import HAS_PLACE, IS_BLOCKED, control_id
from mongoq.data.settings import from_stored, resolve_settings
from mongoq.data.stream_claim import STREAM_PREFIX
from mongoq.errors import ArgumentInvalid, CollectionUnsuitable


def read_queues(broker: BrokerContext, names: Iterable[str] | None = None, *, budget: int) -> list[QueueInsight]:
    """Read the state of all queues, or of the named ones, in order of their names.

    It takes six reads of control documents and names, a seventh if a queue has limits, one ``aggregate`` of history,
    one ``aggregate`` for each 100 queues, one for each 25 queues of hundreds that hold many items, and two for each 100
    queues that hold items, to find error queues of pipelines. All counts together examine ``budget`` documents at most,
    but about 40 for each queue in any case.

    Raises:
        QueueUnknown: no caller has used a named queue.
    """
    count(budget, "budget")
    ensure_broker_ready(broker, write=False)
    wanted = None if names is None else sorted({queue_name(name) for name in names})
    for name in wanted or ():
        refuse_unknown(broker, name)
    held = set(find_queues({"$gte": ""}))
    controls = read_controls(broker, CONTROL_PREFIX, ("settings", "paused", "sequences"), names=wanted)
    counters = read_controls(broker, COUNTERS_PREFIX, EVENTS, names=wanted)
    consumers = count_consumers(broker)
    if wanted is None:
        try:
            bound = read_bindings(broker)
        except CollectionUnsuitable as error:
            # Unusable bindings must not hide the queues, and are an error of each push.
            logger.warning("%s", error)
            bound = {}
        wanted = sorted(held.union(controls, counters, consumers, *bound.values()))
    settings = {name: _settings_of(name, controls.get(name)) for name in wanted}
    errors = find_letter_queues(broker, sorted(held))
    died = count_letters_by_queue(broker, errors, _share(budget, errors))
    dead = {each.dead for each in settings.values() if each.dead is not None}
    ordered = {name for name, control in controls.items() if control.get("sequences") is True}
    counted = _read_states(broker, sorted((held | ordered) & {*wanted, *dead}), budget, ordered=ordered)
    recent = _count_recent(broker, sorted(held & {*wanted}), budget * KEYS_PER_DOCUMENT)
    limits = read_limits_of(broker, [each for each in settings.values() if each.is_limited])
    now = broker.clock.now()
    insights = []
    for name, each in settings.items():
        # Dead letters by the queue that holds them: the queue's dead queue first, then error queues of pipelines.
        own = {} if each.dead is None else {each.dead: counted.get(each.dead, QueueInsight(each.dead, now)).live}
        others = {queue: number for queue, number in died.get(name, {}).items() if queue not in own}
        # An error queue is a dead queue itself, although nothing stores that it has none.
        is_error_queue = name in errors and not any(number.number for number in own.values())
        letters = others if is_error_queue else own | others
        insights.append(
            replace(
                counted.get(name, QueueInsight(name, now)),
                recent=recent.get(name, NO_ITEMS),
                keeps_history=each.history is not None,
                paused=bool(controls.get(name, {}).get("paused")),
                consumers=consumers.get(name, 0),
                dead_queue=max(letters, key=lambda queue: letters[queue].number, default=None),
                dead=sum(letters.values(), NO_ITEMS),
                events=events_in(counters.get(name, {})),
                limits=limits.get(name),
            )
        )
    return insights


def list_queues(broker: BrokerContext) -> list[str]:
    """Return the names of the queues that hold an item, live or in history, remember an id, or have a live consumer."""
    ensure_broker_ready(broker, write=False)
    held = find_queues({"$gte": ""})
    return sorted(held.union(count_consumers(broker)))


def find_unusable(broker: BrokerContext) -> list[str]:
    """Return what other programs have stored that calls of queues refuse, a sentence each (two ``find``)."""
    ensure_broker_ready(broker, write=False)
    controls = read_controls(broker, CONTROL_PREFIX, ["settings"])
    problems: list[str] = []
    for name, control in controls.items():
        try:
            from_stored(name, control.get("settings", {}))
        except ArgumentInvalid as error:
            problems.append(str(unusable_settings(broker, name, error)))
    try:
        read_bindings(broker)
    except CollectionUnsuitable as error:
        problems.append(str(error))
    return problems


def count_consumers(broker: BrokerContext) -> dict[str, int]:
    """Count the live workers and the running queries of Spark of each queue (two ``find``)."""
    records: list[WorkerRecord] = workers(broker)
    names = [name for record in records if record.alive for name in record.queues]
    running = {"until": {"$gt": broker.clock.now()}}
    found = read_controls(broker, STREAM_PREFIX, ["queue"], where=running)
    names += [name for stream in found.values() if isinstance(name := stream.get("queue"), str)]
    return Counter(names)


def _read_states(
    broker: BrokerContext, names: Sequence[str], budget: int, *, ordered: Collection[str]
) -> dict[str, QueueInsight]:
    """Count the items of queues by state, each within its share of the budget (``aggregate``).

    Only queues that are ``ordered`` have sequences, and so blocked items. Where there are many queues, hundreds that
    hold few items are counted whole: of 5,000 queues with three items each it takes 0.1 s of the server's processor,
    and the parts of each queue 1.8 s.
    """
    limit = _share(budget, names)
    states: dict[str, QueueInsight] = {}
    is_many = len(names) > QUEUES_TOGETHER and not broker.serverless
    for start in range(0, len(names) if is_many else 0, SHALLOW_TOGETHER):
        together, now = names[start : start + SHALLOW_TOGETHER], broker.clock.now()
        most, which = SHALLOW_ITEMS * len(together), {"q": {"$in": together}}
        live, blocked = {**which, "when": {"$gte": BEGINNING}}, {"place": HAS_PLACE, "ready_from": IS_BLOCKED}
        blocked["q"] = {"$in": [name for name in together if name in ordered]}
        command = count_states(broker, live, blocked, now, limit=most + 1, by_queue=True)
        command.arguments = {**command.arguments, "batchSize": 5 * len(together)}
        groups = perform(command)
        if sum(group["n"] for group in groups) <= most:
            states |= _make_insights(together, now, groups, most)
    rest = [name for name in names if name not in states]
    for start in range(0, len(rest), QUEUES_TOGETHER):
        together, now = rest[start : start + QUEUES_TOGETHER], broker.clock.now()
        parts = [part for name in together for part in _parts(name, now, limit, is_ordered=name in ordered)]
        states |= _make_insights(together, now, (aggregate_all(broker, parts)), limit)
    return states


def _count_recent(broker: BrokerContext, names: Sequence[str], most: int) -> dict[str, BoundedCount]:
    """Count the items of each queue that were processed lately, ``most`` in all, from the index alone."""
    now = broker.clock.now()
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"q": {"$in": names}, "processed": {"$gt": now - RECENT, "$lte": now}}},
        {"$sort": {"q": 1, "processed": 1}},
        {"$limit": most},
        {"$group": {"_id": "$q", "n": {"$sum": 1}}},
    ]
    groups: list[Any] = perform(Command("aggregate", {"pipeline": pipeline}))
    numbers = {group["_id"]: group["n"] for group in groups}
    # The count goes by the names of the queues: it has not come to an end for the last one, and the ones behind it.
    ended = max(numbers) if sum(numbers.values()) >= most else None
    return {name: BoundedCount(numbers.get(name, 0), ended is None or name < ended) for name in names}


def read_events(broker: BrokerContext, names: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
    """Read the counts of events of all queues, or of the named ones (``find``); items are not counted.

    Raises:
        QueueUnknown: no caller has used a named queue.
    """
    ensure_broker_ready(broker, write=False)
    wanted = None if names is None else sorted({queue_name(name) for name in names})
    for name in wanted or ():
        refuse_unknown(broker, name)
    found = read_controls(broker, COUNTERS_PREFIX, EVENTS, names=wanted)
    zeros: dict[str, int] = dict.fromkeys(EVENTS, 0)
    return {name: {**zeros, **events_in(found.get(name, {}))} for name in (found if wanted is None else wanted)}


def read_settings(broker: BrokerContext, name: str) -> StoredSettings:
    """Read the settings of a queue (``find`` of its control document).

    Raises:
        QueueUnknown: no caller has used the queue.
        CollectionUnsuitable: another program has stored settings that cannot be used.
    """
    ensure_broker_ready(broker, write=False)
    refuse_unknown(broker, queue_name(name))
    document = (find_one(broker, {"_id": CONTROL_PREFIX + name})) or {}
    try:
        stored = from_stored(name, document.get("settings", {}))
    except ArgumentInvalid as error:
        raise unusable_settings(broker, name, error) from error
    return StoredSettings(resolve_settings(name, stored), frozenset(stored), bool(document.get("paused")))


def find_dead_queue(broker: BrokerContext, name: str, *, exact: bool = False) -> tuple[str, str | None]:
    """Find the dead letters of a queue or stage: the queue that holds them, and whose they are among others there.

    A few ``find`` and ``aggregate``; the second is ``None`` where all letters of that queue are meant.

    The name may be that of a dead queue itself: ``exact`` says so, its ending does, the settings of another queue, or
    the letters in it. Otherwise its letters are in its own dead queue, or, while that holds none, in the error queue of
    a pipeline, which is found by its letters.

    Raises:
        QueueUnknown: no queue has this name, and no stage that has letters.
        ArgumentInvalid: the queue has no dead queue, or several error queues hold its letters.
    """
    ensure_broker_ready(broker, write=False)
    is_dead_queue = exact or queue_name(name).endswith(DEAD_SUFFIX)
    if is_dead_queue or name in (read_dead_queues(broker)).values():
        refuse_unknown(broker, name)
        return name, None
    if find_letter_queues(broker, [name]):
        return name, None
    control = find_one(broker, {"_id": CONTROL_PREFIX + name}, {"settings": 1})
    dead = _settings_of(name, control).dead
    if dead is None or (find_one(broker, in_state(dead, None, BEGINNING), {"_id": 1})) is None:
        errors = find_letters_of(broker, name)
        if len(errors) > 1:
            raise ArgumentInvalid(
                "queue", f"letters of {name!r} are in {', '.join(map(repr, errors))}; name one of these"
            )
        if errors:
            return errors[0], name
        refuse_unknown(broker, name)
    if dead is None:
        raise ArgumentInvalid("queue", f"{name!r} has no dead queue; 'exact' says that it is one itself")
    return dead, None


def find_item(broker: BrokerContext, id: ObjectId) -> Item[Any] | None:
    """Find an item in any queue, live, in history or with only its id remembered (``find`` by ``_id``).

    The readable part of a document that cannot be decoded is returned as an item as well.
    """
    ensure_broker_ready(broker, write=False)
    document = find_one(broker, {"_id": object_id(id), "q": {"$type": "string"}}, lenient=True)
    if document is None:
        return None
    return Item(document, document.get("payload"), broker.clock.now(), broker.namespace)


def find_keyed(broker: BrokerContext, queue: str, key: str) -> bool:
    """Return whether a live item of a queue has a key (``find`` by queue and key)."""
    ensure_broker_ready(broker, write=False)
    return (find_one(broker, live_filter(queue, check_key(key)), {"_id": 1})) is not None


def find_blockers(context: QueueContext[Any], items: Iterable[Item[Any]]) -> dict[str | None, list[Document]]:
    """Find the items that the blocked ones among these wait for: ids and states, by sequence.

    Dead letters that hold a sequence come first, in the state ``dead``, with their queue. It takes two ``find`` and an
    ``aggregate`` for each 1,000 sequences, and nothing without blocked items.
    """
    names = sorted({item.sequence for item in items if item.sequence is not None and item.stored("when") is None})
    found: dict[str | None, list[Document]] = {}
    for start in range(0, len(names), MAX_LISTED_SEQUENCES):
        ids = [control_id(context.name, name) for name in names[start : start + MAX_LISTED_SEQUENCES]]
        controls = find_few(context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids))
        heads = read_heads(context.broker, context.name, controls)
        letters = find_letters(context.broker, controls)
        now = context.broker.clock.now()
        for control in controls:
            found[control["sequence"]] = [
                *({"id": to_plain(each["_id"]), "state": "dead"} for each in letters.get(control["_id"], ())),
                *({"id": to_plain(head["_id"]), "state": state_of(head, now)} for head in heads[control["_id"]]),
            ]
    return found


def count_held(broker: BrokerContext) -> dict[str, BoundedCount]:
    """Count the sequences of each queue that dead letters hold, up to 1,000 of each queue; queues without are left out.

    Letters that are gone count until the next repair.
    """
    ensure_broker_ready(broker, write=False)
    held: dict[str, BoundedCount] = {}
    for name in read_controls(broker, CONTROL_PREFIX, (), where=HAS_SEQUENCES):
        if number := len(find_held(broker, name)):
            held[name] = BoundedCount(number, number < CONTROLS_PER_PAGE)
    return held


def find_stuck(broker: BrokerContext) -> dict[str, BoundedCount]:
    """Count the sequences of each queue that need a repair, among the first 1,000 sequences of each queue."""
    ensure_broker_ready(broker, write=False)
    stuck: dict[str, BoundedCount] = {}
    for name in read_controls(broker, CONTROL_PREFIX, (), where=HAS_SEQUENCES):
        miscounted, after = find_miscounted(broker, name)
        uncounted, after_sequence = find_uncounted(broker, name)
        stuck[name] = BoundedCount(len({*miscounted, *uncounted}), after is None and after_sequence is None)
    return stuck
