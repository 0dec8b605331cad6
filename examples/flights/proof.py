"""The proof that nothing was lost and nothing doubled: every row that was loaded is done or dead.

It asks the bare driver, not mongoq, and reads the input again, so that it shares no code with what it checks
but the name of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bson import ObjectId
from pymongo.collection import Collection

__all__ = ["Proof", "prove"]

CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Proof:
    """The places of the rows.

    Attributes:
        pushed: how many rows were to be loaded.
        done: processed in the last queue.
        dead: in the queue of what has failed for good.
        elsewhere: in the collection, but neither.
    """

    pushed: int
    done: int
    dead: int
    elsewhere: int

    @property
    def missing(self) -> int:
        """Rows that are not in the collection."""
        return self.pushed - self.done - self.dead - self.elsewhere

    @property
    def holds(self) -> bool:
        """Whether pushed = done + dead."""
        return self.pushed == self.done + self.dead and not self.elsewhere


def prove(collection: Collection[dict[str, Any]], ids: Iterable[ObjectId], *, done: str, dead: str) -> Proof:
    """Look up every id: an item is one document, so it has one place, which is counted here."""
    places = {"pushed": 0, "done": 0, "dead": 0, "elsewhere": 0}
    rest = iter(ids)
    while chunk := list(set(islice(rest, CHUNK))):
        places["pushed"] += len(chunk)
        for group in collection.aggregate([{"$match": {"_id": {"$in": chunk}}}, GROUP]):
            places[_place(group["_id"], done, dead)] += group["n"]
    return Proof(**places)


GROUP = {"$group": {"_id": {"q": "$q", "processed": {"$gt": ["$processed", None]}}, "n": {"$sum": 1}}}


def _place(group: dict[str, Any], done: str, dead: str) -> str:
    if group["processed"]:
        return "done" if group["q"] == done else "elsewhere"
    return "dead" if group["q"] == dead else "elsewhere"
