"""Dead letters: hand them back to the queue they died in, or to another one, each in one update.

A letter that holds its sequence goes back to its place in it, before all later items, in a transaction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core.base.retry import retry_and_report
from mongoq.core.base.statements import Statement, send_statements
from mongoq.core.base.transaction import ensure_possible, run_atomic
from mongoq.core.command import Command, Duplicate, PartlyRefused, number_matched
from mongoq.core.history.mistaken import died_in, refuse_mistake
from mongoq.core.history.query import (
    BoundedCount,
    Query,
    documents_page,
    make_query,
    read_ids,
    refuse_filter,
)
from mongoq.core.history.read import NOT_RESERVED, Selection
from mongoq.core.history.replay import hop_destination
from mongoq.core.perform import perform
from mongoq.core.sequence.hold import find_held_from, release, take_back
from mongoq.core.sequence.places import Promoted, enter_all, leave, record_promoted
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import REASON_BYTES, Id, count, queue_name, text
from mongoq.data.copies import Replayed, is_publication
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import TYPE_BYTES, Document, shorten
from mongoq.data.indexes import CLAIM_ORDER, SEQUENCE_ORDER
from mongoq.data.item import STAGE_BYTES, id_key, payload_at
from mongoq.data.sequence import blocked_filter, held_entries, held_target
from mongoq.data.settings import queue_options
from mongoq.errors import ArgumentInvalid

LETTERS_PER_PAGE = 500
"""Letters in one page."""
MAX_RELEASES = 10
"""Sequences that are named before letters which hold them go, at most."""
MAX_WAITING = 10_000
"""Waiting items that are counted in one sequence, at most."""
Leaving = tuple[Document, dict[str, Any]]
"""A letter, and the fields that it goes with."""
KEY_TAKEN = "a live item has its key; settle that one first, or give to="
"""Reason for refusing a letter with the key of a live item."""


async def revive(
    context: QueueContext[Any],
    letters: Query,
    *,
    to: str | QueueContext[Any] | None,
    hop: str | None,
    limit: int | None,
    progress: Callable[[Replayed], object] | None = None,
) -> Replayed:
    """Hand back the selected dead letters that no caller holds, in the order of claims, page by page.

    ``progress`` is called with the result so far after each page. With a ``hop`` each goes to that queue, with the
    payload that it had there. A crash between two pages leaves the rest in the dead queue.
    """
    where_to = hop_destination(context, hop, to)
    target = None if where_to is None else where_to.name
    if target == context.name:
        raise ArgumentInvalid("to" if hop is None else "hop", f"{target!r} is the dead queue itself")
    room = math.inf if limit is None else count(limit, "limit")
    await ensure_ready(context, fresh=False)
    result, met = Replayed(), set[str]()
    rest: Query | None = letters if letters.ids != () else None
    while rest is not None and room > result.pushed:
        size, ids = int(min(LETTERS_PER_PAGE, room - result.pushed)), rest.ids
        page, rest = await documents_page(context, replace(rest, page=size))
        if ids is not None:
            there = {letter["_id"] for letter in page}
            result += Replayed(missing=tuple(id for id in ids[:size] if id not in there))
        # A letter that was handed back and has died again meanwhile is not read a second time; ``repr``, because other
        # programs may use ids that are not hashable.
        page = [letter for letter in page if repr(letter["_id"]) not in met]
        met.update(repr(letter["_id"]) for letter in page)
        if not page:
            continue
        refusals: list[tuple[ObjectId, str]] = []
        homes: dict[tuple[str, bool], list[Leaving]] = {}
        for letter in page:
            changes = _changes(context, letter, target, by_hop=hop is not None)
            if isinstance(changes, str):
                refusals.append((letter["_id"], changes))
            else:
                is_ordered = isinstance(letter.get("sequence"), str)
                homes.setdefault((changes["q"], is_ordered), []).append((letter, changes))
        moved = 0
        for (queue, is_ordered), leaving in homes.items():
            if is_ordered:
                moved += await _move_in_order(context, queue, leaving)
            else:
                moved += await _move(context, queue, leaving, refusals)
        context.count("move", moved)
        skipped = len(page) - moved - len(refusals)
        result += Replayed(len(page), moved, skipped=skipped, refused=len(refusals), refusals=tuple(refusals))
        if progress is not None:
            progress(result)
    if not result.found and letters.ids != ():
        await refuse_mistake(context, letters=True)
    return result


def selection(
    context: QueueContext[Any],
    *,
    ids: Iterable[Id] | None,
    where: Any,
    stage: str | None,
    reason: str | None,
    error: str | None,
    until: datetime | None = None,
    state: Selection = None,
) -> Query:
    """Check the selection of dead letters: by ids, or by a filter of payloads and of the failure.

    With ``until``, a filter leaves out letters that came after this time.
    """
    given = (
        ("origin.stage", stage, "stage", STAGE_BYTES),
        ("origin.reason", reason, "reason", REASON_BYTES),
        ("error.type", error, "error", TYPE_BYTES),
    )
    for _, value, argument, limit in given:
        # A burial writes lone surrogates as escapes.
        if value is not None and any("\ud800" <= letter <= "\udfff" for letter in text(value, argument, limit)):
            raise ArgumentInvalid(argument, "cannot hold lone surrogates")
    failure = {field: value for field, value, _, _ in given if value is not None}
    letters = make_query(context, where=where, state=state, page=LETTERS_PER_PAGE)
    if ids is not None:
        if failure or (where, until) != (None, None):
            raise ArgumentInvalid("ids", "choose by ids=, or by where=, stage=, reason= and error=, not by both")
        return replace(letters, ids=read_ids(ids))
    letters = letters.without_later(until, context.broker.clock)
    if context.letters_of is not None:
        letters = letters.narrow(died_in(context.letters_of))
    return letters.narrow(failure) if failure else letters


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


async def group_letters(
    context: QueueContext[Any], chosen: Query, *, limit: int, groups: int
) -> tuple[list[FailureGroup], bool]:
    """Group the selected letters by reason and type of error, among the first ``limit`` letters (``aggregate``).

    Returns the largest groups, ``groups`` of them at most, and whether there are letters behind the limit.
    """
    await ensure_broker_ready(context.broker, write=False)
    whole = replace(chosen, where={}).filter(context.name)
    examined: int = await perform(Command("count_documents", {"filter": whole, "limit": limit + 1}))
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
    try:
        found: list[Any] = await perform(Command("aggregate", {"pipeline": pipeline}))
    except Exception as error:
        refuse_filter(chosen.where, error)
        raise
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


async def find_releases(context: QueueContext[Any], chosen: Query) -> tuple[list[ReleasedSequence], int]:
    """Find sequences that go on without the selected letters, and return how many more may do so.

    They are among the first 1,000 held sequences (two ``find``, and two commands for each of the first
    ``MAX_RELEASES``). A sequence that another letter holds as well does not go on.
    """
    broker = context.broker
    await ensure_broker_ready(broker, write=False)
    controls = await find_held_from(broker, context.name, "")
    entries = {control["_id"]: held_entries(control) for control in controls}
    holding = [entry["id"] for held in entries.values() for entry in held]
    if not holding:
        return [], 0
    filter = {"$and": [chosen.filter(context.name), {"_id": {"$in": holding}}]}
    documents = await find_few(broker, filter, [("_id", 1)], len(holding), projection={"_id": 1})
    leaving = {id_key(document["_id"]) for document in documents}
    ended = [each for each in controls if all(id_key(entry["id"]) in leaving for entry in entries[each["_id"]])]
    releases = []
    for control in ended[:MAX_RELEASES]:
        waiting = {**blocked_filter(control["queue"]), "sequence": control["sequence"]}
        first = await find_few(broker, waiting, SEQUENCE_ORDER, 1, projection={"_id": 1})
        if first:
            limit = MAX_WAITING + 1
            number: int = await perform(Command("count_documents", {"filter": waiting, "limit": limit}))
            items = BoundedCount(number, exact=number < limit)
            releases.append(ReleasedSequence(control["queue"], control["sequence"], items, first[0]["_id"]))
    return releases, max(0, len(ended) - MAX_RELEASES)


async def _move(
    context: QueueContext[Any], queue: str, letters: Sequence[Leaving], refusals: list[tuple[ObjectId, str]]
) -> int:
    """Move letters in a bulk, again after a lost reply: letters that have gone no longer match. Return how many went.

    A letter with a key may find the key taken: it gets a statement of its own, as does one with another payload.
    """
    now, when = context.broker.clock.now(), context.broker.clock.stamp()
    alike = [letter["_id"] for letter, changes in letters if len(changes) == 1]
    statements: list[Statement] = [
        ("UpdateOne", _update(context, {"_id": letter["_id"]}, changes, now, when))
        for letter, changes in letters
        if len(changes) > 1
    ]
    if alike:
        statements.append(("UpdateMany", _update(context, {"_id": {"$in": alike}}, {"q": queue}, now, when)))

    async def send() -> int:
        try:
            return await perform(Command("bulk_write", {"requests": statements, "ordered": False}, number_matched))
        except PartlyRefused as refused:
            for place, error in refused.refusals.items():
                if not isinstance(error, Duplicate):
                    raise
                refusals.append((statements[place][1]["filter"]["_id"], KEY_TAKEN))
            return refused.total

    if context.broker.serverless:
        moved = await send_statements(context.broker, statements)
    else:
        moved, was_lost = await retry_and_report(send)
        if was_lost:
            # The reply does not count letters that an earlier command moved, so the total is counted by what is left.
            left = {"_id": {"$in": [letter["_id"] for letter, _ in letters]}, "q": context.name}
            number: int = await perform(Command("count_documents", {"filter": left}))
            moved = len(letters) - number
    context.broker.record_put(queue, when, *(letter.get("priority") for letter, _ in letters), number=moved)
    return moved


async def _move_in_order(context: QueueContext[Any], queue: str, letters: Sequence[Leaving]) -> int:
    """Move letters that had sequences to the ends of these, in a transaction; return how many went.

    A letter that holds its sequence goes back to its place in it, or lets the next item follow if it goes elsewhere.
    """
    broker = context.broker
    await ensure_possible(broker)
    home = QueueContext(broker, queue_options(queue), broker.untyped)
    await ensure_ready(home)
    await mark_ordered(home, joined=False)

    async def enter() -> tuple[list[dict[str, Any]], list[Promoted]]:
        now, when = broker.clock.now(), broker.clock.stamp()
        ids = [letter["_id"] for letter, _ in letters]
        free = _update(context, {"_id": {"$in": ids}}, {}, now, when)["filter"]
        documents = await find_few(broker, free, [("_id", 1)], len(ids), projection={"_id": 1})
        here = {id_key(document["_id"]) for document in documents}
        leaving = [(letter, fields) for letter, fields in letters if id_key(letter["_id"]) in here]
        places, freed = await take_back(broker, queue, [letter for letter, _ in leaving])
        others = [letter for letter, _ in leaving if id_key(letter["_id"]) not in places]
        entries = await enter_all(broker, [(queue, letter["sequence"]) for letter in others])
        entered, statements = [], []
        for letter, fields in leaving:
            arguments, key = _update(context, {"_id": letter["_id"]}, fields, now, when), id_key(letter["_id"])
            place = {"place": places[key]} if key in places else entries[queue, letter["sequence"]].take(when)
            changes = {**arguments["update"]["$set"], **(place if "ready_from" in place else {**place, "when": when})}
            unset = dict(arguments["update"]["$unset"])
            if held_target(letter) is not None:
                unset["origin.place"] = ""
            if "ready_from" in place:
                del changes["when"]
                unset["when"] = ""
            statements.append(("UpdateOne", {**arguments, "update": {"$set": changes, "$unset": unset}}))
            entered.append(changes)
        await send_statements(broker, statements)
        # A letter may have had a place in a sequence of the dead queue itself.
        left = Counter(letter["sequence"] for letter, _ in leaving if "place" in letter)
        promoted = [*freed, *(await leave(broker, context.name, left))]
        promoted += await release(broker, [target for letter in others if (target := held_target(letter)) is not None])
        return entered, [*promoted, *(item for entry in entries.values() for item in entry.promoted)]

    entered, promoted = await run_atomic(broker, enter)
    broker.counters.add(queue, "put", len(entered))
    for update in entered:
        if "when" in update:
            broker.record_put(queue, update["when"], is_new=False)
    record_promoted(broker, promoted)
    return len(entered)


def _changes(
    context: QueueContext[Any], document: Document, target: str | None, *, by_hop: bool
) -> dict[str, Any] | str:
    """Return the destination of a letter, and the fields that it goes with; or why it cannot go."""
    if isinstance(document, UnreadableDocument):
        return shorten(document.problem, REASON_BYTES)
    if target is not None:
        try:
            return {"q": target, **({"payload": payload_at(document.get("trail"), target)} if by_hop else {})}
        except ArgumentInvalid as invalid:
            return str(invalid)
    origin = document.get("origin")
    try:
        home = queue_name(origin["queue"]) if isinstance(origin, Mapping) and not is_publication(origin) else None
    except (ArgumentInvalid, KeyError):
        home = None
    if home is None or home == context.name:
        return "it has no origin to go back to; give to="
    # A key given in the dead queue, else the one it died with; an item of a sequence has none.
    key = None if isinstance(document.get("sequence"), str) else document.get("key") or document["origin"].get("key")
    return {"q": home, "key": key} if isinstance(key, str) else {"q": home}


def _update(
    context: QueueContext[Any], which: dict[str, Any], changes: dict[str, Any], now: datetime, when: datetime
) -> dict[str, Any]:
    """Return the update that hands back letters which no caller holds."""
    unset_fields = ("token", "error", "batch", "pushed", *(() if "key" in changes else ("key",)))
    # ``by`` marks the item as changed, by its ``origin`` at least: a claim that has read it before it died must read it
    # again (``claim.batch_claim``).
    changes = {**changes, "by": str(context.broker.identity), "when": when, "reserved": False, "attempts": 0}
    free = [{"reserved": NOT_RESERVED}, {"when": {"$lte": now}}]
    return {
        "filter": {**which, "q": context.name, "when": {"$exists": True}, "$or": free},
        "update": {"$set": changes, "$unset": dict.fromkeys(unset_fields, "")},
    }
