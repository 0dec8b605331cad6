"""What mongod says: the port it listens on, and the lines that tell why it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Log"]

_LISTENING = b'"id":23016,'  # "Waiting for connections", in every version since 4.4
_LINES = 4
_WIDTH = 300


class Log:
    """The log of one mongod; that of the run before is kept beside it, with ``.1`` at the end of its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        if path.exists():
            path.replace(path.with_name(path.name + ".1"))
        path.touch(mode=0o600)

    def port(self) -> int | None:
        """The port that mongod listens on, if it has come so far; reads on from where the last call ended."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        return next(filter(None, map(_port, complete.splitlines())), None)

    def tail(self) -> str:
        """The last telling lines: fatal ones, errors, and what is no log line at all; else the very last."""
        with self.path.open("rb") as file:
            file.seek(max(self.path.stat().st_size - 262_144, 0))
            entries = [_entry(line) for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [text for severe, text in entries if severe] or [text for _, text in entries]
        return " | ".join(text[:_WIDTH] for text in telling[-_LINES:])


def _port(line: bytes) -> int | None:
    """The port in the line that tells of it; a line that only looks like it has none."""
    if _LISTENING not in line:
        return None
    try:
        return int(json.loads(line)["attr"]["port"])
    except (ValueError, KeyError, TypeError):
        return None


def _entry(line: str) -> tuple[bool, str]:
    """Whether a line tells of a failure, and what it says."""
    try:
        record: Any = json.loads(line)
        attributes = record.get("attr")
        details = f" {json.dumps(attributes, ensure_ascii=False)}" if attributes else ""
        return record["s"] in ("F", "E"), record["msg"] + details
    except (ValueError, KeyError, TypeError, AttributeError):
        return True, line.strip()
