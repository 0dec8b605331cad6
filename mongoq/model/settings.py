"""What a queue is told once: lease, history, retries, dead queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, Duration, count, duration, queue_name

__all__ = ["DEFAULT", "Default", "QueueSettings", "queue_settings"]

DEFAULT_LEASE = timedelta(seconds=30)
DEFAULT_MAX_RETRIES = 10


class Default:
    """The type of ``DEFAULT``, which stands for an option that was not given."""

    def __repr__(self) -> str:
        """Read well in signatures."""
        return "DEFAULT"


DEFAULT: Final = Default()


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The checked settings of one queue.

    Attributes:
        name: the queue.
        lease: how long a reservation lasts unless ``reserve`` says otherwise.
        history: how long processed items are kept, or ``None`` to delete them.
        max_retries: runs after the first one before an item is buried; ``None`` for no limit.
        dead: the queue that takes the buried, or ``None`` when this is a dead queue itself.
    """

    name: str
    lease: timedelta = DEFAULT_LEASE
    history: timedelta | None = None
    max_retries: int | None = DEFAULT_MAX_RETRIES
    dead: str | None = None

    @property
    def most_attempts(self) -> int | None:
        """How many runs an item gets in all, or ``None`` for no limit."""
        return None if self.max_retries is None else self.max_retries + 1


def queue_settings(
    name: Any,
    *,
    lease: Duration | None = None,
    history: Duration | None = None,
    max_retries: int | Default | None = DEFAULT,
    dead: str | Default | None = DEFAULT,
) -> QueueSettings:
    """Check the options of ``broker.queue`` and fill in what was not given."""
    name = queue_name(name)
    grave = _dead_queue(name, dead)
    if grave is None and isinstance(max_retries, int):
        raise ArgumentInvalid("max_retries", f"queue {name!r} has no dead queue that could take what exceeds it")
    return QueueSettings(
        name=name,
        lease=DEFAULT_LEASE if lease is None else duration(lease, "lease", zero=False),
        history=None if history is None else duration(history, "history", zero=False),
        max_retries=_max_retries(max_retries, grave),
        dead=grave,
    )


def _max_retries(value: int | Default | None, grave: str | None) -> int | None:
    if grave is None or value is None:
        return None
    return DEFAULT_MAX_RETRIES if isinstance(value, Default) else count(value, "max_retries", least=0)


def _dead_queue(name: str, dead: str | Default | None) -> str | None:
    if isinstance(dead, Default):
        return None if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX
    if dead is None:
        return None
    if queue_name(dead, "dead") == name:
        raise ArgumentInvalid("dead", f"queue {name!r} cannot be its own dead queue")
    return dead
