"""Sequences behave as a model of them does, whatever happens to their items in whatever order.

The model knows of each sequence its items in their order, which of them are first,
who has reserved them, and which dead letters hold it. After each step all that is stored is compared with it: places,
heads, control documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import mongoq
from tests.model.runs import SEED, run_histories

START = datetime.fromisoformat("2126-01-01T00:00:00+00:00")
"""Far away: the server's TTL monitor goes by its own clock."""
LEASE = 10
QUEUES = st.sampled_from(["one", "two"])
NAMES = ["a", "$b.c", "sequence:one:x"]
SEQUENCES = st.sampled_from([None, *NAMES])
DELAYS = st.sampled_from([None, 5])
TIMES = st.sampled_from([None, None, 6])


@dataclass(eq=False)
class Entry:
    """An item as the model has it; ``item`` is the last reservation of it.

    ``order`` is its place among all items of its sequence. A letter that ``holds`` keeps it. It has expired once its
    ``start_by`` is over; a claim that starts it removes that.
    """

    number: int
    queue: str
    sequence: str | None
    due: datetime
    order: int = 0
    head: bool = False
    holds: bool = False
    item: Any = None
    start_by: datetime | None = None

    def is_eligible(self, now: datetime) -> bool:
        return (self.head or self.sequence is None) and self.due <= now and not self.has_expired(now)

    def has_expired(self, now: datetime) -> bool:
        return self.start_by is not None and self.start_by <= now


