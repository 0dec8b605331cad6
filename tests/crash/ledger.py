"""The ids of acknowledged pushes, in a file.

A file, since a ledger in the database could lose the same writes that it is to give evidence of. Each line is one
``write`` behind the others, so what was written is there whoever is killed next, mongod or the writer; only the
machine itself could take it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bson import ObjectId

__all__ = ["Ledger"]

LENGTH = 24


class Ledger:
    """A file of ids, which many processes may write to at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, ids: Iterable[ObjectId]) -> None:
        """Add ids."""
        os.write(self._file, "".join(f"{id}\n" for id in ids).encode())

    def read(self) -> list[ObjectId]:
        """Return all ids so far; not a line that its writer was killed in, nor one that another went on with."""
        return [ObjectId(line) for line in self._path.read_text().splitlines() if len(line) == LENGTH]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
