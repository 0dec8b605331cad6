"""Dead letters: hand them back to the queue they died in, or to another one, each in one update.

A letter that holds its sequence goes back to its place in it, before all later items, in a transaction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import REASON_BYTES, Id, count, object_id, queue_name, read_list, text
from mongoq.model.copies import Replayed, is_publication
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import TYPE_BYTES, Document, shorten
from mongoq.model.indexes import CLAIM_ORDER, SEQUENCE_ORDER
from mongoq.model.item import STAGE_BYTES, Item, id_key, payload_at
from mongoq.model.sequence import blocked_filter, held_entries, held_target
from mongoq.model.settings import queue_options
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready, mark_ordered
from mongoq.protocol.base.retry import retry_and_report
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.flow import Command, Duplicate, Flow, PartlyRefused, number_matched
from mongoq.protocol.history.letter_queues import died_in
from mongoq.protocol.history.mistaken import refuse_mistake
from mongoq.protocol.history.pages import (
    BoundedCount,
    Chosen,
    Range,
    aggregate_filtered,
    documents_page,
    history_range,
)
from mongoq.protocol.history.read import NOT_RESERVED
from mongoq.protocol.history.replay import hop_destination
from mongoq.protocol.history.search import Progress, count_free, search
from mongoq.protocol.sequence.control import ensure_possible, run_atomic
from mongoq.protocol.sequence.enter import enter
from mongoq.protocol.sequence.hold import find_held_from, release, take_back
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import QueueContext

LETTERS_PER_PAGE = 500
"""Letters in one page."""
MAX_RELEASES = 10
"""Sequences that are named before letters which hold them go, at most."""
MAX_WAITING = 10_000
"""Waiting items that are counted in one sequence, at most."""
Selection = Range | list[ObjectId]
"""Selected letters: those of a range, or those with the listed ids."""
KEY_TAKEN = "a live item has its key; settle that one first, or give to="
"""Reason for refusing a letter with the key of a live item."""
IDS_ALONE = "choose by ids=, or by where=, stage=, reason= and error=, not by both"
"""Problem of a call that selects letters in two ways."""


def revive(
    context: QueueContext[Any],
    letters: Selection,
    *,
    to: str | QueueContext[Any] | None,
    hop: str | None,
    limit: int | None,
    progress: Callable[[Replayed], object] | None = None,
) -> Flow[Replayed]:
    """Hand back the selected dead letters that no caller holds, in the order of claims, page by page.

    ``progress`` is called with the result so far after each page. With a ``hop`` each goes to that queue, with the
    payload that it had there. A crash between two pages leaves the rest in the dead queue.
    """
    where_to = hop_destination(context, hop, to)
    target = None if where_to is None else where_to.name
    if target == context.name:
        raise ArgumentInvalid("to" if hop is None else "hop", f"{target!r} is the dead queue itself")
    room = math.inf if limit is None else count(limit, "limit")
    yield from ensure_ready(context, fresh=False)
    pages: _All | Chosen
    if isinstance(letters, Range):
        pages = _All(context, letters)
    else:
        pages = Chosen(partial(_find_letters, context), list(dict.fromkeys(letters)), LETTERS_PER_PAGE)
    result = Replayed()
    while room > result.pushed and (documents := (yield from pages.read(room - result.pushed))):
        result += yield from _hand_back(context, documents, target, by_hop=hop is not None)
        if progress is not None:
            progress(result)
    if not result.found and letters != []:
        yield from refuse_mistake(context, letters=True)
    return replace(result, missing=pages.missing)


def selection(
    context: QueueContext[Any],
    *,
    ids: Iterable[Id] | None,
    where: Any,
    stage: str | None,
    reason: str | None,
    error: str | None,
    until: datetime | None = None,
) -> Selection:
    """Check the selection of dead letters: by ids, or by a filter of payloads and of the failure.

    With ``until``, a filter leaves out letters that came after this time.
    """
    failure = failure_filter(stage=stage, reason=reason, error=error)
    if ids is not None and (failure or (where, until) != (None, None)):
        raise ArgumentInvalid("ids", IDS_ALONE)
    if ids is None:
        wanted = history_range(context, since=None, until=None, where=where, state=None, page=LETTERS_PER_PAGE)
        wanted = wanted.without_later(until, context.broker.clock)
        if context.letters_of is not None:
            wanted = wanted.narrow(died_in(context.letters_of))
        return wanted.narrow(failure) if failure else wanted
    return [object_id(id, f"ids[{place}]") for place, id in enumerate(read_list(ids, "ids"))]


def failure_filter(*, stage: str | None, reason: str | None, error: str | None) -> dict[str, Any]:
    """Return the filter of letters by stage, reason and type of error; empty when none of them is given."""
    given = {
        "origin.stage": (stage, "stage", STAGE_BYTES),
        "origin.reason": (reason, "reason", REASON_BYTES),
        "error.type": (error, "error", TYPE_BYTES),
    }
    return {field: _stored_text(*value) for field, value in given.items() if value[0] is not None}


def _stored_text(value: Any, argument: str, limit: int) -> str:
    """Return a text that a letter can hold: a burial writes lone surrogates as escapes."""
    if any("\ud800" <= letter <= "\udfff" for letter in text(value, argument, limit)):
        raise ArgumentInvalid(argument, "cannot hold lone surrogates")
    return str(value)


def count_letters(
    context: QueueContext[Any], chosen: Selection, *, limit: int, progress: Progress | None = None
) -> Flow[BoundedCount]:
    """Count the selected letters that no caller holds, among the first ``limit`` letters of the queue."""
    yield from ensure_broker_ready(context.broker, write=False)
    if isinstance(chosen, Range):
        return (yield from count_free(context, chosen, limit=limit, progress=progress))
    free = {"$or": [{"reserved": NOT_RESERVED}, {"when": {"$lte": context.broker.clock.now()}}]}
    number, ids = 0, list(dict.fromkeys(chosen))
    for start in range(0, len(ids), LETTERS_PER_PAGE):
        filter = {**_ids_filter(context, ids[start : start + LETTERS_PER_PAGE]), **free}
        number += yield from Command("count_documents", {"filter": filter})
    return BoundedCount(number)


def read_letters(
    context: QueueContext[Any], chosen: Selection, *, limit: int, progress: Progress | None = None
) -> Flow[list[Item[Any]]]:
    """Read the first ``limit`` selected letters, reserved ones included, in the order of claims.

    Letters of a filter are searched slice by slice; ``progress`` is called after each of them.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    documents: list[Document] = []
    if isinstance(chosen, Range):
        documents = yield from search(context, chosen, limit=limit, progress=progress)
    else:
        ids = list(dict.fromkeys(chosen))
        for start in range(0, len(ids), LETTERS_PER_PAGE):
            documents += yield from _find_letters(context, ids[start : start + LETTERS_PER_PAGE])
    return context.items(documents, context.broker.clock.now())[:limit]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Letters that died for the same reason, with an error of the same type.

    Attributes:
        reason: reason of their burial; ``None`` for letters that another program put into the queue.
        error: type of their errors, ``""`` for errors that were given as texts; ``None`` without an error.
        number: number of letters.
        example: id of the first letter, in the order of claims.
        first: time of the first burial; ``None`` when it is not known.
        last: time of the last burial.
        message: message of the first letter's error; ``None`` without an error.
    """

    reason: str | None
    error: str | None
    number: int
    example: Any
    first: datetime | None
    last: datetime | None
    message: str | None = None


def group_letters(
    context: QueueContext[Any], chosen: Range, *, limit: int, groups: int
) -> Flow[tuple[list[FailureGroup], bool]]:
    """Group the selected letters by reason and type of error, among the first ``limit`` letters (``aggregate``).

    Returns the largest groups, ``groups`` of them at most, and whether there are letters behind the limit.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    whole = replace(chosen, where={}).filter(context.name)
    examined: int = yield from Command("count_documents", {"filter": whole, "limit": limit + 1})
    pipeline: list[Mapping[str, Any]] = [
        {"$match": whole},
        {"$sort": dict(CLAIM_ORDER)},
        {"$limit": limit},
        *([{"$match": chosen.where}] if chosen.where else []),
        {
            "$group": {
                "_id": {"reason": "$origin.reason", "error": "$error.type"},
                "number": {"$sum": 1},
                "example": {"$first": "$_id"},
                "message": {"$first": "$error.message"},
                "first": {"$min": "$origin.at"},
                "last": {"$max": "$origin.at"},
            }
        },
        {"$sort": {"number": -1, "_id": 1}},
        {"$limit": groups},
    ]
    found = yield from aggregate_filtered(pipeline)
    named = [{"reason": None, "error": None, **group.pop("_id"), **group} for group in found]
    return [FailureGroup(**group) for group in named], examined > limit


