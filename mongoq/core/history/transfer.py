"""Transfer of items to a file and back: the fields of an exported item, and their import, each item once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.queue_settings import ensure_ready, refresh_settings
from mongoq.core.base.retry import retry_until_reply
from mongoq.core.base.transaction import ensure_possible
from mongoq.core.command import Command, Duplicate, PartlyRefused, chunks, own_error
from mongoq.core.push.insert import find_pushed
from mongoq.core.push.publish import push_in_order
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import count, moment, object_id
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.copies import MAX_REFUSALS
from mongoq.data.encoding.codec import SIZE_LIMIT
from mongoq.data.envelope import Document, expiry, is_same_push
from mongoq.data.push_options import DEFAULT_REMEMBER, check_headers, check_key
from mongoq.data.sequence import check_sequence
from mongoq.errors import ArgumentInvalid

NAMES = {"_id": "id", "q": "queue", "when": "due", "ready_from": "due", "processed": "processed"}
"""Names in an export of the fields that it names otherwise, or that only one kind of item has."""
EXTRAS: dict[str, type | tuple[type, ...]] = {
    "error": Mapping,
    "origin": Mapping,
    "replayed": str,
    "hops": int,
    "trail": list,
    "joined": Mapping,
    "missed": bool,
    "start_by": datetime,
}
"""Fields that mongoq has written on an item, which an export carries unchanged, with their types."""
FIELDS = ("payload", "priority", "attempts", "key", "headers", "sequence", "place", *EXTRAS, "parked")
"""Fields of an envelope that an export carries under their own names.

A reservation does not belong to them, nor how long an id or a history is kept: an import sets these anew.
"""
MAX_BATCH = 1_000
"""Items that one call of ``import_items`` is meant for; their documents stay in memory."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import, so far or in all.

    Attributes:
        pushed: items that were added.
        already: items that exist, or are remembered, from an earlier import or from before the export.
        refused: items that were left out.
        refusals: id and reason of the first 100 of them.
    """

    pushed: int = 0
    already: int = 0
    refused: int = 0
    refusals: tuple[tuple[ObjectId, str], ...] = ()

    def __add__(self, more: ImportResult) -> ImportResult:
        """Return the sum of this result and a later one."""
        return ImportResult(
            self.pushed + more.pushed,
            self.already + more.already,
            self.refused + more.refused,
            (*self.refusals, *more.refusals)[:MAX_REFUSALS],
        )


def exported_fields(document: Document) -> dict[str, Any]:
    """Return the fields of an item that an export carries; a reserved item is due when its lease ends.

    A blocked item is due at its own date, and has its ``place``: an import gives it a new one.
    """
    named = {NAMES[field]: document[field] for field in NAMES if field in document}
    return named | {field: document[field] for field in FIELDS if field in document}


def check_import(context: QueueContext[Any], fields: Any) -> dict[str, Any]:
    """Return the envelope of an exported item, checked, without the dates that ``import_items`` sets.

    Raises:
        ArgumentInvalid: the value is no exported item; the message names the field.
    """
    if not isinstance(fields, Mapping):
        raise ArgumentInvalid("item", f"a document with the fields of an exported item, not {type(fields).__name__}")
    for name in ("id", "payload"):
        if name not in fields:
            raise ArgumentInvalid(name, "is missing; an exported item has it")
    if ("due" in fields) == ("processed" in fields):
        raise ArgumentInvalid("due", "an exported item has either due, or processed if it comes from a history")
    if unknown := sorted(map(str, fields.keys() - {*NAMES.values(), *FIELDS})):
        raise ArgumentInvalid(unknown[0], "no field of an exported item; write your own data into payload or headers")
    if "parked" in fields:
        raise ArgumentInvalid("parked", "the item waits for its partners in a join, whose state is in no export")
    encoding = context.broker.encoding
    envelope: dict[str, Any] = {"_id": object_id(fields["id"]), "q": context.name}
    envelope["payload"] = context.broker.untyped.encode(fields["payload"])
    date = "processed" if "processed" in fields else "due"
    envelope["processed" if date == "processed" else "when"] = moment(fields[date], date)
    envelope["priority"] = checked_priority(fields.get("priority", 0))
    envelope["attempts"] = count(fields.get("attempts", 0), "attempts", least=0)
    envelope["reserved"] = False
    if "key" in fields:
        envelope["key"] = check_key(fields["key"])
    if headers := check_headers(fields.get("headers"), encoding):
        envelope["headers"] = headers
    if "sequence" in fields:
        envelope["sequence"] = check_sequence(fields["sequence"])
    if "place" in fields:
        if "sequence" not in fields:
            raise ArgumentInvalid("place", "the item has a place, and no sequence; an exported item has both")
        for other in ("processed", "key"):
            if other in fields:
                raise ArgumentInvalid("place", f"an item with a place in a sequence has no {other}")
        envelope["place"] = count(fields["place"], "place", least=0)
    for name, kind in EXTRAS.items():
        if name in fields:
            if not isinstance(fields[name], kind):
                raise ArgumentInvalid(name, f"not of the type that mongoq writes: {type(fields[name]).__name__}")
            envelope[name] = encoding.encode(name, fields[name], limit=SIZE_LIMIT)
    if "origin" in envelope:
        # The sequence whose place a dead letter held is in no export.
        envelope["origin"] = {name: value for name, value in envelope["origin"].items() if name != "place"}
    return envelope


async def import_items(context: QueueContext[Any], envelopes: Sequence[Mapping[str, Any]]) -> ImportResult:
    """Insert the envelopes of exported items, each id once (``insert`` of many; ``find`` of ids that exist).

    Items with a place in a sequence take places at its end, in the order given, as pushes do: in transactions.

    Live items are remembered for seven days after they are settled: the same import again adds nothing. Processed items
    go to the history, and are kept as long as items that are processed now. A crash in between leaves some of them;
    import all again.
    """
    if any("place" in envelope for envelope in envelopes):
        await ensure_possible(context.broker)
    await ensure_ready(context)
    dated = list(_add_dates(context, envelopes))
    context.state.expect_remembered(DEFAULT_REMEMBER)
    encoding, result = context.broker.encoding, ImportResult()
    pairs = [(envelope, encoding.raw(envelope)) for envelope in dated]
    for insert, has_place in ((_insert, False), (_insert_in_order, True)):
        group = [pair for pair in pairs if ("place" in pair[0]) is has_place]
        for chunk in chunks(group, lambda pair: len(pair[1].raw)):
            result += await insert(context, chunk)
    return result


async def check_history(context: QueueContext[Any], envelopes: Sequence[Mapping[str, Any]]) -> None:
    """Check that a queue takes these items, by its stored settings (``find``).

    Raises:
        ArgumentInvalid: there are processed items, and the queue keeps no history.
    """
    await ensure_broker_ready(context.broker, write=False)
    await refresh_settings(context)
    list(_add_dates(context, envelopes))


def _add_dates(context: QueueContext[Any], envelopes: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Add to each envelope how long it is remembered, or kept in the history."""
    now, history = context.broker.clock.now(), context.settings.history
    once: datetime = now + DEFAULT_REMEMBER
    for envelope in envelopes:
        if "when" in envelope:
            yield {**envelope, "once": once, "into": context.name}
        elif isinstance(history, timedelta):
            yield {**envelope, "expires": expiry(now, history, None)}
        else:
            hint = "configure a history first"
            raise ArgumentInvalid("processed", f"queue {context.name!r} keeps no history for processed items; {hint}")


