"""What the model says of replays: copies of a history, and dead letters that go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.model.entry import Entry, Origin
from tests.model.queue_model import QueueModel

__all__ = ["Copies", "Revived", "revive"]


@dataclass
class Revived:
    """What became of the dead letters that were chosen."""

    found: int = 0
    pushed: int = 0
    skipped: int = 0
    refused: list[Any] = field(default_factory=list)
    missing: list[Any] = field(default_factory=list)


def revive(
    model: QueueModel,
    dead: str,
    *,
    ids: Sequence[Any] | None = None,
    where: Callable[[Any], bool] = lambda _: True,
    limit: int | None = None,
    to: str | None = None,
) -> Revived:
    """Send dead letters back in the order of claims, with their keys; with ``to`` there, without them."""
    letters = [entry for entry in model.of(dead) if (ids is None or entry.id in ids) and where(entry.payload)]
    there = {entry.id for entry in letters}
    result = Revived(missing=[id for id in dict.fromkeys(ids or ()) if id not in there])
    for entry in letters:
        if limit is not None and result.pushed == limit:
            break
        result.found += 1
        _send_back(model, entry, to, result)
    return result


def _send_back(model: QueueModel, entry: Entry, to: str | None, result: Revived) -> None:
    home, key = to, None
    if to is None and entry.origin is not None:
        home, key = entry.origin.queue, entry.key or entry.origin.key
    if home in (None, entry.queue):
        result.refused.append(entry.id)
    elif entry.is_held(model.now):
        result.skipped += 1
    elif model.live(home, key) is not None:
        result.refused.append(entry.id)
    else:
        model.put(entry, home, model.now, key)
        result.pushed += 1


@dataclass(frozen=True)
class Wanted:
    """A copy that a replay has to make."""

    original: Entry
    to: str
    label: str

    @property
    def name(self) -> tuple[Any, ...]:
        """What the id of the copy follows from."""
        return self.original.id, self.original.processed, self.to, self.label


class Copies:
    """The copies that replays made. Their ids, and where exactly they stand in the order, are the product's choice."""

    def __init__(self, model: QueueModel) -> None:
        self._model = model
        self._ids: dict[tuple[Any, ...], Any] = {}

    def select(self, queue: str, ids: Sequence[Any] | None, limit: int | None) -> list[Entry]:
        """What a replay selects: no copies that a replay of this queue made, unless they are named."""
        originals = self._model.history(queue)
        if ids is None:
            return [entry for entry in originals if entry.copied_from != queue][:limit]
        return [entry for entry in originals if entry.id in ids][:limit]

    def wanted(self, originals: Sequence[Entry], to: str, label: str) -> list[Wanted]:
        """The copies that are not there, nor remembered."""
        every = [Wanted(entry, to, label) for entry in originals]
        return [copy for copy in every if self._ids.get(copy.name) not in self._model.entries]

    def add(
        self, wanted: Wanted, id: Any, *, when: datetime, priority: int | None, label: str, once: timedelta
    ) -> None:
        """Take in a copy under the id that the product gave it, always the same one."""
        assert self._ids.setdefault(wanted.name, id) == id, "a copy has another id than before"
        original, now = wanted.original, self._model.now
        reason = f"replayed: {label}" if label else "replayed"
        self._model.add(
            Entry(
                id,
                wanted.to,
                original.payload,
                when,
                original.priority if priority is None else priority,
                headers=original.headers,
                origin=Origin(original.queue, original.id, reason, original.attempts, original.key, now),
                copied_from=original.queue,
                once=now + once,
                into=wanted.to,
            )
        )