@dataclass(frozen=True, slots=True)
class ReleasedSequence:
    """A sequence that goes on when the letters that hold it are gone.

    Attributes:
        queue: queue of the sequence.
        sequence: the sequence.
        items: items that wait in it.
        first: id of the first of them, which runs next.
    """

    queue: str
    sequence: str
    items: BoundedCount
    first: Any


def find_releases(context: QueueContext[Any], chosen: Selection) -> Flow[tuple[list[ReleasedSequence], int]]:
    """Find sequences that go on without the selected letters, and return how many more may do so.

    They are among the first 1,000 held sequences (two ``find``, and two commands for each of the first
    ``MAX_RELEASES``). A sequence that another letter holds as well does not go on.
    """
    broker = context.broker
    yield from ensure_broker_ready(broker, write=False)
    controls = yield from find_held_from(broker, context.name, "")
    entries = {control["_id"]: held_entries(control) for control in controls}
    holding = [entry["id"] for held in entries.values() for entry in held]
    if not holding:
        return [], 0
    filter = chosen.filter(context.name) if isinstance(chosen, Range) else _ids_filter(context, chosen)
    filter = {"$and": [filter, {"_id": {"$in": holding}}]}
    documents = yield from find_few(broker, filter, [("_id", 1)], len(holding), projection={"_id": 1})
    leaving = {id_key(document["_id"]) for document in documents}
    ended = [each for each in controls if all(id_key(entry["id"]) in leaving for entry in entries[each["_id"]])]
    releases = []
    for control in ended[:MAX_RELEASES]:
        waiting = {**blocked_filter(control["queue"]), "sequence": control["sequence"]}
        first = yield from find_few(broker, waiting, SEQUENCE_ORDER, 1, projection={"_id": 1})
        if first:
            limit = MAX_WAITING + 1
            number: int = yield from Command("count_documents", {"filter": waiting, "limit": limit})
            items = BoundedCount(number, exact=number < limit)
            releases.append(ReleasedSequence(control["queue"], control["sequence"], items, first[0]["_id"]))
    return releases, max(0, len(ended) - MAX_RELEASES)


