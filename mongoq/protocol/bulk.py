"""Bulks: the fenced updates and deletes of many items in few commands, and who of them was settled.

The server answers a bulk with totals only. When fewer items were found than were sent, what is stored tells which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.errors import (
    ArgumentInvalid,
    BatchIncomplete,
    MongoqError,
    PayloadInvalid,
    PayloadTooLarge,
    ReservationLost,
)
from mongoq.model.counters import Event
from mongoq.model.envelope import Document
from mongoq.model.item import Item
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import Verdict, lost
from mongoq.protocol.lookup import find_few
from mongoq.protocol.patching import misfit, too_large
from mongoq.protocol.request import Command, Flow, Interruption, PartlyRefused, Refused, ReplyLost

__all__ = ["IDS", "Settlement", "Statement", "chunks", "finish", "own_error", "settled", "statement", "within"]

T = TypeVar("T")

IDS = 10_000
"""Items of one command."""
STATEMENTS = 1_000
BYTES = 16 * 1024 * 1024
MARGIN = timedelta(seconds=1)
"""An item whose lease ends so soon may be taken by somebody else while its bulk is under way."""

STATE: dict[str, Any] = dict.fromkeys(("q", "when", "token", "settled", "reserved", "by"), 1)

Statement = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to become of one item.

    Attributes:
        item: the item.
        update: the update that does it; ``None`` deletes the item.
        happened: tells from what is stored whether it was done.
        event: what to count; ``None`` leaves the item reserved.
        alone: the flow that does it by a command of its own, whose answer is exact.
        alike: equal for items that may share a statement; ``None`` for one that may not.
        patch: the most bytes that a patch in it adds, or ``None`` without one.
        room: the condition that a patch leaves room.
        size: the bytes of the update, when they count.
        telling: no item looks settled in this way unless this update did it.
    """

    item: Item[Any]
    update: Mapping[str, Any] | None
    happened: Verdict
    event: Event | None
    alone: Callable[[], Flow[Any]]
    alike: Hashable = None
    patch: int | None = None
    room: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    telling: bool = True


@dataclass(slots=True)
class _Tally:
    """What is known so far: the answer of each item that is done, and the error of each that is not."""

    done: dict[ObjectId, Any] = field(default_factory=dict)
    failed: dict[ObjectId, Exception] = field(default_factory=dict)


def settled(context: QueueContext[Any], settlements: Sequence[Settlement]) -> Flow[dict[ObjectId, Any]]:
    """Settle items, and return what their own flows returned, ``None`` for those that went in a bulk.

    All are tried; then one ``BatchIncomplete`` tells which failed. Each command is safe to send again, and is sent
    again once when its reply is lost. An error of the driver's that is about no item in particular ends it.
    """
    tally = _Tally()
    soon = context.broker.clock.now() + MARGIN
    alone = [one for one in settlements if context.broker.serverless or _ends_by(one.item, soon)]
    single = {one.item.id for one in alone}
    try:
        for bulk in _bulks([one for one in settlements if one.item.id not in single]):
            alone += yield from _in_bulk(context, bulk, tally)
        for one in alone:
            yield from _by_itself(one, tally)
    except Exception as error:
        rest = [one.item.id for one in settlements if one.item.id not in tally.done.keys() | tally.failed.keys()]
        tally.failed |= dict.fromkeys(rest, own_error(error))
    finish(context.name, tally.done, tally.failed)
    return tally.done


def finish(queue: str, done: Iterable[ObjectId], failed: Mapping[ObjectId, Exception]) -> None:
    """Raise what a batch comes to: when nothing is known but that the driver failed, the driver's error."""
    if not failed:
        return
    first = next(iter(failed.values()))
    if not list(done) and not any(isinstance(error, MongoqError) for error in failed.values()):
        raise first
    raise BatchIncomplete(queue, done, failed) from first


