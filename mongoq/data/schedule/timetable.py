"""Timetables: the dates of a schedule, by a cron expression, an interval, or one date.

Ticks are a function of the timetable alone, never of the last run: every process computes the same dates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from mongoq.data.arguments import duration, moment
from mongoq.data.clock import EPOCH, MILLISECOND
from mongoq.errors import ArgumentInvalid

Missed = Literal["last", "all", "skip"]
"""What becomes of ticks that no process was there for."""

CRON_FIELDS = {"minute": 60, "hour": 24, "day-of-month": 31, "month": 12, "day-of-week": 7}
"""Names of the fields, and how many values each has."""
CRON_EXAMPLE = "such as '0 6 * * 1-5', 6:00 from Monday to Friday"
MAX_CRON_LETTERS = 200
MIN_EVERY = timedelta(seconds=1)
"""Shortest interval: a worker looks for due schedules, it does not spin."""
MAX_TICKS = 100
"""Ticks of one schedule that are made together, at most: the others follow at once, after those of other schedules."""
DEFAULT_HORIZON = timedelta(days=1)
"""How far back ``missed="all"`` makes ticks by default."""
LATE = timedelta(minutes=1)
"""Lateness from which on a tick counts as missed: a worker looks every few seconds."""
OFFSET_NAME = re.compile(r"(?:UTC|GMT)(?P<sign>[+-])(?P<hours>[0-9]{1,2})", re.IGNORECASE)
"""How people write a fixed offset."""
MACHINE_ZONES = frozenset({"localtime", "Factory"})
"""Names that some systems list as zones, and that mean another zone on each machine, or none."""
CLOCK_CHANGE = timedelta(hours=3)
"""Time for which a change of the clocks can mislead cronsim, and by which new rules of a zone move a tick: longer than
any change but one of the date line."""
CRONSIM_HINT = "cron expressions need cronsim: install mongoq-driver[schedules] (pip install '.[schedules]')"


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at a fixed distance, from a fixed origin on.

    Attributes:
        length: the distance.
        start: the first tick, and origin of the others.
    """

    length: timedelta
    start: datetime = EPOCH

    def after(self, time: datetime) -> datetime | None:
        """Return the first tick after a time."""
        number = max((time - self.start) // self.length + 1, 0)
        try:
            return self.start + number * self.length
        except OverflowError:
            return None

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick up to now."""
        # Before the origin there is no tick, also if ``first`` is one of an earlier definition.
        number = (now - self.start) // self.length
        return first if number < 0 else max(first, self.start + number * self.length)

    def to_stored(self) -> dict[str, Any]:
        """Return the distance in seconds, and the origin."""
        return {"every": self.length.total_seconds(), "start": self.start}

    def __str__(self) -> str:
        """Return the distance, and the origin unless it is the default."""
        origin = "" if self.start == EPOCH else f" from {self.start.isoformat(timespec='seconds')}"
        return f"every {self.length.total_seconds():g} s{origin}"


@dataclass(frozen=True, slots=True)
class Single:
    """One tick.

    Attributes:
        at: its time.
    """

    at: datetime

    def after(self, time: datetime) -> datetime | None:
        """Return the tick, unless it is over."""
        return self.at if self.at > time else None

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the tick if it is due by now."""
        return max(first, self.at) if self.at <= now else first

    def to_stored(self) -> dict[str, Any]:
        """Return the date."""
        return {"at": self.at}

    def __str__(self) -> str:
        """Return the date."""
        return f"at {self.at.isoformat(timespec='seconds')}"


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks by a cron expression of five fields, in the local time of a zone.

    Attributes:
        expression: the five fields.
        timezone: name of the zone.
    """

    expression: str
    timezone: str

    def after(self, time: datetime) -> datetime | None:
        """Return the first tick after a time; raises ``ModuleNotFoundError`` without cronsim."""
        try:
            zone = ZoneInfo(self.timezone)
            start, earlier = time.astimezone(zone), (time - CLOCK_CHANGE).astimezone(zone)
            # Asked just behind a change of the clocks, cronsim 2.8 may begin at a local time that does not exist, and
            # skip a tick (Pacific/Chatham), or go back into an hour that comes twice: ask from before the change.
            for tick in _cron_ticks(self.expression, start if start.utcoffset() == earlier.utcoffset() else earlier):
                utc: datetime = tick.astimezone(UTC)
                if utc > time:
                    return utc
        except OverflowError:  # beyond the year 9999, in the zone or in UTC
            return None
        return None

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick up to now, found by looking forward from ever earlier times."""
        back = timedelta(minutes=1)
        while True:
            since = max(first, now - back)
            tick = self.after(since)
            if tick is not None and tick <= now:
                break
            if since == first:
                return first
            back *= 2
        while (following := self.after(tick)) is not None and following <= now:
            tick = following
        return tick

    def to_stored(self) -> dict[str, Any]:
        """Return the expression and the name of the zone."""
        return {"cron": self.expression, "timezone": self.timezone}

    def __str__(self) -> str:
        """Return the expression and the zone."""
        return f"cron {self.expression} {self.timezone}"


Timetable = Every | Single | Cron
"""Dates of the ticks of a schedule, in order: the first one ``after`` a time, and the ``latest`` one up to a time."""


def _cron_ticks(expression: str, start: datetime) -> Any:
    try:
        from cronsim import CronSim
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(CRONSIM_HINT, name="cronsim") from error
    return CronSim(expression, start)


# --- from arguments ------------------------------------------------------------------------------


def timetable(*, cron: Any, every: Any, at: Any, timezone: Any, start: Any = None) -> Timetable:
    """Check the arguments that say when a schedule ticks; exactly one of ``cron``, ``every`` and ``at``."""
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) != 1:
        problem = "give one of cron=, every= and at="
        raise ArgumentInvalid(given[1] if given else "cron", f"{problem}, such as cron='0 6 * * *' or every=60")
    if timezone is not None and cron is None:
        raise ArgumentInvalid("timezone", f"belongs to cron=; {given[0]}= needs none")
    if start is not None and every is None:
        raise ArgumentInvalid("start", f"is the origin of every=; {given[0]}= needs none")
    if cron is not None:
        return check_cron(cron, timezone)
    if every is not None:
        return Every(_interval(every), EPOCH if start is None else moment(start, "start"))
    return Single(moment(at, "at"))


