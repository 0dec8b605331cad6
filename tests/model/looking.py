"""Rules: those who only look, and see what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import rule

from tests.model.choices import ANY
from tests.model.world import World

__all__ = ["STATES", "Looking"]

STATES = ["ready", "scheduled", "reserved", "expired", "processed", None]


class Looking(World):
    """All that reads."""

    @rule(queue=ANY, state=st.sampled_from(STATES), n=st.integers(1, 5))
    def look(self, queue: int, state: Any, n: int) -> None:
        real, name = self.queue(queue)
        entries = self.model.history(name) if state == "processed" else self.model.of(name, *([state] if state else []))
        assert [item.id for item in real.history(state=state, page=n)] == [entry.id for entry in entries]
        assert real.size(state) == len(entries)
        for item, entry in zip(real.peek(n, state=state), entries[:n], strict=True):
            self.check_item(item, entry)
        for entry in entries[:1]:
            self.check_item(real.get(entry.id), entry)
        self._count(queue)
        assert real.next_when() == self.model.next_when(name)
        assert self.broker.queues() == sorted({entry.queue for entry in self.model.entries.values()})

    def _count(self, queue: int) -> None:
        real, name = self.queue(queue)
        counts = real.counts()
        assert all(getattr(counts, state_name) == len(self.model.of(name, state_name)) for state_name in STATES[:4])

    def look_for(self, ids: Sequence[Any], *queues: int) -> None:
        """Each of these items is in one queue only, whatever reads it."""
        for queue in queues:
            real, name = self.queue(queue)
            live = self.model.of(name)
            assert [item.id for item in real.peek(100, state=None)] == [entry.id for entry in live]
            assert [item.id for item in real.history(state=None)] == [entry.id for entry in live]
            self._count(queue)
            for id in ids:
                entry, item = self.model.entries[id], real.get(id)
                assert (item is not None) == (entry.queue == name)
                if item is not None:
                    self.check_item(item, entry)
