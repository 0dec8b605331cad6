"""Settings of a queue: lease, history, retries, dead queue, limits. Stored with it, so that all processes agree.

``QueueSettings`` defines each setting once: its name, type, default and check, and in the docstring what it means. All
that is stored, checked or shown as a form is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

from mongoq.data.arguments import DEAD_SUFFIX, choice, count, duration, queue_name
from mongoq.data.rate import EXAMPLE, Pace, make_pace, parse_rate
from mongoq.errors import ArgumentInvalid

DEFAULT_MAX_IN_SEQUENCE = 1
"""Items of one sequence that are handed out at a time, in a queue without the option."""

SettingsFrom = Literal["stored", "code"]
"""Source of the settings that win where code and stored settings differ."""
OnExpired = Literal["history", "dead"]
"""Where an item goes that was not started in time."""
OnDead = Literal["continue", "hold"]
"""What happens to a sequence whose item becomes a dead letter."""


class Default:
    """Type of ``DEFAULT``, which stands for an option that was not given."""

    def __repr__(self) -> str:
        """Return the name that signatures show."""
        return "DEFAULT"

    def __reduce__(self) -> str:
        """Return the name in this module, so that a pickle loads the same object."""
        return repr(self)


DEFAULT: Final = Default()


def only_given(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if not isinstance(value, Default)}


class _Keep(Default):
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Any = _Keep()
"""Stands for a payload or headers that stay as they are, and for the session of the block that a call is in."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings in effect for a queue.

    The ``check`` of a setting returns a value in the form used inside, given the value and the name of the setting.

    Attributes:
        name: name of the queue.
        lease: duration of a reservation unless ``reserve`` gives another.
        history: time that processed items are kept, or ``None`` to delete them.
        max_retries: runs after the first one before an item goes to the dead queue; ``None`` for no limit.
        dead: name of the queue for buried items, by default the name with ``.dead`` added; or ``None`` for no dead
            queue and no limit of retries. A dead queue has none itself: failures in it stay there.
        max_running: runs at a time, over the workers of all processes; ``None`` for no limit.
        rate: how many runs may start in a time: ``"100/m"``, ``"5/s"``, ``"1000/h"`` or ``"10/30s"``; ``None`` for no
            limit.
        burst: runs that may start at once under ``rate``; ``None`` for the default of the rate.
        max_in_sequence: number of items of one sequence that are handed out at a time: the ones pushed first. Above 1,
            these begin in the order of claims, by priority and date.
        on_expired: where an item goes that was not started by the time of ``push(expires=)``: ``"history"``,
            deleted where the queue keeps none, or ``"dead"``, the dead queue, with the reason ``"expired"``.
        on_dead: what happens to a sequence whose item becomes a dead letter: ``"continue"``, the next item follows, or
            ``"hold"``, no item follows until the letter is replayed, or has gone.
    """

    name: str
    lease: timedelta = field(default=timedelta(seconds=30), metadata={"check": partial(duration, zero=False)})
    history: timedelta | None = field(default=None, metadata={"check": partial(duration, zero=False)})
    max_retries: int | None = field(default=10, metadata={"check": partial(count, least=0)})
    dead: str | None = field(default=None, metadata={"check": queue_name})
    max_running: int | None = field(default=None, metadata={"check": count})
    rate: str | None = field(default=None, metadata={"check": lambda value, _option: parse_rate(value).text})
    burst: int | None = field(default=None, metadata={"check": count})
    max_in_sequence: int = field(default=DEFAULT_MAX_IN_SEQUENCE, metadata={"check": count})
    on_expired: OnExpired = field(default="history", metadata={"check": partial(choice, choices=OnExpired)})
    on_dead: OnDead = field(default="continue", metadata={"check": partial(choice, choices=OnDead)})

    @property
    def holds_sequences(self) -> bool:
        """True if a dead letter holds its sequence."""
        return self.on_dead == "hold"

    @property
    def buries_expired(self) -> bool:
        """True if items that were not started in time go to the dead queue."""
        return self.on_expired == "dead" and self.dead is not None

    @property
    def most_attempts(self) -> int | None:
        """Number of runs that an item gets in all; ``None`` for no limit."""
        return None if self.max_retries is None else self.max_retries + 1

    @property
    def is_limited(self) -> bool:
        """True if workers run the items of the queue within limits."""
        return self.max_running is not None or self.rate is not None

    def make_pace(self, *, exact: bool = False) -> Pace | None:
        """Return the slots of the rate; ``exact`` for a clock that stands still."""
        return None if self.rate is None else make_pace(self.rate, self.burst, exact=exact)

    def is_spent(self, attempts: int) -> bool:
        """Return whether an item with this number of runs has none left."""
        return self.max_retries is not None and attempts > self.max_retries


_FIELDS = {each.name: each for each in fields(QueueSettings) if each.metadata}
SETTINGS = tuple(_FIELDS)
"""Names of all settings of a queue."""
HELP: Mapping[str, str] = {
    "lease": "Duration of a reservation, such as 30s.",
    "history": "Time for which processed items are kept, such as 7d, or none.",
    "max_retries": "Further runs of an item after the first, or none for no limit.",
    "dead": "Queue of the dead letters, or none.",
    "max_running": "Runs at a time, over all workers, or none for no limit.",
    "rate": "Runs that may start in a time, such as 100/m, or none for no limit.",
    "burst": "Runs that may start at once under the rate, or none for its default.",
    "max_in_sequence": "Items of one sequence that are handed out at a time.",
    "on_expired": "Where items go that were not started in time; history deletes them where the queue keeps none.",
    "on_dead": "Whether the next item follows an item that dies; with hold none does until the letter has gone.",
}
"""Each setting in one sentence, for commands and the HTTP API; *none* stands for ``None``, or null."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Checked options of a handle; options that were not given are left out.

    Attributes:
        name: name of the queue.
        given: the given options, by name.
    """

    name: str
    given: Mapping[str, Any]


def queue_options(name: Any, **options: Any) -> QueueOptions:
    """Check the options of ``broker.queue``."""
    name = queue_name(name)
    values = check_options(name, **options)
    check_limit(name, values, dead=_default_dead(name))
    check_burst(values, rate=None)
    return QueueOptions(name, values)


def check_source(settings: Any) -> SettingsFrom:
    """Check the option ``settings`` of brokers and workers."""
    return choice(settings, "settings", SettingsFrom)  # type: ignore[no-any-return]


def check_limit(name: str, options: Mapping[str, Any], *, dead: str | None) -> None:
    """Refuse settings that need a dead queue for a queue without one; ``dead`` is its dead queue if none is given."""
    if options.get("dead", dead) is not None:
        return
    problem = f"queue {name!r} has no dead queue"
    if options.get("max_retries") is not None:
        raise ArgumentInvalid("max_retries", f"{problem} that could take what exceeds it")
    if options.get("on_expired") == "dead":
        raise ArgumentInvalid("on_expired", f"{problem} that could take expired items")
    if options.get("on_dead") == "hold":
        raise ArgumentInvalid("on_dead", f"{problem} whose letters could hold sequences")


def check_burst(options: Mapping[str, Any], *, rate: str | None) -> None:
    """Refuse a burst without a rate; ``rate`` is the rate of the queue unless one is given."""
    if options.get("burst") is not None and options.get("rate", rate) is None:
        raise ArgumentInvalid("burst", f"it goes with a rate, and there is none; give rate= as well: {EXAMPLE}")


def check_options(name: str, **options: Any) -> dict[str, Any]:
    """Return the given options, each in the form used inside; raises ``ArgumentInvalid``."""
    values = only_given(**options)
    if values.get("lease", ...) is None:
        del values["lease"]  # as if it was not given
    for option, value in values.items():
        setting = _FIELDS[option]
        if value is not None or "None" not in str(setting.type):
            values[option] = setting.metadata["check"](value, option)
    if values.get("dead") == name:
        raise ArgumentInvalid("dead", f"queue {name!r} cannot be its own dead queue")
    return values


def _default_dead(name: str) -> str | None:
    return None if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX


def resolve_settings(name: str, values: Mapping[str, Any]) -> QueueSettings:
    """Return the settings in effect: these values, and the defaults for the others."""
    values = {"dead": _default_dead(name), **values}
    if values["dead"] is None:
        # Without a dead queue an item cannot be buried, so its retries have no limit.
        values["max_retries"] = None
    return QueueSettings(name, **values)


def to_stored(value: Any) -> Any:
    """Return an option as it is stored: a duration as seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def from_stored(name: str, settings: Any) -> dict[str, Any]:
    """Return stored options in the form used inside; raises ``ArgumentInvalid`` for bad values of other programs.

    Options of a later mongoq, which this one does not know, are ignored.
    """
    if not isinstance(settings, Mapping):
        raise ArgumentInvalid("settings", f"a document, not {type(settings).__name__}")
    values = {option: settings[option] for option in SETTINGS if option in settings}
    # A shell writes every number as a float.
    whole = {k: int(value) for k, value in values.items() if isinstance(value, float) and value.is_integer()}
    return check_options(name, **(values | whole))