class _All:
    """Reads the dead letters of a range, one page at a time; a letter that could not be handed back is passed over."""

    missing: tuple[ObjectId, ...] = ()

    def __init__(self, context: QueueContext[Any], wanted: Range) -> None:
        self._context = context
        self._rest: Range | None = wanted
        self._met: set[str] = set()

    def read(self, room: float) -> Flow[Sequence[Document]]:
        """Read the next page; a letter that was handed back and has died again meanwhile is not read a second time."""
        letters: Sequence[Document] = ()
        while self._rest is not None and not letters:
            page = replace(self._rest, page=int(min(LETTERS_PER_PAGE, room)))
            read, self._rest = yield from documents_page(self._context, page)
            # ``repr``, because other programs may use ids that are not hashable.
            letters = [document for document in read if repr(document["_id"]) not in self._met]
            self._met.update(repr(document["_id"]) for document in letters)
        return letters


def _find_letters(context: QueueContext[Any], ids: list[ObjectId]) -> Flow[list[Document]]:
    return (yield from find_few(context.broker, _ids_filter(context, ids), CLAIM_ORDER, len(ids), lenient=True))


def _ids_filter(context: QueueContext[Any], ids: list[ObjectId]) -> dict[str, Any]:
    return {"_id": {"$in": ids}, "q": context.name, "when": {"$exists": True}}


def _hand_back(
    context: QueueContext[Any], documents: Sequence[Document], target: str | None, *, by_hop: bool
) -> Flow[Replayed]:
    """Hand back one page, and count the results."""
    refusals: list[tuple[ObjectId, str]] = []
    ordered = [document for document in documents if isinstance(document.get("sequence"), str)]
    if ordered:
        alone = yield from _hand_back_in_order(context, ordered, target, by_hop=by_hop)
        rest = [document for document in documents if not isinstance(document.get("sequence"), str)]
        return alone + (yield from _hand_back(context, rest, target, by_hop=by_hop)) if rest else alone
    homes: dict[tuple[str, datetime], list[Statement]] = {}
    for statement in _statements(context, documents, target, refusals, by_hop=by_hop):
        there = statement[1]["update"]["$set"]
        homes.setdefault((there["q"], there["when"]), []).append(statement)
    priorities, moved = [document.get("priority") for document in documents], 0
    for (queue, when), statements in homes.items():
        number = yield from _send_statements(context, statements, refusals)
        context.count("move", number)
        context.broker.record_put(queue, when, *priorities, number=number)
        moved += number
    skipped = len(documents) - moved - len(refusals)
    return Replayed(len(documents), moved, skipped=skipped, refused=len(refusals), refusals=tuple(refusals))


