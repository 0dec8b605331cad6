"""What a queue is told once: lease, history, retries, dead queue. Kept with the queue, so that all processes agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, Duration, count, duration, queue_name

__all__ = [
    "DEFAULT",
    "KEEP",
    "Default",
    "QueueOptions",
    "QueueSettings",
    "SettingsFrom",
    "check_limit",
    "checked_options",
    "checked_source",
    "from_stored",
    "given",
    "queue_options",
    "resolved",
    "to_stored",
]

DEFAULT_LEASE = timedelta(seconds=30)
DEFAULT_MAX_RETRIES = 10

SettingsFrom = Literal["stored", "code"]
"""Which settings win where those given in code differ from those that are stored."""


class Default:
    """The type of ``DEFAULT``, which stands for an option that was not given."""

    def __repr__(self) -> str:
        """Read well in signatures."""
        return "DEFAULT"

    def __reduce__(self) -> str:
        """Pickle as the one there is: its name in this module."""
        return repr(self)


DEFAULT: Final = Default()


def given(**options: Any) -> dict[str, Any]:
    """Return those options that were given."""
    return {name: value for name, value in options.items() if not isinstance(value, Default)}


class _Keep(Default):
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Any = _Keep()
"""Stands for a payload or headers that stay as they are."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings that hold for a queue.

    Attributes:
        name: the queue.
        lease: how long a reservation lasts unless ``reserve`` says otherwise.
        history: how long processed items are kept, or ``None`` to delete them.
        max_retries: runs after the first one before an item is buried; ``None`` for no limit.
        dead: the queue that takes the buried, or ``None`` when there is none, as of a dead queue itself.
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

    def is_spent(self, attempts: int) -> bool:
        """Say whether so many runs are all that an item gets."""
        return self.max_retries is not None and attempts > self.max_retries


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a handle was told, checked; options that were not given are left out."""

    name: str
    given: Mapping[str, Any]


def queue_options(name: Any, **options: Any) -> QueueOptions:
    """Check the options of ``broker.queue``."""
    name = queue_name(name)
    given = checked_options(name, **options)
    check_limit(name, given, dead=_default_dead(name))
    return QueueOptions(name, given)


def checked_source(settings: Any) -> SettingsFrom:
    """Check the option ``settings`` of brokers and workers."""
    if settings not in get_args(SettingsFrom):
        raise ArgumentInvalid("settings", f"'stored' or 'code', not {settings!r:.60}")
    return settings  # type: ignore[no-any-return]


def check_limit(name: str, given: Mapping[str, Any], *, dead: str | None) -> None:
    """Refuse a limit of retries for a queue that has no dead queue, given now or else ``dead``."""
    if given.get("max_retries") is not None and given.get("dead", dead) is None:
        raise ArgumentInvalid("max_retries", f"queue {name!r} has no dead queue that could take what exceeds it")


def checked_options(
    name: str,
    *,
    lease: Duration | Default | None = DEFAULT,
    history: Duration | Default | None = DEFAULT,
    max_retries: int | Default | None = DEFAULT,
    dead: str | Default | None = DEFAULT,
) -> dict[str, Any]:
    """Return those options that were given, each in the one form used inside; raises ``ArgumentInvalid``."""
    given: dict[str, Any] = {}
    if lease is not None and not isinstance(lease, Default):
        given["lease"] = duration(lease, "lease", zero=False)
    if not isinstance(history, Default):
        given["history"] = None if history is None else duration(history, "history", zero=False)
    if not isinstance(max_retries, Default):
        given["max_retries"] = None if max_retries is None else count(max_retries, "max_retries", least=0)
    if not isinstance(dead, Default):
        given["dead"] = None if dead is None else _dead_queue(name, dead)
    return given


def _default_dead(name: str) -> str | None:
    return None if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX


def _dead_queue(name: str, dead: str) -> str:
    if queue_name(dead, "dead") == name:
        raise ArgumentInvalid("dead", f"queue {name!r} cannot be its own dead queue")
    return dead


def resolved(options: QueueOptions, stored: Mapping[str, Any]) -> QueueSettings:
    """Return the settings that hold: what is stored, else what the handle was told, else the defaults."""
    values = {"dead": _default_dead(options.name), **options.given, **stored}
    if values["dead"] is None:
        values["max_retries"] = None
    return QueueSettings(options.name, **values)


def to_stored(value: Any) -> Any:
    """Return an option as it is stored: a length of time as seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def from_stored(name: str, settings: Any) -> dict[str, Any]:
    """Return stored options in the form used inside; raises ``ArgumentInvalid`` for what some other program wrote.

    Options of a later mongoq, which this one does not know, are left alone.
    """
    if not isinstance(settings, Mapping):
        raise ArgumentInvalid("settings", f"a document, not {type(settings).__name__}")
    known = {option: settings[option] for option in ("lease", "history", "max_retries", "dead") if option in settings}
    most = known.get("max_retries")
    if isinstance(most, float) and most.is_integer():  # a shell writes every number so
        known["max_retries"] = int(most)
    return checked_options(name, **known)
