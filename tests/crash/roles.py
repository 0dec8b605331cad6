"""What the processes do."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.producer import produce
from tests.crash.worker import work

__all__ = ["ROLES"]

ROLES: dict[str, Callable[..., None]] = {"produce": produce, "work": work}