def _interval(every: Any) -> timedelta:
    """Return the distance of two ticks: a second or longer."""
    example = "such as 60 (seconds) or '1h'"
    try:
        length = duration(every, "every")
    except ArgumentInvalid as error:
        raise ArgumentInvalid("every", f"{error.problem}; {example}") from error
    if length < MIN_EVERY:
        raise ArgumentInvalid("every", f"must be a second or longer, {example}: {every!r}")
    return length


def check_cron(expression: Any, timezone: Any) -> Cron:
    """Check an expression and its zone; the error names the wrong part.

    Raises:
        ArgumentInvalid: a field or the zone cannot be used, or the expression never fires.
        ModuleNotFoundError: cronsim is not installed.
    """
    if not isinstance(expression, str) or len(expression) > MAX_CRON_LETTERS:
        raise ArgumentInvalid("cron", f"a text of five fields, {CRON_EXAMPLE}, not {expression!r:.60}")
    fields = expression.split()
    if len(fields) != len(CRON_FIELDS):
        count = f"{len(fields)} field{'s' * (len(fields) != 1)}"
        problem = f"{expression!r} has {count}, and five are needed: {' '.join(CRON_FIELDS)}"
        raise ArgumentInvalid("cron", f"{problem}; {CRON_EXAMPLE}")
    cron = Cron(" ".join(fields), check_timezone(timezone))
    for place, ((name, values), field) in enumerate(zip(CRON_FIELDS.items(), fields, strict=True)):
        steps = [int(step) for part in field.split(",") if (step := part.partition("/")[2]).isdecimal()]
        if any(step >= values for step in steps):
            problem = f"the field {name} of {expression!r} has {values} values, and a step of {max(steps)} leaves one"
            raise ArgumentInvalid("cron", f"{problem}; for longer intervals use every=, such as every='90m'")
        alone = ["*"] * len(fields)
        alone[place] = field
        if not _is_usable(" ".join(alone)):
            problem = f"the field {name} of {expression!r} cannot be used: {field!r}"
            raise ArgumentInvalid("cron", f"{problem}; an expression has five fields, {CRON_EXAMPLE}")
    if not _is_usable(cron.expression) or cron.after(EPOCH) is None:
        problem = f"{expression!r} never fires: no month that it names has such a day"
        raise ArgumentInvalid("cron", f"{problem}; '0 0 L * *' is the last day of each month")
    return cron