def own_error(error: Exception) -> Exception:
    """Return the driver's error behind an interruption; any other as it is."""
    return error.cause if isinstance(error, Interruption) else error


def _ends_by(item: Item[Any], soon: Any) -> bool:
    return item.lease_until is None or item.lease_until <= soon


def _by_itself(one: Settlement, tally: _Tally) -> Flow[None]:
    try:
        tally.done[one.item.id] = yield from one.alone()
    except (Interruption, ReservationLost, ArgumentInvalid) as error:
        tally.failed[one.item.id] = own_error(error)


def statement(
    token: ObjectId | None, ids: Sequence[Any], update: Any, room: Mapping[str, Any] | None = None
) -> Statement:
    """Return the fenced statement for items under one token; that of a single item is one the driver sends again."""
    many = len(ids) > 1
    arguments: dict[str, Any] = {
        "filter": {"_id": {"$in": list(ids)} if many else ids[0], "token": token, **(room or {})}
    }
    if update is not None:
        arguments["update"] = update
    return ("Delete" if update is None else "Update") + ("Many" if many else "One"), arguments


Group = list[Settlement]


def _groups(settlements: Iterable[Settlement]) -> Iterator[Group]:
    """Put together what may share a statement: the same token, and the same update."""
    groups: dict[Any, Group] = {}
    for one in settlements:
        key = one.item.id if one.alike is None else (one.item.token, one.alike)
        groups.setdefault(key, []).append(one)
    for group in groups.values():
        yield from (group[start : start + IDS] for start in range(0, len(group), IDS))


def _bulks(settlements: Iterable[Settlement]) -> Iterator[list[Group]]:
    return chunks(list(_groups(settlements)), lambda group: group[0].size, items=len, most=STATEMENTS)


def chunks(
    parts: Sequence[T], size: Callable[[T], int], *, items: Callable[[T], int] = lambda _: 1, most: int = IDS
) -> Iterator[list[T]]:
    """Cut into runs of at most ``most`` parts, 10,000 items and 16 MiB; a part beyond that is a run of its own."""
    run: list[T] = []
    total = number = 0
    for part in parts:
        more, count = size(part), items(part)
        if run and (len(run) == most or total + more > BYTES or number + count > IDS):
            yield run
            run, total, number = [], 0, 0
        run.append(part)
        total, number = total + more, number + count
    if run:
        yield run


def _in_bulk(context: QueueContext[Any], bulk: list[Group], tally: _Tally) -> Flow[list[Settlement]]:
    """Send one bulk; what it cannot tell apart is returned, to be settled alone."""
    requests = [
        statement(group[0].item.token, [one.item.id for one in group], group[0].update, group[0].room) for group in bulk
    ]
    command = Command("bulk_write", {"requests": requests, "ordered": False}, _total)
    again = False
    try:
        try:
            refusals, total = yield from _sent(command)
        except ReplyLost:
            again = True
            refusals, total = yield from _sent(command)
    except ReplyLost as reply:
        tally.failed |= {one.item.id: reply.cause for group in bulk for one in group}
        return []
    sent = [one for place, group in enumerate(bulk) if place not in refusals for one in group]
    if total == len(sent):
        _did(context, sent, tally)
    else:
        yield from _told_apart(context, sent, None if again else total, tally)
    _refused({place: bulk[place] for place in refusals}, refusals, tally)
    return (
        yield from _halfway(context, [one for place in refusals for one in bulk[place] if len(bulk[place]) > 1], tally)
    )


def _halfway(context: QueueContext[Any], group: Group, tally: _Tally) -> Flow[list[Settlement]]:
    """Find out how far a refused statement of several items had come; the rest of them is settled alone."""
    if not group:
        return []
    ids = [one.item.id for one in group]
    read = yield from find_few(context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection={"token": 1})
    held = {document["_id"]: document.get("token") for document in read}
    alone = [one for one in group if held.get(one.item.id) == one.item.token]
    settling = {one.item.id for one in alone}
    rest = [one for one in group if one.item.id not in settling]
    if rest:
        yield from _told_apart(context, rest, None, tally)
    return alone


