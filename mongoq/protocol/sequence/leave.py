"""Leaving a sequence: the next item gets its date in the transaction in which the one before it leaves.

As many follow as have left, unless ``max_in_sequence`` was raised or lowered meanwhile. Then promotion does not write
the control document. Where fewer or more follow, that is written or deleted, and so conflicts with a push that saw the
sequence full: one of the two transactions is tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mongoq.model.item import Document, Item, has_place
from mongoq.model.sequence import HAS_PLACE, IS_BLOCKED, blocked_filter, control_id, held_entries
from mongoq.model.settings import DEFAULT_MAX_IN_SEQUENCE
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.sequence.control import Statement, send_statements
from mongoq.protocol.state.context import BrokerContext

MAX_LOOKUPS = 1_000
"""Sequences that one command looks up, at most."""
NEXT_FIELDS = {"ready_from": 1, "priority": 1, "place": 1}
"""Projection of an item that is next in its sequence."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """An item that is first in its sequence now.

    Attributes:
        queue: the queue.
        id: the item.
        when: the time from which on it is eligible.
        priority: its priority.
    """

    queue: str
    id: Any
    when: datetime
    priority: Any


def leave(broker: BrokerContext, queue: str, numbers: Mapping[str, int]) -> Flow[list[Promoted]]:
    """Promote the next items of sequences that so many heads have left, and return them.

    Called in the transaction in which the heads leave, after they have. ``record_promoted`` follows it.
    """
    numbers = {sequence: number for sequence, number in numbers.items() if number > 0}
    if not numbers:
        return []
    requests: list[Statement] = []
    promoted: list[Promoted] = []
    now, most, may_be_held = broker.clock.now(), _known_limit(broker, queue), _may_be_held(broker, queue)
    names = list(numbers)
    for start in range(0, len(names), MAX_LOOKUPS):
        some = {name: numbers[name] for name in names[start : start + MAX_LOOKUPS]}
        for sequence, (control, following) in (
            yield from _look_up(broker, queue, some, most, may_be_held=may_be_held)
        ).items():
            chosen = following[: _room(control, numbers[sequence], most)]
            promoted += [_promoted(queue, document, now) for document in chosen]
            requests += map(_promotion, chosen, promoted[len(promoted) - len(chosen) :])
            if left := numbers[sequence] - len(chosen):
                requests += _closing(control, left)
    yield from send_statements(broker, requests)
    return promoted


def give_up_places(broker: BrokerContext, items: Iterable[Item[Any]]) -> Flow[list[Promoted]]:
    """Take the places of items that have left their queues by other statements, and let the next ones follow.

    Called in the transaction of these statements; items without a place are left out.
    """
    queues: dict[str, list[Item[Any]]] = {}
    for item in items:
        if has_place(item):
            queues.setdefault(item.queue, []).append(item)
    promoted: list[Promoted] = []
    for queue, placed in queues.items():
        left = {"_id": {"$in": [item.id for item in placed]}}
        yield from Command[Any]("update_many", {"filter": left, "update": {"$unset": {"place": ""}}})
        promoted += yield from leave(broker, queue, Counter(str(item.sequence) for item in placed))
    return promoted


def promote(broker: BrokerContext, queue: str, numbers: Mapping[str, int]) -> Flow[dict[str, list[Promoted]]]:
    """Promote up to so many items of each sequence, without any change of the control documents; return them."""
    now = broker.clock.now()
    requests: list[Statement] = []
    promoted: dict[str, list[Promoted]] = {}
    for sequence, number in numbers.items():
        following = yield from _find_following(broker, queue, sequence, number)
        promoted[sequence] = [_promoted(queue, document, now) for document in following]
        requests += map(_promotion, following, promoted[sequence])
    yield from send_statements(broker, requests)
    return promoted


def record_promoted(broker: BrokerContext, promoted: Iterable[Promoted]) -> None:
    """Wake the waiters of this process for promoted items; others hear of them by the change stream."""
    for item in promoted:
        priorities = [item.priority] if isinstance(item.priority, int) else []
        broker.record_put(item.queue, item.when, *priorities, id=item.id, is_new=False)


def _known_limit(broker: BrokerContext, queue: str) -> int | None:
    """Return ``max_in_sequence`` of a queue, or ``None`` if this process has not read its settings."""
    state = broker.state(queue)
    return int(state.stored.get("max_in_sequence", DEFAULT_MAX_IN_SEQUENCE)) if state.ordered else None


def _may_be_held(broker: BrokerContext, queue: str) -> bool:
    """Return whether dead letters may hold sequences of a queue: its setting is unknown, or was ever chosen."""
    state = broker.state(queue)
    return not state.ordered or "on_dead" in state.stored


def _room(control: Document, number: int, most: int | None) -> int:
    """Return how many items may follow ``number`` heads that have left: as many, or what a changed limit allows."""
    opened = control.get("open")
    if held_entries(control):
        return 0
    if most is None or not isinstance(opened, int):
        return number
    return max(most - max(opened - number, 0), 0)


def _look_up(
    broker: BrokerContext, queue: str, numbers: Mapping[str, int], limit: int | None, *, may_be_held: bool
) -> Flow[dict[str, tuple[Document, list[Document]]]]:
    """Read the control document of each sequence, and the items that are next in it (``aggregate``).

    A sequence whose control document is gone, deleted by hand, has what another head would find: its next items.
    """
    most = max(*numbers.values(), limit or 1)
    if broker.serverless or len(numbers) == 1:
        found = {}
        for sequence, number in numbers.items():
            following = yield from _find_first(broker, queue, sequence, most)
            controls: list[Document] = []
            if len(following) != number or most > 1 or may_be_held:
                filter = {"_id": control_id(queue, sequence)}
                controls = yield from find_few(broker, filter, [("_id", 1)], 1)
            found[sequence] = (controls[0] if controls else {}), following
        return found
    ids = {control_id(queue, sequence): sequence for sequence in numbers}
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"_id": {"$in": list(ids)}}},
        {
            "$lookup": {
                "from": broker.collection,
                "localField": "sequence",
                "foreignField": "sequence",
                "pipeline": [
                    {"$match": blocked_filter(queue)},
                    {"$sort": {"place": 1}},
                    {"$limit": most},
                    {"$project": NEXT_FIELDS},
                ],
                "as": "following",
            }
        },
    ]
    documents: list[Any] = yield from Command("aggregate", {"pipeline": pipeline})
    return {ids[document["_id"]]: (document, document["following"]) for document in documents}


def _find_first(broker: BrokerContext, queue: str, sequence: str, most: int) -> Flow[list[Document]]:
    """Find the next items of a sequence; none where one head is there, and the limit allows no other one."""
    if most > 1:
        return (yield from _find_following(broker, queue, sequence, most))
    filter = {"q": queue, "sequence": sequence, "place": HAS_PLACE}
    documents = yield from find_few(broker, filter, [("place", 1)], 1, projection={**NEXT_FIELDS, "when": 1})
    return [document for document in documents if "when" not in document]


def _find_following(broker: BrokerContext, queue: str, sequence: str, number: int) -> Flow[list[Document]]:
    filter = {"q": queue, "sequence": sequence, "place": HAS_PLACE, "ready_from": IS_BLOCKED}
    return (yield from find_few(broker, filter, [("place", 1)], number, projection=NEXT_FIELDS))


def _promoted(queue: str, document: Document, now: datetime) -> Promoted:
    return Promoted(queue, document["_id"], max(document["ready_from"], now), document.get("priority"))


def _promotion(document: Document, promoted: Promoted) -> Statement:
    filter = {"_id": document["_id"], "place": document["place"]}
    return "UpdateOne", {"filter": filter, "update": {"$set": {"when": promoted.when}, "$unset": {"ready_from": ""}}}


def _closing(control: Document, left: int) -> list[Statement]:
    """Return the statement that counts heads that left without a successor; without any head the document goes.

    A negative number counts the items that follow beyond those.
    """
    if not control:
        return []
    filter = {"_id": control["_id"]}
    if control.get("open", 0) <= left and not held_entries(control):
        return [("DeleteOne", {"filter": filter})]
    return [("UpdateOne", {"filter": filter, "update": {"$inc": {"open": -left}}})]