def _hand_back_in_order(
    context: QueueContext[Any], documents: Sequence[Document], target: str | None, *, by_hop: bool
) -> Flow[Replayed]:
    """Hand back letters that had sequences, in a transaction for each queue: to their places, or to the ends."""
    refusals: list[tuple[ObjectId, str]] = []
    queues: dict[str, list[tuple[Document, dict[str, Any]]]] = {}
    for document in documents:
        try:
            changes = _changes(context, document, target, by_hop=by_hop)
        except _Stays as reason:
            refusals.append((document["_id"], str(reason)))
        else:
            changes.pop("key", None)  # an item of a sequence has none
            queues.setdefault(changes["q"], []).append((document, changes))
    moved = 0
    if queues:
        yield from ensure_possible(context.broker)
    for queue, letters in queues.items():
        home = QueueContext(context.broker, queue_options(queue), context.broker.untyped)
        yield from ensure_ready(home)
        yield from mark_ordered(home, joined=False)
        attempt = partial(_enter_again, context, home, letters)
        entered, promoted = yield from run_atomic(context.broker, attempt)
        context.broker.counters.add(queue, "put", len(entered))
        for update in entered:
            if "when" in update:
                context.broker.record_put(queue, update["when"], is_new=False)
        record_promoted(context.broker, promoted)
        moved += len(entered)
    context.count("move", moved)
    skipped = len(documents) - moved - len(refusals)
    return Replayed(len(documents), moved, skipped=skipped, refused=len(refusals), refusals=tuple(refusals))


def _enter_again(
    context: QueueContext[Any], home: QueueContext[Any], letters: Sequence[tuple[Document, dict[str, Any]]]
) -> Flow[tuple[list[dict[str, Any]], list[Promoted]]]:
    """Move the letters that no caller holds to the ends of their sequences, inside a transaction.

    A letter that holds its sequence goes back to its place in it, or lets the next item follow if it goes elsewhere.
    """
    now, when = context.broker.clock.now(), context.broker.clock.stamp()
    updates = {
        id_key(letter["_id"]): _update(context, {"_id": letter["_id"]}, fields, now, when) for letter, fields in letters
    }
    ids = [letter["_id"] for letter, _ in letters]
    free = {"_id": {"$in": ids}, "q": context.name, "when": {"$exists": True}, "$or": _free(now)}
    documents = yield from find_few(context.broker, free, [("_id", 1)], len(ids), projection={"_id": 1})
    here = {id_key(document["_id"]) for document in documents}
    leaving = [letter for letter, _ in letters if id_key(letter["_id"]) in here]
    places, freed = yield from take_back(context.broker, home.name, leaving)
    new = [letter["sequence"] for letter in leaving if id_key(letter["_id"]) not in places]
    entries = yield from enter(home, Counter(new))
    entered, statements = [], []
    for letter in leaving:
        arguments, key = updates[id_key(letter["_id"])], id_key(letter["_id"])
        place = {"place": places[key]} if key in places else entries[letter["sequence"]].take(when)
        changes = {**arguments["update"]["$set"], **(place if "ready_from" in place else {**place, "when": when})}
        unset = dict(arguments["update"]["$unset"])
        if held_target(letter) is not None:
            unset["origin.place"] = ""
        if "ready_from" in place:
            del changes["when"]
            unset["when"] = ""
        statements.append(("UpdateOne", {**arguments, "update": {"$set": changes, "$unset": unset}}))
        entered.append(changes)
    yield from send_statements(context.broker, statements)
    # A letter may have had a place in a sequence of the dead queue itself.
    left = Counter(letter["sequence"] for letter in leaving if "place" in letter)
    promoted = yield from leave(context.broker, context.name, left)
    targets = (held_target(letter) for letter in leaving if id_key(letter["_id"]) not in places)
    followed = yield from release(context.broker, (target for target in targets if target is not None))
    return entered, [*freed, *promoted, *followed, *(item for entry in entries.values() for item in entry.promoted)]


def _home(document: Document) -> str | None:
    origin = document.get("origin")
    try:
        return queue_name(origin["queue"]) if isinstance(origin, Mapping) and not is_publication(origin) else None
    except (ArgumentInvalid, KeyError):
        return None