def _did(context: QueueContext[Any], done: Group, tally: _Tally) -> None:
    """Note what a bulk has done, as ``fenced`` does for an item of its own."""
    tally.done |= dict.fromkeys(one.item.id for one in done)
    context.broker.unsettled.difference_update([one.item.token for one in done if one.event])
    events: Counter[Event | None] = Counter(one.event for one in done)
    for event, number in events.items():
        if event is not None:
            context.count(event, number)


def _total(reply: Any) -> int:
    return int(reply.matched_count + reply.deleted_count)


def _sent(command: Command[int]) -> Flow[tuple[Mapping[int, Exception], int]]:
    try:
        return {}, (yield from command)
    except PartlyRefused as refused:
        return refused.refusals, refused.total


def _refused(groups: Mapping[int, Group], refusals: Mapping[int, Exception], tally: _Tally) -> None:
    for place, group in groups.items():
        if len(group) > 1:
            continue
        error, patched = refusals[place], group[0].patch is not None
        fits = not (patched and isinstance(error, Refused))
        tally.failed[group[0].item.id] = own_error(error) if fits else misfit(error)


def _told_apart(context: QueueContext[Any], sent: Group, total: int | None, tally: _Tally) -> Flow[None]:
    """Read which items were settled; ``total`` is how many, or ``None`` when a first reply was lost."""
    ids = [one.item.id for one in sent]
    read = yield from find_few(context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE)
    found = {document["_id"]: document for document in read}
    read_as = {one.item.id: _verdict(one, found.get(one.item.id)) for one in sent}
    verdicts = _verdicts(read_as, total, telling=all(one.telling for one in sent))
    _did(context, [one for one in sent if verdicts[one.item.id]], tally)
    for one in sent:
        verdict, document = verdicts[one.item.id], found.get(one.item.id)
        if verdict:
            continue
        if verdict is None:
            tally.failed[one.item.id] = ReservationLost(one.item.id, one.item.queue, certain=False)
        elif document and one.patch is not None and document.get("token") == one.item.token:
            tally.failed[one.item.id] = too_large(one.patch)
        else:
            tally.failed[one.item.id] = lost(context, one.item, document)


def _verdict(one: Settlement, document: Document | None) -> bool | None:
    if document is None:
        return None
    if one.patch is not None and document.get("token") == one.item.token:
        return False  # there was no room for the patch
    return one.happened(document)


def _verdicts(read: Mapping[ObjectId, bool | None], total: int | None, *, telling: bool) -> dict[ObjectId, bool | None]:
    """Settle what reading could not, by the number of items that were settled."""
    seen = sum(verdict is True for verdict in read.values())
    unknown = sum(verdict is None for verdict in read.values())
    if total is None:
        return dict(read)
    if total == 0:
        return dict.fromkeys(read, False)
    if total == seen + unknown:
        return {id: verdict is not False for id, verdict in read.items()}
    if total == seen and telling:
        return {id: verdict is True for id, verdict in read.items()}
    if total < seen:  # some of them looked like this before
        return {id: None if verdict else verdict for id, verdict in read.items()}
    return dict(read)


@contextmanager
def within(place: str, root: str = "") -> Iterator[None]:
    """Name what cannot be used by its place in the batch: ``payload.a`` becomes ``payloads[3].a``."""
    try:
        yield
    except PayloadInvalid as error:
        raise PayloadInvalid(place + error.path.removeprefix(root), error.problem, item=error.item) from error
    except PayloadTooLarge as error:
        raise PayloadTooLarge(place + error.argument.removeprefix(root), error.size, error.limit) from error
    except ArgumentInvalid as error:
        raise type(error)(place + error.argument.removeprefix(root), error.problem) from error
