"""What a campaign leaves: the pushes that were acknowledged, and what the database holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from bson import ObjectId

from tests.crash import run, trail
from tests.crash.ledger import Ledger
from tests.crash.trail import Turn

__all__ = ["Document", "Evidence"]

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The facts that claims are checked against.

    Attributes:
        acknowledged: the ids of acknowledged pushes.
        items: the envelopes of all items.
        runs: the marks of all runs.
        turns: what happened to the items, in order.
    """

    acknowledged: Sequence[ObjectId]
    items: Sequence[Document]
    runs: Sequence[Document]
    turns: Sequence[Turn]

    @classmethod
    def gather(cls, database: Any, ledger: Path, start: Document) -> Self:
        """Read all there is."""
        collection = database["mongoq"]
        items = list(collection.find({"q": {"$exists": True}, "_id": {"$type": "objectId"}}))
        marks = list(run.runs(database).find())
        return cls(Ledger(ledger).read(), items, marks, list(trail.read(collection, start)))

    @cached_property
    def by_id(self) -> dict[ObjectId, Document]:
        """The items by their ids."""
        return {item["_id"]: item for item in self.items}

    @cached_property
    def by_reservation(self) -> dict[tuple[ObjectId, ObjectId | None], Document]:
        """The runs by their items and tokens."""
        return {(mark["_id"]["item"], mark["_id"]["token"]): mark for mark in self.runs}

    @cached_property
    def by_queue(self) -> dict[tuple[ObjectId, str], list[Document]]:
        """The runs by their items and the queues they were in."""
        runs = defaultdict(list)
        for mark in self.runs:
            runs[mark["_id"]["item"], mark["queue"]].append(mark)
        return runs

    def story(self, id: ObjectId) -> list[str]:
        """Tell all that is known of an item, so that what went wrong with it can be seen."""
        turns = [f"{turn.at} {turn.kind} {turn.token or ''} {turn.error}" for turn in self.turns if turn.item == id]
        runs = [str(mark) for mark in self.runs if mark["_id"]["item"] == id]
        return [str(self.by_id.get(id)), *turns, *runs]

    def figures(self) -> dict[str, int]:
        """Return how much of everything there was, so that a campaign in which nothing happened is seen."""
        return {
            "acknowledged": len(self.acknowledged),
            "items": len(self.by_id),
            "moved": sum(turn.kind == "moved" for turn in self.turns),
            "committed": sum("processed" in item for item in self.items),
            "dead": sum(item["q"].endswith(".dead") for item in self.items),
            "runs": len(self.runs),
            "interrupted runs": sum(self._interrupted(mark) for mark in self.runs),
            "overtaken runs": sum(self._overtaken(mark) for mark in self.runs),
        }

    def _interrupted(self, mark: Document) -> bool:
        """Say whether a run has not ended, and its item is not held under its reservation any more."""
        item = self.by_id.get(mark["_id"]["item"], {})
        return "ended" not in mark and item.get("token") != mark["_id"]["token"]

    def _overtaken(self, mark: Document) -> bool:
        """Say whether a run came to its end when the next one of the item had begun: its holder had lost it."""
        runs = self.by_queue[mark["_id"]["item"], mark["queue"]]
        later = [each["began"] for each in runs if each["attempt"] > mark["attempt"]]
        return "ended" in mark and any(began < mark["ended"] for began in later)
