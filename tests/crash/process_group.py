"""Producers and workers as processes, each of which is replaced when it was killed."""

from __future__ import annotations

import signal
from typing import Any

from tests.crash.fork_server import ForkServer
from tests.crash.schedule import PROCESS_ROLES
from tests.crash.worker import Engine

__all__ = ["ProcessGroup"]


class ProcessGroup:
    """A process in each place of ``PROCESS_ROLES``."""

    def __init__(
        self, fork_server: ForkServer, *, uri: str, database: str, ledger: str, engine: Engine, seed: int
    ) -> None:
        common = {"uri": uri, "database": database}
        self._arguments: dict[str, dict[str, Any]] = {
            "produce": {**common, "ledger": ledger},
            "work": {**common, "engine": engine},
        }
        self._fork_server, self._seed = fork_server, seed
        self._pids: list[int | None] = [self._start(role) for role in PROCESS_ROLES]

    def kill(self, place: int) -> None:
        """Kill the process in a place, and start another."""
        self._end(place)
        self._pids[place] = self._start(PROCESS_ROLES[place])

    def freeze(self, place: int) -> None:
        """Let a process stand still."""
        self._signal(place, signal.SIGSTOP)

    def thaw(self, place: int) -> None:
        """Let a process go on where it stood, as if nothing had been; the one that has followed it does not notice."""
        self._signal(place, signal.SIGCONT)

    def end(self, role: str) -> None:
        """Kill all processes in a role; none follows."""
        for place, name in enumerate(PROCESS_ROLES):
            if name == role:
                self._end(place)

    def _start(self, role: str) -> int:
        self._seed += 1
        return self._fork_server.start(role, seed=self._seed, **self._arguments[role])

    def _end(self, place: int) -> None:
        pid, self._pids[place] = self._pids[place], None
        assert pid is not None
        self._fork_server.kill(pid)

    def _signal(self, place: int, number: signal.Signals) -> None:
        pid = self._pids[place]
        assert pid is not None
        self._fork_server.signal(pid, number)
