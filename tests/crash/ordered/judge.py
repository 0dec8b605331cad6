"""What must hold of sequences, whatever was killed; judged by the ledger alone. Each claim yields what breaks it.

Times in the ledger enclose what the server did: ``push`` before and ``pushed`` after a push, ``began`` after a claim,
``ended`` before a settlement, ``pop`` before and ``popped`` after a pop. An order is claimed only where these times
tell it: of two pushes of which one was acknowledged before the other one began.

In a queue that holds, a letter is over when it was taken away for good, at some time since ``remove``; and one that was
replayed when its last run was over.

A run counts up to the end of its lease, as its holder knew it. After that the item belongs to another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.crash.ordered.line import MAX_RETRIES
from tests.crash.ordered.notes import Note

__all__ = ["MARGIN", "Story", "broken", "expired", "figures", "lost", "out_of_order", "overlapping", "unfenced"]

MARGIN = 0.1
"""Seconds by which a holder may know the end of its lease too late."""


@dataclass(slots=True)
class Run:
    """A run of an item, or its pop.

    Attributes:
        who: the process.
        began: a moment after the claim.
        over: a moment before the item was free again: the end of the work, the kill, or the end of the lease.
        outcome: ``done``, ``fail``, ``popped``, or ``None`` for a run that has not ended.
    """

    who: int
    began: float
    over: float
    outcome: str | None = None


@dataclass(slots=True)
class Life:
    """All that the ledger says of an item.

    Attributes:
        serial: its name.
        sequence: its sequence.
        tried: a moment before its push.
        pushed: a moment after the push was acknowledged.
        runs: its runs in the order of their beginnings, without those that began after the end of their lease.
        late: how many of these there were.
        settled: a moment after a commit was acknowledged.
        removals: moments before the letter was taken away; there are several if the first ones failed.
        removed: a moment after that was acknowledged.
        replays: how many replays of the letter were acknowledged.
        expires: whether it had to be started in time.
    """

    serial: str
    sequence: str
    tried: float
    pushed: float | None = None
    runs: list[Run] = field(default_factory=list)
    late: int = 0
    settled: float | None = None
    removals: list[float] = field(default_factory=list)
    removed: float | None = None
    replays: int = 0
    expires: bool = False


class Story:
    """The ledger, item by item.

    Attributes:
        lives: the items by their names.
        foreign: names of items that were handed out and never pushed.
        open_pops: how many pops were interrupted: each may have taken one item.
        kills: how many processes were killed.
        dead: names of the items that the dead queue holds in the end, without the expired ones.
        expired: names of those that were not started in time.
        holds: letters hold their sequences.
    """

    def __init__(
        self, notes: Sequence[Note], dead: Sequence[str] = (), expired: Sequence[str] = (), *, holds: bool = False
    ) -> None:
        self.lives: dict[str, Life] = {}
        self.foreign: list[str] = []
        self.dead, self.expired, self.holds = set(dead), set(expired), holds
        self.kills = sum(note.kind == "killed" for note in notes)
        self.handed = sum(note.handed for note in notes)
        self._running: dict[tuple[int, str], Run] = {}
        self._pops: dict[int, float] = {}
        self.open_pops = 0
        for note in notes:
            self._add(note)
        self.open_pops += len(self._pops)

    def _add(self, note: Note) -> None:
        match note.kind:
            case "push":
                assert note.sequence is not None
                self.lives[note.serials[0]] = Life(note.serials[0], note.sequence, note.at, expires=note.expires)
            case "pop":
                self._pops[note.who] = note.at
            case "broken":
                del self._pops[note.who]
                self.open_pops += 1
            case "killed":
                self._end_all(note)
            case "popped":
                since = self._pops.pop(note.who)
                for life in self._known(note):
                    # What it takes is free for others as soon as it was taken: at some time since ``pop``.
                    life.runs.append(Run(note.who, note.at, since, "popped"))
            case _:
                for life in self._known(note):
                    self._add_to(life, note)

    def _known(self, note: Note) -> list[Life]:
        self.foreign += [serial for serial in note.serials if serial not in self.lives]
        return [self.lives[serial] for serial in note.serials if serial in self.lives]

    def _add_to(self, life: Life, note: Note) -> None:
        match note.kind:
            case "pushed":
                life.pushed = note.at
            case "settled":
                life.settled = note.at
            case "remove" | "removed" | "replayed":
                _decide(life, note)
            case "began":
                assert note.until is not None
                if note.sequence != life.sequence:
                    self.foreign.append(life.serial)
                if note.until - MARGIN <= note.at:
                    life.late += 1
                    return
                run = Run(note.who, note.at, note.until - MARGIN)
                life.runs.append(run)
                self._running[note.who, life.serial] = run
            case "ended":
                run_ended = self._running.pop((note.who, life.serial), None)
                if run_ended is not None:
                    run_ended.over = min(run_ended.over, note.at)
                    run_ended.outcome = note.outcome

    def _end_all(self, note: Note) -> None:
        for key in [key for key in self._running if key[0] == note.who]:
            run = self._running.pop(key)
            run.over = min(run.over, note.at)
        if self._pops.pop(note.who, None) is not None:
            self.open_pops += 1

    def over(self, life: Life) -> float:
        """Return a moment before the items behind an item with runs were free to begin."""
        over = max((run.over for run in life.runs), default=float("-inf"))
        if not self.holds or any(run.outcome in ("done", "popped") for run in life.runs):
            return over
        if life.serial in self.dead:
            return float("inf")
        # A removal before its last run has failed. One whose reply was lost may have been the one.
        return next((at for at in life.removals if at > over), over)

    def sequences(self) -> dict[str, list[Life]]:
        """Return the items of each sequence, in the order in which their pushes began."""
        sequences = defaultdict(list)
        for life in self.lives.values():
            sequences[life.sequence].append(life)
        return sequences


def _decide(life: Life, note: Note) -> None:
    """Add what a process has decided about a dead letter."""
    if note.kind == "remove":
        life.removals.append(note.at)
    elif note.kind == "removed":
        life.removed = note.at
    else:
        life.replays += 1


def broken(story: Story) -> list[str]:
    """Return what breaks any of the claims."""
    return [*lost(story), *unfenced(story), *overlapping(story), *out_of_order(story), *expired(story)]


def lost(story: Story) -> Iterator[str]:
    """Every acknowledged push was done, has died after all its runs, or was taken by a pop that was interrupted.

    One that has died may have been taken away.
    """
    missing = []
    for life in story.lives.values():
        is_done = any(run.outcome in ("done", "popped") for run in life.runs)
        if life.serial in story.dead:
            if len(life.runs) + life.late + story.kills <= MAX_RETRIES:
                yield f"{life.serial} is dead after {len(life.runs)} runs"
        elif life.serial in story.expired or life.removals:
            continue
        elif not is_done and (life.pushed is not None or life.runs):
            missing.append(life)
    if len(missing) > story.open_pops:
        yield f"{len(missing)} items are lost, and {story.open_pops} pops were interrupted, such as {missing[:3]}"


def expired(story: Story) -> Iterator[str]:
    """Only items with a time expire, and none that was handed out."""
    for serial in story.expired:
        life = story.lives.get(serial)
        if life is None or not life.expires:
            yield f"{serial} has expired, and had no time"
        elif life.runs or life.late:
            yield f"{serial} was handed out, and has expired"


def unfenced(story: Story) -> Iterator[str]:
    """Nothing runs again after its commit was acknowledged, or after it was popped; nothing comes from nowhere."""
    for serial in story.foreign:
        yield f"{serial} was never pushed to where it was handed out"
    for life in story.lives.values():
        if life.settled is not None and any(run.began > life.settled for run in life.runs):
            yield f"{life.serial} ran again after its commit"
        if life.removed is not None and any(run.began > life.removed for run in life.runs):
            yield f"{life.serial} ran again after it was taken away"
        popped = [run for run in life.runs if run.outcome == "popped"]
        if len(popped) > 1 or any(run.began > each.began for each in popped for run in life.runs):
            yield f"{life.serial} was handed out again after it was popped"


def overlapping(story: Story) -> Iterator[str]:
    """At no time are two items of a sequence in the hands of consumers."""
    for sequence, lives in story.sequences().items():
        runs = sorted(
            ((run, life) for life in lives for run in life.runs if run.outcome != "popped"),
            key=lambda pair: pair[0].began,
        )
        latest: tuple[Run, Life] | None = None
        for run, life in runs:
            if latest is not None and run.began < latest[0].over:
                early = latest[0].over - run.began
                yield f"{sequence}: {life.serial} began {early:.3f} s before {latest[1].serial} was over"
            if latest is None or run.over > latest[0].over:
                latest = run, life


def out_of_order(story: Story) -> Iterator[str]:
    """An item comes after all that were pushed to its sequence before it, and after all their runs, failed or not."""
    for sequence, lives in story.sequences().items():
        # A letter that was taken away without a run was not started in time.
        gone = [life for life in lives if story.holds and life.removals and not life.runs]
        started = sorted((life for life in lives if life.runs), key=lambda life: life.tried)
        acknowledged = sorted(
            (life for life in [*started, *gone] if life.pushed is not None), key=lambda life: life.pushed or 0.0
        )
        place, last, holder = 0, float("-inf"), ""
        for life in started:
            while place < len(acknowledged) and (acknowledged[place].pushed or 0.0) < life.tried:
                over = story.over(acknowledged[place])
                if over > last:
                    last, holder = over, acknowledged[place].serial
                place += 1
            if life.runs[0].began < last:
                yield f"{sequence}: {life.serial} began before {holder}, which was pushed earlier, was over"


def figures(story: Story) -> dict[str, int]:
    """Return how much of everything there was, so that a campaign in which nothing happened is seen."""
    runs = [run for life in story.lives.values() for run in life.runs]
    outcomes = Counter(run.outcome for run in runs)
    return {
        "sequences": len(story.sequences()),
        "pushes": len(story.lives),
        "acknowledged": sum(life.pushed is not None for life in story.lives.values()),
        "done": outcomes["done"],
        "handed over": story.handed,
        "popped": outcomes["popped"],
        "failed": outcomes["fail"],
        "interrupted runs": outcomes[None],
        "repeated": sum(len(life.runs) > 1 for life in story.lives.values()),
        "late": sum(life.late for life in story.lives.values()),
        "dead": len(story.dead),
        "replayed": sum(life.replays for life in story.lives.values()),
        "removed": sum(life.removed is not None for life in story.lives.values()),
        "expired": len(story.expired),
        "interrupted pops": story.open_pops,
        "kills": story.kills,
    }
