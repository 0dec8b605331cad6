"""What must hold whatever was killed. Each claim returns what breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bson import ObjectId

from tests.crash.evidence import Document, Evidence
from tests.crash.stations import FIRST, HOPELESS, MAX_RETRIES, SECOND
from tests.crash.trail import Turn

__all__ = ["Violation", "broken", "doubled", "lost", "unfenced"]


@dataclass(frozen=True, slots=True)
class Violation:
    """What breaks a claim: an item, and what is wrong with it."""

    item: ObjectId
    what: str

    def __str__(self) -> str:
        return f"{self.item} {self.what}"


def broken(evidence: Evidence) -> list[Violation]:
    """Return what breaks any of the claims."""
    return [*lost(evidence), *unfenced(evidence), *doubled(evidence)]


# --- nothing is lost -------------------------------------------------------------------------


def lost(evidence: Evidence) -> Iterator[Violation]:
    """Every acknowledged push went all the way, each step after a run that ended well, or is a deserved dead letter.

    What is neither, though the processes had all the time they needed after the last kill, is stuck, and so lost.
    """
    for id in evidence.acknowledged:
        if id not in evidence.by_id:
            yield Violation(id, "was acknowledged, and is gone")
    for turn in evidence.turns:
        if turn.kind == "removed":
            yield Violation(turn.item, "was removed")
    for item in evidence.items:
        yield from _astray(evidence, item)


def _astray(evidence: Evidence, item: Document) -> Iterator[Violation]:
    if item["q"] in (FIRST, SECOND):
        if "processed" not in item:
            yield Violation(item["_id"], f"is stuck in {item['q']!r}")
        elif item["q"] == FIRST:
            yield Violation(item["_id"], f"ended in {FIRST!r}, and should have moved on")
        else:
            yield from _unhandled(evidence, item["_id"], "committed", item["settled"])
    elif not _deserves_death(evidence, item):
        yield Violation(item["_id"], f"is a dead letter for no good reason: {item.get('origin')}")
    if item["payload"]["mover"] is not None:
        yield from _unhandled(evidence, item["_id"], "moved", item["payload"]["mover"])


def _unhandled(evidence: Evidence, item: ObjectId, what: str, token: ObjectId) -> Iterator[Violation]:
    mark = evidence.by_reservation.get((item, token), {})
    if mark.get("outcome") != "done":
        yield Violation(item, f"was {what} under {token}, whose run did not end well: {mark}")


def _deserves_death(evidence: Evidence, item: Document) -> bool:
    """It had all its runs, or a handler has said that it is hopeless."""
    origin = item.get("origin") or {"reason": "", "attempts": 0}
    if origin["reason"].startswith(HOPELESS):
        token = ObjectId(origin["reason"].split()[-1])
        return bool(evidence.by_reservation.get((item["_id"], token), {}).get("outcome") == "dead")
    return bool(origin["attempts"] > MAX_RETRIES)


# --- nothing changes after it was lost ---------------------------------------------------------


def unfenced(evidence: Evidence) -> Iterator[Violation]:
    """Each turn was taken under the reservation before it, and the run that settled an item is the last there was."""
    holders: dict[ObjectId, ObjectId | None] = {}
    for turn in evidence.turns:
        if turn.kind == "reserved":
            holders[turn.item] = turn.token
        elif turn.kind not in ("pushed", "removed"):
            yield from _foreign(turn, holders.get(turn.item))
            holders[turn.item] = None
    for item in evidence.items:
        if item["payload"]["mover"] is not None:
            yield from _outrun(evidence, item["_id"], FIRST, item["payload"]["mover"])
        if "processed" in item:
            yield from _outrun(evidence, item["_id"], item["q"], item["settled"])


def _foreign(turn: Turn, holder: ObjectId | None) -> Iterator[Violation]:
    if holder is None:
        yield Violation(turn.item, f"was {turn.kind} under {turn.token} when nobody held it")
    elif turn.token not in (None, holder):
        yield Violation(turn.item, f"was {turn.kind} under {turn.token}, and {holder} held it")


def _outrun(evidence: Evidence, item: ObjectId, queue: str, token: ObjectId) -> Iterator[Violation]:
    """Attempts never go down from run to run: what is released was not started."""
    settler = evidence.by_reservation.get((item, token))
    latest = max((mark["attempt"] for mark in evidence.by_queue[item, queue]), default=0)
    if settler is not None and settler["attempt"] != latest:
        yield Violation(item, f"left {queue!r} by its run {settler['attempt']}, and there were {latest}")


# --- nothing is there twice ------------------------------------------------------------------


def doubled(evidence: Evidence) -> Iterator[Violation]:
    """An item is in one place, and moved on once if it did at all; nothing is handled twice under one reservation."""
    copies = Counter(item["payload"]["serial"] for item in evidence.items)
    moves = Counter(turn.item for turn in evidence.turns if turn.kind == "moved")
    pushes = Counter(turn.item for turn in evidence.turns if turn.kind == "pushed")
    for item in evidence.items:
        id, payload = item["_id"], item["payload"]
        if copies[payload["serial"]] > 1:
            yield Violation(id, f"is one of {copies[payload['serial']]} items that hold {payload['serial']}")
        if not payload["hops"] == moves[id] == _hops_to(item):
            yield Violation(id, f"is in {item['q']!r} after {moves[id]} moves, and counts {payload['hops']}")
        if pushes[id] > 1:
            yield Violation(id, f"was pushed {pushes[id]} times")
    for turn in evidence.turns:
        if "DuplicateKey" in turn.error:  # the mark of the run was there
            yield Violation(turn.item, "was handled twice under one reservation")


def _hops_to(item: Document) -> int:
    """How many moves lead to where an item is, or was before it died."""
    queue = item["q"] if item["q"] in (FIRST, SECOND) else item.get("origin", {}).get("queue")
    return int(queue == SECOND)
