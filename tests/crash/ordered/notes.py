"""The ledger of a campaign on sequences: a line for each thing that a process did, in a file that all append to.

It is independent of mongoq and of the server. Each line is one ``write`` behind the others, so what was noted is there
whoever is killed next. A line says when it was written, on the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Kind", "Note", "Notes"]

Kind = Literal[
    "push", "pushed", "began", "ended", "pop", "popped", "broken", "settled", "replayed", "remove", "removed", "killed"
]
"""What was noted.

``push`` and ``pushed`` are around a push, ``pushed`` only when it was acknowledged. ``began`` is written after the
claim and before the work, ``ended`` after the work and before the settlement, ``settled`` after an acknowledged commit.
``pop`` and ``popped`` are around a pop, ``broken`` follows one that raised an error. ``remove`` and ``removed`` are
around whatever takes a dead letter away for good, ``replayed`` follows an acknowledged replay of one. ``killed`` is
written before a kill.
"""


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the ledger.

    Attributes:
        at: seconds on the monotonic clock.
        who: number of the process, of its own among all that ever ran.
        kind: what was noted.
        serials: names of the items, as the producer gave them in the payloads.
        sequence: their sequence, of ``began``, ``popped`` and pushes.
        until: of ``began``, the end of the lease on the monotonic clock.
        outcome: of ``ended``: ``done`` or ``fail``.
        expires: of ``push``, whether the item must be started in time.
        handed: of ``began``, whether the item came with the settlement of the one before it.
    """

    at: float
    who: int
    kind: Kind
    serials: tuple[str, ...] = ()
    sequence: str | None = None
    until: float | None = None
    outcome: str | None = None
    expires: bool = False
    handed: bool = False


class Notes:
    """A file of notes, which many processes may write to at once."""

    def __init__(self, path: Path, who: int) -> None:
        self._path, self._who = path, who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: Kind, serials: Sequence[str] = (), sequence: str | None = None, **more: Any) -> None:
        """Add a note, with the time of this moment."""
        self.write_as(self._who, kind, serials, sequence, **more)

    def write_as(
        self, who: int, kind: Kind, serials: Sequence[str] = (), sequence: str | None = None, **more: Any
    ) -> None:
        """Add a note on another process."""
        line = {"at": time.monotonic(), "who": who, "kind": kind, "serials": serials, "sequence": sequence, **more}
        os.write(self._file, f"\n{json.dumps(line)}\n".encode())

    def read(self) -> list[Note]:
        """Return all notes in the order of their times; a kill comes after all that the process could still note."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines() if line]
        notes = [Note(**{**line, "serials": tuple(line["serials"])}) for line in lines]
        ends = {note.who: note.at for note in sorted(notes, key=lambda note: note.at)}
        return sorted(notes, key=lambda note: (ends[note.who], True) if note.kind == "killed" else (note.at, False))