class Sequences(RuleBasedStateMachine):
    """All rules."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self.raw, self.clock = raw, mongoq.VirtualClock(START)
        raw.delete_many({})
        self.broker = mongoq.Broker(raw, clock=self.clock)
        for name in ("one", "two"):
            self.broker.queue(name, lease=LEASE, max_retries=100).resume()
        self.most = {"one": 1, "two": 1}
        self.on_dead = {"one": "continue", "two": "continue"}
        self.live: list[Entry] = []
        self.dead: list[Entry] = []
        self.lost: list[Entry] = []
        self.number = self.order = 0

    def teardown(self) -> None:
        """Settle everything: no sequence is stuck."""
        for name in ("one", "two"):
            self._queue(name).dead.purge()
            self._queue(name).repair_sequences()
            self.clock.advance(LEASE + 6)
            while items := self.broker.queue(name).reserve_many(100):
                self.broker.queue(name).commit_many(items)
        controls = {"_id": {"$regex": "^sequence:"}, "queue": {"$in": ["one", "two"]}}
        assert not list(self.raw.find({"$or": [{"q": {"$in": ["one", "two"]}}, controls]}))
        self.broker.close()

    # --- the model --------------------------------------------------------------------------------

    def _queue(self, name: str) -> mongoq.Queue[Any]:
        return self.broker.queue(name)

    def _line(self, queue: str, sequence: str | None) -> list[Entry]:
        line = [each for each in self.live if (each.queue, each.sequence) == (queue, sequence)]
        return sorted(line, key=lambda each: each.order)

    def _holding(self, queue: str, sequence: str | None) -> list[Entry]:
        """The letters that hold a sequence, those included that were deleted by hand since the last repair."""
        letters = [*self.dead, *self.lost]
        return [each for each in letters if each.holds and (each.queue, each.sequence) == (queue, sequence)]

    def _release(self, queue: str, sequence: str | None) -> None:
        """Let a sequence go on that no letter holds any more; letters that are lost hold none."""
        self.lost = [each for each in self.lost if (each.queue, each.sequence) != (queue, sequence)]
        self._promote(queue, sequence)

    def _enter(self, entries: list[Entry]) -> None:
        """Let new entries of one push take their places, and as many become heads as the limit allows."""
        for entry in entries:
            self.order += 1
            entry.order = self.order
        self.live += entries
        for queue, sequence in dict.fromkeys((each.queue, each.sequence) for each in entries):
            if sequence is not None:
                new = sum((each.queue, each.sequence) == (queue, sequence) for each in entries)
                self._promote(queue, sequence, most=new)

    def _leave(self, entries: list[Entry]) -> None:
        """Remove entries of one settlement, and let the next ones of their sequences follow."""
        for entry in entries:
            self.live.remove(entry)
        left = dict.fromkeys((each.queue, each.sequence) for each in entries if each.head)
        for queue, sequence in left:
            self._promote(queue, sequence)

    def _promote(self, queue: str, sequence: str | None, most: int | None = None) -> None:
        if sequence is None or self._holding(queue, sequence):
            return
        line = self._line(queue, sequence)
        room = max(self.most[queue] - sum(each.head for each in line), 0)
        for entry in [each for each in line if not each.head][: room if most is None else min(room, most)]:
            entry.head, entry.due = True, max(entry.due, self.clock.now())

    def _new(self, queue: str, sequence: str | None, delay: float | None = None, expires: float | None = None) -> Entry:
        self.number += 1
        now = self.clock.now()
        start_by = None if expires is None else now + timedelta(seconds=expires)
        return Entry(self.number, queue, sequence, now + timedelta(seconds=delay or 0), start_by=start_by)

    def _expire(self, queue: str) -> None:
        """Let entries that a claim has settled in place of handing them out leave, and the next ones follow."""
        stored = {document["payload"] for document in self.raw.find({"q": queue})}
        expired = [each for each in self.live if each.queue == queue and each.has_expired(self.clock.now())]
        self._leave([each for each in expired if each.number not in stored])

    def _eligible(self, queue: str) -> list[Entry]:
        return [each for each in self.live if each.queue == queue and each.is_eligible(self.clock.now())]

    def _held(self) -> list[Entry]:
        return [each for each in self.live if each.item is not None and each.due > self.clock.now()]

    def _claim(self, queue: str, item: Any) -> Entry:
        [entry] = [each for each in self._eligible(queue) if each.number == item.payload]
        assert item.sequence == entry.sequence
        entry.item, entry.due, entry.start_by = item, self.clock.now() + timedelta(seconds=LEASE), None
        return entry

    # --- rules ------------------------------------------------------------------------------------

    @rule(queue=QUEUES, sequence=SEQUENCES, delay=DELAYS, expires=TIMES)
    def push(self, queue: str, sequence: str | None, delay: float | None, expires: float | None) -> None:
        entry = self._new(queue, sequence, delay, expires)
        self._queue(queue).push(entry.number, sequence=sequence, delay=delay, expires=expires)
        self._enter([entry])

    @rule(queue=QUEUES, options=st.lists(st.tuples(SEQUENCES, TIMES), min_size=1, max_size=6))
    def push_many(self, queue: str, options: list[tuple[str | None, float | None]]) -> None:
        entries = [self._new(queue, sequence, None, expires) for sequence, expires in options]
        sequences, expires = [sequence for sequence, _ in options], [expires for _, expires in options]
        self._queue(queue).push_many([each.number for each in entries], sequences=sequences, expires=expires)
        self._enter(entries)

    @rule(queue=QUEUES)
    def reserve(self, queue: str) -> None:
        item = self._queue(queue).reserve()
        self._expire(queue)
        if item is None:
            assert not self._eligible(queue)
        else:
            self._claim(queue, item)

    @rule(queue=QUEUES, number=st.integers(1, 6))
    def reserve_many(self, queue: str, number: int) -> None:
        had_expired = any(each.has_expired(self.clock.now()) for each in self.live)
        items = self._queue(queue).reserve_many(number)
        self._expire(queue)
        most = min(number, len(self._eligible(queue)))
        # Of the items that a claim finds, some may have expired; it returns at least one.
        assert len(items) == most or (had_expired and 0 < len(items) < most)
        for item in items:
            self._claim(queue, item)

    @rule(queue=QUEUES)
    def pop(self, queue: str) -> None:
        item = self._queue(queue).pop()
        self._expire(queue)
        if item is None:
            assert not self._eligible(queue)
        else:
            self._leave([self._claim(queue, item)])

    @precondition(lambda self: self._held())
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self._held()))
        self._queue(entry.queue).commit(entry.item)
        self._leave([entry])

    @precondition(lambda self: self._held())
    @rule(data=st.data())
    def commit_many(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(self._held())).queue
        entries = [each for each in self._held() if each.queue == queue and data.draw(st.booleans())]
        self._queue(queue).commit_many([each.item for each in entries])
        self._leave(entries)

    @precondition(lambda self: self._held())
    @rule(data=st.data(), delay=DELAYS)
    def give_back(self, data: st.DataObject, delay: float | None) -> None:
        entry = data.draw(st.sampled_from(self._held()))
        if delay is None:
            self._queue(entry.queue).release(entry.item)
        else:
            self._queue(entry.queue).rollback(entry.item, delay=delay, error="x")
        entry.item, entry.due = None, self.clock.now() + timedelta(seconds=delay or 0)

    @precondition(lambda self: self._held())
    @rule(data=st.data(), queue=QUEUES, sequence=SEQUENCES)
    def move(self, data: st.DataObject, queue: str, sequence: str | None) -> None:
        entry = data.draw(st.sampled_from(self._held()))
        self._queue(entry.queue).move(entry.item, queue, sequence=sequence)
        there = Entry(entry.number, queue, sequence, self.clock.now())
        if (entry.queue, entry.sequence) == (queue, sequence) and sequence is not None:
            self.order += 1
            there.order = self.order
            self.live.append(there)  # it enters before it leaves: its own place counts as taken
            self._leave([entry])
        else:
            self._leave([entry])
            self._enter([there])

    @precondition(lambda self: self._held())
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self._held()))
        self._queue(entry.queue).bury(entry.item)
        holds = entry.sequence is not None and self.on_dead[entry.queue] == "hold"
        self.dead.append(Entry(entry.number, entry.queue, entry.sequence, self.clock.now(), entry.order, holds=holds))
        self._leave([entry])
        self.clock.advance(0.001)  # letters are handed back in the order of their burials

    @rule(queue=QUEUES)
    def replay(self, queue: str) -> None:
        letters = [each for each in self.dead if each.queue == queue]
        result = self._queue(queue).dead.replay()
        assert (result.pushed, result.refused) == (len(letters), 0)
        self.dead = [each for each in self.dead if each.queue != queue]
        now = self.clock.now()
        back = [each for each in letters if each.holds]
        self.live += [Entry(each.number, queue, each.sequence, now, each.order, head=True) for each in back]
        for sequence in dict.fromkeys(each.sequence for each in back):
            self._promote(queue, sequence)
        self._enter([Entry(each.number, queue, each.sequence, now) for each in letters if not each.holds])

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), way=st.sampled_from(["remove", "commit", "elsewhere", "replay"]))
    def take_letter(self, data: st.DataObject, way: str) -> None:
        letter = data.draw(st.sampled_from(self.dead))
        dead = self._queue(letter.queue).dead
        document = self.raw.find_one({"q": dead.name, "payload": letter.number})
        self.dead.remove(letter)
        if way == "remove":
            assert dead.remove(document["_id"])
        elif way == "commit":
            items = dead.reserve_many(100)
            dead.commit_many([item for item in items if item.payload == letter.number])
            dead.release_many([item for item in items if item.payload != letter.number])
        elif way == "elsewhere":
            assert dead.replay(ids=[document["_id"]], to="elsewhere").pushed == 1
        else:
            assert dead.replay(ids=[document["_id"]]).pushed == 1
            back = Entry(letter.number, letter.queue, letter.sequence, self.clock.now(), letter.order)
            if not letter.holds:
                self._enter([back])
                return
            back.head = True
            self.live.append(back)
            self._promote(letter.queue, letter.sequence)
            return
        if letter.holds:
            self._release(letter.queue, letter.sequence)

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def lose_letter(self, data: st.DataObject) -> None:
        """Delete a letter as another program does; its sequence waits for a repair."""
        letter = data.draw(st.sampled_from(self.dead))
        self.raw.delete_one({"q": f"{letter.queue}.dead", "payload": letter.number})
        self.dead.remove(letter)
        self.lost.append(letter)

    @rule(queue=QUEUES)
    def repair(self, queue: str) -> None:
        self._queue(queue).repair_sequences()
        for letter in [each for each in self.lost if each.queue == queue]:
            self._release(queue, letter.sequence)

    @rule(queue=QUEUES)
    def purge_letters(self, queue: str) -> None:
        letters = [each for each in self.dead if each.queue == queue]
        assert self._queue(queue).dead.purge() == len(letters)
        self.dead = [each for each in self.dead if each.queue != queue]
        if letters:
            for letter in [*letters, *(each for each in self.lost if each.queue == queue)]:
                self._release(queue, letter.sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.live))
        document = self.raw.find_one({"q": entry.queue, "payload": entry.number})
        is_held = entry in self._held()
        assert self._queue(entry.queue).remove(document["_id"]) is not is_held
        if not is_held:
            self._leave([entry])

    @rule(queue=QUEUES, state=st.sampled_from([None, "ready", "blocked"]))
    def purge(self, queue: str, state: Any) -> None:
        now = self.clock.now()
        own = [each for each in self.live if each.queue == queue]
        blocked = [each for each in own if each.sequence is not None and not each.head]
        free = [each for each in own if each not in blocked and each not in self._held()]
        ready = [each for each in free if each.item is None and each.due <= now]
        gone = {None: [*blocked, *free], "ready": ready, "blocked": blocked}[state]
        assert self._queue(queue).purge(state=state) == len(gone)
        self._leave(gone)

    @rule(queue=QUEUES, most=st.integers(1, 3), on_dead=st.sampled_from(["continue", "hold", "hold"]))
    def configure(self, queue: str, most: int, on_dead: Any) -> None:
        self._queue(queue).configure(max_in_sequence=most, on_dead=on_dead)
        self.most[queue], self.on_dead[queue] = most, on_dead

    @rule(seconds=st.sampled_from([5, LEASE + 1]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def stored_as_in_the_model(self) -> None:
        stored: dict[tuple[str, str], list[tuple[int, bool]]] = {}
        for document in self.raw.find({"q": {"$in": ["one", "two"]}, "place": {"$exists": True}}).sort("place", 1):
            assert ("when" in document) is not ("ready_from" in document)
            line = stored.setdefault((document["q"], document["sequence"]), [])
            line.append((document["payload"], "when" in document))
        assert stored == dict(self._lines())
        found = self.raw.find({"_id": {"$regex": "^sequence:"}, "queue": {"$in": ["one", "two"]}})
        counted = {(each["queue"], each["sequence"]): (each["open"], len(each.get("held", []))) for each in found}
        expected = {}
        for key in [(queue, sequence) for queue in ("one", "two") for sequence in NAMES]:
            heads, held = sum(head for _, head in stored.get(key, [])), len(self._holding(*key))
            if key in stored or held:
                expected[key] = heads + held, held
        assert counted == expected

    def _lines(self) -> Iterator[tuple[tuple[str, str], list[tuple[int, bool]]]]:
        for queue in ("one", "two"):
            for sequence in NAMES:
                if line := self._line(queue, sequence):
                    yield (queue, sequence), [(each.number, each.head) for each in line]


def _run(make_raw: Callable[[], Any], examples: int) -> None:
    run_histories(lambda: Sequences(make_raw()), examples, seed=SEED, steps=40)


@pytest.mark.timeout(300)
def test_sequences_behave_as_their_model_does(raw: Any) -> None:
    _run(lambda: raw, 12)


@pytest.mark.timeout(300)
def test_sequences_of_a_virtual_broker_behave_as_their_model_does() -> None:
    import mongomock

    _run(lambda: mongomock.MongoClient(tz_aware=True).db.mongoq, 8)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_sequences_behave_as_their_model_does_for_a_long_time(raw: Any) -> None:
    _run(lambda: raw, 300)