Pair = tuple[Mapping[str, Any], RawBSONDocument]


async def _insert(context: QueueContext[Any], chunk: Sequence[Pair]) -> ImportResult:
    command: Command[Any] = Command(
        "insert_many", {"documents": [raw for _, raw in chunk], "ordered": False}, resolved=True
    )
    refusals: Mapping[int, Exception] = {}
    try:
        await retry_until_reply(command)
    except PartlyRefused as refused:
        refusals = refused.refusals
    inserted = [envelope for place, (envelope, _) in enumerate(chunk) if place not in refusals]
    if live := [envelope for envelope in inserted if "when" in envelope]:
        first, priorities = min(each["when"] for each in live), {each["priority"] for each in live}
        context.broker.record_put(context.name, first, *priorities, number=len(live))
    if failed := [error for error in refusals.values() if not isinstance(error, Duplicate)]:
        raise own_error(failed[0])
    result = ImportResult(len(chunk) - len(refusals))
    if not refusals:
        return result
    # A unique index has refused the others: their ids exist, or live items have their keys.
    refused_pairs = [chunk[place] for place in refusals]
    documents = await find_pushed(context.broker, [envelope["_id"] for envelope, _ in refused_pairs])
    met = {document["_id"]: document for document in documents}
    already, left_out, again = 0, [], []
    for pair in refused_pairs:
        envelope = pair[0]
        found = met.get(envelope["_id"])
        if found is None and "key" not in envelope:
            # The document with this id was removed since.
            again.append(pair)
        elif found is None:
            left_out.append((envelope["_id"], f"a live item has its key {envelope['key']!r}"))
        elif is_same_push(found, context.name):
            already += 1
        else:
            left_out.append((envelope["_id"], _other_queue(found)))
    result += ImportResult(0, already, len(left_out), tuple(left_out))
    return (result + (await _insert(context, again))) if again else result


async def _insert_in_order(context: QueueContext[Any], chunk: Sequence[Pair]) -> ImportResult:
    """Insert items at the ends of their sequences, in the order given, but for those that exist."""
    envelopes = [envelope for envelope, _ in chunk]
    documents = await find_pushed(context.broker, [envelope["_id"] for envelope in envelopes])
    met = {document["_id"]: document for document in documents}
    others = [found for found in met.values() if not is_same_push(found, context.name)]
    # A file may hold an item twice: the first one gives it its place.
    new = {envelope["_id"]: envelope for envelope in reversed(envelopes) if envelope["_id"] not in met}
    pushes = [(envelope, envelope["sequence"]) for envelope in envelopes if new.get(envelope["_id"]) is envelope]
    if pushes:
        await push_in_order(context, pushes, id_given=True, joined=False)
    refusals = tuple((found["_id"], _other_queue(found)) for found in others)
    return ImportResult(len(pushes), len(envelopes) - len(pushes) - len(others), len(others), refusals)


def _other_queue(found: Mapping[str, Any]) -> str:
    return f"an item of queue {found.get('q')!r} has its id"
