"""A model of queues in plain Python: what the documentation promises, and nothing of how mongoq does it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from tests.model.entry import Entry, Lost, Move, NoDeadQueue, Origin, Push, Rules, Run, Taken, Used

__all__ = ["QueueModel"]

Failure = tuple[str, str] | None


class QueueModel:
    """All queues of a collection, on a clock that the caller moves.

    Ids are the caller's. ``gone`` tells of each id that is no longer there what became of it; with ``pushed`` it is
    the ledger from which "nothing is lost" is proven.
    """

    def __init__(self, now: datetime, rules: dict[str, Rules]) -> None:
        self.now = now
        self.rules = rules
        self.entries: dict[Any, Entry] = {}
        self.pushed: set[Any] = set()
        self.gone: dict[Any, str] = {}
        self._numbers = count(1)

    # --- looking -------------------------------------------------------------------------------

    def of(self, queue: str, *states: str) -> list[Entry]:
        """The live items of a queue in the order of claims, all or those in some states."""
        entries = [entry for entry in self.entries.values() if entry.queue == queue and entry.when is not None]
        selected = [entry for entry in entries if not states or entry.state(self.now) in states]
        return sorted(selected, key=lambda entry: (entry.priority, entry.when, entry.id))

    def history(self, queue: str) -> list[Entry]:
        """What was processed and is kept, oldest first."""
        entries = [entry for entry in self.entries.values() if entry.queue == queue and entry.is_kept]
        return sorted(entries, key=lambda entry: (entry.processed, entry.id))

    def live(self, queue: str, key: str | None) -> Entry | None:
        """The live item that has a key."""
        return next((entry for entry in self.of(queue) if key is not None and entry.key == key), None)

    def eligible(self, queue: str) -> list[Entry]:
        return [] if self.rules[queue].paused else self.of(queue, "ready", "expired")

    def next_when(self, queue: str) -> datetime | None:
        return min((entry.when for entry in self.of(queue) if entry.when), default=None)

    def was_just_kept(self, id: Any) -> bool:
        return id in self.entries and self.entries[id].processed == self.now

    # --- pushing -------------------------------------------------------------------------------

    def push(
        self,
        queue: str,
        new: Push,
        id: Any,
        *,
        once: datetime | None = None,
        key: str | None = None,
        on_duplicate: str = "keep",
    ) -> Any:
        """Add an item; return the id of the one that stands for it."""
        if once is not None and id in self.entries:  # pushed before under this id, and perhaps done
            self._check_same(queue, id)
            return id
        if (there := self.live(queue, key)) is not None:
            if on_duplicate == "replace":
                self._replace(there, new)
            elif on_duplicate == "raise":
                raise Taken(there.id)
            return there.id
        entry = Entry(id, queue, new.payload, new.when, new.priority, key=key, headers=new.headers, once=once)
        self.add(replace(entry, into=None if once is None else queue))
        return id

    def _check_same(self, queue: str, id: Any) -> None:
        """The same push is one of the same id to the same queue, whatever became of its item since."""
        entry = self.entries[id]
        if entry.into != queue:
            raise Used(entry.queue, id)

    def add(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        self.pushed.add(entry.id)
        self.gone.pop(entry.id, None)

    def _replace(self, entry: Entry, new: Push) -> None:
        """Put a new payload in the place of an old one: it starts afresh, and nobody holds it."""
        fresh = Entry(entry.id, entry.queue, new.payload, new.when, new.priority, key=entry.key, headers=new.headers)
        self.entries[entry.id] = replace(fresh, once=entry.once, into=entry.into)

    # --- claims --------------------------------------------------------------------------------

    def reserve(self, queue: str, lease: timedelta | None = None) -> Run | None:
        while eligible := self.eligible(queue):
            if not self._is_buried(eligible[0]):
                return self._claimed(eligible[0], lease, in_batch=False)
        return None

    def reserve_many(self, queue: str, n: int, lease: timedelta | None = None) -> list[Run]:
        """Claim up to ``n``; what had all its runs, the last of them in a batch, gets one more, alone."""
        while eligible := self.eligible(queue)[:n]:
            live = [entry for entry in eligible if not self._is_buried(entry)]
            fresh = [entry for entry in live if not self.is_spent(entry)]
            suspects = [entry for entry in live if self.is_spent(entry)]
            if suspects and not fresh:
                return [self._claimed(suspects[0], lease, in_batch=False)]
            for entry in suspects:
                entry.when = self.now
            if fresh:
                return [self._claimed(entry, lease, in_batch=len(fresh) > 1) for entry in fresh]
        return []

    def pop(self, queue: str) -> Entry | None:
        """Take the first eligible item for good, which is a run of it as well."""
        while eligible := self.eligible(queue):
            entry = eligible[0]
            if not self._is_buried(entry):
                entry.attempts += 1
                popped = replace(entry)
                self._settle(entry, "popped")
                return popped
        return None

    def is_spent(self, entry: Entry) -> bool:
        most = self.rules[entry.queue].max_retries
        return most is not None and entry.attempts > most

    def _is_buried(self, entry: Entry) -> bool:
        most = self.rules[entry.queue].max_retries
        if most is None or not self.is_spent(entry) or entry.is_suspect:
            return False
        self._bury(entry, exhausted_reason(most + 1), None, attempts=most + 1)
        return True

    def _claimed(self, entry: Entry, lease: timedelta | None, *, in_batch: bool) -> Run:
        assert entry.when is not None
        run = Run(next(self._numbers), entry.id, entry.queue, entry.when)
        entry.when = self.now + (lease or self.rules[entry.queue].lease)
        entry.attempts += 1
        entry.holder, entry.batch = run.number, run.number if in_batch else entry.batch
        return run

    # --- settling ------------------------------------------------------------------------------

    def reserved_entry(self, run: Run) -> Entry:
        """The item, as long as this reservation holds it."""
        entry = self.entries.get(run.id)
        if entry is None or entry.holder != run.number:
            raise Lost
        return entry

    def commit(self, run: Run, *, payload: Any = ..., add: int | None = None) -> None:
        entry = self.reserved_entry(run)
        if add is not None and self.rules[entry.queue].history is not None:
            payload = entry.patched(add)
        if payload is not ...:
            entry.payload = payload
        self._settle(entry, "committed")

    def _settle(self, entry: Entry, how: str) -> None:
        """Keep it as history, or as a stub while its id is remembered, or not at all."""
        history = self.rules[entry.queue].history
        remembered = [entry.once] if entry.once is not None and entry.once > self.now else []
        ends = [*remembered, *([] if history is None else [self.now + history])]
        if not ends:
            self.drop(entry, how)
            return
        entry.when, entry.holder = None, None
        entry.processed, entry.expires, entry.is_stub = self.now, max(ends), history is None

    def drop(self, entry: Entry, how: str) -> None:
        del self.entries[entry.id]
        self.gone[entry.id] = how

    def rollback(self, run: Run, *, delay: timedelta, error: Failure) -> None:
        entry = self.reserved_entry(run)
        if self.is_spent(entry):
            self._bury(entry, exhausted_reason(entry.attempts), error)
            return
        entry.when, entry.holder, entry.error = self.now + delay, None, error or entry.error

    def release(self, run: Run) -> None:
        """Undo the reservation."""
        entry = self.reserved_entry(run)
        entry.when, entry.holder = run.due, None
        entry.attempts -= 1

    def extend(self, run: Run, lease: timedelta | None) -> None:
        entry = self.reserved_entry(run)
        entry.when = self.now + (lease or self.rules[entry.queue].lease)

    def move(self, run: Run, way: Move) -> None:
        """Hand on to another queue with a fresh budget; error and key stay behind."""
        entry = self.reserved_entry(run)
        payload = entry.payload if way.payload is ... else way.payload
        if way.add is not None:
            payload = entry.patched(way.add)
        there = self.live(way.to, way.key)
        if there is not None and there is not entry:
            raise Taken(there.id)
        entry.payload = payload
        if way.headers is not ...:
            entry.headers = way.headers
        if way.priority is not None:
            entry.priority = way.priority
        self.put(entry, way.to, way.when, way.key)

    def put(self, entry: Entry, queue: str, when: datetime, key: str | None) -> None:
        """Start afresh in a queue."""
        entry.queue, entry.when, entry.key = queue, when, key
        entry.holder, entry.attempts, entry.error, entry.batch = None, 0, None, None

    def bury(self, run: Run, *, reason: str | None, error: Failure) -> None:
        entry = self.reserved_entry(run)
        if self.rules[entry.queue].dead is None:
            raise NoDeadQueue
        self._bury(entry, reason or (error[1] if error else "") or "buried", error)

    def _bury(self, entry: Entry, reason: str, error: Failure, attempts: int | None = None) -> None:
        dead, ran = self.rules[entry.queue].dead, entry.attempts if attempts is None else attempts
        assert dead is not None
        entry.origin = Origin(entry.queue, entry.id, reason, ran, entry.key, self.now)
        failure = error or entry.error
        self.put(entry, dead, self.now, None)
        entry.error = failure

    # --- throwing away -------------------------------------------------------------------------

    def remove(self, queue: str, id: Any) -> bool:
        entry = self.entries.get(id)
        if entry is None or entry.queue != queue or entry.is_held(self.now):
            return False
        self.drop(entry, "removed")
        return True

    def purge(self, queue: str, state: str | None) -> int:
        if state == "processed":
            return self._drop_all(self.history(queue), "purged")
        states = (state,) if state else ("ready", "scheduled", "expired")
        return self._drop_all(self.of(queue, *states), "purged")

    def sweep(self) -> int:
        """Delete what is kept no longer, as the TTL index does."""
        over = [entry for entry in self.entries.values() if entry.expires is not None and entry.expires <= self.now]
        return self._drop_all(over, "expired")

    def _drop_all(self, entries: Iterable[Entry], how: str) -> int:
        dropped = list(entries)
        for entry in dropped:
            self.drop(entry, how)
        return len(dropped)

    def keep_for(self, queue: str, history: timedelta | None) -> None:
        """Let a retention hold for what is kept already."""
        for entry in self.history(queue):
            assert entry.processed is not None
            ends = [entry.processed + (history or timedelta(0)), *([entry.once] if entry.once else [])]
            entry.expires = max(ends)


def exhausted_reason(attempts: int) -> str:
    """Say why an item is buried that may not run again, after so many runs."""
    return "retries exhausted" if attempts > 1 else "failed, no retries allowed"