def _is_usable(expression: str) -> bool:
    """Return whether the library takes an expression; odd ones make it fail with errors of any type."""
    try:
        _cron_ticks(expression, EPOCH)
    except ModuleNotFoundError:
        raise
    except Exception:
        return False
    return True


def check_timezone(timezone: Any) -> str:
    """Return the name of a zone; the error names the nearest ones."""
    if timezone is None:
        problem = "cron= needs a zone, since servers and laptops differ in theirs"
        raise ArgumentInvalid("timezone", f"{problem}: such as 'Europe/Berlin', or 'UTC'")
    name = timezone.key if isinstance(timezone, ZoneInfo) else timezone
    if not isinstance(name, str):
        raise ArgumentInvalid("timezone", f"the name of a zone, such as 'Europe/Berlin', not {timezone!r:.60}")
    # Not by trying it: on some systems the name of a folder, or in other letters, opens something as well.
    names = available_timezones() - MACHINE_ZONES
    if name not in names:
        by_letters = {each.lower(): each for each in sorted(names)}
        nearest = [by_letters[each] for each in get_close_matches(name.lower(), by_letters, 3, 0.5)]
        hint = f"the nearest are {', '.join(map(repr, nearest))}" if nearest else "such as 'Europe/Berlin', or 'UTC'"
        if offset := OFFSET_NAME.fullmatch(name):
            opposite = "-" if offset["sign"] == "+" else "+"
            hint = f"that is 'Etc/GMT{opposite}{int(offset['hours'])}', with the opposite sign (POSIX)"
        raise ArgumentInvalid("timezone", f"there is no zone {name[:60]!r}; {hint}")
    return name


# --- from the collection -------------------------------------------------------------------------


def from_stored(stored: Any) -> Timetable:
    """Return a timetable as it is stored, unchecked but for its types.

    Raises:
        ValueError: another program has written it.
    """
    if isinstance(stored, Mapping):
        cron, zone, every, at = (stored.get(name) for name in ("cron", "timezone", "every", "at"))
        if isinstance(cron, str) and isinstance(zone, str):
            return Cron(cron, zone)
        if isinstance(every, int | float) and isinstance(start := stored.get("start"), datetime):
            return Every(_interval(every), start)
        if isinstance(at, datetime):
            return Single(at)
    raise ValueError(f"it does not say when it ticks: {stored!r:.100}")


# --- rules of time zones -------------------------------------------------------------------------


def adapt_tick(table: Timetable, due: datetime, now: datetime) -> datetime:
    """Return the tick that comes instead of the stored one by this process's rules of time zones.

    It is the stored one if the rules agree, and the first one near it that is not over otherwise. A stored tick that is
    due moves forward only: one that comes too early is made at its time, and one that comes too late at once.
    """
    if not isinstance(table, Cron) or table.after(due - MILLISECOND) == due:
        return due
    tick = table.after(min(due, max(now, due - CLOCK_CHANGE)))
    return due if tick is None or tick - due > CLOCK_CHANGE else tick


# --- missed ticks --------------------------------------------------------------------------------


def select_ticks(
    table: Timetable, first: datetime, now: datetime, missed: Missed, horizon: timedelta | None
) -> tuple[list[datetime], datetime | None]:
    """Return the ticks to make now, oldest first, and the tick that comes after them.

    None are made if the first one is yet to come.

    Args:
        table: the timetable.
        first: the next tick that is due, by the stored document.
        now: the server's time.
        missed: the rule for several due ticks.
        horizon: how far back ticks are made; ``None`` for the default of the rule.
    """
    if first > now:
        return [], first
    if missed == "all":
        oldest = now - (DEFAULT_HORIZON if horizon is None else horizon)
        tick = first if first >= oldest else table.after(oldest - MILLISECOND)
        ticks: list[datetime] = []
        while tick is not None and tick <= now and len(ticks) < MAX_TICKS:
            ticks.append(tick)
            tick = table.after(tick)
        return ticks, tick
    latest = table.latest(first, now)
    limit = LATE if missed == "skip" else horizon
    ticks = [latest] if limit is None or now - latest <= limit else []
    return ticks, table.after(latest)
