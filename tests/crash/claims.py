"""What must hold whatever was killed; each claim returns a sentence for whatever breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bson import ObjectId

from tests.crash.evidence import Document, Evidence
from tests.crash.stations import FIRST, HOPELESS, MAX_RETRIES, SECOND
from tests.crash.trail import Turn

__all__ = ["broken", "doubled", "lost", "unfenced"]


def broken(evidence: Evidence) -> list[str]:
    """Return what breaks any of the claims."""
    return [*lost(evidence), *unfenced(evidence), *doubled(evidence)]


def lost(evidence: Evidence) -> Iterator[str]:
    """Every acknowledged push was handled to its end, or is a dead letter that deserves it.

    What is neither, though the crew had all the time it needed when the killing was over, is stuck, and that is lost
    as well.
    """
    for id in evidence.acknowledged:
        if id not in evidence.by_id:
            yield f"{id} was acknowledged, and is gone"
    for item in evidence.items:
        if "processed" in item:
            yield from _unhandled(evidence, item)
        elif item["q"] in (FIRST, SECOND):
            yield f"{item['_id']} is stuck in {item['q']!r}"
        elif not _deserves_death(evidence, item):
            yield f"{item['_id']} is a dead letter for no good reason: {item.get('origin')}"
    yield from (f"{turn.item} was removed" for turn in evidence.turns if turn.kind == "removed")


def _unhandled(evidence: Evidence, item: Document) -> Iterator[str]:
    """Whoever handed an item on had handled it before."""
    handed_on = [("committed", item["settled"])]
    if item["q"] == SECOND:
        handed_on.append(("moved", item["payload"]["mover"]))
    for what, token in handed_on:
        mark = evidence.by_reservation.get((item["_id"], token), {})
        if mark.get("outcome") != "done":
            yield f"{item['_id']} was {what} under {token}, whose run did not end well: {mark}"


def _deserves_death(evidence: Evidence, item: Document) -> bool:
    """It had all its runs, or a handler has said that it is hopeless."""
    origin = item.get("origin") or {"reason": "", "attempts": 0}
    if origin["reason"].startswith(HOPELESS):
        token = ObjectId(origin["reason"].split()[-1])
        return evidence.by_reservation.get((item["_id"], token), {}).get("outcome") == "dead"
    return bool(origin["attempts"] > MAX_RETRIES)  # one more run alone for what was claimed in a batch


def unfenced(evidence: Evidence) -> Iterator[str]:
    """Whoever had lost a reservation changed nothing: each turn was taken under the last reservation before it."""
    holders: dict[ObjectId, ObjectId | None] = {}
    for turn in evidence.turns:
        if turn.kind == "reserved":
            holders[turn.item] = turn.token
        elif turn.kind not in ("pushed", "removed"):
            yield from _foreign(turn, holders.get(turn.item))
            holders[turn.item] = None
    for item in evidence.items:
        yield from _outrun(evidence, item)


def _foreign(turn: Turn, holder: ObjectId | None) -> Iterator[str]:
    if holder is None:
        yield f"{turn.item} was {turn.kind} under {turn.token} when nobody held it"
    elif turn.token not in (None, holder):
        yield f"{turn.item} was {turn.kind} under {turn.token}, and {holder} held it"


def _outrun(evidence: Evidence, item: Document) -> Iterator[str]:
    """The run that settled an item is the last one in that queue, by the attempts that the envelope counts."""
    settlers = {item["q"]: item.get("settled")}
    if item["payload"]["hops"]:
        settlers[FIRST] = item["payload"]["mover"]
    for queue, token in settlers.items():
        settler = evidence.by_reservation.get((item["_id"], token))
        if settler is None:
            continue
        last = max(mark["attempt"] for mark in evidence.by_queue[item["_id"], queue])
        if settler["attempt"] != last:
            yield f"{item['_id']} left {queue!r} under its attempt {settler['attempt']}, and there were {last}"
        if "processed" in item and item["q"] == queue and item["attempts"] != last:
            yield f"{item['_id']} was committed at attempt {item['attempts']}, and {last} were run"


def doubled(evidence: Evidence) -> Iterator[str]:
    """An item is in one place, and moved on once if it did at all; nothing is handled twice under one reservation."""
    for serial, count in Counter(item["payload"]["serial"] for item in evidence.items).items():
        if count > 1:
            yield f"{count} items hold what was pushed as {serial}"
    moves = Counter(turn.item for turn in evidence.turns if turn.kind == "moved")
    for item in evidence.items:
        hops = item["payload"]["hops"]
        if not hops == moves[item["_id"]] == _hops_of(item):
            yield f"{item['_id']} is in {item['q']!r} after {moves[item['_id']]} moves, and counts {hops}"
    for turn in evidence.turns:
        if "DuplicateKey" in turn.error:  # the mark of the run was there
            yield f"{turn.item} was handled twice under one reservation"
    pushes = Counter(turn.item for turn in evidence.turns if turn.kind == "pushed")
    yield from (f"{id} was pushed {count} times" for id, count in pushes.items() if count > 1)


def _hops_of(item: Document) -> int:
    """How often an item has moved that is where this one is."""
    queue = item["origin"]["queue"] if item["q"] not in (FIRST, SECOND) else item["q"]
    return int(queue == SECOND)
