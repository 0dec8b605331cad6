"""Settings of a queue: lease, history, retries, dead queue, limits. Stored with it, so that all processes agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, Duration, count, duration, queue_name
from mongoq.model.rate import EXAMPLE, Pace, make_pace, parse_rate

DEFAULT_LEASE = timedelta(seconds=30)
"""Lease of a queue without the option."""
DEFAULT_MAX_RETRIES = 10
"""Retries of a queue without the option."""

DEFAULT_MAX_IN_SEQUENCE = 1
"""Items of one sequence that are handed out at a time, in a queue without the option."""

SettingsFrom = Literal["stored", "code"]
"""Source of the settings that win where code and stored settings differ."""
OnExpired = Literal["history", "dead"]
"""Where an item goes that was not started in time."""
OnDead = Literal["continue", "hold"]
"""What happens to a sequence whose item becomes a dead letter."""
SETTINGS = (
    *("lease", "history", "max_retries", "dead", "max_running", "rate", "burst"),
    *("max_in_sequence", "on_expired", "on_dead"),
)
"""Names of all settings of a queue."""


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

    Attributes:
        name: name of the queue.
        lease: duration of a reservation unless ``reserve`` gives another.
        history: time that processed items are kept, or ``None`` to delete them.
        max_retries: runs after the first one before an item is buried; ``None`` for no limit.
        dead: name of the queue for buried items, or ``None`` for no dead queue, as for a dead queue itself.
        max_running: runs at a time, over the workers of all processes; ``None`` for no limit.
        rate: how many runs may start in a time, such as ``"100/m"``; ``None`` for no limit.
        burst: runs that may start at once under ``rate``; ``None`` for the default of the rate.
        max_in_sequence: number of items of one sequence that are handed out at a time.
        on_expired: where an item goes that was not started in time: ``"history"``, deleted where the queue keeps none,
            or ``"dead"``.
        on_dead: what happens to a sequence whose item becomes a dead letter: ``"continue"``, the next item follows, or
            ``"hold"``, no item follows until the letter is replayed, or has gone.
    """

    name: str
    lease: timedelta = DEFAULT_LEASE
    history: timedelta | None = None
    max_retries: int | None = DEFAULT_MAX_RETRIES
    dead: str | None = None
    max_running: int | None = None
    rate: str | None = None
    burst: int | None = None
    max_in_sequence: int = DEFAULT_MAX_IN_SEQUENCE
    on_expired: OnExpired = "history"
    on_dead: OnDead = "continue"

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
    if settings not in get_args(SettingsFrom):
        raise ArgumentInvalid("settings", f"'stored' or 'code', not {settings!r:.60}")
    return settings  # type: ignore[no-any-return]


def check_limit(name: str, options: Mapping[str, Any], *, dead: str | None) -> None:
    """Refuse settings that need a dead queue for a queue without one; ``dead`` is its dead queue if none is given."""
    if options.get("max_retries") is not None and options.get("dead", dead) is None:
        raise ArgumentInvalid("max_retries", f"queue {name!r} has no dead queue that could take what exceeds it")
    if options.get("on_expired") == "dead" and options.get("dead", dead) is None:
        raise ArgumentInvalid("on_expired", f"queue {name!r} has no dead queue that could take expired items")
    if options.get("on_dead") == "hold" and options.get("dead", dead) is None:
        raise ArgumentInvalid("on_dead", f"queue {name!r} has no dead queue whose letters could hold sequences")


def check_burst(options: Mapping[str, Any], *, rate: str | None) -> None:
    """Refuse a burst without a rate; ``rate`` is the rate of the queue unless one is given."""
    if options.get("burst") is not None and options.get("rate", rate) is None:
        raise ArgumentInvalid("burst", f"it goes with a rate, and there is none; give rate= as well: {EXAMPLE}")


def check_options(
    name: str,
    *,
    lease: Duration | Default | None = DEFAULT,
    history: Duration | Default | None = DEFAULT,
    max_retries: int | Default | None = DEFAULT,
    dead: str | Default | None = DEFAULT,
    max_running: int | Default | None = DEFAULT,
    rate: str | Default | None = DEFAULT,
    burst: int | Default | None = DEFAULT,
    max_in_sequence: int | Default = DEFAULT,
    on_expired: OnExpired | Default = DEFAULT,
    on_dead: OnDead | Default = DEFAULT,
) -> dict[str, Any]:
    """Return the given options, each in the form used inside; raises ``ArgumentInvalid``."""
    values: dict[str, Any] = {}
    if lease is not None and not isinstance(lease, Default):
        values["lease"] = duration(lease, "lease", zero=False)
    if not isinstance(history, Default):
        values["history"] = None if history is None else duration(history, "history", zero=False)
    if not isinstance(max_retries, Default):
        values["max_retries"] = None if max_retries is None else count(max_retries, "max_retries", least=0)
    if not isinstance(dead, Default):
        values["dead"] = None if dead is None else _dead_queue(name, dead)
    values |= _check_limits(max_running=max_running, rate=rate, burst=burst)
    if not isinstance(max_in_sequence, Default):
        values["max_in_sequence"] = count(max_in_sequence, "max_in_sequence", least=1)
    if not isinstance(on_expired, Default):
        if on_expired not in get_args(OnExpired):
            raise ArgumentInvalid("on_expired", f"'history' or 'dead', not {on_expired!r:.60}")
        values["on_expired"] = on_expired
    if not isinstance(on_dead, Default):
        if on_dead not in get_args(OnDead):
            raise ArgumentInvalid("on_dead", f"'continue' or 'hold', not {on_dead!r:.60}")
        values["on_dead"] = on_dead
    return values


def _check_limits(**limits: Any) -> dict[str, Any]:
    """Return the given limits of runs."""
    values = only_given(**limits)
    if values.get("rate") is not None:
        values["rate"] = parse_rate(values["rate"]).text
    for option, example in (("max_running", "max_running=8"), ("burst", "burst=10")):
        if values.get(option) is not None:
            values[option] = _limit(values[option], option, example)
    return values


def _limit(value: Any, option: str, example: str) -> int:
    try:
        return count(value, option)
    except ArgumentInvalid as error:
        raise ArgumentInvalid(option, f"{error.problem}; for example {example}, or None for no limit") from None


def _default_dead(name: str) -> str | None:
    return None if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX


def _dead_queue(name: str, dead: str) -> str:
    if queue_name(dead, "dead") == name:
        raise ArgumentInvalid("dead", f"queue {name!r} cannot be its own dead queue")
    return dead


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
    for option in ("max_retries", "max_in_sequence", "max_running", "burst"):
        number = values.get(option)
        # A shell writes every number as a float.
        if isinstance(number, float) and number.is_integer():
            values[option] = int(number)
    return check_options(name, **values)
