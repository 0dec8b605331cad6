"""Health of a broker or a worker, as probes and callers see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a check.

    Attributes:
        healthy: True if the broker can work, or the worker does.
        reasons: what is wrong, a sentence each; empty if it is healthy. Without credentials and payloads.
        notes: what is worth knowing and makes nothing unhealthy, such as the last outage.
    """

    healthy: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, reasons: Iterable[str], notes: Iterable[str] = ()) -> Self:
        """Return the health with these reasons; healthy without any."""
        listed = tuple(reasons)
        return cls(not listed, listed, tuple(notes))

    def to_document(self) -> dict[str, Any]:
        """Return the health as values of JSON."""
        return {"healthy": self.healthy, "reasons": list(self.reasons), "notes": list(self.notes)}
