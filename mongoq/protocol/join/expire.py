"""Expired items of a join: without partners in time, they go on alone or to the error queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.item import Item, with_stored
from mongoq.model.join_state import JoinState, Place
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow.chunking import chunks
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.join.pair import Member, buried, pair
from mongoq.protocol.join.spec import ARRIVALS, JoinSpec, JoinTransaction, noted_of, remembered, rendezvous, sent
from mongoq.protocol.settle.exchange import Exchange, run_exchange

__all__ = ["given_up"]


def given_up(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[dict[Any, Exception]]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    yield from ensure_ready(context)
    way = Exchange(context, partial(_parted, spec), lambda item: item, partial(noted_of, spec))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=ARRIVALS):
        failed |= yield from run_exchange(way, chunk)
    return failed


def _parted(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[JoinTransaction]:
    """Settle expired parked items, inside a transaction."""
    broker = spec.parked.broker
    places = [Place.of(item.key, spec.queues) for item in items]
    stored = yield from rendezvous(spec, {place.key for place in places if place is not None})
    known = {key: JoinState(key, spec.queues, document) for key, document in stored.items()}
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    values = {}
    # In the order of their places: ``give_up`` counts a place as past only when all places before it are.
    for item, place in sorted(zip(items, places, strict=True), key=_number):
        if place is not None and place.key in known:
            known[place.key].give_up(place, remembered=spec.late != "wait")
            values[place.key] = _note(item).get("value")
    for item in items:
        _part(spec, doing, item, when)
    yield from remembered(spec, known.values(), values, doing)
    yield from sent(broker, doing)
    return doing


def _number(one: tuple[Item[Any], Place | None]) -> int:
    return 0 if one[1] is None else one[1].number


def _part(spec: JoinSpec, doing: JoinTransaction, item: Item[Any], when: datetime) -> None:
    """Send one item on without partners, or to the error queue."""
    member = _parking(spec, item)
    queue = member.item.queue
    reason, error = spec.missed(queue), None
    if spec.missing == "pass" and queue in spec.queues:
        members = [member if side.name == queue else None for side in spec.sides]
        try:
            doing.pairs.append(pair(spec.pairs, members, id=ObjectId(), now=doing.now, when=when))
        # Even alone the item does not fit, because a pair adds fields to it.
        except PayloadTooLarge as large:
            reason, error = str(large), large
        else:
            doing.members.append(member)
            return
    if member.context.settings.dead is None:
        raise PartnerMissing(item.id, queue, reason)
    statement = buried(member, doing.now, reason=reason, error=error, missed=spec.late != "wait")
    doing.bury(statement, reason)
    doing.end(item, "dead")


def _parking(spec: JoinSpec, item: Item[Any]) -> Member:
    """Return a parked item as it was in its first queue; the join may no longer have that queue."""
    told = _note(item).get("queue")
    queue = told if isinstance(told, str) else spec.queues[0]
    context = spec.side(queue) if queue in spec.queues else spec.sides[0]
    as_it_came = with_stored(with_stored(item, "q", queue), "key", _note(item).get("key"))
    return Member(context, as_it_came, {"_id": item.id, "token": item.token})


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return the note that was written on an item when it was parked."""
    stored = item.stored("parked")
    return stored if isinstance(stored, Mapping) else {}