def _key(document: Document) -> Any:
    """Return the key for the way back: one given in the dead queue, else the one it died with."""
    return document.get("key") or document["origin"].get("key")


def _statements(
    context: QueueContext[Any],
    documents: Iterable[Document],
    target: str | None,
    refusals: list[tuple[ObjectId, str]],
    *,
    by_hop: bool,
) -> Iterable[Statement]:
    """Group the letters by their destination, and note the letters that cannot go.

    A letter with a key may find the key taken, so it gets a statement of its own. The same holds for a letter that gets
    another payload.
    """
    now, when = context.broker.clock.now(), context.broker.clock.stamp()
    together: dict[str, list[ObjectId]] = {}
    for document in documents:
        try:
            changes = _changes(context, document, target, by_hop=by_hop)
        except _Stays as reason:
            refusals.append((document["_id"], str(reason)))
            continue
        if len(changes) > 1:
            yield "UpdateOne", _update(context, {"_id": document["_id"]}, changes, now, when)
        else:
            together.setdefault(changes["q"], []).append(document["_id"])
    for queue, ids in together.items():
        yield "UpdateMany", _update(context, {"_id": {"$in": ids}}, {"q": queue}, now, when)


class _Stays(Exception):
    """Reason why a letter cannot go."""


def _changes(context: QueueContext[Any], document: Document, target: str | None, *, by_hop: bool) -> dict[str, Any]:
    """Return the destination of a letter, and the fields that it goes with."""
    if isinstance(document, UnreadableDocument):
        raise _Stays(shorten(document.problem, REASON_BYTES))
    if target is not None and by_hop:
        try:
            return {"q": target, "payload": payload_at(document.get("trail"), target)}
        except ArgumentInvalid as invalid:
            raise _Stays(str(invalid)) from invalid
    if target is not None:
        return {"q": target}
    home = _home(document)
    if home in (None, context.name):
        raise _Stays("it has no origin to go back to; give to=")
    key = _key(document)
    return {"q": home, "key": key} if isinstance(key, str) else {"q": home}


def _update(
    context: QueueContext[Any], which: dict[str, Any], changes: dict[str, Any], now: datetime, when: datetime
) -> dict[str, Any]:
    unset_fields = ("token", "error", "batch", "pushed", *(() if "key" in changes else ("key",)))
    # ``by`` marks the item as changed, by its ``origin`` at least: a claim that has read it before it died must read it
    # again (``claim.candidates``).
    changes = {**changes, "by": str(context.broker.identity), "when": when, "reserved": False, "attempts": 0}
    return {
        "filter": {**which, "q": context.name, "when": {"$exists": True}, "$or": _free(now)},
        "update": {"$set": changes, "$unset": dict.fromkeys(unset_fields, "")},
    }


def _free(now: datetime) -> list[dict[str, Any]]:
    """Return the conditions of a letter that no caller holds, one of which it meets."""
    return [{"reserved": NOT_RESERVED}, {"when": {"$lte": now}}]


def _send_statements(
    context: QueueContext[Any], statements: list[Statement], refusals: list[tuple[ObjectId, str]]
) -> Flow[int]:
    """Send the statements, again after a lost reply: letters that have gone no longer match. Return how many went."""
    if not statements:
        return 0
    if context.broker.serverless:
        return (yield from send_statements(context.broker, statements))
    command = Command("bulk_write", {"requests": statements, "ordered": False}, number_matched)
    moved, was_lost = yield from retry_and_report(lambda: _tolerant(command, statements, refusals))
    # A later reply does not count letters that an earlier command moved, so the total is counted by what is left.
    return (yield from _count_gone(context, statements)) if was_lost else moved


def _tolerant(command: Command[int], statements: list[Statement], refusals: list[tuple[ObjectId, str]]) -> Flow[int]:
    try:
        return (yield from command)
    except PartlyRefused as refused:
        for place, error in refused.refusals.items():
            if not isinstance(error, Duplicate):
                raise
            refusals.append((statements[place][1]["filter"]["_id"], KEY_TAKEN))
        return refused.total


def _count_gone(context: QueueContext[Any], statements: list[Statement]) -> Flow[int]:
    which = [arguments["filter"]["_id"] for _, arguments in statements]
    ids = [id for each in which for id in (each["$in"] if isinstance(each, dict) else [each])]
    letters_left: int = yield from Command("count_documents", {"filter": {"_id": {"$in": ids}, "q": context.name}})
    return len(ids) - letters_left
