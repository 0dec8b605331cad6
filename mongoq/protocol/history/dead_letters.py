"""Dead letters: hand them back to the queue they died in, or to another one, each in one update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import REASON_BYTES, count, object_id, queue_name, read_list, text
from mongoq.model.copies import Replayed, is_publication
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import Document, shorten
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.trail import STAGE_BYTES, payload_at
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_and_report
from mongoq.protocol.flow import Command, Duplicate, Flow, PartlyRefused, number_matched
from mongoq.protocol.history.mistaken import refuse_mistake
from mongoq.protocol.history.pages import Chosen, Range, documents_page, history_range
from mongoq.protocol.history.read import NOT_RESERVED
from mongoq.protocol.history.replay import hop_destination
from mongoq.protocol.settle.bulk import count_found
from mongoq.protocol.state.context import QueueContext

LETTERS_PER_PAGE = 500
"""Letters in one page."""
Selection = Range | list[ObjectId]
"""Selected letters: those of a range, or those with the listed ids."""
KEY_TAKEN = "a live item has its key; settle that one first, or give to="
"""Reason for refusing a letter with the key of a live item."""
Statement = tuple[str, dict[str, Any]]


def revive(
    context: QueueContext[Any],
    letters: Selection,
    *,
    to: str | QueueContext[Any] | None,
    hop: str | None,
    limit: int | None,
) -> Flow[Replayed]:
    """Hand back the selected dead letters that no caller holds, in the order of claims, page by page.

    With a ``hop`` each goes to that queue, with the payload that it had there. A crash between two pages leaves the
    rest in the dead queue.
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
    if not result.found and letters != []:
        yield from refuse_mistake(context, letters=True)
    return replace(result, missing=pages.missing)


def selection(
    context: QueueContext[Any], *, ids: Iterable[ObjectId] | None, where: Any, stage: str | None
) -> Selection:
    """Check the selection of dead letters: by ids, or by a filter of payloads and the stage they failed in."""
    if ids is not None and not where is stage is None:
        raise ArgumentInvalid("ids", "choose by ids=, or by where= and stage=, not by both")
    if ids is None:
        wanted = history_range(context, since=None, until=None, where=where, state=None, page=LETTERS_PER_PAGE)
        return wanted if stage is None else wanted.narrow({"origin.stage": text(stage, "stage", STAGE_BYTES)})
    return [object_id(id, f"ids[{place}]") for place, id in enumerate(read_list(ids, "ids"))]


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
    filter = {"_id": {"$in": ids}, "q": context.name, "when": {"$exists": True}}
    return (yield from find_few(context.broker, filter, CLAIM_ORDER, len(ids), lenient=True))


def _hand_back(
    context: QueueContext[Any], documents: Sequence[Document], target: str | None, *, by_hop: bool
) -> Flow[Replayed]:
    """Hand back one page, and count the results."""
    refusals: list[tuple[ObjectId, str]] = []
    statements = list(_statements(context, documents, target, refusals, by_hop=by_hop))
    moved = yield from _send_statements(context, statements, refusals)
    context.count("move", moved)
    priorities = [document.get("priority") for document in documents]
    for queue, when in {(there["q"], there["when"]) for there in (each[1]["update"]["$set"] for each in statements)}:
        context.broker.record_put(queue, when, *priorities, number=moved, is_new=False)
    skipped = len(documents) - moved - len(refusals)
    return Replayed(len(documents), moved, skipped=skipped, refused=len(refusals), refusals=tuple(refusals))


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
    free = [{"reserved": NOT_RESERVED}, {"when": {"$lte": now}}]
    unset_fields = ("token", "error", "batch", "pushed", *(() if "key" in changes else ("key",)))
    # ``by`` marks the item as changed, by its ``origin`` at least: a claim that has read it before it died must read it
    # again (``claim.candidates``).
    changes = {**changes, "by": str(context.broker.identity), "when": when, "reserved": False, "attempts": 0}
    return {
        "filter": {**which, "q": context.name, "when": {"$exists": True}, "$or": free},
        "update": {"$set": changes, "$unset": dict.fromkeys(unset_fields, "")},
    }


def _send_statements(
    context: QueueContext[Any], statements: list[Statement], refusals: list[tuple[ObjectId, str]]
) -> Flow[int]:
    """Send the statements, again after a lost reply: letters that have gone no longer match. Return how many went."""
    if not statements:
        return 0
    if context.broker.serverless:
        return (yield from count_found(context.broker, statements))
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
