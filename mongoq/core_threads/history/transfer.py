# Generated from mongoq/core/history/transfer.py by scripts/unasync.py. Do not edit.
"""Transfer of items to a file and back: the fields of an exported item, and their import, each item once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mongoq.core.command import Command, Duplicate, PartlyRefused, chunks, own_error
from mongoq.core.history.transfer import ImportResult, Pair, _add_dates, _other_queue
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.queue_settings import ensure_ready, refresh_settings
from mongoq.core_threads.base.retry import retry_until_reply
from mongoq.core_threads.base.transaction import ensure_possible
from mongoq.core_threads.push.insert import find_pushed
from mongoq.core_threads.push.publish import push_in_order
from mongoq.data.envelope import is_same_push
from mongoq.data.push_options import DEFAULT_REMEMBER


def import_items(context: QueueContext[Any], envelopes: Sequence[Mapping[str, Any]]) -> ImportResult:
    """Insert the envelopes of exported items, each id once (``insert`` of many; ``find`` of ids that exist).

    Items with a place in a sequence take places at its end, in the order given, as pushes do: in transactions.

    Live items are remembered for seven days after they are settled: the same import again adds nothing. Processed items
    go to the history, and are kept as long as items that are processed now. A crash in between leaves some of them;
    import all again.
    """
    if any("place" in envelope for envelope in envelopes):
        ensure_possible(context.broker)
    ensure_ready(context)
    dated = list(_add_dates(context, envelopes))
    context.state.expect_remembered(DEFAULT_REMEMBER)
    encoding, result = context.broker.encoding, ImportResult()
    pairs = [(envelope, encoding.raw(envelope)) for envelope in dated]
    for insert, has_place in ((_insert, False), (_insert_in_order, True)):
        group = [pair for pair in pairs if ("place" in pair[0]) is has_place]
        for chunk in chunks(group, lambda pair: len(pair[1].raw)):
            result += insert(context, chunk)
    return result


def check_history(context: QueueContext[Any], envelopes: Sequence[Mapping[str, Any]]) -> None:
    """Check that a queue takes these items, by its stored settings (``find``).

    Raises:
        ArgumentInvalid: there are processed items, and the queue keeps no history.
    """
    ensure_broker_ready(context.broker, write=False)
    refresh_settings(context)
    list(_add_dates(context, envelopes))


def _insert(context: QueueContext[Any], chunk: Sequence[Pair]) -> ImportResult:
    command: Command[Any] = Command(
        "insert_many", {"documents": [raw for _, raw in chunk], "ordered": False}, resolved=True
    )
    refusals: Mapping[int, Exception] = {}
    try:
        retry_until_reply(command)
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
    documents = find_pushed(context.broker, [envelope["_id"] for envelope, _ in refused_pairs])
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
    return (result + (_insert(context, again))) if again else result


def _insert_in_order(context: QueueContext[Any], chunk: Sequence[Pair]) -> ImportResult:
    """Insert items at the ends of their sequences, in the order given, but for those that exist."""
    envelopes = [envelope for envelope, _ in chunk]
    documents = find_pushed(context.broker, [envelope["_id"] for envelope in envelopes])
    met = {document["_id"]: document for document in documents}
    others = [found for found in met.values() if not is_same_push(found, context.name)]
    # A file may hold an item twice: the first one gives it its place.
    new = {envelope["_id"]: envelope for envelope in reversed(envelopes) if envelope["_id"] not in met}
    pushes = [(envelope, envelope["sequence"]) for envelope in envelopes if new.get(envelope["_id"]) is envelope]
    if pushes:
        push_in_order(context, pushes, id_given=True, joined=False)
    refusals = tuple((found["_id"], _other_queue(found)) for found in others)
    return ImportResult(len(pushes), len(envelopes) - len(pushes) - len(others), len(others), refusals)
