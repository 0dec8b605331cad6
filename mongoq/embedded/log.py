"""Log of mongod: the port it listens on, and the lines that explain why it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Log"]

_LISTENING = b'"id":23016,'  # "Waiting for connections", in every version since 4.4
_LINES = 4
_WIDTH = 300


class Log:
    """The log of one mongod; the log of the run before is kept beside it as ``*.1``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        if path.exists():
            path.replace(path.with_name(path.name + ".1"))
        path.touch(mode=0o600)

    def port(self) -> int | None:
        """Return the port that mongod listens on, or ``None`` before; reads on from the end of the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        # mongod may be writing the last line at this moment: an incomplete line is left for the next call.
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        return next(filter(None, map(_port, complete.splitlines())), None)

    def tail(self) -> str:
        """Return the last relevant lines: fatal ones, errors, and lines that are no records; else the last ones."""
        with self.path.open("rb") as file:
            file.seek(max(self.path.stat().st_size - 262_144, 0))
            entries = [_entry(line) for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [text for severe, text in entries if severe] or [text for _, text in entries]
        return " | ".join(text[:_WIDTH] for text in telling[-_LINES:])


def _port(line: bytes) -> int | None:
    """Return the port in the line that reports it; ``None`` for a line that only looks like it."""
    if _LISTENING not in line:
        return None
    try:
        return int(json.loads(line)["attr"]["port"])
    except (ValueError, KeyError, TypeError):
        return None


def _entry(line: str) -> tuple[bool, str]:
    """Return whether a line reports a failure, and its text."""
    try:
        record: Any = json.loads(line)
        attributes = record.get("attr")
        details = f" {json.dumps(attributes, ensure_ascii=False)}" if attributes else ""
        return record["s"] in ("F", "E"), record["msg"] + details
    except (ValueError, KeyError, TypeError, AttributeError):
        return True, line.strip()
