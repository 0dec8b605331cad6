"""What the processes of a campaign on sequences do."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.ordered.consumer import consume
from tests.crash.ordered.decider import decide_letters
from tests.crash.ordered.producer import produce

__all__ = ["ROLES"]

ROLES: dict[str, Callable[..., None]] = {"produce": produce, "consume": consume, "decide": decide_letters}
