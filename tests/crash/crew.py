"""The crew: producers and workers as processes, each of which is replaced when it was killed."""

from __future__ import annotations

import signal
from typing import Any

from tests.crash.nursery import Nursery
from tests.crash.schedule import CREW
from tests.crash.worker import Engine

__all__ = ["Crew"]


class Crew:
    """Members in the places of ``CREW``."""

    def __init__(self, nursery: Nursery, *, uri: str, database: str, ledger: str, engine: Engine, seed: int) -> None:
        common = {"uri": uri, "database": database}
        self._arguments: dict[str, dict[str, Any]] = {
            "produce": {**common, "ledger": ledger},
            "work": {**common, "engine": engine},
        }
        self._nursery, self._seed = nursery, seed
        self._pids: list[int | None] = [self._start(role) for role in CREW]

    def kill(self, place: int) -> None:
        """Kill the member in a place, and start another."""
        self._end(place)
        self._pids[place] = self._start(CREW[place])

    def freeze(self, place: int) -> None:
        """Let a member stand still."""
        self._signal(place, signal.SIGSTOP)

    def thaw(self, place: int) -> None:
        """Let a member go on where it stood, as if nothing had been; the one that has followed it does not notice."""
        self._signal(place, signal.SIGCONT)

    def end(self, role: str) -> None:
        """Kill all in a role; nobody follows."""
        for place, other in enumerate(CREW):
            if other == role:
                self._end(place)

    def _start(self, role: str) -> int:
        self._seed += 1
        return self._nursery.start(role, seed=self._seed, **self._arguments[role])

    def _end(self, place: int) -> None:
        pid, self._pids[place] = self._pids[place], None
        assert pid is not None
        self._nursery.kill(pid)

    def _signal(self, place: int, number: signal.Signals) -> None:
        pid = self._pids[place]
        assert pid is not None
        self._nursery.signal(pid, number)
