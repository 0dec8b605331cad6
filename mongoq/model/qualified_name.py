"""Names of parts of pipelines, of which no two are the same, whatever the pipelines and parts are called."""

from __future__ import annotations

__all__ = ["qualified"]


def qualified(pipeline: str, part: str, by: str) -> str:
    """Return the name of a part, behind that of its pipeline: in that one the separator and ``%`` are escaped."""
    escaped = pipeline.replace("%", "%25").replace(by, f"%{ord(by):X}")
    return f"{escaped}{by}{part}"
