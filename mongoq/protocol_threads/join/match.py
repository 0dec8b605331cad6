# Generated from mongoq/protocol/join/match.py by scripts/unasync.py. Do not edit.
"""Matching: the settings of a join, and which arriving items meet their partners. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from mongoq.model.item import Document
from mongoq.model.join_state import Place, rendezvous_id
from mongoq.protocol.join.match import MAX_PLACES_READ, Arrival, JoinSpec, Plan, _plan_arrivals, _postpone
from mongoq.protocol_threads.base.find import find_few


def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> dict[str, Document]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    documents = find_few(spec.parked.broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}


def make_plan(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Plan:
    """Read the parked partners of arrivals, and return the plan."""
    coming = {queue for queue in spec.queues if spec.coming(queue)}
    documents = rendezvous(spec, {arrival.key for arrival in arrivals})
    waiting: dict[str, Document] = {}
    empty_places: set[str] = set()
    ahead = 0
    while True:
        plan = _plan_arrivals(spec, arrivals, documents, empty_places)
        partners = (partner for _, partners in plan.meetings for partner in partners.values())
        places = {partner.text: partner for partner in partners if isinstance(partner, Place)}
        wanted = places.keys() - waiting.keys()
        found = (_find_parked(spec, wanted)) if wanted else []
        waiting |= {document["key"]: document for document in found if isinstance(document.get("parked"), Mapping)}
        missing = [places[text] for text in wanted - waiting.keys()]
        if not missing:
            break
        # A rendezvous may count places of items that were purged: plan again without the empty ones until all items
        # are found. Ever more places in one command: after a purge of the whole queue all of them are empty.
        ahead = min(ahead * 8 + 8, MAX_PLACES_READ)
        behind = (other.text for place in missing for other in plan.states[place.key].following(place, ahead))
        following = set(islice(behind, MAX_PLACES_READ))
        if following:
            held = _find_parked(spec, following, {"_id": 0, "key": 1})
            following -= {document["key"] for document in held}
        empty_places |= following | {place.text for place in missing}
    plan.waiting = waiting
    if coming:
        _postpone(spec, plan, coming, empty_places)
    return plan


def _find_parked(spec: JoinSpec, texts: set[str], projection: Mapping[str, int] | None = None) -> list[Document]:
    """Find the items that wait at some places (by the index of keys)."""
    filter = {"q": spec.parked.name, "key": {"$in": sorted(texts)}, "when": {"$exists": True}}
    return find_few(spec.parked.broker, filter, [("key", 1)], len(texts), projection=projection)
