"""Names of parts of pipelines; each pair of pipeline and part has a different name."""

from __future__ import annotations

__all__ = ["qualified"]


def qualified(pipeline: str, part: str, by: str) -> str:
    """Return the name of a pipeline and a part; in the pipeline's name the separator and ``%`` are escaped."""
    escaped = pipeline.replace("%", "%25").replace(by, f"%{ord(by):X}")
    return f"{escaped}{by}{part}"
